"""From an answer to the end of the turn, one at a time: receipt, tool, model, final answer, four round trips."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from turnhold import Runtime

from . import servers
from .floors import PlainWriter
from .harness import Bar, Options, Row, folder, quantile, run
from .plain_redis import loaded, packed
from .servers import Server
from .work import Ops, Work, answered, late, payloads, recorded, suspended

TITLE = "resume to completed, one at a time"
BARS = {"memory": Bar(most=0.5), "sqlite full": Bar(most=1.5), "redis": Bar(most=1.5)}
FLOORS = {"sqlite full": "plain SQLite writer", "redis": "plain Redis script, same commands"}


def measure(options: Options) -> list[Row]:
    """Measure the stores; the floors are the same bytes in as many commits, the same commands in as many round trips."""
    count = options.pick(500, 20)
    ops = recorded(1)[2:]  # behind the start: the delivery and three saves
    bodies = list(zip(payloads(ops), late(ops), strict=True))
    found: dict[str, list[float]] = {name: [] for store in BARS for name in (store, f"{store} floor")}
    with folder() as path, contextlib.ExitStack() as stack:
        server = None if servers.absent() else stack.enter_context(servers.served())
        for repeat in range(options.repeats):
            found["memory"] += run(lambda: latencies("memory://", count))
            found["sqlite full"] += run(lambda at=repeat: latencies(f"sqlite:///{path}/{at}.db", count))
            found["sqlite full floor"] += run(lambda at=repeat: floor(path / f"plain{at}.db", bodies, count))
            if server is not None:
                found["redis"] += run(lambda: latencies(server.fresh(), count))
                found["redis floor"] += run(lambda: floor_on_redis(server, ops, count))
    rows: list[Row] = []
    for store in filter(found.get, BARS):
        below = quantile(found[f"{store} floor"], 0.5) if store in FLOORS else None
        rows.append(Row(TITLE, f"{store}, p50", quantile(found[store], 0.5), "ms", floor=below, bar=BARS[store]))
        rows.append(Row(TITLE, f"{store}, p99", quantile(found[store], 0.99), "ms"))
    for store, name in FLOORS.items():
        if found[store]:
            rows.append(Row(TITLE, f"floor: {name}, p50", quantile(found[f"{store} floor"], 0.5), "ms"))
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


async def floor(path: Path, bodies: Sequence[tuple[bytes, bool]], count: int) -> list[float]:
    writer = PlainWriter(path)
    found: list[float] = []
    try:
        for number in range(count):
            begin = time.perf_counter()
            for at, (body, unflushed) in enumerate(bodies):
                await writer.put(number * len(bodies) + at, body, late=unflushed)
            found.append((time.perf_counter() - begin) * 1000)
    finally:
        writer.close()
    return found[count // 10 :]


async def floor_on_redis(server: Server, ops: Ops, count: int) -> list[float]:
    commands = [packed(op) for op, _ in ops]
    found: list[float] = []
    pipe = await loaded(server)
    for _ in range(count):
        begin = time.perf_counter()
        for each in commands:
            assert await pipe.put(each) == b"OK"
        found.append((time.perf_counter() - begin) * 1000)
    pipe.close()
    return found[count // 10 :]
