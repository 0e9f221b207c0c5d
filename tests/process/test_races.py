"""Two processes answer the same waits of one SQLite file at once."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from .processes import Crew

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.process, pytest.mark.parametrize("size", [200, 4], ids=["all at once", "in small rounds"])]
COUNT = 200
APPROVE = {"kind": "approve_tool", "by": "ann", "ids": "a"}
APPROVE_TOO = {"kind": "approve_tool", "by": "bob", "ids": "b"}
REJECT = {"kind": "reject_tool", "by": "bob", "ids": "b"}


def items(waiting: list[list[str]], command: dict[str, Any]) -> list[dict[str, Any]]:
    more = {name: value for name, value in command.items() if name != "ids"}
    return [{"turn": turn, "wait": wait, "command_id": f"{command['ids']} {turn}", **more} for turn, wait in waiting]


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """Two processes on one file, for all races. At the end no attempt of a call has been started twice."""
    crowd = Crew(tmp_path_factory.mktemp("races"))
    for request in [crowd.ask_open(crowd.spawn(name)) for name in ("ann", "bob")]:
        request.get()
    try:
        yield crowd
    finally:
        crowd.close()
    crowd.check()


def race(crowd: Crew, size: int, first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Let two processes answer the same waits, `size` at a time; return the turn and what each of them got. All turns end."""
    ann, bob = crowd.workers
    waiting = ann("start_all", agent="once", count=COUNT)
    assert sorted(bob("inbox")) == sorted(wait for _, wait in waiting)
    got: dict[str, list[Any]] = {"ann": [], "bob": []}
    for at in range(0, COUNT, size):
        asked = [(ann, items(waiting[at : at + size], first)), (bob, items(waiting[at : at + size], second))]
        for worker, request in [(worker, worker.ask("answer_all", items=some)) for worker, some in asked[:: -1 if at % 8 else 1]]:
            got[worker.name] += request.get(40)
    turns = [turn for turn, _ in waiting]
    views, too = (request.get(40) for request in [worker.ask("settle_all", turns=turns) for worker in (ann, bob)])
    assert views == too
    assert {view["status"] for view in views} == {"COMPLETED"}
    assert ann("inbox") == []
    return list(zip(turns, got["ann"], got["bob"], strict=True))


def lost(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return what the loser was told: exactly one has won, and the loser got the winner's receipt."""
    winner, loser = (one, other) if "effect" in one else (other, one)
    assert "effect" in winner
    assert not winner["replayed"]
    assert loser["type"] == "AlreadyAnswered"
    assert loser["receipt"] == winner
    return loser


def attempts_of(crowd: Crew) -> defaultdict[str, list[int]]:
    """Return the attempts of each turn; the ledger is read once, not for each."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for key, attempt, _ in crowd.starts():
        found[key.partition(":")[0]].append(attempt)
    return found


def test_two_processes_approve_the_same_waits(crowd: Crew, size: int) -> None:
    """Of two approvals one is accepted, the other is told by whom; every tool runs once."""
    ended = race(crowd, size, APPROVE, APPROVE_TOO)

    attempts = attempts_of(crowd)
    for turn, one, other in ended:
        assert lost(one, other)["agrees"] is True
        assert attempts[turn] == [1]


def test_two_processes_send_the_same_commands(crowd: Crew, size: int) -> None:
    """Of two equal commands with one id one is accepted, the other gets the same receipt again; every tool runs once."""
    ended = race(crowd, size, APPROVE, APPROVE)

    attempts = attempts_of(crowd)
    for turn, one, other in ended:
        assert sorted([one.pop("replayed"), other.pop("replayed")]) == [False, True]
        assert one == other
        assert attempts[turn] == [1]


def test_one_process_approves_what_the_other_rejects(crowd: Crew, size: int) -> None:
    """One answer wins; a tool runs once where that was the approval, and never where it was the rejection."""
    ended = race(crowd, size, APPROVE, REJECT)

    attempts = attempts_of(crowd)
    for turn, one, other in ended:
        loser = lost(one, other)
        assert loser["agrees"] is False
        assert attempts[turn] == ([1] if loser["receipt"]["effect"] == "APPROVED" else [])
