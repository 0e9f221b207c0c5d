"""Many suspended turns in the store: what the process keeps of them, and what it does while they wait."""

from __future__ import annotations

import asyncio
import gc

from turnhold import Runtime

from . import servers
from .harness import Clock, Options, Row, folder, resident, run
from .work import ANSWER, Work, answered, suspended

TITLE = "suspended turns in the store"


def measure(options: Options) -> list[Row]:
    """Measure memory and idle CPU, and answer the first and the last turn at the end."""
    count, seconds = options.pick(20_000, 200), options.pick(5, 1)
    with folder() as path:
        rows = run(lambda: grown("sqlite", f"sqlite:///{path}/turns.db?synchronous=normal", count, seconds))
    if not servers.absent():
        with servers.served() as server:
            rows += run(lambda: grown("redis", server.url, count, seconds))
    return rows


async def grown(store: str, url: str, count: int, seconds: int) -> list[Row]:
    work = Work()
    async with Runtime(url, agents=[work.agent]) as runtime:
        first = await suspended(runtime)
        await fill(runtime, count // 2)
        before = await idle(seconds)
        await fill(runtime, count // 2)
        after = await idle(seconds)
        assert runtime.statistics().live_turns == 0, "nothing of a suspended turn lives here"
        for turn, view in (first, await suspended(runtime)):
            assert (await answered(turn, view)).final_output == ANSWER
    assert work.runs == 2
    growth = (after[0] - before[0]) / (count // 2)
    return [
        Row(
            TITLE,
            f"{store}, growth of memory, {count // 2:,} to {count:,}",
            growth,
            "bytes/turn",
            bar="0",
            note=f"{after[0] >> 20} MiB",
        ),
        Row(TITLE, f"{store}, idle CPU with {count // 2:,}", before[1] * 100, "% of a core"),
        Row(TITLE, f"{store}, idle CPU with {count:,}", after[1] * 100, "% of a core", floor=before[1] * 100, bar="1 x"),
    ]


async def fill(runtime: Runtime, count: int) -> None:
    async def worker(share: int) -> None:
        for _ in range(share):
            await suspended(runtime)

    await asyncio.gather(*[worker(count // 50) for _ in range(50)])


async def idle(seconds: int) -> tuple[int, float]:
    """Memory now, and the share of a core that is used while nothing happens."""
    await asyncio.sleep(0.5)
    gc.collect()
    memory, clock = resident(), Clock()
    await asyncio.sleep(seconds)
    sample = clock.sample(1)
    return memory, sample.cpu / sample.wall
