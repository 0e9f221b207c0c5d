"""Guards of effects: how long they may take, whose cancellation it was, and how an exception is stored."""

from __future__ import annotations

import asyncio

from ..actors.turn import Failure
from .world import World

MAX_ERROR = 4000


def failure_of(error: BaseException) -> Failure:
    """Return an exception as it is stored: its class and its (bounded) text."""
    try:
        text = str(error) or type(error).__name__
    except Exception:
        text = f"{type(error).__name__}, which has no text"
    return Failure(type(error).__name__, text.encode(errors="replace")[:MAX_ERROR].decode(errors="replace"))


class TimeLimit:
    """Cancels the current task after some seconds; `hit` tells whether it was this that cancelled."""

    __slots__ = ("_task", "_timer", "hit")

    def __init__(self, world: World, seconds: float | None) -> None:
        self.hit = False
        self._task = asyncio.current_task()
        self._timer = None if seconds is None else world.limit(seconds, TimeLimit._fire, self)

    def _fire(self) -> None:
        if self._task is not None:
            self.hit = True
            self._task.cancel()

    def stop(self) -> None:
        """Do not fire any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None  # it knows this limit, too: neither is to wait for the garbage collector

    def caught(self) -> bool:
        """Tell whether a CancelledError just caught is ours alone; if so, the task counts as not cancelled."""
        return self.hit and self._task is not None and self._task.uncancel() == 0


def stray() -> bool:
    """Tell whether a CancelledError just caught cancels nobody here: user code let it out, so it is an error like others."""
    task = asyncio.current_task()
    return task is not None and not task.cancelling()
