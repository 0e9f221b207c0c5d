"""Runs actors on asyncio: mailbox, placement, effects, deadlines, events, and the public Runtime."""
