"""What a store is: records, operations, replies. A store knows records, not decisions.

A store is a synchronous core ``apply(operation, now) -> reply`` (for Redis: one script call) behind an async shell.
Every operation is atomic, touches one partition, and may be repeated with the same ids: **after an unknown outcome the
identical operation is sent again.** Expected answers are replies; exceptions are for a store that cannot answer.

Words: *token* = (activation, epoch), the right to save; *mail* = messages to a turn that its owner has not consumed;
*wake* = the store time (ms) from which a turn without an owner may be claimed, or `None` (nothing to do). A turn that
has an owner has a lease and no wake; nobody steals, take-over is `Reap`, then `Claim`. Snapshots, messages, events,
receipts and mail are bytes here.

States of a record: ``S`` suspended, ``R`` runnable, ``A`` active (has an owner), ``T`` terminal. Quarantine is a mark
beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from ..actors.checks import shown
from ..actors.errors import InvalidDefinition
from .operations import (
    Abandon,
    Beat,
    Cancel,
    Claim,
    ClearMemory,
    Create,
    Deliver,
    Discard,
    Due,
    Expired,
    Find,
    FindMemory,
    ListNodes,
    ListQueue,
    ListTurns,
    ListWaits,
    Look,
    Op,
    OpenTurn,
    Prune,
    Quarantine,
    ReadEvents,
    ReadHistory,
    ReadMail,
    ReadMemory,
    ReadNote,
    ReadRelay,
    ReadReplies,
    Reap,
    Relayed,
    Relays,
    Renew,
    Revive,
    Save,
    Versions,
    WhenBusy,
    WriteMemory,
    WriteNote,
)
from .records import (
    ClaimBy,
    Events,
    Mail,
    MemoryEntry,
    MemoryRow,
    Messages,
    Mode,
    NewTurn,
    NodeRow,
    ReceiptRow,
    ReplyRow,
    Row,
    Token,
    WaitRow,
)
from .replies import (
    Behind,
    Busy,
    Claimed,
    Closed,
    Conflict,
    Conversations,
    Created,
    Delivered,
    Done,
    DueTurns,
    Entries,
    EventBatches,
    Existing,
    Fenced,
    Found,
    Full,
    Gone,
    Held,
    KeyReused,
    Known,
    Looked,
    MailBatch,
    Memory,
    Nodes,
    NotDue,
    Noted,
    Opened,
    Progress,
    Queued,
    Reaped,
    Renewed,
    Replied,
    Reply,
    Saved,
    TooNew,
    TurnListing,
    UnknownAgent,
    WaitListing,
)

__all__ = [
    "Abandon",
    "Beat",
    "Behind",
    "Bell",
    "Busy",
    "Cancel",
    "Claim",
    "ClaimBy",
    "Claimed",
    "ClearMemory",
    "Closed",
    "Conflict",
    "Conversations",
    "Create",
    "Created",
    "Deliver",
    "Delivered",
    "Discard",
    "Done",
    "Due",
    "DueTurns",
    "Entries",
    "EventBatches",
    "Events",
    "Existing",
    "Expired",
    "Fenced",
    "Find",
    "FindMemory",
    "Found",
    "Full",
    "Gone",
    "Held",
    "KeyReused",
    "Known",
    "ListNodes",
    "ListQueue",
    "ListTurns",
    "ListWaits",
    "Live",
    "Look",
    "Looked",
    "Mail",
    "MailBatch",
    "Memory",
    "MemoryEntry",
    "MemoryRow",
    "Messages",
    "Mode",
    "NewTurn",
    "NodeRow",
    "Nodes",
    "NotDue",
    "Noted",
    "Op",
    "OpenTurn",
    "Opened",
    "Progress",
    "Prune",
    "Quarantine",
    "Queued",
    "Quiet",
    "ReadEvents",
    "ReadHistory",
    "ReadMail",
    "ReadMemory",
    "ReadNote",
    "ReadRelay",
    "ReadReplies",
    "Reap",
    "Reaped",
    "ReceiptRow",
    "Relayed",
    "Relays",
    "Renew",
    "Renewed",
    "Replied",
    "Reply",
    "ReplyRow",
    "Revive",
    "Row",
    "Save",
    "Saved",
    "StoreConnection",
    "StoreCore",
    "Token",
    "TooNew",
    "TurnListing",
    "TurnStore",
    "UnknownAgent",
    "Versions",
    "WaitListing",
    "WaitRow",
    "WhenBusy",
    "WriteMemory",
    "WriteNote",
    "cursor",
    "read_cursor",
    "read_number",
]


def cursor(number: int, key: str) -> str:
    """Make the cursor that stands at an entry of an index."""
    return f"{number}:{key}"


def read_cursor(text: str | None) -> tuple[int, str] | None:
    """Read a cursor back. :raises InvalidDefinition: if it is none of ours."""
    if text is None:
        return None
    number, colon, key = text.partition(":")
    if not colon or not key:
        raise _foreign(text)
    return read_number(text, number), key


def read_number(text: str, number: str) -> int:
    """Read a number of a cursor. :raises InvalidDefinition: if it is none."""
    if not number.isascii() or not number.isdigit() or len(number) > 18:
        raise _foreign(text)
    return int(number)


def _foreign(text: str) -> InvalidDefinition:
    return InvalidDefinition(f"after is not a cursor that a page of this listing gave: {shown(text)}")


Bell: TypeAlias = Callable[[str, str], None]
Live: TypeAlias = Callable[[str, bytes], None]


class StoreCore(Protocol):
    """The synchronous half of an in-process store."""

    def apply(self, op: Op, now: int) -> Reply:
        """Apply one operation atomically at store time `now` (ms; the core takes the greatest it has seen)."""
        ...


class StoreConnection(Protocol):
    """One node's use of a store.

    `bell` (given to `connect`) is called on the loop with

    * ("saved", turn) after a save;
    * ("work", turn) where mail, a cancel or a new turn may need somebody;
    * ("due", "turn wake agent@version"): a turn that nobody owns may be claimed from `wake` (store ms) on, by whoever knows the
      agent (stores with `partitioned` tell it this way, others by "work");
    * ("any", ""): look everywhere.

    It is a hint: it may be lost, repeated, or come early.
    """

    async def call(self, op: Op) -> Reply:
        """Apply an operation. :raises StoreUnavailable: if the outcome is not known in time."""
        ...

    async def close(self) -> None:
        """Leave; waits for operations under way."""
        ...

    def now(self) -> int:
        """Return the store's time, or the best estimate of it, in milliseconds."""
        ...

    def dead_nodes(self) -> Sequence[str]:
        """Return nodes that are proved dead without waiting for their leases (SQLite: their lock can be taken)."""
        ...

    def watch(self, root: str, *, live: bool) -> None:
        """Somebody here watches a tree, with `live` also what is not stored: ring "saved" for it from now on.

        Where that takes a subscription, "saved" is rung once for the tree when it stands. Each call is undone by an `unwatch`
        with the same arguments.
        """
        ...

    def unwatch(self, root: str, *, live: bool) -> None:
        """Nobody watches any more as by one `watch` with these arguments."""
        ...

    def publish(self, root: str, body: bytes) -> None:
        """Show a live event to those who watch the tree on other nodes, if there are any; may be lost. Not for this node."""
        ...

    def wants(self, root: str) -> bool:
        """Tell whether somebody on another node may be watching the tree with `live`; cheap, asked before each live event."""
        ...


