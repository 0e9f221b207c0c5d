"""Virtual time: it stands still, it fires in order, it waits for what it has set off."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

from turnhold import Agent, Runtime, tool
from turnhold.testing import ScriptedModel, VirtualClock, call


async def test_time_stands_still() -> None:
    """Nothing is due until somebody advances the clock."""
    clock, fired = VirtualClock(), []
    clock.call_later(1, lambda: fired.append(clock.now()))

    await clock.idle()
    before = list(fired)
    await clock.advance(timedelta(seconds=1))

    assert before == []
    assert fired == [datetime(2030, 1, 1, 0, 0, 1, tzinfo=UTC)]


async def test_timers_fire_in_order_each_behind_the_end_of_the_one_before() -> None:
    """What a timer sets off is over before the next timer fires, also timers that it sets."""
    clock, trace = VirtualClock(), []

    async def work(name: str) -> None:
        for _ in range(30):
            await asyncio.sleep(0)
        trace.append(name)

    tasks = []
    clock.call_later(2, lambda: trace.append("two"))
    clock.call_later(1, lambda: tasks.append(asyncio.ensure_future(work("one"))))
    clock.call_later(1, lambda: clock.call_later(0.5, lambda: trace.append("one and a half")))
    await clock.advance(2)

    assert trace == ["one", "one and a half", "two"]
    assert clock.monotonic() == 2.0


async def test_a_cancelled_timer_does_not_fire() -> None:
    """Cancelling is final."""
    clock, fired = VirtualClock(), []
    clock.call_later(1, lambda: fired.append(1)).cancel()

    await clock.advance(5)

    assert fired == []


async def test_whole_milliseconds_stay_whole() -> None:
    """A deadline in whole milliseconds is due at its time, not one behind it."""
    clock = VirtualClock()

    for step in (0.001, 0.123, 10, 86_399.999):
        await clock.advance(step)
        assert int(clock.wall() * 1000) == round(clock.now().timestamp() * 1000)


async def test_a_rest_of_time_that_floats_leave_does_not_turn_for_ever() -> None:
    """A timer set for a hair of a second moves the time."""
    clock, rests = VirtualClock(), []

    def again() -> None:
        left = 0.7 - clock.monotonic()
        rests.append(left)
        if left > 0:
            clock.call_later(left, again)

    clock.call_later(0.1 + 0.2, again)
    await clock.advance(1)

    assert rests[-1] <= 0
    assert len(rests) < 5


async def test_a_timer_that_sets_itself_for_now_is_found() -> None:
    """A livelock is an error, not a hang."""
    clock = VirtualClock()

    def again() -> None:
        clock.call_later(0, again)

    again()
    with pytest.raises(RuntimeError, match="again and again"):
        await clock.advance(1)


async def test_advance_waits_for_threads_unless_told_not_to() -> None:
    """Time passes behind the end of a thread; with `threads=False` it passes while it runs."""
    clock, release = VirtualClock(), threading.Event()

    async def tool() -> float:
        clock.busy(1)
        try:
            await asyncio.to_thread(release.wait)
            return clock.monotonic()
        finally:
            clock.busy(-1)

    task = asyncio.ensure_future(tool())
    await clock.advance(3, threads=False)
    passing = asyncio.ensure_future(clock.advance(4))
    await clock.idle(threads=False)
    stood = clock.monotonic()
    release.set()
    await passing

    assert stood == 3
    assert await task == 3
    assert clock.monotonic() == 7


async def test_a_skewed_clock_shares_the_time() -> None:
    """A clock may be wrong; it goes on as the others do."""
    clock = VirtualClock()
    fast = clock.skewed(hours=1)

    await clock.advance(10)

    assert fast.now() - clock.now() == timedelta(hours=1)
    assert fast.monotonic() == clock.monotonic() == 10


async def test_time_does_not_go_back() -> None:
    """A negative step is refused."""
    with pytest.raises(ValueError, match="back"):
        await VirtualClock().advance(-1)


async def test_a_seed_repeats_the_ids() -> None:
    """Two runs of one seed name their nodes alike; without a seed ids are random."""

    async def name(seed: int | None) -> str:
        async with Runtime(clock=VirtualClock(seed=seed)) as runtime:
            return runtime.node

    assert await name(7) == await name(7)
    assert await name(None) != await name(None)


async def test_waiting_while_time_passes() -> None:
    """`during` moves the time as far as what is awaited needs it, and no further; what it raises is raised."""
    clock = VirtualClock()

    async def work() -> str:
        for _ in range(3):
            over = asyncio.get_running_loop().create_future()
            clock.call_later(2, lambda over=over: over.set_result(None))
            await over
        return "done"

    async def wrong() -> None:
        raise LookupError

    clock.call_later(200_000, lambda: None)
    assert (await clock.during(work()), clock.monotonic()) == ("done", 6)
    with pytest.raises(LookupError):
        await clock.during(wrong())
    with pytest.raises(TimeoutError):
        await clock.during(asyncio.get_running_loop().create_future())


@pytest.mark.parametrize("error", [AssertionError, asyncio.CancelledError])
async def test_a_test_that_fails_while_a_call_runs_ends(error: type[BaseException]) -> None:
    """Nobody moves the clock any more when an exception leaves a Runtime: its drain takes place all the same."""
    clock, ended = VirtualClock(), asyncio.Event()

    @tool
    async def endless() -> None:
        """Never end by itself."""
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    agent = Agent("a", model=ScriptedModel(call("endless"), "done"), tools=[endless])
    turns: list[str] = []

    async def failing() -> None:
        async with Runtime("memory://left", agents=[agent], clock=clock, drain=20) as runtime:
            turns.append((await runtime.start(agent, "hi")).id)
            await clock.advance(1)
            raise error

    with pytest.raises(error):
        await failing()
    assert ended.is_set()
    assert clock.monotonic() == 21
    async with Runtime("memory://left", execute=False, clock=clock) as runtime:
        assert (await runtime.turn(turns[0]).view()).owner is None  # it was handed off, not lost
