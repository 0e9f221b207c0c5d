"""Turns that can wait: an embeddable actor runtime for agent turns that stop, sleep and go on exactly once."""

__all__: list[str] = []
