"""A process on a Redis is stopped past its lease and goes on: its saves are refused, and it starts nothing any more."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from .processes import Crew, Worker

pytestmark = [pytest.mark.process, pytest.mark.redis]
LEASE = 1.0
GRACE = LEASE / 6


@pytest.fixture(scope="module")
def crowd(crowds: Callable[..., AbstractContextManager[Crew]], redis_url: str) -> Iterator[Crew]:
    """Two processes on one Redis, for all tests. At the end no attempt of a call has been started twice."""
    with crowds(redis_url) as crowd:
        crowd.executors("slow", "quick", lease=LEASE)
        yield crowd


@pytest.fixture
def slow(crowd: Crew) -> Worker:
    """The process that is stopped."""
    worker = crowd.workers[0]
    worker("gate", point="")
    return worker


@pytest.fixture
def quick(crowd: Crew) -> Worker:
    """The process that takes over."""
    return crowd.workers[1]


def goes_on(crowd: Crew, worker: Worker) -> None:
    """The process works for other turns as if nothing had been."""
    turn = worker("start", agent="free-repeatable")
    assert worker("settle", turn=turn)["status"] == "COMPLETED"
    assert [pid for *_, pid in crowd.starts(turn)] == [worker.pid]


def refused(worker: Worker) -> int:
    return worker("counts").get("save Fenced", 0)


def approve(turn: str) -> dict[str, str]:
    return {"turn": turn, "kind": "approve_tool", "wait": "call_1_0", "command_id": f"a {turn}", "by": "ann"}


def test_frozen_in_a_tool(crowd: Crew, slow: Worker, quick: Worker) -> None:
    """What may be repeated starts again elsewhere behind lease and grace, what runs once is in doubt; old results count nothing."""
    slow("gate", point="tool")
    again, once = slow("start", agent="free-repeatable"), slow("start", agent="free-once")
    for turn in (again, once):
        slow.event("tool", turn=turn)
    slow.freeze()
    until = min(quick("view", turn=turn)["owner"]["until"] for turn in (again, once))

    started = quick.event("tool", turn=again)
    assert quick("settle", turn=once)["status"] == "IN_DOUBT"
    view = quick("settle", turn=again)
    slow.signal(signal.SIGCONT)
    slow("release")
    goes_on(crowd, slow)
    quick("answer", turn=once, kind="give_result", wait="call_1_0", value="paid by hand")

    assert (started["at"] >= until + GRACE, started["attempt"]) == (True, 2)
    assert slow("settle", turn=again) == view
    assert view["status"] == slow("settle", turn=once)["status"] == "COMPLETED"
    assert ["ToolMessage", "paid by hand"] in slow("history", turn=once)
    assert [(attempt, pid) for _, attempt, pid in crowd.starts(again)] == [(1, slow.pid), (2, quick.pid)]
    assert crowd.attempts(once) == [1]


def test_frozen_before_the_save_of_a_start(crowd: Crew, slow: Worker, quick: Worker) -> None:
    """The save that would have started the tool is refused, so it is not started; it runs where the turn has gone."""
    before = refused(slow)
    turn = slow("start", agent="once")
    slow("settle", turn=turn)
    slow("arm", how="stop", op="save", when="before", turn=turn)
    answered = slow.ask("answer", **approve(turn))

    slow.frozen()
    quick.event("tool", turn=turn)
    view = quick("settle", turn=turn)
    slow.signal(signal.SIGCONT)

    assert answered.get()["effect"] == "APPROVED"
    assert quick("answer", **approve(turn)) == {**answered.get(), "replayed": True}
    assert view["status"] == "COMPLETED"
    assert refused(slow) == before + 1
    assert [(attempt, pid) for _, attempt, pid in crowd.starts(turn)] == [(1, quick.pid)]
    goes_on(crowd, slow)


def test_frozen_between_the_save_and_the_start(crowd: Crew, slow: Worker, quick: Worker) -> None:
    """A start that was saved in time and comes too late does not happen; whoever took over cannot know that, so it is in doubt."""
    turn = slow("start", agent="once")
    slow("settle", turn=turn)
    slow("arm", how="stop", op="save", when="after", turn=turn)
    slow.ask("answer", **approve(turn))

    slow.frozen()
    quick.until(lambda view: view["status"] == "IN_DOUBT", "view", turn=turn)
    slow.signal(signal.SIGCONT)
    goes_on(crowd, slow)
    assert crowd.starts(turn) == []
    quick("answer", turn=turn, kind="rerun", wait="call_1_0")

    assert quick("settle", turn=turn)["status"] == "COMPLETED"
    assert crowd.attempts(turn) == [2]


def test_frozen_with_many_in_all_stages(crowd: Crew, slow: Worker, quick: Worker) -> None:
    """Stopped in the middle of a burst of answers: none of its tools starts afterwards that had not started before."""
    found = slow("start_all", agent="once", count=40)
    turns = [turn for turn, _ in found]
    lost = slow("statistics")["lost"]
    slow("arm", how="stop", op="save", when="after", nth=15)
    asked = [slow.ask("answer", **approve(turn)) for turn in turns]

    slow.frozen()
    before = [row for row in crowd.starts() if row[2] == slow.pid]
    api = crowd.api("api", lease=LEASE)
    for turn in turns:  # those whose answers were not sent yet are answered here
        api("answer", **approve(turn))
    views = api("settle_all", turns=turns)
    slow.signal(signal.SIGCONT)
    for request in asked:
        assert request.get()["effect"] == "APPROVED"
    goes_on(crowd, slow)

    assert [row for row in crowd.starts() if row[2] == slow.pid][:-1] == before
    assert slow("statistics")["lost"] > lost
    assert {view["status"] for view in views} <= {"COMPLETED", "IN_DOUBT"}
    for turn, view in zip(turns, views, strict=True):
        if view["status"] == "IN_DOUBT":
            api("answer", turn=turn, kind="rerun", wait="call_1_0")
    assert {view["status"] for view in api("settle_all", turns=turns)} == {"COMPLETED"}
