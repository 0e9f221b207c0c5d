"""What compares turnhold with its peers fits together, and runs turnhold itself for real; the peers are installed by hand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "bench" / "peers"
PINNED = re.compile(r"[a-z0-9-]+(\[[a-z,]+\])?==[0-9][0-9a-z.]*")
SHARED = {"__main__", "catalog", "environments", "places", "postgres", "processes", "restate_server", "shelf", "worker"}


def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=110)


def test_each_peer_has_a_script_and_pinned_requirements() -> None:
    """A peer is a script that serves the protocol, and exact versions; turnhold's are those that are checked out."""
    scripts = {path.stem for path in PEERS.glob("*.py")} - SHARED
    listed = {path.stem: path.read_text().split() for path in (PEERS / "requirements").glob("*.txt")}

    assert scripts == {"turnhold", *listed}
    assert all(lines and all(map(PINNED.fullmatch, lines)) for lines in listed.values())
    for script in scripts:
        text = (PEERS / f"{script}.py").read_text()
        assert f"`python -m bench.peers.{script}`" in text
        (served,) = re.findall(r'^if __name__ == "__main__":\n    main\((\w+)\)$', text, re.MULTILINE)
        assert f"class {served}:" in text


def test_what_is_said_of_a_peer_is_complete() -> None:
    """Settings, guarantees and what is not guaranteed, beside the versions that its requirements pin."""
    done = ran("bench.peers", "--list", "--json")

    for peer in json.loads(done.stdout):
        pinned = PEERS / "requirements" / f"{peer['peer']}.txt"
        assert peer["pinned"] == (pinned.read_text().split() if pinned.exists() else [])
        assert all(peer[name] for name in ("title", "stores", "settings", "guarantees", "but"))


@pytest.mark.process
@pytest.mark.redis
@pytest.mark.timeout(120)
def test_who_cannot_be_installed_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turnhold is measured all the same, by the protocol of all; here there is no npm for the other one's server."""
    monkeypatch.setenv("TURNHOLD_BENCH_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))

    done = ran("bench.peers", "--quick", "--json", "restate")

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["absent"] == {"Restate, restate server": "npm is not on PATH"}
    titles = ["approve cycles, 64 at once", "approve cycles, 1 at once", "resume to completed, one at a time, p50"]
    stores = [f"turnhold {metadata.version('turnhold')}, {store}" for store in ("memory", "sqlite", "redis")]
    assert [(row["scenario"], row["what"]) for row in found["rows"]] == [(title, what) for title in titles for what in stores]
    assert all(row["value"] > 0 for row in found["rows"])


@pytest.mark.process
@pytest.mark.redis
@pytest.mark.timeout(120)
def test_two_processes_that_approve_at_once_run_the_tool_once() -> None:
    """The experiment on turnhold itself: one caller is told the answer, the other that the wait was answered."""
    done = ran("bench.peers.double_approve", "--quick", "--json", "turnhold")

    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert [result["store"] for result in results] == ["sqlite", "redis"]
    for result in results:
        for race in (result["processes"], result["tasks"]):
            assert race == {"ran": [1, 1], "told": ["one done, one AlreadyAnswered"] * 2}


@pytest.mark.parametrize("command", ["bench.peers", "bench.peers.double_approve"])
def test_an_unknown_peer_is_refused(command: str) -> None:
    """Before anything is installed or tried."""
    done = ran(command, "langraph")

    assert done.returncode == 2
    assert "no peer 'langraph'" in done.stderr
