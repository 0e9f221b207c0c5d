"""Nodes on one Redis that differ: in name, clock, release, agents; and a turn that kills whoever runs it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from .conftest import namespaced
from .processes import Gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from .processes import Crew, Worker

pytestmark = [pytest.mark.process, pytest.mark.redis]
LEASE = 1.0


@pytest.fixture(scope="module")
def place(crowds: Callable[..., AbstractContextManager[Crew]], redis_url: str) -> Iterator[Crew]:
    """Processes on one Redis; each test ends its own. At the end no attempt of a call has been started twice."""
    with crowds(redis_url) as crowd:
        yield crowd


@pytest.fixture
def fleet(place: Crew, redis_url: str) -> Iterator[Crew]:
    """The processes of a test, in a namespace of its own."""
    place.url = namespaced(redis_url)
    try:
        yield place
    finally:
        for worker in place.workers:
            if worker is not place.spare:
                worker.close()


def approve(turn: str, **more: Any) -> dict[str, Any]:
    return {"turn": turn, "kind": "approve_tool", "wait": "call_1_0", "command_id": f"a {turn}", "by": "ann", **more}


# -------------------------------------------------------------------------------------------------------------- poison


def test_turns_that_kill_whoever_runs_them(fleet: Crew) -> None:
    """After `max_crashes` (2) a call is in doubt, and a turn whose model kills (1) is in quarantine; the others go on."""
    api, *executors = (fleet.spawn() for _ in range(5))
    opened = [fleet.ask_open(api, execute=False, agents=False, lease=LEASE)]
    opened += [fleet.ask_open(worker, lease=LEASE) for worker in executors]
    for request in opened:
        request.get()
    tool, model = (api("start", agent=agent) for agent in ("poison-tool", "poison-model"))
    others = [api("start", agent="free-repeatable") for _ in range(5)]

    doubtful, parked = api("settle_all", turns=[tool, model])

    assert (doubtful["status"], doubtful["waits"][0]["type"]) == ("IN_DOUBT", "IN_DOUBT")
    assert "owners were lost" in parked["quarantine"]
    assert api("quarantined") == [model]
    assert fleet.attempts(tool) in ([1, 2], [1], [2])  # one that the other turn has killed may not have come to its first line
    assert {view["status"] for view in api("settle_all", turns=others)} == {"COMPLETED"}
    assert any(alive(worker) for worker in executors)
    assert api("cancel", turn=model)["status"] == "CANCELLED"
    api("answer", turn=tool, kind="fail_call", wait="call_1_0", reason="it is poison")
    assert api("settle", turn=tool)["status"] == "COMPLETED"


def alive(worker: Worker) -> bool:
    try:
        return bool(worker("name"))
    except Gone:
        return False


# --------------------------------------------------------------------------------------------------------------- names


def test_two_nodes_of_one_name(fleet: Crew) -> None:
    """One does not take the other for itself: it takes over when it dies, keeps what it has, and is still announced."""
    one, other = fleet.executors("one", "other", node="worker", gate="tool", lease=LEASE)
    kept, lost = other("start", agent="free-once"), one("start", agent="free-repeatable")
    other.event("tool", turn=kept)
    one.event("tool", turn=lost)
    assert other("view", turn=lost)["owner"]["node"] == other("view", turn=kept)["owner"]["node"] == "worker"

    one.kill()
    other.event("tool", turn=lost, attempt=2)
    other("release")

    assert {view["status"] for view in other("settle_all", turns=[kept, lost])} == {"COMPLETED"}
    assert (fleet.attempts(kept), fleet.attempts(lost)) == ([1], [1, 2])
    assert set(other("nodes")) == {"worker"}


# --------------------------------------------------------------------------------------------------------------- clocks


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_is_an_hour_off(fleet: Crew, hours: int) -> None:
    """It takes no living owner for dead, nor is it taken so; it takes over from the dead when it is time, and dates nothing."""
    wrong, right = (fleet.spawn(name) for name in ("wrong", "right"))
    opened = [fleet.ask_open(wrong, hours=hours, gate="tool", lease=LEASE), fleet.ask_open(right, gate="tool", lease=LEASE)]
    for request in opened:
        request.get()
    turns = [worker("start", agent="free-repeatable") for worker in (wrong, right)]
    for worker, turn in zip((wrong, right), turns, strict=True):
        worker.event("tool", turn=turn)
        owner = worker("view", turn=turn)["owner"]
        assert abs(owner["until"] - right("statistics")["at"]) < 60
    answered = wrong("start", agent="once")
    wrong("settle", turn=answered)
    at = datetime.fromisoformat(wrong("answer", **approve(answered))["at"])
    assert abs(at.timestamp() - right("statistics")["at"]) < 60

    for worker in (wrong, right):  # more than a lease and its grace
        worker.until(lambda counts: counts.get("renew Renewed", 0) >= 5, "counts")
        assert worker("statistics")["reaped"] == 0
    right.kill()
    wrong.event("tool", turn=turns[1], attempt=2)
    wrong("release")

    assert {view["status"] for view in wrong("settle_all", turns=[*turns, answered])} == {"COMPLETED"}
    assert [fleet.attempts(turn) for turn in [*turns, answered]] == [[1], [1, 2], [1]]


# ------------------------------------------------------------------------------------------------------------- releases


def test_a_rolling_upgrade(fleet: Crew) -> None:
    """Turns that a newer release has written are left in place by an older node, and go on where they can be read."""
    old, new = fleet.spawn("old"), fleet.spawn("new")
    for request in [fleet.ask_open(old, lease=LEASE), fleet.ask_open(new, lease=LEASE, schema=2, gate="tool")]:
        request.get()
    written, waiting = new("start", agent="free-repeatable"), new("start", agent="once")
    before = old("start", agent="once")
    new.event("tool", turn=written)
    new("settle", turn=waiting)
    old("settle", turn=before)
    new.kill()
    asked = old.ask("answer", **approve(waiting), timeout=30)

    old.until(lambda found: found["unclaimable"] == 2, "statistics")
    claims = old("statistics")["claims"]
    assert old("settle", turn=old("start", agent="talk"))["status"] == "COMPLETED"
    assert old("statistics")["claims"] == claims
    assert fleet.starts(waiting) == []
    newer = fleet.executor("newer", lease=LEASE, schema=2)

    assert asked.get()["effect"] == "APPROVED"
    assert {view["status"] for view in newer("settle_all", turns=[written, waiting])} == {"COMPLETED"}
    assert [pid for turn in (written, waiting) for *_, pid in fleet.starts(turn)] == [new.pid, newer.pid, newer.pid]
    old.kill()
    assert newer("answer", **approve(before))["effect"] == "APPROVED"
    assert newer("settle", turn=before)["status"] == "COMPLETED"


def test_different_agents_and_versions(fleet: Crew) -> None:
    """Each node claims only what it runs; what nobody runs waits for somebody who does, and is counted."""
    one, two = fleet.spawn("one"), fleet.spawn("two")
    options = {"lease": LEASE, "gate": "tool"}
    opened = [
        fleet.ask_open(one, agents=["free-repeatable", "once"], version="1", **options),
        fleet.ask_open(two, agents=["free-repeatable", "both"], version="2", **options),
    ]
    for request in opened:
        request.get()
    api = fleet.api("api", lease=LEASE)
    mine, theirs = one("start", agent="free-repeatable"), two("start", agent="free-repeatable")
    one.event("tool", turn=mine)
    two.event("tool", turn=theirs)
    foreign = api("start", agent="both")
    two.event("tool", turn=foreign)
    one.kill()

    two.until(lambda found: (found["unclaimable"], found["stranded"]) == (1, 1), "statistics")
    two("release")
    assert {view["status"] for view in two("settle_all", turns=[theirs])} == {"COMPLETED"}
    assert api("answer", **{**approve(foreign), "wait": "call_1_1"})["effect"] == "APPROVED"
    assert api("settle", turn=foreign)["status"] == "COMPLETED"
    assert (api("view", turn=mine)["owner"], fleet.attempts(mine)) == (None, [1])
    again = fleet.executor("again", agents=["free-repeatable"], version="1", lease=LEASE)

    assert api("settle", turn=mine)["status"] == "COMPLETED"
    assert [pid for *_, pid in fleet.starts(mine)] == [one.pid, again.pid]
    assert {pid for turn in (theirs, foreign) for *_, pid in fleet.starts(turn)} == {two.pid}
