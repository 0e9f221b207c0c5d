"""Processes for the tests; all are gone at the end."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from .processes import Crew

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

NAMES = itertools.count()


def namespaced(url: str) -> str:
    """Return the URL of a place of its own on a Redis that others use, too."""
    return f"{url}?namespace=n{next(NAMES)}"


@contextmanager
def checked(crew: Crew) -> Iterator[Crew]:
    """Let a crew work. At the end no attempt of a call has been started twice."""
    try:
        yield crew
    finally:
        crew.close()
    crew.check()


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """Processes on one SQLite file. At the end no attempt of a call has been started twice."""
    with checked(Crew(tmp_path)) as crew:
        yield crew


@pytest.fixture
def redis_crew(tmp_path: Path, redis_url: str) -> Iterator[Crew]:
    """Processes on a namespace of a Redis. At the end no attempt of a call has been started twice."""
    with checked(Crew(tmp_path, namespaced(redis_url))) as crew:
        yield crew


@pytest.fixture(scope="module")
def crowds(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., AbstractContextManager[Crew]]:
    """Give crews for several tests, each in a place of its own on the Redis with that URL."""

    def crowd(url: str) -> AbstractContextManager[Crew]:
        return checked(Crew(tmp_path_factory.mktemp("crowd"), namespaced(url), ahead=True))

    return crowd