class TurnStore(Protocol):
    """A store that nodes connect to.

    `namespace` enters the ids that are made of idempotency keys. `poll_seconds` is how often a node must look for work
    that no bell announced, `None` where the bell never fails. `lease_seconds` is the lease where the user names none.
    `partitioned`: looking for work costs by partition, so nodes share the partitions between them. `proves_death`: others learn for
    certain that an owner's process has ended, so a lease may be meant to last until then.
    """

    namespace: str
    poll_seconds: float | None
    lease_seconds: float
    partitioned: bool
    proves_death: bool

    async def connect(
        self, node: str, bell: Bell, clock: Callable[[], int], *, inline: bool = False, live: Live | None = None
    ) -> StoreConnection:
        """Connect a node; `clock` gives wall milliseconds.

        `inline` applies operations on the loop, without threads (virtual time). `live` is called on the loop with (root, body)
        for what other nodes publish of trees that are watched here with `live`.

        :raises StoreUnavailable: if the store is out of reach or of a format that this release does not know.
        """
        ...


class Quiet:
    """What a connection does where nothing is shown beyond the process: nothing."""

    def watch(self, root: str, *, live: bool) -> None:
        """Nothing to subscribe to."""

    def unwatch(self, root: str, *, live: bool) -> None:
        """Nothing to end."""

    def publish(self, root: str, body: bytes) -> None:
        """Nobody else sees it."""

    def wants(self, root: str) -> bool:
        """Nobody else watches."""
        return False
