"""A Redis that is restarted, or forgets, and lines to it that break or stand still: commands get one answer, tools start once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from turnhold.store.redis_scripts import Scripts

from ..redis_server import RedisServer
from ..tcp_proxy import TcpProxy
from .conftest import checked, namespaced
from .places import RedisPlace
from .processes import Crew, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from ..tcp_proxy import Towards
    from .processes import Request, Worker

pytestmark = [pytest.mark.process, pytest.mark.redis]
AGENTS = ("once", "repeatable", "both", "free-once", "free-repeatable")
PATIENT = 30.0


@pytest.fixture(scope="module")
def durable() -> Iterator[RedisServer]:
    """A server that keeps what it has acknowledged."""
    with RedisServer(aof="always") as server:
        yield server


@pytest.fixture
def kept(tmp_path: Path, durable: RedisServer) -> Iterator[Crew]:
    """Processes on the server that keeps its data."""
    with checked(Crew(tmp_path, namespaced(durable.url))) as crew:
        yield crew


def approve(turn: str, wait: str = "call_1_0", **more: Any) -> dict[str, Any]:
    return {"turn": turn, "kind": "approve_tool", "wait": wait, "command_id": f"a {turn}", "by": "ann", "timeout": PATIENT, **more}


def wait_of(agent: str) -> str:
    return "call_1_1" if agent == "both" else "call_1_0"


def left_nothing(crew: Crew) -> None:
    assert RedisPlace(crew.url).left("wake", "leases", "waits") == {}


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_restarted_within_the_lease(kept: Crew, durable: RedisServer, how: str) -> None:
    """What was asked meanwhile is answered when the server is back; all turns go on where they were, under the same owners."""
    one, other = kept.executors("one", "other", lease=15)
    one("gate", point="tool")
    running = one("start", agent="free-once")
    one.event("tool", turn=running)
    turns = [one("start", agent="once", idempotency_key=f"{how} {number}") for number in range(10)]
    one("settle_all", turns=turns)
    getattr(durable, how)()

    asked = [worker.ask("answer", **approve(turn)) for turn in turns for worker in (one, other)]
    asked += [other.ask("start", agent="free-repeatable", idempotency_key=f"{how} new")]
    durable.restart()
    one("release")
    *receipts, new = [request.get(PATIENT) for request in asked]

    assert {view["status"] for view in other("settle_all", turns=[running, new, *turns])} == {"COMPLETED"}
    for mine, theirs in zip(receipts[::2], receipts[1::2], strict=True):
        assert {mine.pop("replayed"), theirs.pop("replayed")} <= {True, False}
        assert mine == theirs
    assert [kept.attempts(turn) for turn in [running, new, *turns]] == [[1]] * 12
    assert other("statistics")["lost"] + one("statistics")["lost"] == 0
    left_nothing(kept)


def test_away_for_longer_than_the_lease(kept: Crew, durable: RedisServer) -> None:
    """The nodes stop their actors before the leases end, rejoin by themselves, and end all turns; what ran once is in doubt."""
    workers = kept.executors("one", "other", lease=1, gate="tool")
    once = [worker("start", agent="free-once") for worker in workers]
    again = [worker("start", agent="free-repeatable") for worker in workers]
    waiting = [worker("start", agent="once") for worker in workers]
    for worker, *turns in zip(workers, once, again, strict=True):
        for turn in turns:
            worker.event("tool", turn=turn)
    workers[0]("settle_all", turns=waiting)

    durable.pause()  # no renewal is taken any more
    durable.kill()
    running = [turn for turns in zip(once, again, strict=True) for turn in turns]
    stopped = [workers[number // 2].event("stopped", turn=turn)["at"] for number, turn in enumerate(running)]
    asked = [worker.ask("answer", **approve(turn)) for worker, turn in zip(workers, waiting, strict=True)]
    durable.restart()
    leases = [int(RedisPlace(kept.url).turn(turn)["lu"]) / 1000 for turn in running]
    for worker in workers:
        worker("release")

    assert {request.get(PATIENT)["effect"] for request in asked} == {"APPROVED"}
    assert {view["status"] for view in workers[0]("settle_all", turns=[*again, *waiting])} == {"COMPLETED"}
    for turn in once:
        workers[0].until(lambda view: view["status"] == "IN_DOUBT", "view", turn=turn)
        workers[0]("answer", turn=turn, kind="rerun", wait="call_1_0")
    assert {view["status"] for view in workers[1]("settle_all", turns=once)} == {"COMPLETED"}
    assert [kept.attempts(turn) for turn in once + again + waiting] == [[1, 2]] * 4 + [[1]] * 2
    assert all(at < lease for at, lease in zip(stopped, leases, strict=True)), (stopped, leases)
    for worker in workers:
        worker.until(lambda found: found["healthy"], "statistics")
    left_nothing(kept)


# ------------------------------------------------------------------------------------------------------------ lines


@pytest.fixture(scope="module")
def line(redis_url: str) -> Iterator[TcpProxy]:
    """A line to the server that can be cut."""
    with TcpProxy(int(redis_url.rpartition(":")[2].partition("/")[0])) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def crowd(crowds: Callable[..., AbstractContextManager[Crew]], redis_url: str, line: TcpProxy) -> Iterator[Crew]:
    """One executor behind the bad line, one beside it. At the end no attempt of a call has been started twice."""
    with crowds(redis_url) as crowd:
        far, near = crowd.spawn("far"), crowd.spawn("near")
        bad = crowd.url.replace(redis_url, line.url)
        for request in [crowd.ask_open(far, url=bad, lease=10), crowd.ask_open(near, lease=10)]:
            request.get()
        yield crowd


@pytest.fixture
def far(crowd: Crew) -> Worker:
    """The executor behind the bad line."""
    return crowd.workers[0]


@pytest.fixture
def near(crowd: Crew) -> Worker:
    """The executor on a good line."""
    return crowd.workers[1]


def digest(name: str) -> bytes:
    return Scripts().digests[name].encode()


CUTS: list[tuple[Towards, bytes, int]] = [
    *(("server", digest(name), count) for name in ("create", "deliver", "save") for count in (0, 60)),
    *(("client", marker, count) for marker in (b"CLAIMED", b"SAVED") for count in (0, 7)),
]


@pytest.mark.parametrize("agent", ["once", "both"])
def test_cut_in_the_middle(crowd: Crew, far: Worker, near: Worker, line: TcpProxy, agent: str) -> None:
    """A command or a reply that is lost, or broken off, is asked again: it gets its one answer and starts its tool once."""
    for number, (way, marker, count) in enumerate(CUTS):
        key = f"{agent} {number}"
        if marker in {digest("create"), b"CLAIMED"}:
            line.cut_after(count, way, marker=marker)
        turn = far("start", agent=agent, idempotency_key=key)
        assert near("start", agent=agent, idempotency_key=key) == turn
        assert far("settle", turn=turn)["status"] == "WAITING_FOR_APPROVAL"
        line.cut_after(count, way, marker=digest("deliver") if marker == digest("create") else marker)

        mine, theirs = (worker.ask("answer", **approve(turn, wait_of(agent))) for worker in (far, near))
        receipts = [mine.get(PATIENT), theirs.get(PATIENT)]

        assert far("settle", turn=turn)["status"] == near("settle", turn=turn)["status"] == "COMPLETED"
        for receipt in receipts:
            receipt.pop("replayed")
        assert receipts[0] == receipts[1]
        assert sorted((key[-1], attempt) for key, attempt, _ in crowd.starts(turn)) == [("0", 1), ("1", 1)][: 1 + (agent == "both")]
    assert line.cuts >= len(CUTS)


def asked_of(worker: Worker, turns: list[str]) -> list[Request]:
    return [worker.ask("answer", **approve(turn)) for turn in turns]


def answered(crowd: Crew, worker: Worker, turns: list[str], requests: list[Request]) -> None:
    """All have been approved, and each tool has started once."""
    assert {request.get(PATIENT)["effect"] for request in requests} == {"APPROVED"}
    assert {view["status"] for view in worker("settle_all", turns=turns)} == {"COMPLETED"}
    assert [crowd.attempts(turn) for turn in turns] == [[1]] * len(turns)


def test_stalled_past_the_time_of_an_operation(crowd: Crew, far: Worker, near: Worker, line: TcpProxy) -> None:
    """Nothing comes back: the node gives the connections up, takes others, and asks the same again; nothing happens twice."""
    turns = [turn for turn, _ in far("start_all", agent="once", count=10)]
    line.stall("client")
    taken = line.connections

    requests = asked_of(far, turns)
    line.wait(lambda proxy: proxy.connections > taken)
    line.resume()

    answered(crowd, near, turns, requests)


def test_refused_for_a_while(crowd: Crew, far: Worker, near: Worker, line: TcpProxy) -> None:
    """Nobody is let in: what was asked waits, and is answered when the door is open again."""
    turns = [turn for turn, _ in far("start_all", agent="once", count=10)]
    line.refuse()
    line.cut()

    requests = asked_of(far, turns)
    with pytest.raises(TimeoutError):
        requests[0].get(0.5)
    line.refuse(False)

    answered(crowd, near, turns, requests)


# ----------------------------------------------------------------------------------------------------- forgotten


def test_scripts_flushed(redis_crew: Crew, redis_url: str) -> None:
    """A server that has forgotten the scripts, again and again, is taught them; nobody notices."""
    (worker,) = redis_crew.executors("worker")
    place = RedisPlace(redis_url)
    turns = [turn for turn, _ in worker("start_all", agent="once", count=20)]

    requests = []
    for turn in turns:
        place.forget_scripts()
        requests.append(worker.ask("answer", **approve(turn)))
        if len(requests) % 5 == 0:
            assert requests[-1].get()["effect"] == "APPROVED"

    answered(redis_crew, worker, turns, requests)


def test_one_partition_flushed(redis_crew: Crew) -> None:
    """Who asks for a turn that is gone is told so; its owner drops it; the other partitions go on, and nothing spins."""
    owner, other = redis_crew.executors("owner", "other", gate="tool", lease=2)
    place = RedisPlace(redis_crew.url)
    turns = [owner("start", agent="both") for _ in range(12)]
    for turn in turns:
        owner.event("tool", turn=turn)
    lost = turns[0]
    gone = [turn for turn in turns if turn[:2] == lost[:2]]
    kept = [turn for turn in turns if turn not in gone]

    assert place.flush(lost) > 0
    for worker in (owner, other):
        for question in ("view", "settle", "history"):
            with pytest.raises(Refused, match="TurnNotFound"):
                worker(question, turn=lost)
        with pytest.raises(Refused, match="TurnNotFound"):
            worker("answer", **approve(lost, "call_1_1"))
    owner.until(lambda found: found["live"] == len(kept), "statistics")
    for worker in (owner, other):
        worker("release")
    for turn in kept:
        assert other("answer", **approve(turn, "call_1_1"))["effect"] == "APPROVED"

    assert {view["status"] for view in owner("settle_all", turns=kept)} == {"COMPLETED"}
    assert owner("statistics")["lost"] == len(gone)
    assert [redis_crew.attempts(turn) for turn in gone] == [[1]] * len(gone)
    claims = sum(worker("statistics")["claims"] for worker in (owner, other))
    again = owner("start", agent="free-once", conversation=None)
    assert other("settle", turn=again)["status"] == "COMPLETED"
    assert sum(worker("statistics")["claims"] for worker in (owner, other)) <= claims + 1
    assert place.left("wake", "leases", "waits") == {}
