"""What is stored of turns, and what operations carry. Snapshots, messages, events, receipts and mail are bytes here."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Row(msgspec.Struct, gc=False, frozen=True, array_like=True):
    """The base of what is stored beside the record; a field may only be added at the end, with a default."""


class Mail(Row, frozen=True):
    """One message to a turn. `command_id` and `wait_id` are set on commands; `at` is the store time of delivery."""

    message_id: str
    body: bytes
    command_id: str | None = None
    wait_id: str | None = None
    at: int = 0


class ReceiptRow(Row, frozen=True):
    """A receipt and the keys it is found by: its command, its wait, its call (``turn:call``, newest wins)."""

    wait_id: str
    body: bytes
    command_id: str | None = None
    call_key: str | None = None


class ReplyRow(Row, frozen=True):
    """The owner's answer to a delivered message; kept 10 minutes."""

    message_id: str
    body: bytes


class WaitRow(Row, frozen=True):
    """An open wait in the indexes; `kind` is its SuspensionType, `body` its encoded Suspension."""

    id: str
    kind: str
    created: int
    body: bytes
    agent: str = ""
    tenant: str | None = None
    assignee: str | None = None


class StoredRow(Row, frozen=True):
    """An open wait as Redis stores it: its id stands before it, when it was opened is in the index."""

    kind: str
    body: bytes
    agent: str = ""
    tenant: str | None = None
    assignee: str | None = None


class MemoryRow(Row, frozen=True):
    """An entry of a conversation's memory as it is written. `shown` tells whether models may see it (cards are for people)."""

    id: str
    body: bytes
    shown: bool = True


class MemoryEntry(Row, frozen=True):
    """An entry as it is stored.

    `place` is its place in the conversation, from 1; `version` counts how often it was replaced, from 0; `at` is the store time
    of its first writing. `change` is the number of its newest change: each change of a conversation gets the last number + 1, or
    the store time (ms) if that is greater, so that numbers do not come again after the memory was cleared, or the store has
    forgotten its newest changes.
    """

    id: str
    body: bytes
    shown: bool
    place: int
    version: int
    change: int
    at: int


class Messages(msgspec.Struct, gc=False, frozen=True):
    """History entries to append at position `at` (the length of the history before)."""

    at: int
    bodies: tuple[bytes, ...] = ()


class Events(msgspec.Struct, gc=False, frozen=True):
    """`count` events to append, numbered ``at + 1`` to ``at + count``, encoded together in one body."""

    at: int
    count: int = 0
    body: bytes = b""


class NewTurn(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """A turn to be created. `digest` is of (agent id, input), or empty where nobody can make the same start again.

    `wake` 0 means now, `None` never by itself. A root with a `conversation` takes that conversation's open-turn entry, or a place
    in its queue.
    """

    turn: str
    parent: str | None = None
    agent: str
    agent_version: str
    conversation: str | None = None
    tenant: str | None = None
    digest: str
    schema: int
    status: str
    snapshot: bytes
    messages: Messages
    events: Events
    wake: int | None = 0


class ClaimBy(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """Who wants to own a turn.

    `agents` are the ``id@version`` it can run, `None` means any (an API-only node, which runs nothing). `schema` is the
    newest snapshot schema it reads. `tail` is how many of the newest history entries to send along.
    """

    activation: str
    node: str
    lease_ms: int
    agents: frozenset[str] | None = None
    schema: int
    tail: int = 0
    batch: int = 16


class Token(msgspec.Struct, gc=False, frozen=True):
    """The right to save."""

    activation: str
    epoch: int


class Mode(StrEnum):
    """What a save does with ownership.

    KEEP: still the owner. SUSPEND: release, but keep if there is unconsumed mail or an open cancel; runnable again at
    `wake`. HAND_OFF: release, runnable now for anybody. END: terminal; unread mail is answered by `closing` and
    dropped.
    """

    KEEP = "K"
    SUSPEND = "S"
    HAND_OFF = "R"
    END = "T"


# By names of their own, for what every save passes: before Python 3.12 `Mode.KEEP` is a slow look-up.
KEEP, SUSPEND, HAND_OFF, END = Mode


class NodeRow(Row, frozen=True):
    """An announced node."""

    node: str
    beat: int
    agents: tuple[str, ...] = ()
