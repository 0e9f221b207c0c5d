"""The bench runs, and its checks of what was done hold; no time is judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
STORES = ("memory", "sqlite full", "sqlite normal", "redis")
PARTS = {
    "rates": (
        ["approve", "latency", "operations", "mailbox", "startup"],
        {
            "approve cycles",
            "resume to completed, one at a time",
            "store operations alone, 64 at once",
            "mailbox, in process",
            "start-up of a process, the interpreter's own included",
        },
    ),
    "what is stored": (
        ["rounds", "size", "waiting"],
        {
            "one tool round",
            "stored per suspended turn",
            "suspended turns that this process has started",
            "suspended turns in the store",
        },
    ),
    "several processes": (
        ["cluster"],
        {
            "turns of several processes, started and approved from all of them",
            "from an answer on an API-only node to the tool's start on another",
            "from kill -9 of the owner to the tool's next start elsewhere",
        },
    ),
    "what is stored and what lives on Redis": (
        ["growth", "upkeep"],
        {"beside many suspended turns on Redis", "live actors, each in a tool that runs", "a node with nothing to do, lease 30 s"},
    ),
}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=110)


def rows_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["machine"]["cores"]
    return found["rows"]


@pytest.mark.process
@pytest.mark.redis
@pytest.mark.timeout(120)
@pytest.mark.parametrize("part", PARTS)
def test_the_quick_bench_runs_end_to_end(part: str) -> None:
    """`python -m bench --quick` measures every scenario, each with its checks, and says on what machine."""
    scenarios, titles = PARTS[part]

    rows = rows_of(bench("--quick", "--json", *scenarios))

    assert {row["scenario"] for row in rows} == titles
    cycles = [row for row in rows if row["scenario"] == "approve cycles"]
    assert all(row["value"] > 0 for row in cycles)
    if cycles:
        expected = {f"{store}, {width} at once" for store in STORES for width in (1, 64)}
        assert {row["what"] for row in cycles if row["floor"]} == expected, "each figure stands beside its floor"


@pytest.mark.process
def test_without_a_server_the_rows_of_redis_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs no server is measured all the same, and what is missing is said."""
    monkeypatch.setenv("TURNHOLD_REDIS_SERVER", "/nowhere/redis-server")

    done = bench("--quick", "--json", "size", "cluster")

    assert {row["what"].split(",")[0] for row in rows_of(done)} == {"sqlite"}
    assert done.stderr.count("no rows of Redis") == 1


@pytest.mark.process
def test_the_bench_knows_its_scenarios() -> None:
    """An unknown scenario is refused before anything is measured."""
    done = bench("approved")

    assert done.returncode == 2
    assert "no scenario 'approved'" in done.stderr
