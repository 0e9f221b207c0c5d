"""Places to open runtimes in: one in memory whose bytes a test may change, and one on each store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .place import Place

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    """A place in memory."""
    place = Place()
    yield place
    await place.close()


INLINE = pytest.mark.blocking("SQLite works on the loop where time is virtual")


@pytest.fixture(params=["memory", pytest.param("sqlite", marks=INLINE)])
async def any_place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """A place on each store."""
    place = Place(None if request.param == "memory" else f"sqlite:///{tmp_path}/turns.db?synchronous=normal")
    yield place
    await place.close()
