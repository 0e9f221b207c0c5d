"""Operations as script calls: which script, which KEYS, which ARGV, and what its reply means."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from turnhold.actors.ids import root_of
from turnhold.store import base

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from turnhold.store.base import ClaimBy, Mail, NewTurn, Op, Reply, Token

Arg: TypeAlias = str | bytes | int
Script: TypeAlias = tuple[str, list[str], list[Arg]]

LUA = resources.files("turnhold.store") / "lua"
SCRIPTS = (
    *("create", "deliver", "cancel", "claim", "renew", "save"),
    *("abandon", "reap", "park", "drop"),
)


def source(name: str, clock: str | None = None) -> str:
    """Return a whole script; `clock` replaces the server's time."""
    first = (LUA / "clock.lua").read_text() if clock is None else clock
    return "\n".join((first, (LUA / "prelude.lua").read_text(), (LUA / f"{name}.lua").read_text()))


class Keys:
    """The names of the keys of a namespace; with `only`, all in that partition."""

    def __init__(self, namespace: str, only: str | None = None) -> None:
        self._namespace, self._only = namespace, only

    def partition(self, turn: str, *names: str) -> list[str]:
        tag = f"{{{self._namespace}:{self._only or turn[:2]}}}:"
        return [tag + name for name in names]

    def head(self, turn: str, *names: str) -> list[str]:
        return self.partition(turn, "wake", "leases", "turns", "bell", *names)

    def tree(self, turn: str, kinds: str) -> list[str]:
        root = root_of(turn)
        return self.partition(turn, *(f"{kind}:{root}" for kind in kinds))

    def turn(self, turn: str, kinds: str = "tidshew") -> list[str]:
        return self.partition(turn, *(f"{kind}:{turn}" for kind in kinds))


def text(value: str | None) -> str:
    return "" if value is None else value


def claim_args(by: ClaimBy | None) -> list[Arg]:
    if by is None:
        return [""]
    agents: list[Arg] = [-1] if by.agents is None else [len(by.agents), *by.agents]
    return [by.activation, by.node, by.lease_ms, by.schema, by.tail, by.batch, *agents]


def mail_args(mail: Mail) -> list[Arg]:
    return [mail.message_id, text(mail.command_id), text(mail.wait_id), mail.body]


def new_args(new: NewTurn) -> list[Arg]:
    return [
        *(new.turn, text(new.parent), new.agent, new.agent_version, text(new.conversation), text(new.tenant)),
        *(new.digest, new.schema, new.status, "" if new.wake is None else new.wake, new.snapshot),
        *counted([body] for body in new.messages.bodies),
        *(new.events.count, new.events.body),
    ]


def wait_row(row: base.WaitRow) -> bytes:
    """Encode a row; its id stands before it in the list."""
    return msgspec.msgpack.encode(msgspec.structs.replace(row, id=""))


def token_args(token: Token) -> list[Arg]:
    return [token.activation, token.epoch]


def counted(rows: Iterable[Sequence[Arg]]) -> list[Arg]:
    """Flatten rows behind their number."""
    all_rows = list(rows)
    return [len(all_rows), *(arg for row in all_rows for arg in row)]


def create(keys: Keys, op: base.Create) -> Script:
    turn = op.new.turn
    return "create", keys.head(turn, "open") + keys.turn(turn, "tidshe"), new_args(op.new) + claim_args(op.claim)


def deliver(keys: Keys, op: base.Deliver) -> Script:
    names = keys.head(op.turn) + keys.tree(op.turn, "ry") + keys.turn(op.turn, "tidsh")
    return "deliver", names, [op.turn, op.cap, int(op.runtime), *mail_args(op.mail), *claim_args(op.claim)]


def cancel(keys: Keys, op: base.Cancel) -> Script:
    names = keys.head(op.turn) + keys.turn(op.turn, "tidsh")
    return "cancel", names, [op.turn, op.cause, *claim_args(op.claim)]


def claim(keys: Keys, op: base.Claim) -> Script:
    return "claim", keys.head(op.turn) + keys.turn(op.turn, "tidsh"), [op.turn, *claim_args(op.by)]


def renew(keys: Keys, op: base.Renew) -> Script:
    names = keys.head(op.leases[0][0])
    args: list[Arg] = [op.lease_ms]
    for turn, token in op.leases:
        names += keys.turn(turn, "ti")
        args += [turn, *token_args(token)]
    return "renew", names, args


