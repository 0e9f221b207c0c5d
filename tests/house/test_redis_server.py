"""The private Redis of the tests."""

from __future__ import annotations

import pytest
from redis import Redis


@pytest.mark.redis
def test_the_private_server_answers_and_keeps_nothing(redis_url: str) -> None:
    """A real server of version 7 or later runs on a port of its own and saves nothing to disk."""
    with Redis.from_url(redis_url, decode_responses=True) as client:
        version = client.info("server")["redis_version"]
        saved = client.config_get("save")["save"], client.config_get("appendonly")["appendonly"]

    assert int(version.split(".")[0]) >= 7
    assert saved == ("", "no")
