"""Approve cycles: start, suspend, durable, approve, run a no-op tool, final answer, durable."""

from __future__ import annotations

import contextlib

from . import servers
from .floors import committed, replayed, stored
from .harness import Bar, Options, Row, Sample, Variant, apart, folder, interleave, median_rate, rate_row, run
from .plain_redis import packed, parts_of, piped, pooled
from .servers import Server
from .work import Ops, cycles, late, payloads, recorded

TITLE = "approve cycles"
WIDTHS = (1, 64, 512, 4096)
SQLITE = {"sqlite full": "full", "sqlite normal": "normal"}
BARS = {
    ("memory", 64): Bar(least=3000),
    ("sqlite full", 64): Bar(least=2000, least_of_floor=0.25),
    ("redis", 64): Bar(least=2000, least_of_floor=0.25),
}
LIBRARY = "beside: the same commands by redis-py and its pool, 64 at once"
FLOORS = {name: f"plain SQLite writer, {level}" for name, level in SQLITE.items()} | {"redis": "plain Redis script, same commands"}


def measure(options: Options) -> list[Row]:
    """Measure the stores at every width, beside their floors."""
    widths = WIDTHS[:2] if options.quick else WIDTHS
    counts = {width: options.pick({1: 768, 64: 2048}.get(width, 4096), 16 if width == 1 else 64) for width in widths}
    many = max(counts.values())
    ops = recorded(many)
    bodies = payloads(ops)
    trips = len(ops) / many
    with contextlib.ExitStack() as stack:
        server = None if servers.absent() else stack.enter_context(servers.served())
        variants: dict[str, Variant] = {
            "memory floor": lambda: replayed(ops, many),
            "memory bare": lambda: stored(bodies, many),
        }
        for width, count in counts.items():
            part = bodies[: round(count * trips)]
            variants[f"memory {width}"] = lambda count=count, width=width: apart(measured, "memory://", count, width)
            for name, level in SQLITE.items():
                variants |= on_disk(name, level, part, late(ops[: round(trips)]), count, width)
            if server is not None:
                variants |= on_redis(server, ops[: len(part)], count, width)
                if width == 64:
                    variants |= by_library(server, ops[: len(part)], count, width)
        wide = {name: 3 for name in variants if name.endswith((" 512", " 4096"))}
        samples = interleave(variants, options.repeats, wide)
    note = f"{trips:g} round trips, {sum(map(len, bodies)) / many / 1024:.1f} KiB a cycle"
    wire = f"{sum(len(packed(op)) for op, _ in ops) / many / 1024:.1f} KiB a cycle on the wire"
    return rows_of(samples, note, wire)


def rows_of(samples: dict[str, list[Sample]], note: str, wire: str) -> list[Row]:
    rows: list[Row] = []
    for store in ("memory", *SQLITE, "redis"):
        for width in WIDTHS:
            found = samples.get(f"{store} {width}")
            if found is None:
                continue
            floor = samples["memory floor" if store == "memory" else f"{store} floor {width}"]
            bar = BARS.get((store, width))
            rows.append(rate_row(TITLE, f"{store}, {width:,} at once", found, "cycles/s", floor=median_rate(floor), bar=bar))
    rows.append(rate_row(TITLE, "floor: these operations on a memory core", samples["memory floor"], "cycles/s", note=note))
    rows.append(rate_row(TITLE, "floor: these bytes into a dict", samples["memory bare"], "cycles/s"))
    for store, name in FLOORS.items():
        for width in WIDTHS:
            if found := samples.get(f"{store} floor {width}"):
                about = wire if store == "redis" else ""
                rows.append(rate_row(TITLE, f"floor: {name}, {width:,} at once", found, "cycles/s", note=about))
    if found := samples.get(LIBRARY):
        rows.append(rate_row(TITLE, LIBRARY, found, "cycles/s"))
    return rows


def on_disk(name: str, level: str, bodies: list[bytes], unflushed: list[bool], count: int, width: int) -> dict[str, Variant]:
    def real() -> Sample:
        with folder() as path:
            return apart(measured, f"sqlite:///{path}/turns.db?synchronous={level}", count, width)

    def floor() -> Sample:
        with folder() as path:
            return run(lambda: committed(path / "plain.db", bodies, count, width, level, unflushed))

    return {f"{name} {width}": real, f"{name} floor {width}": floor}


def on_redis(server: Server, ops: Ops, count: int, width: int) -> dict[str, Variant]:
    commands = [packed(op) for op, _ in ops]

    def floor() -> Sample:
        server.fresh()
        return run(lambda: piped(server, commands, count, width))

    return {f"redis {width}": lambda: apart(measured, server.fresh(), count, width), f"redis floor {width}": floor}


def measured(url: str, count: int, width: int) -> Sample:
    return run(lambda: cycles(url, count, width))


def by_library(server: Server, ops: Ops, count: int, width: int) -> dict[str, Variant]:
    commands = [parts_of(op) for op, _ in ops]

    def floor() -> Sample:
        server.fresh()
        return run(lambda: pooled(server, commands, count, width))

    return {LIBRARY: floor}
