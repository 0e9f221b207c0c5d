"""The synchronous core of the memory store: the reference for the others."""

from __future__ import annotations

from .base import Op, Reply
from .memory_reads import MemoryReads
from .rules import OPERATIONS


class MemoryCore(MemoryReads):
    """Applies every operation of `base` at once."""

    def __init__(self) -> None:
        super().__init__()
        self.latest = 0  # the greatest time seen so far

    def apply(self, op: Op, now: int) -> Reply:
        """Apply one operation at `now`, or at the greatest time seen so far."""
        if now > self.latest:
            self.latest = now
        else:
            now = self.latest
        if self.roused:
            self.roused.clear()
        reply: Reply = getattr(self, OPERATIONS[type(op)])(op, now)
        return reply
