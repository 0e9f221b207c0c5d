"""Operations as script calls: which script, which KEYS, which ARGV. The order is that of the scripts' headers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from ..actors.ids import root_of
from . import base
from .base import ClaimBy, Mail, NewTurn, Op, Token
from .redis_keys import Keys

Arg: TypeAlias = str | bytes | int
Script: TypeAlias = tuple[str, list[str], list[Arg]]


def text(value: str | None) -> str:
    """Return text as a script takes it: nothing is the empty text."""
    return "" if value is None else value


def claim_args(by: ClaimBy | None) -> list[Arg]:
    """Pack a claim."""
    if by is None:
        return [""]
    agents: list[Arg] = [-1] if by.agents is None else [len(by.agents), *by.agents]
    return [by.activation, by.node, by.lease_ms, by.schema, by.tail, by.batch, *agents]


def mail_args(mail: Mail) -> list[Arg]:
    """Pack mail."""
    return [mail.message_id, text(mail.command_id), text(mail.wait_id), mail.body]


def new_args(new: NewTurn) -> list[Arg]:
    """Pack a new turn."""
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
    """Pack a token."""
    return [token.activation, token.epoch]


def counted(rows: Iterable[Sequence[Arg]]) -> list[Arg]:
    """Flatten rows behind their number."""
    flat: list[Arg] = [0]
    for count, row in enumerate(rows, 1):
        flat += row
        flat[0] = count
    return flat


def create(keys: Keys, op: base.Create, others: Sequence[str] = ()) -> Script:
    """Pack a Create; what it supersedes has to be named."""
    turn = op.new.turn
    names = keys.head(turn, "open", "queue") + keys.turn(turn, "tidshe")
    args = new_args(op.new) + claim_args(op.claim)
    if op.when_busy == "queue":
        args += ["queue", op.room]
    elif op.when_busy == "supersede":
        args += ["supersede", op.cause, len(others), *others]
        names += [key for other in others for key in keys.turn(other, "t")]
    return "create", names, args


def deliver(keys: Keys, op: base.Deliver) -> Script:
    """Pack a Deliver."""
    names = keys.head(op.turn) + keys.tree(op.turn, "ry") + keys.turn(op.turn, "tidsh")
    return "deliver", names, [op.turn, op.cap, int(op.runtime), *mail_args(op.mail), *claim_args(op.claim)]


def cancel(keys: Keys, op: base.Cancel) -> Script:
    """Pack a Cancel."""
    names = keys.head(op.turn, "queue") + keys.turn(op.turn, "tidsh")
    return "cancel", names, [op.turn, op.cause, *claim_args(op.claim)]


def claim(keys: Keys, op: base.Claim) -> Script:
    """Pack a Claim."""
    return "claim", keys.head(op.turn) + keys.turn(op.turn, "tidsh"), [op.turn, *claim_args(op.by)]


def renew(keys: Keys, op: base.Renew) -> Script:
    """Pack a Renew of turns of one partition."""
    names = keys.head(op.leases[0][0])
    args: list[Arg] = [op.lease_ms]
    for turn, token in op.leases:
        names += keys.turn(turn, "ti")
        args += [turn, *token_args(token)]
    return "renew", names, args


def heir_keys(keys: Keys, turn: str, heirs: Sequence[str]) -> list[str]:
    """Return the keys at the end of what ends a root."""
    return keys.partition(turn, "queue") + [key for heir in heirs for key in keys.turn(heir, "t")]


def save(keys: Keys, op: base.Save, heirs: Sequence[str] = ()) -> Script:
    """Pack a Save; at the end of a root, who may be next in its conversation has to be named."""
    turn = op.turn
    names = keys.head(turn, "waits", "open", "over", "parked") + keys.tree(turn, "rykt") + keys.turn(turn)
    for new in op.create:
        names += keys.turn(new.turn, "tidshe")
    for target, _ in op.deliver:
        names += keys.turn(target, "tid")
    if op.cancel:
        names += keys.partition(turn, "queue")
        for target, _ in op.cancel:
            names += keys.turn(target, "t")
    args: list[Arg] = [
        *(turn, *token_args(op.token), op.version, op.save_id, op.mode.value, op.lease_ms),
        *("" if op.wake is None else op.wake, op.schema, op.status, op.snapshot, int(op.progress), int(op.ack_cancel)),
        *(",".join(map(str, op.usage)), op.closing, op.retention_ms, op.batch, op.messages.at, op.events.at),
        *(len(op.messages.bodies), *op.messages.bodies, op.events.count, op.events.body),
        *(len(op.consumed), *op.consumed),
        *counted([row.wait_id, text(row.command_id), text(row.call_key), row.body] for row in op.receipts),
        *counted([row.message_id, row.body] for row in op.replies),
        *(len(op.closed), *op.closed),
        *counted([row.id, row.created, wait_row(row)] for row in op.opened),
        *counted(new_args(new) for new in op.create),
        *counted([target, *mail_args(mail)] for target, mail in op.deliver),
        *counted(op.cancel),
    ]
    if op.memory and op.conversation is not None:
        names += keys.head_of_conversation(op.conversation, "relay")[-1:] + keys.conversation(op.conversation, "mox")
        args += [op.conversation, int(op.relay), *counted([row.id, int(row.shown), row.body] for row in op.memory)]
    if op.mode is base.Mode.END and turn == root_of(turn):
        names += heir_keys(keys, turn, heirs)
        args += [*heirs, len(heirs)]
    return "save", names, args


def abandon(keys: Keys, op: base.Abandon) -> Script:
    """Pack an Abandon."""
    return "abandon", keys.head(op.turn) + keys.turn(op.turn, "t"), [op.turn, *token_args(op.token), op.delay_ms]


def reap(keys: Keys, op: base.Reap) -> Script:
    """Pack a Reap."""
    args: list[Arg] = [op.turn, op.grace_ms, text(op.dead_node), op.back_off_ms, op.max_crashes]
    return "reap", keys.head(op.turn, "parked") + keys.tree(op.turn, "t") + keys.turn(op.turn, "t"), args


def park_keys(keys: Keys, turn: str) -> list[str]:
    """Return the keys of PARK."""
    return keys.head(turn, "parked", "waits", "open", "over") + keys.tree(turn, "yt") + keys.turn(turn)


def quarantine(keys: Keys, op: base.Quarantine) -> Script:
    """Pack a Quarantine."""
    return "park", park_keys(keys, op.turn), [op.turn, "quarantine", *token_args(op.token), op.reason]


def revive(keys: Keys, op: base.Revive) -> Script:
    """Pack a Revive."""
    return "park", park_keys(keys, op.turn), [op.turn, "revive"]


def discard(keys: Keys, op: base.Discard, parent: str | None, heirs: Sequence[str] = ()) -> Script:
    """Pack a Discard; the keys of the parent, and of who may be next in the conversation, have to be named."""
    names, args = park_keys(keys, op.turn), [op.turn, "discard", op.status, op.retention_ms, op.closing]
    if op.turn == root_of(op.turn):
        return "park", names + heir_keys(keys, op.turn, heirs), [*args, "", *heirs, len(heirs)]
    if parent is None or op.notify is None:
        return "park", names, [*args, ""]
    return "park", names + keys.turn(parent, "tid"), [*args, parent, *mail_args(op.notify)]


def drop(keys: Keys, turns: Sequence[str], later_ms: int) -> Script:
    """Pack the drop of a tree."""
    names = keys.head(turns[0], "over", "parked") + keys.tree(turns[0], "ryk")
    for turn in turns:
        names += keys.turn(turn)
    return "drop", names, [later_ms, *turns]


def look(keys: Keys, turn: str, children: Sequence[str]) -> Script:
    """Pack the look at a turn whose tree has these children."""
    names = keys.head(turn) + keys.tree(turn, "k") + keys.turn(turn, "tshw")
    for child in children:
        names += keys.turn(child, "tw")
    return "look", names, [turn, *children]


def find(keys: Keys, op: base.Find) -> Script:
    """Pack a Find."""
    wanted = (op.commands, op.waits, op.calls)
    return "find", keys.head(op.root) + keys.tree(op.root, "r"), [arg for names in wanted for arg in (len(names), *names)]


def read_events(keys: Keys, op: base.ReadEvents) -> Script:
    """Pack a ReadEvents."""
    return "events", keys.head(op.turn) + keys.turn(op.turn, "te"), [op.after, op.limit]


def page(keys: Keys, tag: str, index: str, limit: int, after: tuple[int, str] | None, codes: Sequence[int]) -> Script:
    """Pack a page of an index of a partition."""
    number, name = ("", "") if after is None else after
    return "page", [*keys.head(tag), *keys.partition(tag, index)], [limit, number, name, *codes]


PACKERS: dict[type[Op], Callable[[Keys, Any], Script]] = {
    base.Deliver: deliver,
    base.Cancel: cancel,
    base.Claim: claim,
    base.Abandon: abandon,
    base.Reap: reap,
    base.Quarantine: quarantine,
    base.Revive: revive,
    base.Find: find,
    base.ReadEvents: read_events,
}
