"""A Redis for the tests of its scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis

from .both import Both
from .redis_core import OPEN

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    """A client of the private Redis, which is empty."""
    with redis.Redis.from_url(redis_url) as connected:
        connected.flushdb()
        yield connected
        while OPEN:
            OPEN.pop().close()


@pytest.fixture
def both(client: redis.Redis) -> Both:
    """A turn in Redis and in memory."""
    return Both(client)
