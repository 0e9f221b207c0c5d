"""Whole programs on virtual time."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta

import pytest

from turnhold import Agent, ResumeCommand, Runtime, Status, tool
from turnhold.testing import ScriptedModel, VirtualClock, call
from turnhold.testing.loop import Deadlock, TooLong, run


def test_a_day_takes_no_time() -> None:
    """The loop goes to the next timer where nothing is ready, be it the clock's or asyncio's own."""

    async def program(clock: VirtualClock) -> tuple[float, float]:
        await asyncio.sleep(3600)
        between = clock.monotonic()
        async with asyncio.timeout(10_000):
            await clock.advance(timedelta(hours=1))
        return between, clock.monotonic()

    started = time.monotonic()
    assert run(program) == (3600, 7200)
    assert time.monotonic() - started < 5


def test_time_stands_while_a_thread_runs() -> None:
    """A thread is waited for, and no timer fires meanwhile."""
    release = threading.Event()

    async def program(clock: VirtualClock) -> float:
        loop = asyncio.get_running_loop()
        loop.call_later(1, lambda: None)
        threading.Timer(0.02, release.set).start()
        await asyncio.to_thread(release.wait)
        return clock.monotonic()

    assert run(program) == 0


def test_a_deadlock_is_an_error() -> None:
    """Nothing ready, no timer, no thread: the error names who waits."""

    async def forever(clock: VirtualClock) -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match="forever"):
        run(forever)


def test_a_program_that_does_not_end_is_an_error() -> None:
    """A Runtime renews for ever, so time alone never ends; the limit does."""

    async def forever(clock: VirtualClock) -> None:
        async with Runtime(clock=clock):
            await asyncio.get_running_loop().create_future()

    with pytest.raises(TooLong, match="poller"):
        run(forever, limit=timedelta(minutes=5))


def test_a_turn_on_virtual_time() -> None:
    """An async tool's own sleep and a plain tool's thread both end, in virtual time."""

    @tool(approval=True)
    def refund(amount: int) -> str:
        return f"refunded {amount}"

    @tool
    async def look_up() -> str:
        await asyncio.sleep(30)
        return "fine"

    agent = Agent("a", model=ScriptedModel([call("refund", amount=1), call("look_up")], "done"), tools=[refund, look_up])

    async def program(clock: VirtualClock) -> tuple[Status, float]:
        async with Runtime(agents=[agent], clock=clock) as runtime:
            turn = await runtime.start("a", "go")
            await turn.settle()
            view = await turn.resume(ResumeCommand.approve_tool())
            return view.status, clock.monotonic()

    assert run(program) == (Status.COMPLETED, 30)
