"""Many suspended turns: what a process keeps of those it has started, and what 100,000 in the store cost it."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path

from turnhold import Runtime

from . import servers
from .copies import Copies
from .harness import Bar, Options, Row, folder, quantile, resident, run
from .nodes import Node, crew
from .servers import Server
from .size import size
from .work import ANSWER, Work, answered, suspended

HERE = "suspended turns that this process has started"
STORED = "suspended turns in the store"
LAST = 20
NO_WORK = Bar(most=0.5)  # percent of a core: two measurements of the same differ by as much
NO_GROWTH = Bar(most=25)  # bytes a turn; a page of a cache more or less


def measure(options: Options) -> list[Row]:
    """Measure both on SQLite and on Redis."""
    rows: list[Row] = []
    here = options.pick(20_000, 200)  # SQLite's page cache has its size before the half of them
    seconds = options.pick(10, 1)
    low, high = options.pick(1000, 40), options.pick(100_000, 240)
    with folder() as path:
        rows += run(lambda: grown("sqlite", f"sqlite:///{path}/here.db?synchronous=normal", here))
        rows += stored("sqlite", f"sqlite:///{path}/turns.db?synchronous=normal", path / "turns.db", low, high, seconds)
    if not servers.absent():
        with servers.served() as server:
            rows += run(lambda: grown("redis", server.fresh(), here))
            rows += stored("redis", server.fresh(), server, low, high, seconds)
    return sorted(rows, key=lambda row: row.scenario, reverse=True)


async def grown(store: str, url: str, count: int) -> list[Row]:
    """Start turns in this process; the second half must not make it larger."""
    work = Work()
    async with Runtime(url, agents=[work.agent]) as runtime:
        first = await suspended(runtime)
        await fill(runtime, count // 2)
        before = await memory()
        await fill(runtime, count // 2)
        after = await memory()
        assert runtime.statistics().live_turns == 0, "nothing of a suspended turn lives here"
        for turn, view in (first, await suspended(runtime)):
            assert (await answered(turn, view)).final_output == ANSWER
    assert work.runs == 2
    what = f"{store}, growth of memory, {count // 2:,} to {count:,}"
    return [Row(HERE, what, (after - before) / (count // 2), "bytes/turn", bar=NO_GROWTH, note=f"{after >> 20} MiB")]


async def fill(runtime: Runtime, count: int) -> None:
    async def worker(share: int) -> None:
        for _ in range(share):
            await suspended(runtime)

    await asyncio.gather(*[worker(count // 50) for _ in range(50)])


async def memory() -> int:
    await asyncio.sleep(0.5)
    gc.collect()
    return resident()


# -------------------------------------------------------------------------------------------------------------- stored


def stored(store: str, url: str, place: Path | Server, low: int, high: int, seconds: int) -> list[Row]:
    """A node beside few and beside many suspended turns: its memory, what it does, how fast it answers; and one that starts."""
    copies = Copies()
    empty = taken(place)
    with crew(3) as (node, early, late):
        first = run(lambda: copies.fill(url, low))
        start = early("open", url=url)
        early("close")
        node("open", url=url)
        delay = quantile(node("delays", turns=first[-LAST:]), 0.5)
        before, idle = resting(node, seconds)
        turns = run(lambda: copies.fill(url, high - low))
        each = (taken(place) - empty) / high
        after, busy = resting(node, seconds)
        last = quantile(node("delays", turns=turns[-LAST:]), 0.5)
        again = late("open", url=url)
        late("close")
        starts = node("starts")
        node("close")
    answers = [turn for turn, _ in (*first[-LAST:], *turns[-LAST:])]
    assert sorted(turn for turn, _, _ in starts) == sorted(answers), "every tool ran once"
    name, few = f"{store}, {high:,}", f"beside {low:,}"
    growth = (after - before) / (high - low)
    return [
        Row(STORED, f"{name}: memory of a process", growth, "bytes/turn", bar=NO_GROWTH, note=f"{int(after) >> 20} MiB in all"),
        Row(STORED, f"{name}: its idle CPU", busy, "% of a core", floor=idle, note=few),
        Row(STORED, f"{name}: idle CPU more than {few}", max(0.0, busy - idle), "% of a core", bar=NO_WORK),
        Row(STORED, f"{name}: answer to completed, the last ones", last, "ms", floor=delay, note=few),
        Row(STORED, f"{name}: start-up of a Runtime", again, "ms", floor=start, note=few),
        Row(STORED, f"{name}: stored for each", each, "bytes", bar=Bar(most=2500 if store == "sqlite" else 3000)),
    ]


def taken(place: Path | Server) -> int:
    """Bytes of a file, or of a server's memory."""
    if isinstance(place, Server):
        return place.memory()
    return size(place) if place.exists() else 0


def resting(node: Node, seconds: int) -> tuple[float, float]:
    """Return the memory of a node that has nothing to do, and its CPU in percent of a core."""
    time.sleep(2 if seconds > 1 else 0.2)
    first, begin = node("used"), time.perf_counter()
    time.sleep(seconds)
    last = node("used")
    return last["memory"], 100 * (last["cpu"] - first["cpu"]) / (time.perf_counter() - begin)
