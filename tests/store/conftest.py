"""The stores under test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis

from turnhold.store.memory import MemoryStore
from turnhold.store.sqlite import SqliteStore

from .both import Both
from .ops import Ops

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    """A client of the private Redis, which is empty."""
    with redis.Redis.from_url(redis_url) as connected:
        connected.flushdb()
        yield connected


@pytest.fixture
def both(client: redis.Redis) -> Both:
    """A turn in Redis and in memory."""
    return Both(client)


@pytest.fixture(
    params=[
        "memory",
        pytest.param("sqlite inline", marks=pytest.mark.blocking("inline is meant to use the file on the loop")),
        "sqlite",
    ]
)
async def ops(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ops]:
    """A fresh store of each kind."""
    store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "turns.db")
    ops = Ops()
    ops.connection = await store.connect(
        "n1", lambda kind, turn: ops.bells.append((kind, turn)), lambda: ops.now, inline=request.param == "sqlite inline"
    )
    yield ops
    await ops.connection.close()
