"""What all scenarios share: interleaved repeats, medians with their spread, the event loop, and the words about the machine."""

from __future__ import annotations

import asyncio
import gc
import importlib
import multiprocessing
import os
import platform
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from .rows import Bar, Row, table
from .servers import described

__all__ = [
    "Bar",
    "Clock",
    "Options",
    "Row",
    "Sample",
    "Variant",
    "apart",
    "folder",
    "interleave",
    "machine",
    "median_rate",
    "quantile",
    "rate_row",
    "resident",
    "run",
    "table",
]
LOOP = "TURNHOLD_BENCH_LOOP"  # in the environment, so that the processes of the bench have the same loop


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


class Clock:
    """Wall and CPU time of a block."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def sample(self, count: int) -> Sample:
        return Sample(count, time.perf_counter() - self._wall, time.process_time() - self._cpu)


Variant = Callable[[], Sample]


def interleave(variants: dict[str, Variant], repeats: int, fewer: Mapping[str, int] | None = None) -> dict[str, list[Sample]]:
    """Run every variant once a round, so that whatever slows the machine slows them all; those in `fewer` in its first rounds."""
    samples: dict[str, list[Sample]] = {name: [] for name in variants}
    most = fewer or {}
    for number in range(repeats):
        for name, variant in variants.items():
            if number >= most.get(name, repeats):
                continue
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


def apart(work: Callable[..., Sample], *arguments: object) -> Sample:
    """Measure in a new process: as in an application, the code knows one store there, and nothing of the bench lies about."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    """Run a coroutine function on a new event loop of the kind that was asked for."""

    async def main() -> Any:
        return await work()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main())


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if os.environ.get(LOOP) != "uvloop":
        return None
    return importlib.import_module("uvloop").new_event_loop


def resident() -> int:
    """Bytes of memory that this process has now."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def commit() -> str:
    """Return the commit that is measured; a star behind it says that the tree has changed since."""
    try:
        asked = ["git", "describe", "--always", "--dirty=*", "--exclude=*"]
        done = subprocess.run(asked, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def loop_named() -> str:
    return f"uvloop {metadata.version('uvloop')}" if loop_factory() else "asyncio"


def machine() -> dict[str, str]:
    """Say on what this runs, and how busy that was."""
    load = "unknown"
    if hasattr(os, "getloadavg"):
        load = f"{os.getloadavg()[0]:.1f}"
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "python": platform.python_version(),
        "turnhold": metadata.version("turnhold"),
        "msgspec": metadata.version("msgspec"),
        "sqlite": sqlite3.sqlite_version,
        "server": described(),
        "redis-py": metadata.version("redis"),
        "system": f"{platform.system()} {platform.machine()}",
        "loop": loop_named(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "load": load,
    }
