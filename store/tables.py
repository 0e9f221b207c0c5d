"""The record of a turn, and what the rules need of the tables around it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, Literal, TypeAlias, TypeVar

import msgspec

from . import base
from .base import ClaimBy, Mail, NewTurn, Token

REPLIES_MS = 600_000
SEEN_MS = 86_400_000
NODES_MS = 3_600_000
ReceiptKey: TypeAlias = Literal["command", "wait", "call"]


class Record(msgspec.Struct, gc=False):
    """What a store knows of a turn without looking into it. `cancel` is an open flag, `cancel_acked` one taken into the state."""

    turn: str
    root: str
    parent: str | None
    agent: str
    agent_version: str
    conversation: str | None
    tenant: str | None
    digest: str
    created: int
    schema: int
    status: str
    updated: int
    state: str = "S"
    version: int = 0
    save_id: str = ""
    activation: str | None = None
    node: str | None = None
    epoch: int = 0
    lease: int = 0
    wake: int | None = None
    cancel: str | None = None
    cancel_acked: str | None = None
    crashes: int = 0
    quarantine: str | None = None
    quarantined_at: int = 0
    unread: int = 0
    message_count: int = 0
    event_count: int = 0
    expires: int | None = None
    usage: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def parked(self) -> bool:
        """Tell whether it is quarantined and no cancel wants it."""
        return self.quarantine is not None and self.cancel is None and self.cancel_acked is None

    def shows(self, token: Token) -> bool:
        """Tell whether this is the token of its owner."""
        return self.activation == token.activation and self.epoch == token.epoch

    def runs_by(self, by: ClaimBy) -> bool:
        """Tell whether a claimer reads its snapshot and knows its agent; a turn that is being cancelled needs none."""
        if self.schema > by.schema:
            return False
        if by.agents is None or self.cancel is not None or self.cancel_acked is not None:
            return True
        return f"{self.agent}@{self.agent_version}" in by.agents


R = TypeVar("R", bound=Record)


class Tables(ABC, Generic[R]):
    """What the rules need of a store. A record that they got is changed in place; the store keeps what it then says."""

    @abstractmethod
    def find_turn(self, turn: str) -> R | None:
        """Return a record; within one operation always the same object."""

    @abstractmethod
    def add_turn(self, new: NewTurn, now: int) -> R:
        """Store a new turn with its snapshot, history and events."""

    @abstractmethod
    def put_snapshot(self, record: R, snapshot: bytes) -> None:
        """Replace the snapshot."""

    @abstractmethod
    def read_snapshot(self, record: R) -> bytes:
        """Return the snapshot."""

    @abstractmethod
    def append(self, record: R, messages: base.Messages, events: base.Events) -> None:
        """Append history and events; the record's counts are raised by the rules."""

    @abstractmethod
    def read_tail(self, record: R, count: int) -> tuple[bytes, ...]:
        """Return the newest history entries."""

    @abstractmethod
    def set_wake(self, record: R, wake: int | None) -> None:
        """Set when a turn without an owner may run."""

    @abstractmethod
    def set_owner(self, record: R, activation: str | None, node: str | None) -> None:
        """Set who owns a turn."""

    @abstractmethod
    def set_expiry(self, record: R, expires: int) -> None:
        """Set when the tree of this root may be dropped."""

    @abstractmethod
    def was_seen(self, record: R, message_id: str) -> bool:
        """Tell whether a message id was delivered or consumed before."""

    @abstractmethod
    def put_mail(self, record: R, mail: Mail) -> None:
        """Put unseen mail at the end of the mailbox."""

    @abstractmethod
    def take_mail(self, record: R, message_id: str, now: int) -> bool:
        """Remove mail and keep its id as seen; tell whether it was in the mailbox."""

    @abstractmethod
    def read_mailbox(self, record: R, limit: int | None) -> tuple[Mail, ...]:
        """Return the oldest mail."""

    @abstractmethod
    def empty_mailbox(self, record: R) -> None:
        """Remove all mail."""

    @abstractmethod
    def put_wait(self, record: R, wait: base.WaitRow) -> None:
        """Open a wait, or open it anew."""

    @abstractmethod
    def drop_wait(self, record: R, wait_id: str) -> None:
        """Close a wait, if it is open."""

    @abstractmethod
    def drop_waits(self, record: R) -> None:
        """Close all waits of a turn."""

    @abstractmethod
    def put_receipt(self, record: R, receipt: base.ReceiptRow) -> None:
        """Store a receipt under its keys."""

    @abstractmethod
    def read_receipt(self, root: str, kind: ReceiptKey, key: str) -> bytes | None:
        """Return the receipt under a key of a kind (``command``, ``wait``, ``call``)."""

    @abstractmethod
    def put_reply(self, record: R, message_id: str, body: bytes, now: int) -> None:
        """Store the answer to a message."""

    @abstractmethod
    def read_reply(self, root: str, message_id: str) -> bytes | None:
        """Return the answer to a message."""

    @abstractmethod
    def open_turn_of(self, conversation: str) -> str | None:
        """Return the turn that a conversation's entry names."""

    @abstractmethod
    def set_open_turn(self, conversation: str, turn: str | None) -> None:
        """Set a conversation's entry."""

    @abstractmethod
    def is_queued(self, record: R) -> bool:
        """Tell whether a root stands in its conversation's queue."""

    @abstractmethod
    def enqueue(self, record: R) -> None:
        """Put a new root at the end of its conversation's queue."""

    @abstractmethod
    def dequeue(self, record: R) -> None:
        """Take a root out of its conversation's queue."""

    @abstractmethod
    def queue_of(self, conversation: str, limit: int | None = None) -> tuple[str, ...]:
        """Return the first turns of a queue, or all."""

    @abstractmethod
    def queue_length(self, conversation: str) -> int:
        """Return how many turns are in a queue."""

    @abstractmethod
    def total_usage(self, record: R) -> tuple[int, int, int, int]:
        """Return the sum of usage over the record's tree."""
