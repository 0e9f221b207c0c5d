"""What all scenarios share: interleaved repeats, medians with their spread, the table, and the words about the machine."""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from .servers import described


@dataclass(frozen=True)
class Options:
    """How thorough a run is."""

    quick: bool = False

    def pick(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @property
    def repeats(self) -> int:
        return self.pick(5, 1)


@dataclass(frozen=True)
class Sample:
    """One measurement: what was counted, wall seconds, CPU seconds of the whole process."""

    count: int
    wall: float
    cpu: float

    @property
    def rate(self) -> float:
        return self.count / self.wall

    @property
    def cpu_rate(self) -> float:
        return self.count / max(self.cpu, 1e-9)


@dataclass
class Row:
    """One line of the table: a median with its spread, beside the floor of the same run."""

    scenario: str
    what: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    cpu: float | None = None
    floor: float | None = None
    bar: str = ""
    note: str = ""
    ratio: float | None = field(init=False)

    def __post_init__(self) -> None:
        self.ratio = None if not self.floor else self.value / self.floor

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Clock:
    """Wall and CPU time of a block."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def sample(self, count: int) -> Sample:
        return Sample(count, time.perf_counter() - self._wall, time.process_time() - self._cpu)


Variant = Callable[[], Sample]


def interleave(variants: dict[str, Variant], repeats: int) -> dict[str, list[Sample]]:
    """Run every variant once a round, so that whatever slows the machine slows them all."""
    samples: dict[str, list[Sample]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, variant in variants.items():
            gc.collect()
            samples[name].append(variant())
    return samples


def rate_row(scenario: str, what: str, samples: Sequence[Sample], unit: str, **more: Any) -> Row:
    """Make a line of rates."""
    rates = [sample.rate for sample in samples]
    cpu = statistics.median(sample.cpu_rate for sample in samples)
    return Row(scenario, what, statistics.median(rates), unit, min(rates), max(rates), cpu=cpu, **more)


def median_rate(samples: Iterable[Sample]) -> float:
    return statistics.median(sample.rate for sample in samples)


def quantile(values: Iterable[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


@contextmanager
def folder() -> Iterator[Path]:
    """A folder on the disk of the working directory's temporary files, gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="turnhold-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await work()

    return asyncio.run(main())


def resident() -> int:
    """Bytes of memory that this process has now."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def machine() -> dict[str, str]:
    """Say on what this runs, and how busy that was."""
    load = "unknown"
    if hasattr(os, "getloadavg"):
        load = f"{os.getloadavg()[0]:.1f}"
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "turnhold": metadata.version("turnhold"),
        "msgspec": metadata.version("msgspec"),
        "sqlite": sqlite3.sqlite_version,
        "server": described(),
        "redis-py": metadata.version("redis"),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "load": load,
    }


def number(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 10_000:
        return f"{value / 1000:,.0f}k" if value < 1e6 else f"{value / 1e6:,.2f}M"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


HEAD = ("", "median", "unit", "spread", "per CPU s", "floor", "of floor", "goal", "")


def table(rows: Sequence[Row]) -> str:
    """Lay the lines out under one head, a title a scenario."""
    cells: list[tuple[str, ...]] = [HEAD]
    for row in rows:
        spread = "" if row.low is None else f"{number(row.low)} .. {number(row.high)}"
        ratio = "" if row.ratio is None else f"{row.ratio:.1%}" if row.ratio < 1 else f"{row.ratio:.1f} x"
        cells.append((row.what, number(row.value), row.unit, spread, number(row.cpu), number(row.floor), ratio, row.bar, row.note))
    widths = [max(len(line[at]) for line in cells) for at in range(len(HEAD))]
    right = {1, 3, 4, 5, 6}

    def line(words: tuple[str, ...]) -> str:
        return "  ".join(
            word.rjust(width) if at in right else word.ljust(width)
            for at, (word, width) in enumerate(zip(words, widths, strict=True))
        ).rstrip()

    lines = [line(HEAD)]
    scenario = ""
    for row, words in zip(rows, cells[1:], strict=True):
        if row.scenario != scenario:
            scenario = row.scenario
            lines += ["", scenario]
        lines.append(line(words))
    return "\n".join(lines)
