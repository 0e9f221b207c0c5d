"""A loop that was blocked is noticed, and who blocked it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

from turnhold import Runtime
from turnhold.runtime.lag import LagWatch, threshold
from turnhold.runtime.runtime import node_of
from turnhold.runtime.world import World
from turnhold.testing import VirtualClock


def work_hard(lag: LagWatch) -> None:
    """Block the loop's thread until the watch must have seen it, twice."""
    began = time.monotonic()
    while lag._stack is None or time.monotonic() - began < 3 * lag._least:
        time.sleep(0.01)


async def warned(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """Return the warnings, once the loop had the time to answer."""
    ready = asyncio.Event()
    asyncio.get_running_loop().call_soon(ready.set)
    await ready.wait()
    return [record for record in caplog.records if record.message == "loop_blocked"]


@pytest.mark.blocking("it is what is looked for")
async def test_who_blocks_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """One warning tells for how long, and shows the function that did it; the longest stall is kept."""
    caplog.set_level(logging.WARNING, "turnhold")
    async with Runtime(lease=1) as runtime:
        lag = node_of(runtime).lag
        work_hard(lag)
        [record] = await warned(caplog)

        assert record.seconds >= 0.4
        assert record.node == runtime.node
        assert "work_hard" in record.stack
        assert runtime.statistics().longest_stall == pytest.approx(record.seconds, abs=0.001)


async def test_a_process_that_was_stopped() -> None:
    """Where the watching thread itself comes late the whole process stood still: that counts, and names nobody."""
    now, world = [0.0], World()
    world.monotonic = lambda: now[0]
    ticks = []
    world.ticking = lambda function, seconds, name: ticks.append(function) or (lambda: None)
    lag = LagWatch(world, "n", 1.0)
    lag.start()
    for passed, longest in ((0.5, 0.0), (0.5, 0.0), (0.9, 0.0), (0.5, 0.0), (60.5, 60.0), (0.5, 60.0)):
        now[0] += passed
        ticks[0]()
        await asyncio.get_running_loop().run_in_executor(None, int)
        assert lag.longest == pytest.approx(longest)


async def test_no_watch_on_virtual_time() -> None:
    """Time that does not pass by itself cannot be late: no thread is started; where one was, it ends with the node."""
    before = {thread.name for thread in threading.enumerate()}
    async with Runtime(clock=VirtualClock(), node="virtual"):
        assert not [thread for thread in threading.enumerate() if "virtual" in thread.name]
    async with Runtime(node="real", lease=1):
        [thread] = [thread for thread in threading.enumerate() if "real" in thread.name]
    await asyncio.get_running_loop().run_in_executor(None, thread.join, 10)
    assert not thread.is_alive()
    assert before


def test_the_threshold() -> None:
    """Half a renewal period, at most a second; a very short lease does not make the watch look all the time."""
    assert [threshold(renew) for renew in (10_000, 3_333, 1_000, 333)] == [1.0, 1.0, 0.5, 0.4]
