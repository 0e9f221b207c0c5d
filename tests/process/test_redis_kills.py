"""A process on a Redis is killed with -9 at a boundary of an approve cycle: another takes over when its lease has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .cycles import check_killed, killed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from .processes import Crew, Worker

pytestmark = [pytest.mark.process, pytest.mark.redis]
LEASE = 1.0
# A whole lease must pass for each of them, so most are left to the long run.
CASES = [
    *(("once", point) for point in ("after create 1", "before save 2", "after save 2", "tool", "after save 3")),
    *(("repeatable", point) for point in ("after deliver 1", "before save 3")),
]
MORE = [
    *(("once", point) for point in ("before create 1", "model 1", "before save 1", "after save 1", "before deliver 1")),
    *(("once", point) for point in ("after deliver 1", "effect", "before save 3", "before save 4", "after save 4")),
    *(("repeatable", point) for point in ("after save 2", "tool", "effect", "after save 3", "after save 4")),
]


@pytest.fixture(scope="module")
def crowd(crowds: Callable[..., AbstractContextManager[Crew]], redis_url: str) -> Iterator[Crew]:
    """Processes on one Redis, for all cases. At the end no attempt of a call has been started twice."""
    with crowds(redis_url) as crowd:
        yield crowd


@pytest.fixture(scope="module")
def survivor(crowd: Crew) -> Worker:
    return crowd.executor("survivor", lease=LEASE)


@pytest.mark.parametrize(
    ("agent", "point"),
    [
        *(pytest.param(*case, id=", ".join(case)) for case in CASES),
        *(pytest.param(*case, id=", ".join(case), marks=pytest.mark.deep) for case in MORE),
    ],
)
def test_killed_at_a_boundary(crowd: Crew, survivor: Worker, agent: str, point: str) -> None:
    """The same start and the same answer, repeated elsewhere, find their turn, which ends; in doubt is what may have run once."""
    check_killed(crowd, survivor, agent, point, lease=LEASE)


def test_all_turns_of_a_dead_owner_are_taken_over(crowd: Crew, survivor: Worker) -> None:
    """They lie in many partitions; what may be repeated is started again, what runs once is in doubt."""
    count = 40
    victim = crowd.executor(gate="tool", lease=LEASE)
    turns = [
        request.get()
        for request in [victim.ask("start", agent=agent) for agent in ("free-once", "free-repeatable") for _ in range(count)]
    ]
    for turn in turns:
        victim.event("tool", turn=turn)

    victim.ask("exit")
    assert victim.ended() == 7
    views = survivor("settle_all", turns=turns)

    assert [view["status"] for view in views] == ["IN_DOUBT"] * count + ["COMPLETED"] * count
    pids = [[pid for *_, pid in crowd.starts(turn)] for turn in turns]
    assert pids == [[victim.pid]] * count + [[victim.pid, survivor.pid]] * count


def test_a_sender_and_an_owner_that_dies_with_its_command_unread(crowd: Crew, survivor: Worker) -> None:
    """The sender, an API-only node, gets the answer of the next owner; what the dead one had started goes on as attempt 2."""
    api = crowd.api("api", lease=LEASE)
    owner = crowd.executor(gate="tool", lease=LEASE)
    turn = owner("start", agent="both")
    owner.event("tool", turn=turn)
    owner("arm", how="kill", op="save", when="before")

    receipt = api("answer", turn=turn, kind="approve_tool", wait="call_1_1", command_id="a", by="ann")

    killed(owner)
    assert (receipt["effect"], receipt["replayed"]) == ("APPROVED", False)
    assert api("settle", turn=turn)["status"] == "COMPLETED"
    assert [(key[-1], attempt, pid) for key, attempt, pid in sorted(crowd.starts(turn))] == [
        ("0", 1, owner.pid),
        ("0", 2, survivor.pid),
        ("1", 1, survivor.pid),
    ]
