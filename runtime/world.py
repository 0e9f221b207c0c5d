"""The one seam: all time, ids, sleeps, task starts and threads of the runtime go through a World."""

from __future__ import annotations

import asyncio
import math
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from .timeouts import EXACT_SECONDS, Timeouts

T = TypeVar("T")
_BOOT = getattr(time, "CLOCK_BOOTTIME", None)


class Timer(Protocol):
    """Something that fires once unless it is cancelled."""

    def cancel(self) -> None:
        """Do not fire."""
        ...


class Clock(Protocol):
    """Where a World gets its time from; `turnhold.testing.VirtualClock` is one."""

    def wall(self) -> float:
        """Return the wall clock in seconds since 1970."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back and go on while the machine sleeps."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back after some seconds."""
        ...

    @property
    def random(self) -> random.Random | None:
        """Return where ids and jitter come from, if they are to repeat from run to run."""
        ...

    @property
    def virtual(self) -> bool:
        """Tell whether time stands still unless somebody advances it."""
        ...

    def busy(self, change: int) -> None:
        """Count work outside of the loop (threads), so that a virtual clock knows when all is idle."""
        ...

    async def during(self, work: Awaitable[T]) -> T:
        """Await something; time that stands still passes meanwhile, as far as that needs it."""
        ...


class SystemClock:
    """The clocks of this machine."""

    virtual = False
    random: random.Random | None = None

    wall = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic if _BOOT is None else partial(time.clock_gettime, _BOOT))
    """Seconds since some start; counts the time in which the machine sleeps, where the system can tell."""

    async def during(self, work: Awaitable[T]) -> T:
        """Await something."""
        return await work

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back after some seconds."""
        return asyncio.get_running_loop().call_later(seconds, callback)

    def busy(self, change: int) -> None:
        """Nobody asks."""


class World:
    """What the runtime knows of the outside."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = SystemClock() if clock is None else clock
        seeded = self.clock.random
        seed = 0 if self.clock.virtual else int.from_bytes(os.urandom(8))
        self.token: Callable[[int], bytes] = os.urandom if seeded is None else seeded.randbytes
        """Return so many random bytes for an id."""
        self.spread = (seeded or random.Random(seed)).random  # noqa: S311 - spreads load, keeps no secret
        """Return a number from 0 to 1, to spread what would come at once."""
        self.monotonic = self.clock.monotonic
        self._wall = self.clock.wall
        self._timeouts: Timeouts | None = None
        self._exact = math.inf if self.clock.virtual else EXACT_SECONDS

    def now(self) -> int:
        """Return the wall clock in milliseconds since 1970."""
        return int(self._wall() * 1000)

    def timer(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back after some seconds, at once where that time is over."""
        return self.clock.call_later(max(0.0, seconds), callback)

    def limit(self, seconds: float, callback: Callable[[T], None], argument: T) -> Timer:
        """Call back with an argument after some seconds, or a little later: for what is nearly always over before."""
        if seconds < self._exact:
            return self.timer(seconds, partial(callback, argument))
        loop, timeouts = asyncio.get_running_loop(), self._timeouts
        if timeouts is None or timeouts.loop is not loop:
            timeouts = self._timeouts = Timeouts(loop)
        return timeouts.set(seconds, callback, argument)

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        await self.rest(asyncio.get_running_loop().create_future(), seconds)

    def rest(self, waiter: asyncio.Future[None], seconds: float | None, *, exact: bool = True) -> Awaitable[None]:
        """Wait for a future that is the caller's own, at most some seconds: it is done then in any case.

        :param exact: False for a `limit`.
        """
        return waiter if seconds is None else self._rest(waiter, seconds, exact=exact)

    async def _rest(self, waiter: asyncio.Future[None], seconds: float, *, exact: bool) -> None:
        timer = self.timer(seconds, partial(_over, waiter)) if exact else self.limit(seconds, _over, waiter)
        try:
            await waiter
        finally:
            timer.cancel()

    async def answer(self, waiter: asyncio.Future[T], seconds: float) -> T:
        """Return what a future brings that is the caller's own. :raises TimeoutError: if that takes longer than some seconds."""
        timer = self.limit(seconds, _unanswered, waiter)
        try:
            return await waiter
        finally:
            timer.cancel()
            del timer, waiter  # else an exception, this frame and the waiter stay: the garbage collector looks at no timer

    async def wait(self, waiter: asyncio.Future[T], seconds: float | None) -> bool:
        """Wait for a future, at most some seconds; tell whether it is done. The future is never cancelled."""
        if waiter.done():
            return True
        loop = asyncio.get_running_loop()
        ring: asyncio.Future[None] = loop.create_future()

        def wake(*_: object) -> None:
            if not ring.done():
                ring.set_result(None)

        waiter.add_done_callback(wake)
        timer = None if seconds is None else self.timer(seconds, wake)
        try:
            await ring
        finally:
            waiter.remove_done_callback(wake)
            if timer is not None:
                timer.cancel()
        return waiter.done()

    def spawn(self, work: Coroutine[object, object, T], name: str) -> asyncio.Task[T]:
        """Start a task; whoever calls this owns it and awaits its end."""
        return asyncio.get_running_loop().create_task(work, name=name)

    async def thread(self, function: Callable[[], T]) -> T:
        """Run a function in a worker thread and wait for its end, also over a cancellation of the waiter."""
        import anyio.to_thread

        self.clock.busy(1)
        try:
            return await anyio.to_thread.run_sync(function, abandon_on_cancel=False)
        finally:
            self.clock.busy(-1)

    def ticking(self, function: Callable[[], None], seconds: float, name: str) -> Callable[[], None]:
        """Call a function every so many seconds in a thread of its own, until what this returns is called.

        The function may be running then, and is not waited for. The thread does not keep the process alive.
        """
        stop = threading.Event()

        def run() -> None:
            while not stop.wait(seconds):
                function()

        threading.Thread(target=run, name=name, daemon=True).start()
        return stop.set


def _over(waiter: asyncio.Future[None]) -> None:
    """The time of a wait is over."""
    if not waiter.done():
        waiter.set_result(None)


def _unanswered(waiter: asyncio.Future[Any]) -> None:
    """The time in which an answer was to come is over."""
    if not waiter.done():
        waiter.set_exception(TimeoutError("no answer in time"))


async def gather(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Wait for the end of tasks, however they end, also over a cancellation of the waiter (which is raised at the end)."""
    cancelled: asyncio.CancelledError | None = None
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
