"""What the scripts answer, as replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

from . import base
from .base import Mail, Op, Reply
from .below import below
from .records import StoredRow
from .redis_scripts import status_of

_row = msgspec.msgpack.Decoder(StoredRow).decode


def mail_of(packed: bytes) -> Mail:
    """Return one entry of a mailbox."""
    message_id, command, wait, at, body = packed.split(b"\0", 4)
    return base.Mail(message_id.decode(), body, command.decode() or None, wait.decode() or None, int(at))


def maybe(value: bytes | None) -> str | None:
    """Return text, or nothing."""
    return None if value is None else value.decode()


def _claimed(
    epoch: int, version: int, schema: int, snapshot: bytes, now: int, mail: list[bytes], cause: bytes | None, *rest: Any
) -> Reply:
    crashes, tail, messages, events, quarantined = rest
    return base.Claimed(
        epoch=epoch,
        version=version,
        schema=schema,
        snapshot=snapshot,
        now=now,
        mail=tuple(map(mail_of, mail)),
        cancel=maybe(cause),
        crashes=crashes,
        tail=tuple(tail),
        message_count=messages,
        event_count=events,
        quarantined=bool(quarantined),
    )


def _saved(version: int, now: int, owned: int, mail: list[bytes], cause: bytes | None, usage: bytes | None, replayed: int) -> Reply:
    return base.Saved(
        version=version,
        now=now,
        owned=bool(owned),
        mail=tuple(map(mail_of, mail)),
        cancel=maybe(cause),
        usage=cast("tuple[int, int, int, int]", tuple(map(int, usage.split(b",")))) if usage else (0, 0, 0, 0),
        replayed=bool(replayed),
    )


def reply_of(op: Op, answer: list[Any]) -> Reply:
    """Return what a script answered to an operation."""
    if type(op) is base.Create and answer[0] in _STARTED:
        return _STARTED[answer[0]](op.new.turn)
    if type(op) is base.Find:
        return base.Found(tuple(answer))
    if type(op) is base.ReadEvents:
        return _events(answer)
    return _REPLIES[answer[0]](*answer[1:])


def _events(answer: list[Any]) -> Reply:
    last, state, *packed = answer
    batches: list[tuple[int, int, int, bytes]] = []
    for batch in packed:
        first, count, epoch, body = batch.split(b"\0", 3)
        batches.append((int(first), int(count), int(epoch), body))
    return base.EventBatches(tuple(batches), int(last or 0), state == b"T")


def wait_rows(packed: list[bytes]) -> dict[str, StoredRow]:
    """Return a turn's open waits by their ids."""
    pairs = (entry.split(b"\0", 1) for entry in packed)
    return {name.decode(): _row(row) for name, row in pairs}


class Member:
    """What a look says of a turn beside its record: enough to count, and its open waits."""

    __slots__ = ("parent", "state", "turn", "waits", "wake")

    def __init__(self, turn: str, parent: bytes | None, state: bytes | None, wake: bytes | None, waits: list[bytes]) -> None:
        self.turn = turn
        self.parent = maybe(parent)
        self.state = maybe(state) or "T"
        self.wake = None if wake is None else int(float(wake))
        self.waits = tuple(_row(entry.split(b"\0", 1)[1]).body for entry in waits)

    def runnable(self, now: int) -> bool:
        """Tell whether it runs, or may."""
        return self.state in {"A", "R"} or (self.wake is not None and self.wake <= now)


def looked(turn: str, answer: list[Any], children: list[str]) -> base.Looked:
    """Return the record that LOOK answered."""
    now, wake, snapshot, messages, waits, flat, *rows = answer
    row = {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}
    parent = row.get("pa")
    me = Member(turn, None if parent is None else parent.encode(), row["st"].encode(), wake, waits)
    every = {turn: me} | {child: Member(child, *fields) for child, fields in zip(children, rows, strict=True)}
    tree = [every[name] for name in below(turn, [(member.turn, member.parent) for member in every.values()])]
    return base.Looked(
        turn=turn,
        parent=parent,
        agent=row["ag"],
        agent_version=row["av"],
        conversation=row.get("cv"),
        tenant=row.get("tn"),
        schema=int(row["sc"]),
        status=status_of(row["ss"].encode()),
        state=row["st"],
        version=int(row["v"]),
        snapshot=snapshot or b"",
        activation=row.get("own") or None,
        node=row.get("nd") or None,
        epoch=int(row["ep"]),
        lease=int(row.get("lu", 0)),
        wake=me.wake,
        cancel=row.get("cx"),
        crashes=int(row.get("cr", 0)),
        quarantine=row.get("q"),
        quarantined_at=int(row.get("qa", 0)),
        message_count=messages,
        event_count=int(row["ev"]),
        created=int(row["cre"]),
        updated=int(row["upd"]),
        now=now,
        wait_bodies=tuple(body for member in tree for body in member.waits),
        live_turns=sum(member.state != "T" for member in tree),
        runnable_turns=sum(member.runnable(now) for member in tree),
    )


_STARTED: dict[bytes, Callable[[str], Reply]] = {b"EXISTS": base.Existing, b"REUSED": base.KeyReused}


def _delivered(now: int, node: bytes | None, fresh: int, parked: int) -> Reply:
    return base.Delivered(now, maybe(node), bool(fresh), bool(parked))


def _known(by: bytes, body: bytes) -> Reply:
    return base.Known("command" if by == b"command" else "wait", body)


def _closed(status: bytes) -> Reply:
    return base.Closed(status_of(status))


def _held(node: bytes | None = None) -> Reply:
    return base.Held(maybe(node))


def _fenced(node: bytes | None = None) -> Reply:
    return base.Fenced(maybe(node))


def _not_due(wake: bytes | None = None) -> Reply:
    return base.NotDue(None if wake is None else int(wake))


def _unknown(agent: bytes, version: bytes) -> Reply:
    return base.UnknownAgent(agent.decode(), version.decode())


def _reaped(crashes: int, parked: int) -> Reply:
    return base.Reaped(crashes, bool(parked))


_REPLIES: dict[bytes, Callable[..., Reply]] = {
    b"CREATED": base.Created,
    b"QUEUED": base.Queued,
    b"CLAIMED": _claimed,
    b"KNOWN": _known,
    b"REPLIED": base.Replied,
    b"DELIVERED": _delivered,
    b"FULL": base.Full,
    b"CLOSED": _closed,
    b"GONE": base.Gone,
    b"HELD": _held,
    b"NOT_DUE": _not_due,
    b"TOO_NEW": base.TooNew,
    b"UNKNOWN": _unknown,
    b"SAVED": _saved,
    b"FENCED": _fenced,
    b"BEHIND": base.Behind,
    b"CONFLICT": base.Conflict,
    b"REAPED": _reaped,
    b"DONE": base.Done,
}
