"""Operations as script calls: which script, which KEYS, which ARGV. The order is that of the scripts' headers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from ..actors.ids import ROOT_LENGTH, root_of
from . import base
from .base import Mail, NewTurn, Op, Token
from .records import END, StoredRow
from .redis_keys import Keys
from .redis_scripts import CODES

Arg: TypeAlias = str | bytes | int
Script: TypeAlias = tuple[str, list[str], list[Arg]]

encode = msgspec.msgpack.Encoder().encode


def text(value: str | None) -> str:
    """Return text as a script takes it: nothing is the empty text."""
    return "" if value is None else value


def _status(name: str) -> str | int:
    return CODES.get(name, name)


def mail_head(mail: Mail) -> tuple[str | None, ...]:
    """Return what of mail is told in a list; its body stands behind it."""
    return mail.message_id, mail.command_id, mail.wait_id


def new_head(new: NewTurn) -> tuple[str | int | None, ...]:
    """Return what of a new turn is told in a list."""
    return (
        *(
            new.turn,
            new.parent,
            new.agent,
            new.agent_version,
            new.conversation,
            new.tenant,
            new.digest,
            new.schema,
            _status(new.status),
        ),
        *(new.wake, len(new.messages.bodies), new.events.count),
    )


def new_bodies(new: NewTurn) -> list[Arg]:
    """Return what stands behind the list."""
    events = (batch(new.events, 0),) if new.events.count else ()
    return [new.snapshot, *new.messages.bodies, *events]


def wait_row(row: base.WaitRow) -> bytes:
    """Return an open wait as it is stored: its id stands before it."""
    return row.id.encode() + b"\0" + encode(StoredRow(row.kind, row.body, row.agent, row.tenant, row.assignee))


def batch(events: base.Events, epoch: int) -> bytes:
    """Return events as they are stored."""
    return b"%d\0%d\0%d\0%b" % (events.at + 1, events.count, epoch, events.body)


def token_args(token: Token) -> list[Arg]:
    """Pack a token."""
    return [token.activation, token.epoch]


def create(keys: Keys, op: base.Create, others: Sequence[str] = ()) -> Script:
    """Pack a Create; what it supersedes has to be named."""
    new, turn = op.new, op.new.turn
    names = keys.head(turn) + keys.turn(turn)[:-1]
    head: list[Any] = [new_head(new), op.claim]
    if new.conversation is not None:
        names += keys.partition(turn, "open", "queue")
        if op.when_busy == "queue":
            head += ["queue", op.room]
        elif op.when_busy == "supersede":
            head += ["supersede", op.cause, others]
            names += [key for other in others for key in keys.turn(other, "t")]
    return "create", names, [encode(head), *new_bodies(new)]


def deliver(keys: Keys, op: base.Deliver) -> Script:
    """Pack a Deliver."""
    names = keys.head(op.turn) + keys.turn(op.turn)[:5] + keys.tree(op.turn, "ry")
    return "deliver", names, [encode((op.turn, op.cap, op.runtime, mail_head(op.mail), op.claim)), op.mail.body]


def cancel(keys: Keys, op: base.Cancel) -> Script:
    """Pack a Cancel."""
    names = keys.head(op.turn, "queue") + keys.turn(op.turn)[:5]
    return "cancel", names, [encode((op.turn, op.cause, op.claim))]


def claim(keys: Keys, op: base.Claim) -> Script:
    """Pack a Claim."""
    return "claim", keys.head(op.turn) + keys.turn(op.turn)[:5], [encode((op.turn, op.by))]


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
    queue = [keys.tag(turn) + "queue"]
    return queue + [key for heir in heirs for key in keys.turn(heir, "t")] if heirs else queue


def save(keys: Keys, op: base.Save, heirs: Sequence[str] = ()) -> Script:
    """Pack a Save; at the end of a root, who may be next in its conversation has to be named."""
    turn, messages, events, ends = op.turn, op.messages, op.events, op.mode is END
    names = keys.head(turn) + keys.turn(turn)
    names += names[5:6] if len(turn) == ROOT_LENGTH else keys.tree(turn, "t")
    args: list[Arg] = [b"", op.snapshot]
    if ends:
        args.append(op.closing)
    args += messages.bodies
    if events.count:
        args.append(batch(events, op.token.epoch))
    beside = others = memory = None
    if op.consumed or op.receipts or op.replies or op.closed or op.opened:
        receipts = [(row.wait_id, row.command_id, row.call_key) for row in op.receipts]
        replies, opened = [row.message_id for row in op.replies], [(row.id, row.created) for row in op.opened]
        beside = (op.consumed, receipts, replies, op.closed, opened)
        args += [row.body for row in op.receipts]
        args += [row.body for row in op.replies]
        args += [wait_row(row) for row in op.opened]
    remembers = op.memory and op.conversation is not None
    if ends or beside is not None or op.create or op.deliver or op.cancel or remembers:
        names += keys.answered(turn)
    if ends or op.create or op.deliver or op.cancel or remembers:
        names += keys.ended(turn)
    if op.create or op.deliver or op.cancel:
        others = _others(keys, op, names, args)
    if remembers and op.conversation is not None:
        names += keys.head_of_conversation(op.conversation, "relay")[-1:] + keys.conversation(op.conversation, "mox")
        memory = (op.conversation, op.relay, [(row.id, "1" if row.shown else "0") for row in op.memory])
        args += [row.body for row in op.memory]
    if ends and len(turn) == ROOT_LENGTH:
        names += heir_keys(keys, turn, heirs)
    inputs, outputs, tokens, calls = op.usage
    args[0] = encode(
        (
            *(
                turn,
                op.token.activation,
                op.token.epoch,
                op.version,
                op.save_id,
                op.mode,
                op.lease_ms,
                op.wake,
                op.schema,
                _status(op.status),
            ),
            *(
                op.progress,
                op.ack_cancel,
                f"{inputs},{outputs},{tokens},{calls}",
                op.retention_ms,
                op.batch,
                messages.at,
                len(messages.bodies),
            ),
            *(events.at, events.count, beside, others, memory, heirs),
        )
    )
    return "save", names, args


def _others(keys: Keys, op: base.Save, names: list[str], args: list[Arg]) -> tuple[Any, ...]:
    """Pack what a Save does to other turns of the tree."""
    for new in op.create:
        names += keys.turn(new.turn)[:-1]
        args += new_bodies(new)
    for target, mail in op.deliver:
        names += keys.turn(target)[:3]
        args.append(mail.body)
    if op.cancel:
        names += keys.partition(op.turn, "queue")
        for target, _ in op.cancel:
            names += keys.turn(target, "t")
    delivered = [(target, mail_head(mail)) for target, mail in op.deliver]
    return [new_head(new) for new in op.create], delivered, op.cancel


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
    names, args = park_keys(keys, op.turn), [op.turn, "discard", _status(op.status), op.retention_ms, op.closing]
    if op.turn == root_of(op.turn):
        return "park", names + heir_keys(keys, op.turn, heirs), [*args, "", *heirs, len(heirs)]
    if parent is None or op.notify is None:
        return "park", names, [*args, ""]
    mail = op.notify
    told: list[Arg] = [mail.message_id, text(mail.command_id), text(mail.wait_id), mail.body]
    return "park", names + keys.turn(parent, "tid"), [*args, parent, *told]


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
