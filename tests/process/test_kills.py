"""A process is killed with -9 at every boundary of an approve cycle and in the middle of a tool; another takes over at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .cycles import check_killed, killed, resolve, results
from .processes import Crew

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .processes import Worker

pytestmark = pytest.mark.process

# Kills behind one call and before the next leave the same store: one of them is enough by default.
CASES = [
    *(("once", point) for point in ("after create 1", "before save 1", "after save 1", "after deliver 1", "before save 2")),
    *(("once", point) for point in ("after save 2", "tool", "effect", "after save 3", "after save 4")),
    *(("repeatable", point) for point in ("after save 2", "tool", "before save 3")),
]
MORE = [
    *(("once", point) for point in ("before create 1", "model 1", "before deliver 1", "before save 3", "before save 4")),
    *(("repeatable", point) for point in ("before save 2", "effect", "after save 3", "before save 4", "after save 4")),
]


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """Processes on one file, for all cases. At the end no attempt of a call has been started twice."""
    crowd = Crew(tmp_path_factory.mktemp("kills"), ahead=True)
    try:
        yield crowd
    finally:
        crowd.close()
    crowd.check()


@pytest.fixture(scope="module")
def survivor(crowd: Crew) -> Worker:
    return crowd.executor("survivor")


@pytest.mark.parametrize(
    ("agent", "point"),
    [
        *(pytest.param(*case, id=", ".join(case)) for case in CASES),
        *(pytest.param(*case, id=", ".join(case), marks=pytest.mark.deep) for case in MORE),
    ],
)
def test_killed_at_a_boundary(crowd: Crew, survivor: Worker, agent: str, point: str) -> None:
    """The same start and the same answer, repeated elsewhere, find their turn, which ends; in doubt is what may have run once."""
    check_killed(crowd, survivor, agent, point)


@pytest.mark.parametrize(
    ("command", "result"),
    [
        ({"kind": "rerun"}, "paid in attempt 2"),
        ({"kind": "give_result", "value": "paid by hand"}, "paid by hand"),
        ({"kind": "fail_call", "reason": "the bank knows nothing"}, "the bank knows nothing"),
    ],
    ids=["rerun", "give_result", "fail_call"],
)
def test_a_call_in_doubt_is_resolved_elsewhere(crowd: Crew, survivor: Worker, command: dict[str, Any], result: str) -> None:
    """A person who sits at an API-only node decides what a call in doubt has done; only `rerun` starts it again."""
    api = crowd.api()
    victim = crowd.executor(die="tool")
    turn = victim("start", agent="free-once")
    killed(victim)

    view = resolve(api, turn, api("settle", turn=turn), **command)

    assert (view["status"], view["final"]) == ("COMPLETED", "done")
    assert crowd.attempts(turn) == ([1, 2] if command["kind"] == "rerun" else [1])
    (found,) = results(api, turn)
    assert result in found


def test_a_repeatable_call_goes_on_without_a_person(crowd: Crew, survivor: Worker) -> None:
    """What may be repeated is started again at once, as the next attempt under the same key."""
    victim = crowd.executor(die="tool")
    turn = victim("start", agent="free-repeatable")
    killed(victim)

    assert survivor("settle", turn=turn)["status"] == "COMPLETED"
    assert [(key, attempt) for key, attempt, _ in crowd.starts(turn)] == [(f"{turn}:call_1_0", 1), (f"{turn}:call_1_0", 2)]
    assert [pid for *_, pid in crowd.starts(turn)] == [victim.pid, survivor.pid]


def test_all_turns_of_a_dead_owner_are_taken_over(crew: Crew) -> None:
    """They are more than are looked at in one go."""
    count = 150
    victim, survivor = crew.executor("victim", gate="tool"), crew.executor("survivor")
    turns = [request.get() for request in [victim.ask("start", agent="free-repeatable") for _ in range(count)]]
    for turn in turns:
        victim.event("tool", turn=turn)

    victim.kill()

    assert {view["status"] for view in survivor("settle_all", turns=turns)} == {"COMPLETED"}
    assert survivor("statistics")["reaped"] == count
    assert len(crew.starts()) == 2 * count


def test_an_owner_that_dies_while_another_is_taken_over_from(crew: Crew) -> None:
    """Its death is not overheard: its turn does not wait for the end of its lease."""
    first, second = crew.executor("first", gate="tool", lease=60), crew.executor("second", gate="tool", lease=60)
    survivor = crew.executor("survivor", lease=60)
    turns = [owner("start", agent="free-repeatable") for owner in (first, second)]
    for owner, turn in zip((first, second), turns, strict=True):
        owner.event("tool", turn=turn)
    survivor("arm", how="kill", pid=second.pid, op="reap", when="before")
    second.ask("freeze")
    second.event("freezing")

    first.kill()

    assert {view["status"] for view in survivor("settle_all", turns=turns)} == {"COMPLETED"}
    assert [crew.attempts(turn) for turn in turns] == [[1, 2], [1, 2]]


def owning(crew: Crew, when: str) -> tuple[Worker, str]:
    """Return a process in which one call runs and another waits for approval; it is killed at its next save."""
    owner = crew.executor("owner", gate="tool")
    turn = owner("start", agent="both")
    owner.event("tool", turn=turn)
    owner("arm", how="kill", op="save", when=when)
    return owner, turn


def approve(turn: str, name: str) -> dict[str, Any]:
    return {"turn": turn, "kind": "approve_tool", "wait": "call_1_1", "command_id": name, "by": name}


def test_owner_killed_between_delivery_and_save(crew: Crew) -> None:
    """The sender waits for an owner that dies with its command unread, and gets the answer of the next one."""
    sender = crew.executor("sender")
    owner, turn = owning(crew, "before")

    receipt = sender("answer", **approve(turn, "ann"))

    killed(owner)
    assert (receipt["effect"], receipt["replayed"]) == ("APPROVED", False)
    assert sender("settle", turn=turn)["status"] == "COMPLETED"
    assert [(key[-1], attempt, pid) for key, attempt, pid in sorted(crew.starts(turn))] == [
        ("0", 1, owner.pid),
        ("0", 2, sender.pid),
        ("1", 1, sender.pid),
    ]


def test_owner_killed_between_save_and_reply(crew: Crew) -> None:
    """The sender gets the answer that the dead owner has saved; the start it has saved too is in doubt."""
    sender = crew.executor("sender")
    owner, turn = owning(crew, "after")

    receipt = sender("answer", **approve(turn, "ann"))

    killed(owner)
    assert (receipt["effect"], receipt["replayed"]) == ("APPROVED", False)
    assert sender("answer", **approve(turn, "ann")) == {**receipt, "replayed": True}
    view = resolve(sender, turn, sender("settle", turn=turn), kind="rerun")
    assert view["status"] == "COMPLETED"
    assert [(key[-1], attempt) for key, attempt, _ in sorted(crew.starts(turn))] == [("0", 1), ("0", 2), ("1", 2)]


def test_owner_killed_and_nobody_left_to_answer(crew: Crew) -> None:
    """Without an owner the answer stays pending; asked again with the same id, it is there when somebody has taken over."""
    api = crew.api("api")
    owner, turn = owning(crew, "before")

    assert api("answer_all", items=[{**approve(turn, "ann"), "timeout": 0.5}])[0]["type"] == "AnswerPending"
    killed(owner)
    asked = api.ask("answer", **approve(turn, "ann"))
    crew.executor("next")
    receipt = asked.get()

    assert (receipt["effect"], receipt["command_id"]) == ("APPROVED", "ann")
    assert api("settle", turn=turn)["status"] == "COMPLETED"
    assert [kind for _, kind in api("events", turn=turn)].count("TURN_RESUMED") == 1


def test_two_senders_and_an_owner_that_dies_between_them(crew: Crew) -> None:
    """Both get one answer: the one is accepted, the other told so."""
    ann, bob = crew.api("ann"), crew.executor("bob")
    owner, turn = owning(crew, "before")

    asked = [sender.ask("answer_all", items=[approve(turn, sender.name)]) for sender in (ann, bob)]
    answers = [answer for request in asked for answer in request.get()]

    killed(owner)
    assert sorted(answer.get("type", "accepted") for answer in answers) == ["AlreadyAnswered", "accepted"]
    assert bob("settle", turn=turn)["status"] == "COMPLETED"
    assert [attempt for key, attempt, _ in crew.starts(turn) if key.endswith("_1")] == [1]
