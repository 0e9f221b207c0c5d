"""The search that is led by coverage, where the package it needs is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("cover.py")


@pytest.mark.deep
@pytest.mark.process
@pytest.mark.timeout(600)
def test_search_led_by_coverage(tmp_path: Path) -> None:
    """In 300,000 inputs there is none that is read with another error than ours, crashes, hangs or takes all memory."""
    pytest.importorskip("atheris", reason="pip install atheris")

    done = subprocess.run([sys.executable, str(PROGRAM), "-runs=300000"], cwd=tmp_path, check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr[-3000:]
    assert list(tmp_path.iterdir()) == []
