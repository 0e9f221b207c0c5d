"""Hostile schemas in a process of their own, with a gigabyte of memory: refused or checked within bounds; nothing crashes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .schema_bombs import BOMBS

PROGRAM = Path(__file__).with_name("schema_bombs.py")


@pytest.mark.process
def test_schema_bombs() -> None:
    """No bomb ends the process, costs much memory, or comes out as an error that is none of ours."""
    done = subprocess.run([sys.executable, str(PROGRAM)], check=False, capture_output=True, text=True, timeout=55)

    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    told = json.loads(done.stdout)
    found: dict[str, list[str]] = told["found"]
    assert found.keys() == {*BOMBS, "equal hashes, 1 MB", "outputs"}
    errors = {name: each for name, each in found.items() for said in each if said not in ("refused", "taken") and said[0] != "["}
    assert errors == {}
    assert found["four billion"][:3] == ["refused"] * 3
    assert found["outputs"] == ["refused"] * 6
    assert found["equal hashes, 1 MB"] == ["[]"]
    assert told["peak"] < 400, "megabytes; the interpreter and its imports take about 40"
