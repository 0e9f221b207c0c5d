"""The stores, and two nodes on each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from turnhold.store import base
from turnhold.store.memory import MemoryStore
from turnhold.store.sqlite import SqliteStore

from .duo import World

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> base.TurnStore:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "turns.db", synchronous="normal")


@pytest.fixture
def world(store: base.TurnStore) -> World:
    return World(store)
