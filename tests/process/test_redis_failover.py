"""A replica that has lost the newest writes becomes the master: one line of snapshots, and starts that are known or counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import pytest

from ..redis_server import HOST, RedisServer, wait_until
from ..tcp_proxy import TcpProxy
from .processes import Crew

if TYPE_CHECKING:
    from pathlib import Path

    from .processes import Worker

pytestmark = [pytest.mark.process, pytest.mark.redis]
COUNT = 6


class Pair:
    """A master, a replica behind a line that can be stalled, and a line for clients that leads to the one that is master."""

    def __enter__(self) -> Self:
        self.master = RedisServer()
        self.master.start()
        self.between = TcpProxy(self.master.port)
        self.between.start()
        self.replica = RedisServer(replicaof=f"{HOST} {self.between.port}")
        self.replica.start()
        self.replica.wait_synced()
        self.line = TcpProxy(self.master.port)
        self.line.start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self.line, self.replica, self.between, self.master):
            each.close()

    def lose_what_follows(self) -> None:
        """Let the replica have all that has been written, and nothing of what will be."""

        def offset(server: RedisServer, name: str) -> str:
            return server.info("replication")[name]

        master, replica = (self.master, "master_repl_offset"), (self.replica, "slave_repl_offset")
        wait_until(lambda: offset(*master) == offset(*replica), "the replica has everything")
        self.between.stall("client")

    def fail_over(self) -> None:
        """The master dies; the replica takes its place."""
        self.master.kill()
        self.replica.cli("REPLICAOF", "NO", "ONE")
        self.line.target = (HOST, self.replica.port)
        self.line.cut()


def approve(turn: str, wait: str = "call_1_0", **more: Any) -> dict[str, Any]:
    return {"turn": turn, "kind": "approve_tool", "wait": wait, "command_id": f"a {turn}", "by": "ann", "timeout": 30, **more}


def one_line(worker: Worker, turns: list[str], calls: int = 1) -> None:
    """All turns have ended, and their stories have no gap, no repetition, one result of each call."""
    for turn, view in zip(turns, worker("settle_all", turns=turns), strict=True):
        assert view["status"] == "COMPLETED", view
        story = worker("events", turn=turn)
        assert [number for number, _ in story] == list(range(1, len(story) + 1))
        assert [kind for _, kind in story].count("TURN_COMPLETED") == 1
        results = [text for kind, text in worker("history", turn=turn) if kind == "ToolMessage"]
        assert len(results) == calls


def test_the_owner_repeats_what_was_forgotten(tmp_path: Path) -> None:
    """Its token still holds: what it had saved is saved again, receipts and all, and nobody notices."""
    with Pair() as pair:
        crew = Crew(tmp_path, pair.line.url)
        try:
            owner, other = crew.executors("owner", "other", lease=15)
            owner("gate", point="tool")
            turns = [owner("start", agent="both") for _ in range(COUNT)]
            for turn in turns:
                owner.event("tool", turn=turn)
            pair.lose_what_follows()
            receipts = [other("answer", **approve(turn, "call_1_1")) for turn in turns]
            for turn in turns:
                owner.event("tool", after=1, turn=turn)
            pair.fail_over()
            owner("release")

            one_line(owner, turns, calls=2)
            again = [other("answer", **approve(turn, "call_1_1")) for turn in turns]
        finally:
            crew.close()
    assert again == [{**receipt, "replayed": True} for receipt in receipts]
    assert [crew.attempts(turn) for turn in turns] == [[1, 1]] * COUNT
    crew.check()


def test_the_claim_is_forgotten_too(tmp_path: Path) -> None:
    """The owner has lost its turn, but says what it had started: it is in doubt, and not started by the same approval again."""
    with Pair() as pair:
        crew = Crew(tmp_path, pair.line.url)
        try:
            owner, other = crew.executors("owner", "other", lease=3)
            turns = [turn for turn, _ in owner("start_all", agent="once", count=COUNT)]
            owner("gate", point="tool")
            pair.lose_what_follows()
            for turn in turns:
                owner("answer", **approve(turn))
                owner.event("tool", turn=turn)
            pair.fail_over()
            for turn in turns:
                owner.until(lambda view: view["status"] == "IN_DOUBT", "view", turn=turn)
            before = [crew.attempts(turn) for turn in turns]
            owner("release")

            for turn in turns:
                other("answer", turn=turn, kind="give_result", wait="call_1_0", value="paid by hand")
            one_line(other, turns)
        finally:
            crew.close()
    assert before == [crew.attempts(turn) for turn in turns] == [[1]] * COUNT
    crew.check()


def failed_over(tmp_path: Path, **options: Any) -> tuple[Crew, list[str], list[str], list[int]]:
    """Let a master die together with the owner of approved calls; the approvals are repeated under the new master.

    :return: the crew, the turns whose approval the replica has, those whose approval it has not, and how often calls of the latter
        had started when the master died.
    """
    with Pair() as pair:
        crew = Crew(tmp_path, pair.line.url)
        try:
            owner, next_owner = crew.spawn("owner"), crew.spawn("next")
            crew.ask_open(owner, gate="tool", lease=3, **options).get()
            known, forgotten = ([turn for turn, _ in owner("start_all", agent="once", count=COUNT)] for _ in range(2))
            for turn in known:
                owner("answer", **approve(turn))
                owner.event("tool", turn=turn)
            pair.lose_what_follows()
            for request in [owner.ask("answer", **approve(turn)) for turn in forgotten]:
                assert request.get(30)["effect"] == "APPROVED"
            if not options:
                for turn in forgotten:
                    owner.event("tool", turn=turn)
            owner.kill()
            started = [len(crew.attempts(turn)) for turn in forgotten]
            pair.fail_over()
            crew.ask_open(next_owner, lease=3).get()

            for turn in [*known, *forgotten]:
                assert next_owner("answer", **approve(turn))["effect"] == "APPROVED"
            for turn in known:
                next_owner.until(lambda view: view["status"] == "IN_DOUBT", "view", turn=turn)
                next_owner("answer", turn=turn, kind="give_result", wait="call_1_0", value="paid by hand")
            one_line(next_owner, [*known, *forgotten])
        finally:
            crew.close()
    return crew, known, forgotten, started


def test_a_confirmed_start_is_never_forgotten(tmp_path: Path) -> None:
    """With `confirm="once"` a tool starts only if the replica knows of it, so under the promoted replica none starts twice."""
    crew, known, forgotten, started = failed_over(tmp_path, confirm="once")

    assert started == [0] * COUNT
    assert [crew.attempts(turn) for turn in known + forgotten] == [[1]] * 2 * COUNT
    crew.check()


def test_without_confirmation_doubles_are_possible(tmp_path: Path, record_property: Any) -> None:
    """Only what was started behind the last write that the replica has is started twice: this is the documented loss."""
    crew, known, forgotten, started = failed_over(tmp_path)

    doubles = [key.partition(":")[0] for key, _ in crew.twice()]
    record_property("doubles", len(doubles))
    print(f"started twice without confirm: {len(doubles)} of {sum(started)} forgotten starts, 0 of {len(known)} known ones")
    assert started == [1] * COUNT
    assert set(doubles) <= set(forgotten)
