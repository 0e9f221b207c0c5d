"""Time that stands still unless a test moves it."""

from __future__ import annotations

import asyncio
import heapq
import math
import random
import types
from collections.abc import Awaitable, Callable, Generator
from datetime import UTC, datetime, timedelta
from typing import TypeVar, final

from ..actors.record import Seconds, duration
from ..runtime.world import World

T = TypeVar("T")
START = datetime(2030, 1, 1, tzinfo=UTC)
_QUIET = 5  # spins of the loop with nothing ready that count as idle
_BLIND = 200  # the same on a loop that does not tell what is ready
_SLACK = 2  # microseconds: sums of floats miss their mark by a hair
_DAY = 86_400_000_000  # microseconds
_STUCK = 10_000  # timers at one instant that count as a livelock


async def _awaited(work: Awaitable[T]) -> T:
    return await work


@types.coroutine
def _spin() -> Generator[None]:
    """Let the loop go round once."""
    yield


def _microseconds(seconds: float) -> int:
    """Return whole microseconds; a positive time is never none, or a timer that is set again for its rest would never end."""
    return max(1, math.ceil(seconds * 1e6 - 1e-3)) if seconds > 0 else 0


@final
class _Timer:
    """One call that is due at a time."""

    __slots__ = ("callback", "due", "number")

    def __init__(self, due: int, number: int, callback: Callable[[], object]) -> None:
        self.due = due
        self.number = number
        self.callback: Callable[[], object] | None = callback

    def __lt__(self, other: _Timer) -> bool:
        return (self.due, self.number) < (other.due, other.number)

    def cancel(self) -> None:
        """Do not fire."""
        self.callback = None


