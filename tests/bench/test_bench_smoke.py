"""The bench runs, and its checks of what was done hold; no time is judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = {
    "approve cycles",
    "resume to completed, one at a time",
    "one tool round",
    "stored per suspended turn",
    "mailbox, in process",
    "suspended turns in SQLite",
}


@pytest.mark.process
def test_the_quick_bench_runs_end_to_end() -> None:
    """`python -m bench --quick` measures every scenario, each with its checks, and says on what machine."""
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--json"], cwd=ROOT, capture_output=True, text=True, timeout=55
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["machine"]["cores"]
    assert {row["scenario"] for row in found["rows"]} == SCENARIOS
    floors = [row for row in found["rows"] if row["scenario"] == "approve cycles"]
    assert all(row["value"] > 0 for row in floors)
    assert {row["what"] for row in floors if row["floor"]} == {
        f"{store}, {width} at once" for store in ("memory", "sqlite full") for width in (1, 64)
    }


@pytest.mark.process
def test_the_bench_knows_its_scenarios() -> None:
    """An unknown scenario is refused before anything is measured."""
    done = subprocess.run([sys.executable, "-m", "bench", "approved"], cwd=ROOT, capture_output=True, text=True, timeout=55)

    assert done.returncode == 2
    assert "no scenario 'approved'" in done.stderr
