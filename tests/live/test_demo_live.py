"""The demo on a real model: `pytest -m live` with TURNHOLD_LIVE_BASE_URL (and _MODEL, _API_KEY) set."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.live,
    pytest.mark.process,
    pytest.mark.timeout(900),
    pytest.mark.skipif("TURNHOLD_LIVE_BASE_URL" not in os.environ, reason="TURNHOLD_LIVE_BASE_URL is not set"),
]


def test_a_real_model_fills_the_call_and_it_runs_once_in_another_process(tmp_path: Path) -> None:
    """The model's own arguments, approved in a second process; one line in the ledger; deltas were seen in both processes."""
    variables = {"OPENAI_API_KEY": os.environ.get("TURNHOLD_LIVE_API_KEY", "none")}
    words = [
        "--yes",
        "--base-url",
        os.environ["TURNHOLD_LIVE_BASE_URL"],
        "--model",
        os.environ.get("TURNHOLD_LIVE_MODEL", "smollm2"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "turnhold.console.cli", "demo", "--store", str(tmp_path / "turns.db"), *words],
        cwd=tmp_path,
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )
    print(done.stdout, done.stderr)
    (refund,) = [json.loads(line) for line in (tmp_path / "turns.db.ledger").read_text().splitlines()]
    first, second = (int(pid) for pid in re.findall(r"Process (\d+) is gone", done.stdout))
    deltas = [int(count) for count in re.findall(r"\((\d+) deltas?\)", done.stdout)]

    assert done.returncode == 0
    assert refund["pid"] == second != first
    assert refund["order_id"]
    assert 1 <= refund["amount"] <= 10_000
    assert len(deltas) == 2
    assert min(deltas) > 1
    assert len((tmp_path / "turns.db.races").read_text().splitlines()) == 50
