"""What the operations of an approve cycle cost a store: statements, commands, bytes. A guard without a clock."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from turnhold.store import base as b
from turnhold.store.redis_link import packed
from turnhold.store.sqlite_core import SqliteCore
from turnhold.testing.conformance import make

from .redis_core import RedisCore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import redis


def cycles(apply: Callable[[Sequence[b.Op]], Sequence[Any]], count: int) -> None:
    """Create and own; wait for a person; an answer, and own; receipt and start of the tool; its result; the end."""
    news = [make.new(snapshot=b"x" * 300) for _ in range(count)]
    tokens: list[b.Token] = []

    def own(ops: Sequence[b.Create | b.Deliver]) -> None:
        replies = apply(ops)
        assert {type(reply) for reply in replies} == {b.Claimed}
        pairs = zip(ops, replies, strict=True)
        tokens[:] = [b.Token(op.claim.activation, reply.epoch) for op, reply in pairs if op.claim is not None]

    def save(version: int, mode: b.Mode, more: Callable[[str], dict[str, Any]]) -> None:
        pairs = zip(news, tokens, strict=True)
        events, messages = b.Events(1 + version, 1, b"y" * 200), b.Messages(1 + version, (b"z" * 100,))
        fields: dict[str, Any] = {"events": events, "messages": messages, "snapshot": b"x" * 600}
        replies = apply([make.save(new.turn, token, version, mode, **fields, **more(new.turn)) for new, token in pairs])
        assert {type(reply) for reply in replies} == {b.Saved}

    def answered(turn: str) -> dict[str, Any]:
        wait = make.wait(turn)
        receipt = b.ReceiptRow(wait.id, b"r" * 200, f"command {turn}", f"{turn}:c1")
        reply = b.ReplyRow(f"mail {turn}", b"a" * 200)
        return {"consumed": (f"mail {turn}",), "receipts": (receipt,), "replies": (reply,), "closed": (wait.id,)}

    def mail(turn: str) -> b.Mail:
        return make.mail(f"mail {turn}", command_id=f"command {turn}", wait_id=make.wait(turn).id)

    own([b.Create(new=new, claim=make.by(tail=64)) for new in news])
    save(0, b.Mode.SUSPEND, lambda turn: {"opened": (make.wait(turn),), "status": "WAITING_FOR_APPROVAL"})
    own([b.Deliver(turn=new.turn, mail=mail(new.turn), claim=make.by(tail=64)) for new in news])
    save(1, b.Mode.KEEP, answered)
    save(2, b.Mode.KEEP, lambda _: {"progress": True})
    save(3, b.Mode.END, lambda _: {})


@pytest.mark.parametrize(("count", "statements"), [(1, 50), (16, 65)], ids=["alone", "16 at once"])
def test_a_cycle_on_sqlite(tmp_path: Path, count: int, statements: int) -> None:
    """Each commit of one turn alone has five statements around what it writes; where many share it, rows share statements."""
    core = SqliteCore.open(tmp_path / "turns.db", synchronous="OFF")
    said: list[str] = []

    def apply(ops: Sequence[b.Op]) -> Sequence[Any]:
        return core.apply_all(ops, make.START)

    core.connection.set_trace_callback(said.append)
    cycles(apply, count)
    core.close()

    assert len(said) <= statements, Counter(" ".join(text.split()[:3]) for text in said)
    assert said.count("COMMIT") == 6


@pytest.mark.redis
def test_a_cycle_on_redis(client: redis.Redis) -> None:
    """Six scripts; what they are given, and what they ask of the server."""
    core = RedisCore(client, virtual=False)
    question, sent = core.connection.question, list[bytes]()

    def asked(script: Any, *more: Any) -> Any:
        _, keys, args = script
        sent.append(packed("EVALSHA", "d" * 40, len(keys), *keys, *args))
        return question(script, *more)

    def apply(ops: Sequence[b.Op]) -> Sequence[Any]:
        return [core.apply(op, 0) for op in ops]

    cycles(apply, 1)  # gives the server its scripts
    core.connection.question = asked
    client.config_resetstat()
    cycles(apply, 1)
    stats: Any = client.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): told["calls"] for name, told in stats.items()}

    assert calls.pop("evalsha") == len(sent) == 6
    inside = {name: count for name, count in calls.items() if "|" not in name and name not in {"info", "ping"}}
    assert sum(inside.values()) <= 95, inside
    assert sum(map(len, sent)) <= 9_300
    assert sum(int(each[1 : each.index(b"\r")]) for each in sent) <= 140  # words
