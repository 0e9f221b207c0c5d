"""What the tests of the console share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .shop import Shop

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def shop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shop:
    return Shop(tmp_path / "turns.db", capsys)
