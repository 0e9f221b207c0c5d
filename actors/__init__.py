"""Ground floor: what a Turn is and what a message does to it. Pure: no I/O, no clock, no randomness, no asyncio."""
