"""The store that a scenario runs on: each runs on memory, on a SQLite file and on Redis, on virtual time."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from turnhold.store import memory

from ..redis_in_step import StoreInStep, line_to
from .lab import Desk, Lab

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from ..redis_in_step import Line

CORE = (
    "test_approval",
    "test_cancel",
    "test_children",
    "test_last_checks",
    "test_many",
)  # on Redis by default; all others are so in the long run
_names = itertools.count()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what asks for a lab on each store."""
    if "lab" not in metafunc.fixturenames:
        return
    on_the_loop = pytest.mark.blocking("the store works on the loop where time is virtual")
    late = [] if metafunc.definition.path.stem in CORE else [pytest.mark.deep]
    redis = pytest.param("redis", marks=[on_the_loop, pytest.mark.redis, *late])
    metafunc.parametrize("lab", ["memory", pytest.param("sqlite", marks=on_the_loop), redis], indirect=True)


@pytest.fixture(scope="session")
def redis_line(redis_url: str) -> Iterator[Line]:
    """A connection for all scenarios."""
    with line_to(redis_url) as found:
        yield found


@pytest.fixture
async def lab(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    """A place to open runtimes in."""
    name = f"scenario-{next(_names)}"
    if request.param == "redis":
        monkeypatch.setitem(memory._shared, name, StoreInStep(request.getfixturevalue("redis_line"), name))
    lab = Lab(f"sqlite:///{tmp_path}/turns.db?synchronous=normal" if request.param == "sqlite" else f"memory://{name}")
    yield lab
    await lab.close_all()


@pytest.fixture
def desk() -> Desk:
    """Tools that note their starts."""
    return Desk()
