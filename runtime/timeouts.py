"""Limits that hardly ever come to pass: cheap to set, cheap to take back, and a little late.

Most limits of waiting are lifted long before they are over. A timer of the loop's own for each costs more than the waiting; here
those that end in the same sixteenth of a second share one, and a limit that is lifted leaves nothing behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
PER_SECOND = 16
EXACT_SECONDS = 1.0
"""Shorter limits get a timer of their own: a sixteenth of a second would matter there."""


class Timeout(msgspec.Struct, eq=False, gc=False):
    """One limit, in one of the `slots`; `cancel` lifts it."""

    callback: Callable[[Any], None]
    argument: object
    slot: int
    slots: dict[int, dict[Timeout, None]]

    def cancel(self) -> None:
        """Lift the limit. A second time, or after it has come to pass, does nothing."""
        found = self.slots.get(self.slot)
        if found is not None:
            found.pop(self, None)
            if not found:
                del self.slots[self.slot]


class Timeouts:
    """The limits of one loop."""

    __slots__ = ("_next", "_slots", "_timer", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._slots: dict[int, dict[Timeout, None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    def set(self, seconds: float, callback: Callable[[T], None], argument: T) -> Timeout:
        """Call back with an argument after so many seconds, and at most a sixteenth of one later."""
        slot = int((self.loop.time() + seconds) * PER_SECOND) + 1
        timeout = Timeout(callback, argument, slot, self._slots)
        found = self._slots.get(slot)
        if found is None:
            self._slots[slot] = {timeout: None}
            if self._timer is None or slot < self._next:
                self._arm(slot)
        else:
            found[timeout] = None
        return timeout

    def _arm(self, slot: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = slot
        self._timer = self.loop.call_at(slot / PER_SECOND, self._due)

    def _due(self) -> None:
        self._timer = None
        now = int(self.loop.time() * PER_SECOND)
        for slot in sorted(slot for slot in self._slots if slot <= max(now, self._next)):
            for timeout in self._slots.pop(slot, {}):
                self.loop.call_soon(timeout.callback, timeout.argument)
        if self._slots:
            self._arm(min(self._slots))
