"""The owner of a parent with three children is killed with -9 at a save of it: the other process finishes the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .processes import Crew
from .trees import LAST, check_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from .processes import Worker

pytestmark = pytest.mark.process
POINTS = [f"{when} {version}" for version in range(1, LAST + 1) for when in ("before", "after")]
POINTS_OF_A_PLAN = POINTS[:-2]  # a plan takes one save less
# A whole lease must pass for each of them on a Redis, so most are left to the long run there.
LEASE = 1.0
USUAL = ["after 1", "after 2", "before 4", "after 4"]


class Household:
    """Two processes, and one that everything is asked; who has died is replaced.

    Each has room for two turns, so the children of a parent that lives on one of them run on both.
    """

    def __init__(self, crew: Crew, **options: Any) -> None:
        self._crew, self._options = crew, options
        self._api = crew.api("api", **options)
        self._left: list[Worker] = []

    def check(self, point: str, agent: str = "family") -> None:
        while len(self._left) < 2:
            self._left.append(self._crew.executor(max_active=2, **self._options))
        pair, self._left = self._left, []
        self._left = [check_tree(self._crew, self._api, pair, point, agent)]


@pytest.fixture(scope="module")
def on_a_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Household]:
    """Processes on one file, for all cases. At the end no attempt of a call has been started twice."""
    crew = Crew(tmp_path_factory.mktemp("trees"), ahead=True)
    try:
        yield Household(crew)
    finally:
        crew.close()
    crew.check()


@pytest.fixture(scope="module")
def on_redis(crowds: Callable[..., AbstractContextManager[Crew]], redis_url: str) -> Iterator[Household]:
    """Processes on one Redis, for all cases."""
    with crowds(redis_url) as crew:
        yield Household(crew, lease=LEASE)


@pytest.mark.parametrize("point", POINTS)
def test_on_a_file(on_a_file: Household, point: str) -> None:
    """Three children, each result once, what runs once started once, each answer once, and the budget of the tree holds."""
    on_a_file.check(point)


@pytest.mark.redis
@pytest.mark.parametrize("point", [pytest.param(at, marks=() if at in USUAL else pytest.mark.deep) for at in POINTS])
def test_on_redis(on_redis: Household, point: str) -> None:
    """The same where a lease must end before another may take over."""
    on_redis.check(point)


@pytest.mark.parametrize("point", [pytest.param(at, marks=() if at in USUAL else pytest.mark.deep) for at in POINTS_OF_A_PLAN])
def test_plan_on_a_file(on_a_file: Household, point: str) -> None:
    """The same of a plan with three tasks: each task's child once, each result once, and one result for the call of the plan."""
    on_a_file.check(point, "planner")


@pytest.mark.redis
@pytest.mark.parametrize("point", [pytest.param(at, marks=() if at == "after 1" else pytest.mark.deep) for at in POINTS_OF_A_PLAN])
def test_plan_on_redis(on_redis: Household, point: str) -> None:
    """The plan, where a lease must end before another may take over."""
    on_redis.check(point, "planner")
