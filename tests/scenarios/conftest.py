"""The store that a scenario runs on: each runs on memory and on a SQLite file, on virtual time."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from .lab import Desk, Lab

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_names = itertools.count()


@pytest.fixture(
    params=["memory", pytest.param("sqlite", marks=pytest.mark.blocking("SQLite works on the loop where time is virtual"))]
)
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Lab]:
    """A place to open runtimes in."""
    name = f"scenario-{next(_names)}"
    lab = Lab(f"memory://{name}" if request.param == "memory" else f"sqlite:///{tmp_path}/turns.db?synchronous=normal")
    yield lab
    await lab.close_all()


@pytest.fixture
def desk() -> Desk:
    """Tools that note their starts."""
    return Desk()
