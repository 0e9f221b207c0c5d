"""A loop on virtual time: whole programs run at once, one seed one run.

When nothing is ready, the loop does not wait for the next timer but moves the clock there. Only a thread under way is waited for.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar, final

from ..actors.record import Seconds, duration
from .clock import VirtualClock

T = TypeVar("T")
DAY = timedelta(days=1)


class Deadlock(RuntimeError):
    """The program can never go on: nothing is ready, no timer is set, no thread is under way."""


class TooLong(RuntimeError):
    """The program has not ended within its limit of virtual time."""


@final
class _Selector(selectors.DefaultSelector):
    """Where the loop would wait, it moves the time."""

    clock: VirtualClock
    loop: VirtualLoop
    limit: int | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready, after moving the time where nothing is."""
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        time = self.clock.time
        if time.busy and not time.patient:
            return super().select(None)
        due = time.next()
        own = None if timeout is None else time.now + max(1, round(timeout * 1e6))
        if due is None and own is None:
            if time.busy:
                return super().select(None)
            raise Deadlock(_stuck(self.loop))
        if due is not None and (own is None or due <= own):
            self.check(due)
            self.loop.call_soon(time.pop())
        elif own is not None:
            self.check(own)
            time.now = own
        return []

    def check(self, due: int) -> None:
        """Refuse to pass the limit."""
        if self.limit is not None and due > self.limit:
            raise TooLong(f"the program runs on at {self.clock.now()}; {_stuck(self.loop)}")


def _stuck(loop: asyncio.AbstractEventLoop) -> str:
    names = sorted(f"{task.get_name()} ({getattr(task.get_coro(), '__qualname__', '?')})" for task in asyncio.all_tasks(loop))
    return f"waiting: {', '.join(names) or 'nobody'}"


@final
class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time` is that of a `VirtualClock`.

    :param clock: the clock it drives; give it (or a `skewed` one of it) to each Runtime.
    :param limit: how far the time may go; what runs for ever would else never end.
    """

    def __init__(self, clock: VirtualClock | None = None, *, limit: Seconds | None = DAY) -> None:
        self.clock = VirtualClock() if clock is None else clock
        selector = _Selector()
        selector.clock, selector.loop = self.clock, self
        if limit is not None:
            selector.limit = self.clock.time.now + round(duration(limit) / timedelta(microseconds=1))
        super().__init__(selector)
        self.clock.time.driven = True

    def time(self) -> float:
        """Return the seconds that have passed."""
        return self.clock.monotonic()

    def close(self) -> None:
        """Close the loop; the clock is free again."""
        self.clock.time.driven = False
        super().close()

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override] - asyncio leaves its callable untyped
        """Run a function in a thread, during which time stands still."""
        self.clock.busy(1)
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(lambda _: self.clock.busy(-1))
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the end of the executor's threads."""
        self.clock.busy(1)
        try:
            await super().shutdown_default_executor()
        finally:
            self.clock.busy(-1)


def run(
    program: Callable[[VirtualClock], Coroutine[object, object, T]],
    *,
    clock: VirtualClock | None = None,
    limit: Seconds | None = DAY,
) -> T:
    """Run a program to its end on a loop of virtual time.

    :param program: an async function of the clock, which it gives to its Runtimes.
    :param limit: how much virtual time it may take.
    :raises Deadlock: if it can never go on.
    :raises TooLong: if the limit is over.
    """
    own = VirtualClock() if clock is None else clock
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(own, limit=limit)) as runner:
        return runner.run(program(own))
