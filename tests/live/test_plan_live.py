"""A plan on a real model: `pytest -m live` with TURNHOLD_LIVE_BASE_URL (and _MODEL, _API_KEY) set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.live,
    pytest.mark.process,
    pytest.mark.timeout(1800),
    pytest.mark.skipif("TURNHOLD_LIVE_BASE_URL" not in os.environ, reason="TURNHOLD_LIVE_BASE_URL is not set"),
]
SHOP = Path(__file__).with_name("plan_shop.py")


def run(*words: str) -> Any:
    done = subprocess.run([sys.executable, str(SHOP), *words], capture_output=True, text=True)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_real_models_plan_is_carried_out_over_two_processes(tmp_path: Path) -> None:
    """Its own two tasks run on two agents; an approval inside one is given at the root from a second process; one refund."""
    db = str(tmp_path / "turns.db")
    first = run("start", db)
    assert first["view"]["status"] == "WAITING_FOR_CHILD"
    assert [task["status"] for task in first["view"]["plan"]["tasks"] if task["agent_id"] == "clerk"] == ["WAITING"]
    assert not Path(db + ".ledger").exists()

    second = run("answer", db, first["turn"])
    plan = second["view"]["plan"]
    (refund,) = [json.loads(line) for line in Path(db + ".ledger").read_text().splitlines()]
    assert refund["pid"] == second["pid"] != first["pid"]
    assert (second["view"]["status"], plan["status"], plan["completed"], plan["total"]) == ("COMPLETED", "COMPLETED", 2, 2)
    assert second["view"]["final_output"]
    (told,) = [json.loads(each["content"]) for each in second["results"] if "call_id" in each]
    assert [task["result"] for task in told["tasks"]] == [task["result"] for task in plan["tasks"]]
