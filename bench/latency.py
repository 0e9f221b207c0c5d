"""From an answer to the end of the turn, one at a time: receipt, tool, model, final answer, four round trips."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from turnhold import Runtime

from .floors import PlainWriter
from .harness import Options, Row, folder, quantile, run
from .work import Work, answered, payloads, recorded, suspended

TITLE = "resume to completed, one at a time"
GOALS = {"memory": "0.5", "sqlite full": "1.5"}


def measure(options: Options) -> list[Row]:
    """Measure both stores; the floor is the same bytes in as many commits."""
    count, repeats = options.pick(500, 50), options.repeats
    bodies = payloads(recorded(1))[2:]  # behind the start: the delivery and three saves
    with folder() as path:
        found: dict[str, list[float]] = {"memory": [], "sqlite full": [], "floor": []}
        for repeat in range(repeats):
            found["memory"] += run(lambda: latencies("memory://", count))
            found["sqlite full"] += run(lambda at=repeat: latencies(f"sqlite:///{path}/{at}.db", count))
            found["floor"] += run(lambda at=repeat: floor(path / f"plain{at}.db", bodies, count))
    rows: list[Row] = []
    middle = quantile(found["floor"], 0.5)
    for store in ("memory", "sqlite full"):
        below = None if store == "memory" else middle
        rows.append(Row(TITLE, f"{store}, p50", quantile(found[store], 0.5), "ms", floor=below, bar=GOALS[store]))
        rows.append(Row(TITLE, f"{store}, p99", quantile(found[store], 0.99), "ms"))
    rows.append(Row(TITLE, "floor: plain SQLite writer, p50", middle, "ms"))
    return rows


async def latencies(url: str, count: int) -> list[float]:
    work = Work()
    found: list[float] = []
    async with Runtime(url, agents=[work.agent]) as runtime:
        for _ in range(count):
            turn, view = await suspended(runtime)
            begin = time.perf_counter()
            await answered(turn, view)
            found.append((time.perf_counter() - begin) * 1000)
    assert work.runs == count, "every tool ran once"
    return found[count // 10 :]


async def floor(path: Path, bodies: Sequence[bytes], count: int) -> list[float]:
    writer = PlainWriter(path)
    found: list[float] = []
    try:
        for number in range(count):
            begin = time.perf_counter()
            for at, body in enumerate(bodies):
                await writer.put(number * len(bodies) + at, body)
            found.append((time.perf_counter() - begin) * 1000)
    finally:
        writer.close()
    return found[count // 10 :]
