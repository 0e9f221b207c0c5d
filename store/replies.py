"""What a store answers. Each operation says which of these it may get."""

from __future__ import annotations

from typing import Literal

import msgspec

from .records import Mail, MemoryEntry, NodeRow


class Reply(msgspec.Struct, gc=False, frozen=True):
    """The base of all replies."""


class Created(Reply, frozen=True):
    """The turn is stored and runnable."""

    now: int


class Existing(Reply, frozen=True):
    """The same start was made before."""

    turn: str


class KeyReused(Reply, frozen=True):
    """The id was used for another agent or input."""

    turn: str


class Busy(Reply, frozen=True):
    """The conversation has an open turn; `queued` is how many wait behind it where that is too many (``queue``), else 0."""

    turn: str
    status: str
    queued: int = 0


class Queued(Reply, frozen=True):
    """The turn is stored, and runs when those before it in its conversation have ended."""

    now: int


class Claimed(Reply, frozen=True):
    """The turn is ours. `tail` are the newest history entries, ``message_count`` its whole length.

    `cancel` is the cause of an open cancel. `crashes` counts lost owners since the last recorded result. `quarantined`
    is true where only the cancel path may run.
    """

    epoch: int
    version: int
    schema: int
    snapshot: bytes
    now: int
    mail: tuple[Mail, ...] = ()
    cancel: str | None = None
    crashes: int = 0
    tail: tuple[bytes, ...] = ()
    message_count: int = 0
    event_count: int = 0
    quarantined: bool = False


class Known(Reply, frozen=True):
    """A receipt answers it: found by its command, or because its wait has ended."""

    by: Literal["command", "wait"]
    body: bytes


class Replied(Reply, frozen=True):
    """The owner has answered this very message."""

    body: bytes


class Delivered(Reply, frozen=True):
    """Stored (or stored before); `owner` is the node that has the turn, or `None`."""

    now: int
    owner: str | None = None
    fresh: bool = True
    quarantined: bool = False


class Full(Reply, frozen=True):
    """The mailbox has `count` unread messages."""

    count: int


class Closed(Reply, frozen=True):
    """The turn is terminal."""

    status: str


class Gone(Reply, frozen=True):
    """There is no such turn (or nothing to claim in it)."""


class Held(Reply, frozen=True):
    """Somebody owns the turn."""

    node: str | None = None


class NotDue(Reply, frozen=True):
    """The turn may not run yet."""

    wake: int | None = None


class TooNew(Reply, frozen=True):
    """The snapshot is of a newer schema."""

    schema: int


class UnknownAgent(Reply, frozen=True):
    """The claimer does not know the turn's agent and version."""

    agent: str
    version: str


class Renewed(Reply, frozen=True):
    """One flag a lease: 0 lost; else 1, +1 mail, +2 cancel."""

    now: int
    flags: tuple[int, ...]


class Saved(Reply, frozen=True):
    """The save landed (now, or before where `replayed`). `owned` tells whether the turn is still ours.

    `mail` and `cancel` as in Claimed, where still owned. `usage` is the sum over the tree. `confirmed` is false where a
    confirmation was asked for and no replica gave it in time: the save stands, but a failover may forget it.
    """

    version: int
    now: int
    owned: bool
    mail: tuple[Mail, ...] = ()
    cancel: str | None = None
    usage: tuple[int, int, int, int] = (0, 0, 0, 0)
    replayed: bool = False
    confirmed: bool = True


class Fenced(Reply, frozen=True):
    """The token is not the record's: somebody else owns the turn, or nobody."""

    owner: str | None = None


class Behind(Reply, frozen=True):
    """The token is valid but the store has forgotten saves (a failover): repeat with everything since the claim."""

    version: int
    message_count: int
    event_count: int


class Conflict(Reply, frozen=True):
    """The store is ahead of us under our own token: a defect."""

    version: int


class Reaped(Reply, frozen=True):
    """The owner was taken off."""

    crashes: int
    quarantined: bool = False


class Done(Reply, frozen=True):
    """It is so."""


class MailBatch(Reply, frozen=True):
    """Unconsumed mail, oldest first, and the cause of an open cancel."""

    now: int
    mail: tuple[Mail, ...] = ()
    cancel: str | None = None


class Found(Reply, frozen=True):
    """Bodies in the order asked for, None where there is none."""

    bodies: tuple[bytes | None, ...]


class Looked(Reply, frozen=True, kw_only=True):
    """One record. `wait_bodies`, `live_turns` and `runnable_turns` are of the turn and all below it, the waits depth first."""

    turn: str
    parent: str | None
    agent: str
    agent_version: str
    conversation: str | None
    tenant: str | None
    schema: int
    status: str
    state: str
    version: int
    snapshot: bytes
    activation: str | None
    node: str | None
    epoch: int
    lease: int
    wake: int | None
    cancel: str | None
    crashes: int
    quarantine: str | None
    quarantined_at: int
    message_count: int
    event_count: int
    created: int
    updated: int
    now: int
    wait_bodies: tuple[bytes, ...] = ()
    live_turns: int = 1
    runnable_turns: int = 0


class Entries(Reply, frozen=True):
    """History entries, oldest first."""

    bodies: tuple[bytes, ...]


class EventBatches(Reply, frozen=True):
    """Batches (first number, count, epoch of the saver, body); `last` is the newest number, `terminal` if it is the end."""

    batches: tuple[tuple[int, int, int, bytes], ...]
    last: int
    terminal: bool


class Progress(Reply, frozen=True):
    """(version, last event, state, saves below) per turn; the version is -1 where the turn is absent.

    "Saves below" changes with every save of a child of the tree, and when a turn of it is parked or no longer; it is counted for
    roots, and 0 for children.
    """

    turns: tuple[tuple[int, int, str, int], ...]


class DueTurns(Reply, frozen=True):
    """Turns to look at, and the store time of the next one (`None`: none known)."""

    turns: tuple[str, ...]
    next: int | None
    now: int


class WaitListing(Reply, frozen=True):
    """Encoded Suspensions and the cursor of the next page."""

    bodies: tuple[bytes, ...]
    next: str | None


class TurnListing(Reply, frozen=True):
    """Records and the cursor of the next page."""

    turns: tuple[Looked, ...]
    next: str | None


class Opened(Reply, frozen=True):
    """The turn that a conversation's entry names."""

    turn: str | None
    status: str | None = None


class Memory(Reply, frozen=True):
    """Entries of a conversation; `more` tells whether there are others before (or, of a relay, behind) them."""

    entries: tuple[MemoryEntry, ...]
    more: bool = False


class Conversations(Reply, frozen=True):
    """Conversations, and since when (ms) each waits."""

    waiting: tuple[tuple[str, int], ...]
    now: int


class Noted(Reply, frozen=True):
    """A note and its version (1 when it is new)."""

    version: int
    body: bytes | None = None


class Nodes(Reply, frozen=True):
    """The announced nodes."""

    nodes: tuple[NodeRow, ...]
    now: int