@final
class Time:
    """What all clocks of a test share: the instant, the timers, the threads under way."""

    def __init__(self) -> None:
        self.now = 0
        self.busy = 0
        self.spinning = 0
        self.patient = 0  # how many wait without regard to threads
        self.random: random.Random | None = None
        self.driven = False  # a loop of virtual time moves the instant
        self._timers: list[_Timer] = []
        self._number = 0
        self._freed: set[asyncio.Future[None]] = set()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> _Timer:
        """Call back after some seconds."""
        self._number += 1
        timer = _Timer(self.now + _microseconds(seconds), self._number, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def next(self) -> int | None:
        """Return when the next timer is due."""
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        return self._timers[0].due if self._timers else None

    def pop(self) -> Callable[[], object]:
        """Move on to the next timer and take it out; there must be one."""
        timer = heapq.heappop(self._timers)
        self.now = max(self.now, timer.due)
        callback, timer.callback = timer.callback, None
        assert callback is not None
        return callback

    def count(self, change: int) -> None:
        """Count threads; wake who waits for their end."""
        self.busy += change
        if self.busy <= 0:
            for waiter in self._freed:
                if not waiter.done():
                    waiter.set_result(None)
            self._freed.clear()

    async def idle(self, *, threads: bool) -> None:
        """Return when nothing on the loop is ready, and (if asked for) no thread is under way."""
        loop = asyncio.get_running_loop()
        ready: object = getattr(loop, "_ready", None)
        needed = _BLIND if ready is None else _QUIET
        quiet = 0
        self.spinning += 1
        try:
            while quiet < needed:
                await _spin()
                if threads and self.busy:
                    await self._thread_ended(loop)
                    quiet = 0
                elif ready is not None and _length(ready) >= self.spinning:
                    quiet = 0
                else:
                    quiet += 1
        finally:
            self.spinning -= 1

    async def _thread_ended(self, loop: asyncio.AbstractEventLoop) -> None:
        waiter: asyncio.Future[None] = loop.create_future()
        self._freed.add(waiter)
        self.spinning -= 1
        try:
            await waiter
        finally:
            self.spinning += 1
            self._freed.discard(waiter)


def _length(ready: object) -> int:
    return len(ready) if hasattr(ready, "__len__") else 0  # pyright: ignore[reportArgumentType]


@final
class VirtualClock:
    """A clock for ``Runtime(…, clock=…)`` on which time passes only in `advance`.

    Several runtimes may share one. What does not ask the Runtime for the time (a tool's own ``asyncio.sleep``) does not know this
    clock, except on the loop of `turnhold.testing.loop`.

    :param start: the instant it starts at, aware.
    :param seed: makes ids and jitter repeat from run to run; two clocks with one seed must not meet in a store.
    """

    virtual = True

    def __init__(self, start: datetime = START, *, seed: int | None = None) -> None:
        if start.tzinfo is None:
            raise ValueError("start must be an aware datetime")
        self._start = start
        self.time = Time()
        if seed is not None:
            self.time.random = random.Random(seed)

    @property
    def random(self) -> random.Random | None:
        """Where ids and jitter come from, if there is a seed."""
        return self.time.random

    def now(self) -> datetime:
        """Return the instant this clock shows."""
        return self._start + timedelta(microseconds=self.time.now)

    def skewed(self, **delta: float) -> VirtualClock:
        """Return a clock over the same time that is off by a `timedelta` (``hours=1``: an hour fast, ``hours=-1``: slow)."""
        other = VirtualClock(self._start + timedelta(**delta))
        other.time = self.time
        return other

    async def advance(self, delta: Seconds, *, threads: bool = True) -> None:
        """Let time pass: fire what falls due in its order, each behind the end of what the one before has set off.

        :param delta: a timedelta, or seconds.
        :param threads: wait for tools in worker threads, too; False lets time pass while they run.
        """
        time = self.time
        time.patient += not threads
        try:
            await time.idle(threads=threads)
            step = round(duration(delta) / timedelta(microseconds=1))
            if step < 0:
                raise ValueError("time does not go back")
            if time.driven:
                await self._pass(step / 1e6)
            else:
                await self._walk(time.now + step, threads=threads)
            await time.idle(threads=threads)
        finally:
            time.patient -= not threads

    async def _pass(self, seconds: float) -> None:
        """Wait for the loop to get there."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.time.call_later(seconds, lambda: None if waiter.done() else waiter.set_result(None))
        try:
            await waiter
        finally:
            timer.cancel()

    async def _walk(self, end: int, *, threads: bool) -> None:
        """Go there, from timer to timer."""
        time = self.time
        before, count = time.now, 0
        while (due := time.next()) is not None and due <= end + _SLACK:
            callback = time.pop()
            count = count + 1 if time.now == before else 0
            before = time.now
            if count > _STUCK:
                raise RuntimeError(f"{count} timers at one instant ({self.now()}): something sets them again and again")
            callback()
            await time.idle(threads=threads)
        time.now = max(time.now, end)

    async def during(self, work: Awaitable[T]) -> T:
        """Await something while time passes, from timer to timer, as far as that needs it; threads are not waited for.

        :raises TimeoutError: if a day of virtual time is not enough.
        """
        task, time = World(self).spawn(_awaited(work), "during"), self.time
        end = time.now + _DAY
        try:
            await self.idle(threads=False)
            while not task.done() and not time.driven and (due := time.next()) is not None:
                if due > end:
                    raise TimeoutError(f"not over at {self.now()}, a day later")
                await self.advance(max(0, due - time.now) / 1e6, threads=False)
            return await task
        finally:
            task.cancel()

    async def idle(self, *, threads: bool = True) -> None:
        """Let everything run that can run without time passing."""
        time = self.time
        time.patient += not threads
        try:
            await time.idle(threads=threads)
        finally:
            time.patient -= not threads

    # ------------------------------------------------------------------------------------ what the runtime asks a clock

    def wall(self) -> float:
        """Return the instant in seconds since 1970; half a microsecond more, so that whole milliseconds stay whole."""
        return self.now().timestamp() + 5e-7

    def monotonic(self) -> float:
        """Return the seconds that have passed."""
        return self.time.now / 1e6

    def call_later(self, seconds: float, callback: Callable[[], object]) -> _Timer:
        """Call back when that much time has passed."""
        return self.time.call_later(seconds, callback)

    def busy(self, change: int) -> None:
        """Count threads under way."""
        self.time.count(change)
