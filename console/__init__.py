"""For people: the command line."""
