"""Limits that hardly ever come to pass."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from turnhold.runtime.timeouts import PER_SECOND, Timeouts
from turnhold.runtime.world import World
from turnhold.testing.loop import run

if TYPE_CHECKING:
    from turnhold.testing import VirtualClock


@pytest.mark.parametrize("seconds", [1.0, 1.01, 2.5, 60.0, 86_399.0])
def test_it_comes_never_early_and_at_most_a_sixteenth_late(seconds: float) -> None:
    """Whenever it is set, the callback runs behind its time, by a sixteenth of a second at most."""

    async def program(clock: VirtualClock) -> None:
        loop = asyncio.get_running_loop()
        timeouts, late = Timeouts(loop), list[float]()
        for offset in (0.0, 0.03, 0.01):
            await asyncio.sleep(offset)
            due, fired = loop.time() + seconds, loop.create_future()
            timeouts.set(seconds, lambda fired: fired.set_result(loop.time()), fired)
            late.append(await fired - due)
        assert all(0 <= each <= 1 / PER_SECOND + 1e-6 for each in late), late
        assert len(timeouts) == 0

    run(program, limit=400_000)


def test_they_come_in_the_order_of_their_times_however_they_were_set() -> None:
    """A shorter one set later comes first, and one that is set by a callback comes in its turn."""

    async def program(clock: VirtualClock) -> None:
        timeouts, seen, over = Timeouts(asyncio.get_running_loop()), list[str](), asyncio.Event()

        def again(name: str) -> None:
            seen.append(name)
            timeouts.set(1.5, seen.append, "two and a half")

        timeouts.set(5, asyncio.Event.set, over)
        timeouts.set(2, seen.append, "two")
        timeouts.set(1, again, "one")
        timeouts.set(3, seen.append, "three")
        await over.wait()
        assert seen == ["one", "two", "two and a half", "three"]

    run(program)


def test_a_lifted_one_leaves_nothing_behind() -> None:
    """It never comes, others of its time do, lifting twice or too late does nothing, and the loop has no timer left in the end."""

    async def program(clock: VirtualClock) -> None:
        timeouts, seen, over = Timeouts(asyncio.get_running_loop()), list[int](), asyncio.Event()
        limits = [timeouts.set(2, seen.append, number) for number in range(3)]
        last = timeouts.set(4, asyncio.Event.set, over)
        limits[1].cancel()
        limits[1].cancel()
        assert len(timeouts) == 3
        await over.wait()
        assert seen == [0, 2]
        for limit in (*limits, last):
            limit.cancel()
        assert len(timeouts) == 0

    run(program)


def test_a_world_outlives_its_loop() -> None:
    """A Runtime may be opened again in another loop: a limit is set on the loop that runs."""
    world = World()

    async def once() -> float:
        loop = asyncio.get_running_loop()
        fired = loop.create_future()
        world.limit(1, lambda fired: fired.set_result(loop.time()), fired).cancel()
        timer = world.limit(1, lambda fired: fired.set_result(loop.time()), fired)
        await asyncio.wait_for(fired, 30)
        timer.cancel()
        return fired.result()

    for _ in range(2):
        run(lambda _: once())
