"""What every test gets: the backend, the blocking-call detector, Hypothesis profiles, a private Redis."""

from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from .blocking import no_blocking_calls
from .redis_cluster import RedisCluster
from .redis_server import redis_server
from .tally import (  # noqa: F401 - hooks and a fixture, for all tests
    pytest_configure,
    pytest_configure_node,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
    tally,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

settings.register_profile("default", deadline=None, max_examples=50, derandomize="CI" in os.environ)
settings.register_profile(
    "deep", deadline=None, max_examples=2_000, derandomize=False, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Async tests run on asyncio, with its own loop or, where TURNHOLD_TEST_LOOP says so, with uvloop's."""
    return "asyncio", {"use_uvloop": os.environ.get("TURNHOLD_TEST_LOOP") == "uvloop"}


@pytest.fixture(autouse=True)
def _detect_blocking_calls(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail an async test in which the package blocks the event loop."""
    function = getattr(request, "function", None)
    inner = getattr(getattr(function, "hypothesis", None), "inner_test", function)
    if not inspect.iscoroutinefunction(inner) or request.node.get_closest_marker("blocking"):
        yield
        return
    with no_blocking_calls():
        yield


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """URL of a Redis that belongs to this test process alone; a test must not count on it being empty."""
    with redis_server() as url:
        yield url


@pytest.fixture(scope="session")
def cluster_url() -> Iterator[str]:
    """URL of a cluster of three masters, for this test process alone; a test that breaks a cluster starts its own."""
    with RedisCluster() as cluster:
        yield cluster.url
