"""Approve cycles: start, suspend, durable, approve, run a no-op tool, final answer, durable."""

from __future__ import annotations

from .floors import committed, replayed, stored
from .harness import Options, Row, Sample, Variant, folder, interleave, median_rate, rate_row, run
from .work import cycles, payloads, recorded

TITLE = "approve cycles"
WIDTHS = (1, 64)
GOALS = {("memory", 64): "3,000", ("sqlite full", 64): "2,000"}


def measure(options: Options) -> list[Row]:
    """Measure both stores at every width, beside their floors."""
    few, many = options.pick(1024, 32), options.pick(2048, 256)
    ops = recorded(many)
    bodies = payloads(ops)
    trips = len(ops) / many
    variants: dict[str, Variant] = {
        "memory floor": lambda: replayed(ops, many),
        "memory bare": lambda: stored(bodies, many),
    }
    for width in WIDTHS:
        count = few if width == 1 else many
        part = bodies[: round(count * trips)]
        variants[f"memory {width}"] = lambda count=count, width=width: run(lambda: cycles("memory://", count, width))
        variants[f"sqlite full {width}"] = lambda count=count, width=width: on_disk(count, width)
        variants[f"sqlite floor {width}"] = lambda part=part, count=count, width=width: floor_on_disk(part, count, width)
    samples = interleave(variants, options.repeats)
    rows: list[Row] = []
    for store in ("memory", "sqlite full"):
        for width in WIDTHS:
            floor = samples["memory floor" if store == "memory" else f"sqlite floor {width}"]
            found = samples[f"{store} {width}"]
            goal = GOALS.get((store, width), "")
            rows.append(rate_row(TITLE, f"{store}, {width} at once", found, "cycles/s", floor=median_rate(floor), bar=goal))
    note = f"{trips:g} round trips, {sum(map(len, bodies)) / many / 1024:.1f} KiB a cycle"
    rows.append(rate_row(TITLE, "floor: these operations on a memory core", samples["memory floor"], "cycles/s", note=note))
    rows.append(rate_row(TITLE, "floor: these bytes into a dict", samples["memory bare"], "cycles/s"))
    rows += [
        rate_row(TITLE, f"floor: plain SQLite writer, full, {width} at once", samples[f"sqlite floor {width}"], "cycles/s")
        for width in WIDTHS
    ]
    return rows


def on_disk(count: int, width: int) -> Sample:
    with folder() as path:
        return run(lambda: cycles(f"sqlite:///{path}/turns.db?synchronous=full", count, width))


def floor_on_disk(bodies: list[bytes], count: int, width: int) -> Sample:
    with folder() as path:
        return run(lambda: committed(path / "plain.db", bodies, count, width))