def save(keys: Keys, op: base.Save) -> Script:
    turn = op.turn
    names = keys.head(turn, "waits", "open", "over", "parked") + keys.tree(turn, "rykt") + keys.turn(turn)
    for new in op.create:
        names += keys.turn(new.turn, "tidshe")
    for target, _ in op.deliver:
        names += keys.turn(target, "tid")
    for target, _ in op.cancel:
        names += keys.turn(target, "t")
    args: list[Arg] = [
        *(turn, *token_args(op.token), op.version, op.save_id, op.mode.value, op.lease_ms),
        *("" if op.wake is None else op.wake, op.schema, op.status, op.snapshot, int(op.progress), int(op.ack_cancel)),
        *(",".join(map(str, op.usage)), op.closing, op.retention_ms, op.batch, op.messages.at, op.events.at),
        *counted([body] for body in op.messages.bodies),
        *(op.events.count, op.events.body),
        *counted([message_id] for message_id in op.consumed),
        *counted([row.wait_id, text(row.command_id), text(row.call_key), row.body] for row in op.receipts),
        *counted([row.message_id, row.body] for row in op.replies),
        *counted([wait_id] for wait_id in op.closed),
        *counted([row.id, row.created, wait_row(row)] for row in op.opened),
        *counted(new_args(new) for new in op.create),
        *counted([target, *mail_args(mail)] for target, mail in op.deliver),
        *counted(op.cancel),
    ]
    return "save", names, args


def abandon(keys: Keys, op: base.Abandon) -> Script:
    return "abandon", keys.head(op.turn) + keys.turn(op.turn, "t"), [op.turn, *token_args(op.token), op.delay_ms]


def reap(keys: Keys, op: base.Reap) -> Script:
    args: list[Arg] = [op.turn, op.grace_ms, text(op.dead_node), op.back_off_ms, op.max_crashes]
    return "reap", keys.head(op.turn, "parked") + keys.turn(op.turn, "t"), args


def park_keys(keys: Keys, turn: str) -> list[str]:
    return keys.head(turn, "parked", "waits", "open", "over") + keys.tree(turn, "yt") + keys.turn(turn)


def quarantine(keys: Keys, op: base.Quarantine) -> Script:
    return "park", park_keys(keys, op.turn), [op.turn, "quarantine", *token_args(op.token), op.reason]


def revive(keys: Keys, op: base.Revive) -> Script:
    return "park", park_keys(keys, op.turn), [op.turn, "revive"]


def discard(keys: Keys, op: base.Discard, parent: str | None) -> Script:
    names, args = park_keys(keys, op.turn), [op.turn, "discard", op.status, op.retention_ms, op.closing]
    if parent is None or op.notify is None:
        return "park", names, [*args, ""]
    return "park", names + keys.turn(parent, "tid"), [*args, parent, *mail_args(op.notify)]


def drop(keys: Keys, turns: Sequence[str], later_ms: int) -> Script:
    names = keys.head(turns[0], "over", "parked") + keys.tree(turns[0], "ryk")
    for turn in turns:
        names += keys.turn(turn)
    return "drop", names, [later_ms, *turns]


PACKERS: dict[type[Op], Callable[..., Script]] = {
    base.Create: create,
    base.Deliver: deliver,
    base.Cancel: cancel,
    base.Claim: claim,
    base.Renew: renew,
    base.Save: save,
    base.Abandon: abandon,
    base.Reap: reap,
    base.Quarantine: quarantine,
    base.Revive: revive,
}


def mail_of(packed: bytes) -> Mail:
    message_id, command, wait, at, body = packed.split(b"\0", 4)
    return base.Mail(message_id.decode(), body, command.decode() or None, wait.decode() or None, int(at))


def maybe(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def claimed(
    epoch: int,
    version: int,
    schema: int,
    snapshot: bytes,
    now: int,
    mail: list[bytes],
    cause: bytes | None,
    crashes: int,
    tail: list[bytes],
    *rest: int,
) -> Reply:
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
        message_count=rest[0],
        event_count=rest[1],
        quarantined=bool(rest[2]),
    )


def saved(version: int, now: int, owned: int, mail: list[bytes], cause: bytes | None, usage: bytes | None, replayed: int) -> Reply:
    return base.Saved(
        version=version,
        now=now,
        owned=bool(owned),
        mail=tuple(map(mail_of, mail)),
        cancel=maybe(cause),
        usage=tuple(map(int, usage.split(b","))) if usage else (0, 0, 0, 0),  # type: ignore[arg-type]
        replayed=bool(replayed),
    )


REPLIES: dict[bytes, Callable[..., Reply]] = {
    b"CREATED": base.Created,
    b"CLAIMED": claimed,
    b"KNOWN": lambda by, body: base.Known(by.decode(), body),
    b"REPLIED": base.Replied,
    b"DELIVERED": lambda now, node, fresh, parked: base.Delivered(now, maybe(node), bool(fresh), bool(parked)),
    b"FULL": base.Full,
    b"CLOSED": lambda status: base.Closed(status.decode()),
    b"GONE": base.Gone,
    b"HELD": lambda node=None: base.Held(maybe(node)),
    b"NOT_DUE": lambda wake=None: base.NotDue(None if wake is None else int(wake)),
    b"TOO_NEW": base.TooNew,
    b"UNKNOWN": lambda agent, version: base.UnknownAgent(agent.decode(), version.decode()),
    b"SAVED": saved,
    b"FENCED": lambda node=None: base.Fenced(maybe(node)),
    b"BEHIND": base.Behind,
    b"CONFLICT": base.Conflict,
    b"REAPED": lambda crashes, parked: base.Reaped(crashes, bool(parked)),
    b"DONE": base.Done,
}
