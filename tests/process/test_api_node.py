"""A node that runs nothing, in a process of its own: it starts, answers, cancels and watches, also while no executor is there."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from .processes import Refused

if TYPE_CHECKING:
    from .processes import Crew

pytestmark = pytest.mark.process
APPROVAL = {"kind": "approve_tool", "wait": "call_1_0", "by": "ann"}


def test_starts_what_an_executor_announces(crew: Crew) -> None:
    """A turn is started by the id of its agent; instructions and policy are those of the executor."""
    api = crew.api()
    with pytest.raises(Refused, match="AgentNotFound"):
        api("start", agent="briefed")
    executor = crew.executor("executor")

    turn = api("start", agent="briefed", input="Pay Bob.")
    view = api("settle", turn=turn)

    assert view["status"] == "MAX_ITERATIONS_REACHED"
    assert api("history", turn=turn)[:2] == [["SystemMessage", "Speak briefly."], ["UserMessage", "Pay Bob."]]
    assert [pid for *_, pid in crew.starts(turn)] == [executor.pid]
    with pytest.raises(Refused, match="AgentNotFound"):
        api("start", agent="unheard of")


def test_a_start_waits_for_an_executor(crew: Crew) -> None:
    """What is started while the executor is away runs when one comes; repeated it is the same turn."""
    crew.executor("first").kill()
    api = crew.api()

    turn = api("start", agent="briefed", idempotency_key="k")
    settled, watched = api.ask("settle", turn=turn), api.ask("events", turn=turn)
    assert api("start", agent="briefed", idempotency_key="k") == turn
    assert api("view", turn=turn)["status"] == "READY"
    executor = crew.executor("second")

    assert settled.get()["status"] == "MAX_ITERATIONS_REACHED"
    assert [number for number, _ in watched.get()] == list(range(1, len(watched.get()) + 1))
    assert api("history", turn=turn)[0] == ["SystemMessage", "Speak briefly."]
    assert [pid for *_, pid in crew.starts(turn)] == [executor.pid]


def test_answers_while_the_executor_is_away(crew: Crew) -> None:
    """An answer is accepted at once and nothing runs; `settle` and `events` come alive when an executor returns."""
    first = crew.executor("first")
    api = crew.api("api")
    turn = first("start", agent="once")
    assert first("settle", turn=turn)["status"] == "WAITING_FOR_APPROVAL"
    watched = api.ask("events", turn=turn)
    api.event("seen", turn=turn, type="TURN_SUSPENDED")
    first.kill()
    assert len(api("inbox")) == 1

    receipt = api("answer", turn=turn, command_id="a", **APPROVAL)
    settled = api.ask("settle", turn=turn)

    assert (receipt["effect"], receipt["replayed"]) == ("APPROVED", False)
    assert api("inbox") == []
    assert api("answer", turn=turn, command_id="a", **APPROVAL) == {**receipt, "replayed": True}
    with pytest.raises(Refused, match="AlreadyAnswered") as refused:
        api("answer", turn=turn, kind="reject_tool", wait="call_1_0")
    assert (refused.value.receipt, refused.value.agrees) == (receipt, False)
    api.event("seen", turn=turn, type="TURN_RESUMED")
    view = api("view", turn=turn)
    assert (view["status"], view["owner"]) == ("RUNNING", None)
    assert crew.starts(turn) == []
    second = crew.executor("second")

    assert (settled.get()["status"], settled.get()["final"]) == ("COMPLETED", "done")
    happened = watched.get()
    assert [number for number, _ in happened] == list(range(1, len(happened) + 1))
    assert [pid for *_, pid in crew.starts(turn)] == [second.pid]


def test_cancels_while_the_executor_is_away(crew: Crew) -> None:
    """A waiting turn, and one that has not begun, are cancelled by the node itself; a second time does nothing."""
    executor = crew.executor("executor")
    api = crew.api("api")
    turn = executor("start", agent="once")
    executor("settle", turn=turn)
    executor.kill()
    fresh = api("start", agent="free-once")

    for one in (turn, fresh):
        assert api("cancel", turn=one)["status"] == "CANCELLED"
        assert api("cancel", turn=one)["status"] == "CANCELLED"

    assert api("inbox") == []
    assert crew.starts() == []
    with pytest.raises(Refused, match="AlreadyAnswered"):
        api("answer", turn=turn, **APPROVAL)


def test_cancels_what_a_dead_executor_ran(crew: Crew) -> None:
    """Nobody is there to end it: the cancel stands, and is carried out by the next executor, which starts nothing."""
    executor = crew.executor("executor", gate="tool")
    api = crew.api("api")
    turn = executor("start", agent="free-repeatable")
    executor.event("tool", turn=turn)
    executor.kill()

    with pytest.raises(Refused, match="TimeoutError"):
        api("cancel", turn=turn, timeout=0.2)
    assert api("view", turn=turn)["cancel_requested"]
    crew.executor("next")

    assert api("settle", turn=turn)["status"] == "CANCELLED"
    assert crew.attempts(turn) == [1]


def test_answers_and_cancels_what_runs_elsewhere(crew: Crew) -> None:
    """The owner takes in what an API-only node sends, and a running call may end before its turn is cancelled."""
    executor = crew.executor("executor", gate="tool")
    api = crew.api("api")
    turn = executor("start", agent="both")
    executor.event("tool", turn=turn)

    receipt = api("answer", turn=turn, kind="reject_tool", wait="call_1_1", by="ann")
    cancelled = api.ask("cancel", turn=turn)
    watched = api.ask("events", turn=turn)
    api.event("seen", turn=turn, type="CANCELLATION_REQUESTED")
    executor("release")

    assert receipt["effect"] == "REJECTED"
    assert cancelled.get()["status"] == "CANCELLED"
    assert watched.get()[-1][1] == "TURN_CANCELLED"
    assert [key[-1] for key, *_ in crew.starts(turn)] == ["0"]


def test_an_api_node_dies_with_an_answer_half_given(crew: Crew) -> None:
    """Killed between claim and save it leaves the answer in the mailbox: taken in elsewhere, it is found when asked again."""
    executor = crew.executor("executor")
    turn = executor("start", agent="once")
    executor("settle", turn=turn)
    api = crew.api("api")
    api("arm", how="kill", op="deliver", when="after")

    api.ask("answer", turn=turn, command_id="a", **APPROVAL)
    assert api.ended() == -signal.SIGKILL
    receipt = executor("answer", turn=turn, command_id="a", **APPROVAL)

    assert receipt["effect"] == "APPROVED"
    assert executor("settle", turn=turn)["status"] == "COMPLETED"
    assert crew.attempts(turn) == [1]
