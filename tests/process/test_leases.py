"""A process that is frozen past its lease: another one takes over, and what the frozen one wakes up to do is refused."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .processes import Crew, Worker

pytestmark = pytest.mark.process
LEASE = 1.0
GRACE = LEASE / 6


def refused(worker: Worker) -> int:
    return worker("counts").get("save Fenced", 0)


def goes_on(crew: Crew, worker: Worker) -> None:
    """The process works for other turns as if nothing had been."""
    turn = worker("start", agent="free-repeatable")
    assert worker("settle", turn=turn)["status"] == "COMPLETED"
    assert [pid for *_, pid in crew.starts(turn)] == [worker.pid]


def test_frozen_in_a_tool(crew: Crew) -> None:
    """The call is started again elsewhere, once its lease and the grace are over; what the old attempt returns is thrown away."""
    slow, quick = crew.executor("slow", lease=LEASE, gate="tool"), crew.executor("quick", lease=LEASE)
    turn = slow("start", agent="free-repeatable")
    slow.event("tool", turn=turn)
    slow.ask("freeze")
    slow.event("freezing")
    owner = quick("view", turn=turn)["owner"]

    again = quick.event("tool", turn=turn)
    view = quick("settle", turn=turn)
    slow.signal(signal.SIGCONT)
    slow("release")

    assert owner["node"] != quick("view", turn=turn)["owner"]
    assert again["at"] >= owner["until"] + GRACE
    assert again["attempt"] == 2
    assert (view["status"], view["final"]) == ("COMPLETED", "done")
    assert slow("settle", turn=turn) == view
    goes_on(crew, slow)
    assert slow("statistics")["lost"] == 1
    assert [(attempt, pid) for _, attempt, pid in crew.starts(turn)] == [(1, slow.pid), (2, quick.pid)]


def test_frozen_in_a_tool_that_runs_once(crew: Crew) -> None:
    """The call is in doubt; a person resolves it although the frozen process wakes up and returns something."""
    slow, quick = crew.executor("slow", lease=LEASE, gate="tool"), crew.executor("quick", lease=LEASE)
    turn = slow("start", agent="free-once")
    slow.event("tool", turn=turn)
    watched = quick.ask("events", turn=turn)
    slow.ask("freeze")

    quick.event("seen", turn=turn, type="TOOL_IN_DOUBT")
    slow.signal(signal.SIGCONT)
    slow("release")
    goes_on(crew, slow)
    quick("answer", turn=turn, kind="give_result", wait="call_1_0", value="paid by hand")

    assert quick("settle", turn=turn)["status"] == "COMPLETED"
    assert ["ToolMessage", "paid by hand"] in quick("history", turn=turn)
    assert [number for number, _ in watched.get()] == list(range(1, len(watched.get()) + 1))
    assert crew.attempts(turn) == [1]


def test_frozen_before_the_save_of_a_start(crew: Crew) -> None:
    """The save that would have started the tool is refused, so it is not started; it runs where the turn has gone."""
    slow, quick = crew.executor("slow", lease=LEASE), crew.executor("quick", lease=LEASE)
    turn = slow("start", agent="once")
    slow("settle", turn=turn)
    slow("arm", how="stop", op="save", when="before", turn=turn)
    answered = slow.ask("answer", turn=turn, kind="approve_tool", wait="call_1_0", command_id="a", by="ann")

    slow.event("freezing")
    quick.event("tool", turn=turn)
    view = quick("settle", turn=turn)
    slow.signal(signal.SIGCONT)

    assert answered.get()["effect"] == "APPROVED"
    assert quick("answer", turn=turn, kind="approve_tool", wait="call_1_0", command_id="a", by="ann") == {
        **answered.get(),
        "replayed": True,
    }
    assert view["status"] == "COMPLETED"
    assert refused(slow) == 1
    assert [(attempt, pid) for _, attempt, pid in crew.starts(turn)] == [(1, quick.pid)]
    goes_on(crew, slow)


def test_frozen_between_the_save_and_the_start(crew: Crew) -> None:
    """A start that was saved in time and comes too late does not happen; whoever took over cannot know that, so it is in doubt."""
    slow, quick = crew.executor("slow", lease=LEASE), crew.executor("quick", lease=LEASE)
    turn = slow("start", agent="once")
    slow("settle", turn=turn)
    slow("arm", how="stop", op="save", when="after", turn=turn)
    watched = quick.ask("events", turn=turn)
    slow.ask("answer", turn=turn, kind="approve_tool", wait="call_1_0", command_id="a", by="ann")

    quick.event("seen", turn=turn, type="TOOL_IN_DOUBT")
    slow.signal(signal.SIGCONT)
    goes_on(crew, slow)
    assert crew.starts(turn) == []
    quick("answer", turn=turn, kind="rerun", wait="call_1_0")

    assert quick("settle", turn=turn)["status"] == "COMPLETED"
    assert watched.get()[-1][1] == "TURN_COMPLETED"
    assert crew.attempts(turn) == [2]


def test_frozen_in_a_model_request(crew: Crew) -> None:
    """The model is asked again elsewhere; the late reply changes nothing."""
    slow, quick = crew.executor("slow", lease=LEASE, gate="model 1"), crew.executor("quick", lease=LEASE)
    turn = slow("start", agent="free-once")
    slow.event("model", turn=turn)
    slow.ask("freeze")

    quick.event("model", turn=turn, iteration=1)
    view = quick("settle", turn=turn)
    slow.signal(signal.SIGCONT)
    slow("release")
    goes_on(crew, slow)

    assert view["status"] == "COMPLETED"
    assert slow("view", turn=turn) == view
    assert [(attempt, pid) for _, attempt, pid in crew.starts(turn)] == [(1, quick.pid)]
