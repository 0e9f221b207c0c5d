"""Notices that the event loop was blocked, and by what.

Everything here runs on one loop: code that blocks it holds up every turn of the process, and their leases run out. A thread asks
the loop now and then whether it is there. While it does not answer, the thread notes what the loop's thread is doing; when it
answers, the warning is written. What never lets another thread run (native code that keeps the interpreter's lock) leaves no
stack; nor does a process that was stopped or a machine that slept.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable

from .log import log
from .world import World

FRAMES = 24
LEAST_PERIOD = 0.2


def threshold(renew: int) -> float:
    """Return from how many seconds on a stall is reported: half a renewal period (given in ms), at most 1, at least 0.4."""
    return min(1.0, max(2 * LEAST_PERIOD, renew / 2000))


class LagWatch:
    """Watches the loop it is started on, from a thread.

    A stall is reported for certain from one and a half times `least` on, never below `least`; `longest` is the longest of them.

    :param node: the name of the node, for the log.
    :param least: seconds.
    """

    def __init__(self, world: World, node: str, least: float) -> None:
        self._world = world
        self._node = node
        self._least = least
        self._period = least / 2
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._asked: float | None = None
        self._expected = 0.0
        self._stack: str | None = None
        self._stop: Callable[[], None] | None = None
        self.longest = 0.0

    def start(self) -> None:
        """Begin; called on the loop. Under a virtual clock nothing begins: its time does not pass while code runs."""
        if self._world.clock.virtual or self._stop is not None:
            return
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._asked = None
        self._expected = self._world.monotonic() + self._period
        self._stop = self._world.ticking(self._look, self._period, f"lag of {self._node}")

    def stop(self) -> None:
        """End; the thread goes within its period, without being waited for."""
        stop, self._stop = self._stop, None
        if stop is not None:
            stop()

    # -------------------------------------------------------------------------------------------------- in the thread

    def _look(self) -> None:
        """Ask the loop; where it owes an answer, note what it does instead."""
        now = self._world.monotonic()
        late, self._expected = now - self._expected, now + self._period
        if self._asked is not None:
            frame = sys._current_frames().get(self._thread)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - it is documented
            if frame is not None:
                self._stack = "".join(traceback.format_stack(frame, limit=FRAMES))
            return
        # The whole process stood still where this thread is late itself.
        self._asked = now - late if late >= self._least else now
        loop = self._loop
        try:
            if loop is not None:
                loop.call_soon_threadsafe(self._answer, self._asked)
        except RuntimeError:  # the loop is closed: its node was left behind
            self.stop()

    # ---------------------------------------------------------------------------------------------------- on the loop

    def _answer(self, asked: float) -> None:
        """The loop is there. The thread touches the stack only while `_asked` is set, so it is taken first."""
        seconds = self._world.monotonic() - asked
        stack, self._stack = self._stack, None
        self._asked = None
        if seconds < self._least:
            return
        self.longest = max(self.longest, seconds)
        log.warning("loop_blocked", node=self._node, seconds=round(seconds, 3), stack=stack or "unknown")
