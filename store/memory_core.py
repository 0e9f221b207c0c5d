"""The synchronous core of the memory store: the reference for the others."""

from __future__ import annotations

from .base import Op, Reply
from .memory_reads import MemoryReads
from .rules import OPERATIONS


class MemoryCore(MemoryReads):
    """Applies every operation of `base` at once."""

    @property
    def latest(self) -> int:
        """The greatest time seen so far."""
        return self._now

    def apply(self, op: Op, now: int) -> Reply:
        """Apply one operation at `now`, or at the greatest time seen so far."""
        self._now = max(self._now, now)
        self.roused.clear()
        reply: Reply = getattr(self, OPERATIONS[type(op)])(op, self._now)
        return reply
