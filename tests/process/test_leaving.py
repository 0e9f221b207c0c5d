"""Processes that leave: drained by a signal, without a word, and under a name that others have too."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from .processes import Refused

if TYPE_CHECKING:
    from .processes import Crew

pytestmark = pytest.mark.process


def test_drained_by_a_signal(crew: Crew) -> None:
    """What runs may end, nothing new is started, and the turn goes on elsewhere from there."""
    leaving, staying = crew.executor("leaving", gate="tool"), crew.executor("staying", gate="model 1")
    leaving("serve")
    turn = leaving("start", agent="free-once")
    leaving.event("tool", turn=turn)

    leaving.signal(signal.SIGTERM)
    leaving.event("draining")
    leaving("release")

    assert leaving.ended() == 0
    assert staying("settle", turn=turn)["status"] == "COMPLETED"
    assert [(attempt, pid) for _, attempt, pid in crew.starts(turn)] == [(1, leaving.pid)]
    assert [event["iteration"] for event in staying.events("model", turn=turn)] == [2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_what_still_runs_when_the_drain_ends(crew: Crew, number: signal.Signals) -> None:
    """A call that may be repeated is started again elsewhere, one that may not is in doubt, a model is asked again."""
    leaving, staying = crew.executor("leaving", gate="tool", drain=0.2), crew.executor("staying")
    leaving("serve")
    once, repeatable = leaving("start", agent="free-once"), leaving("start", agent="free-repeatable")
    for turn in (once, repeatable):
        leaving.event("tool", turn=turn)

    leaving.signal(number)

    assert leaving.ended() == 0
    assert staying("settle", turn=once)["status"] == "IN_DOUBT"
    assert staying("settle", turn=repeatable)["status"] == "COMPLETED"
    staying("answer", turn=once, kind="rerun", wait="call_1_0")
    assert staying("settle", turn=once)["status"] == "COMPLETED"
    for turn in (once, repeatable):
        assert [(attempt, pid) for _, attempt, pid in crew.starts(turn)] == [(1, leaving.pid), (2, staying.pid)]


def test_a_model_request_at_the_end_of_the_drain(crew: Crew) -> None:
    """A request under way is given up and made again elsewhere."""
    leaving, staying = crew.executor("leaving", gate="model 1", drain=0.2), crew.executor("staying")
    leaving("serve")
    turn = leaving("start", agent="once")
    leaving.event("model", turn=turn)

    leaving.signal(signal.SIGTERM)

    assert leaving.ended() == 0
    assert staying("settle", turn=turn)["status"] == "WAITING_FOR_APPROVAL"


def test_answers_while_a_node_drains(crew: Crew) -> None:
    """A command for a turn that lives on a draining node gets its answer; what it approves runs elsewhere."""
    leaving, staying = crew.executor("leaving", gate="tool"), crew.executor("staying")
    leaving("serve")
    turn = leaving("start", agent="both")
    leaving.event("tool", turn=turn)

    leaving.signal(signal.SIGTERM)
    leaving.event("draining")
    receipt = staying("answer", turn=turn, kind="approve_tool", wait="call_1_1", by="ann")
    leaving("release")

    assert receipt["effect"] == "APPROVED"
    assert leaving.ended() == 0
    assert staying("settle", turn=turn)["status"] == "COMPLETED"
    assert [(key[-1], attempt, pid) for key, attempt, pid in crew.starts(turn)] == [("0", 1, leaving.pid), ("1", 1, staying.pid)]


def test_a_thread_outlives_the_drain(crew: Crew) -> None:
    """A function in a thread cannot be ended: its turn stays where it is until the process ends, then its call is in doubt."""
    leaving, staying = crew.executor("leaving", gate="tool", drain=0.2, lease=1), crew.executor("staying", lease=1)
    leaving("serve")
    turn, other = leaving("start", agent="thread"), leaving("start", agent="talk")
    leaving.event("tool", turn=turn)
    leaving("settle", turn=other)

    leaving.signal(signal.SIGTERM)
    leaving.event("left")
    until = datetime.fromtimestamp(staying("view", turn=turn)["owner"]["until"], UTC)
    assert until - datetime.now(UTC) > timedelta(days=1)
    leaving.kill()

    assert staying("settle", turn=turn)["status"] == "IN_DOUBT"
    assert crew.attempts(turn) == [1]


def test_two_nodes_of_one_name(crew: Crew) -> None:
    """Who dies is told apart by more than the name: each takes over from the other, neither loses what it has."""
    one, other = crew.executor("one", node="worker", gate="tool"), crew.executor("other", node="worker", gate="tool")
    kept, lost = other("start", agent="free-once"), one("start", agent="free-repeatable")
    other.event("tool", turn=kept)
    one.event("tool", turn=lost)
    assert other("view", turn=lost)["owner"]["node"] == other("view", turn=kept)["owner"]["node"] == "worker"

    one.kill()
    other.event("tool", turn=lost, attempt=2)
    other("release")

    assert other("settle", turn=lost)["status"] == "COMPLETED"
    assert other("settle", turn=kept)["status"] == "COMPLETED"
    assert (crew.attempts(kept), crew.attempts(lost)) == ([1], [1, 2])


def test_one_of_two_nodes_of_one_name_leaves(crew: Crew) -> None:
    """What the other announces stays announced."""
    one, other = crew.executor("one", node="worker"), crew.executor("other", node="worker")
    api = crew.api("api")

    one("leave")

    assert sorted(api("nodes")) == sorted([api("name"), "worker"])
    turn = api("start", agent="once")
    assert api("settle", turn=turn)["status"] == "WAITING_FOR_APPROVAL"
    assert other("view", turn=turn)["status"] == "WAITING_FOR_APPROVAL"


def test_started_again_under_its_old_name(crew: Crew) -> None:
    """A process that ended without leaving is not taken for its successor of the same name, which takes over at once."""
    turn = ""
    pids: list[int] = []
    for attempt in (1, 2, 3):
        worker = crew.executor(node="worker", gate="tool")
        turn = turn or worker("start", agent="free-repeatable")
        worker.event("tool", turn=turn, attempt=attempt)
        pids.append(worker.pid)
        worker.ask("exit", code=7)
        assert worker.ended() == 7
    last = crew.executor(node="worker")

    assert last("settle", turn=turn)["status"] == "COMPLETED"
    assert [pid for *_, pid in crew.starts(turn)] == [*pids, last.pid]
    assert last.until(lambda names: names == ["worker"], "nodes")


def test_a_forked_child_is_told_to_open_its_own(crew: Crew) -> None:
    """A runtime that was opened before a fork says so in the child, and goes on in the parent."""
    worker = crew.executor("worker")
    turn = worker("start", agent="free-once")
    worker("settle", turn=turn)

    assert "before a fork; open the store in the child process" in worker("fork", turn=turn)

    assert worker("view", turn=turn)["status"] == "COMPLETED"
    assert worker("settle", turn=worker("start", agent="free-once"))["status"] == "COMPLETED"
    with pytest.raises(Refused, match="TurnNotFound"):
        worker("view", turn="00-aaaaaaaaaaaaaaaa")


def test_a_forked_child_outlives_its_parent(crew: Crew) -> None:
    """The child, which inherited the parent's files, does not look like a living node: take-over is at once."""
    worker, survivor = crew.executor("worker", gate="tool", lease=60), crew.executor("survivor", lease=60)
    turn = worker("start", agent="free-repeatable")
    worker.event("tool", turn=turn)
    worker("fork_on")

    worker.kill()

    assert survivor("settle", turn=turn)["status"] == "COMPLETED"
    assert crew.attempts(turn) == [1, 2]
