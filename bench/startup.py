"""What it costs to start: importing the face, and the command line's help, each in a process of its own."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from .harness import Bar, Options, Row, folder

TITLE = "start-up of a process, the interpreter's own included"
PROGRAMS = {
    "python, nothing imported": "pass",
    "floor: asyncio and msgspec": "import asyncio, msgspec",
    "import turnhold": "import turnhold",
    "turnhold --help": "from turnhold.console.cli import main; raise SystemExit(main(['--help']))",
}
BARS = {"import turnhold": Bar(most=150), "turnhold --help": Bar(most=400)}


def measure(options: Options) -> list[Row]:
    """Measure in turn, many times; the first round writes the bytecode, as an installation does, and does not count."""
    found: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    used: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    with folder() as path:
        for number in range(options.pick(21, 2) + 1):
            for name, program in PROGRAMS.items():
                took, cpu = started(program, path)
                if number:
                    found[name].append(took)
                    used[name].append(cpu)
    below = statistics.median(found["floor: asyncio and msgspec"])
    return [
        Row(
            TITLE,
            name,
            statistics.median(times),
            "ms",
            min(times),
            max(times),
            floor=below if name in BARS else None,
            bar=BARS.get(name),
            note=f"{statistics.median(used[name]):.0f} ms of CPU",
        )
        for name, times in found.items()
    ]


def started(program: str, path: Path) -> tuple[float, float]:
    """Run a program in a folder with nothing in it; return the milliseconds that takes, by the clock and of CPU."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(path)
    begin, before = time.perf_counter(), children()
    done = subprocess.run([sys.executable, "-c", program], cwd=path, env=environment, stdout=subprocess.PIPE)
    took, cpu = (time.perf_counter() - begin) * 1000, (children() - before) * 1000
    assert done.returncode == 0
    assert b"usage: turnhold" in done.stdout or "help" not in program, "it has told how it is used"
    return took, cpu


def children() -> float:
    """CPU seconds of the processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system
