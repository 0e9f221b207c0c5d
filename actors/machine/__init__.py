"""The state machine of a Turn: one file each for a kind of message, one function in, effects out."""
