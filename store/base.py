"""What a store is: records, operations, replies. A store knows records, not decisions.

A store is a synchronous core ``apply(operation, now) -> reply`` (for Redis: one script call) behind an async shell. Every
operation is atomic, touches one partition, and may be repeated with the same ids: **after an unknown outcome the identical
operation is sent again.** Expected answers are replies; exceptions are for a store that cannot answer.

Words: *token* = (activation, epoch), the right to save; *mail* = messages to a turn that its owner has not consumed; *wake* = the
store time (ms) from which a turn without an owner may be claimed, or `None` (nothing to do). A turn that has an owner has a lease
and no wake; nobody steals, take-over is `Reap`, then `Claim`. Snapshots, messages, events, receipts and mail are bytes here.

States of a record: ``S`` suspended, ``R`` runnable, ``A`` active (has an owner), ``T`` terminal. Quarantine is a mark beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Literal, Protocol, TypeAlias

import msgspec


class Op(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all operations."""


class Reply(msgspec.Struct, frozen=True):
    """The base of all replies."""


class Row(msgspec.Struct, frozen=True, array_like=True):
    """The base of what is stored beside the record; a field may only be added at the end, with a default."""


# ---------------------------------------------------------------------------------------------------------------- records


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


class Messages(msgspec.Struct, frozen=True):
    """History entries to append at position `at` (the length of the history before)."""

    at: int
    bodies: tuple[bytes, ...] = ()


class Events(msgspec.Struct, frozen=True):
    """`count` events to append, numbered ``at + 1`` to ``at + count``, encoded together in one body."""

    at: int
    count: int = 0
    body: bytes = b""


class NewTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn to be created. `digest` is of (agent id, input); `wake` 0 means now, `None` never by itself.

    A root with a `conversation` takes that conversation's open-turn entry.
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


class ClaimBy(msgspec.Struct, frozen=True, kw_only=True):
    """Who wants to own a turn.

    `agents` are the ``id@version`` it can run, `None` means any (an API-only node, which runs nothing). `schema` is the newest
    snapshot schema it reads. `tail` is how many of the newest history entries to send along.
    """

    activation: str
    node: str
    lease_ms: int
    agents: frozenset[str] | None = None
    schema: int
    tail: int = 0
    batch: int = 16


class Token(msgspec.Struct, frozen=True):
    """The right to save."""

    activation: str
    epoch: int


class Mode(StrEnum):
    """What a save does with ownership.

    KEEP: still the owner. SUSPEND: release, but keep if there is unconsumed mail or an open cancel; runnable again at `wake`.
    HAND_OFF: release, runnable now for anybody. END: terminal; unread mail is answered by `closing` and dropped.
    """

    KEEP = "K"
    SUSPEND = "S"
    HAND_OFF = "R"
    END = "T"


# -------------------------------------------------------------------------------------------------------------- operations


class Create(Op, frozen=True, kw_only=True):
    """Create a root turn, and own it at once where `claim` is given.

    Order: id exists with the same digest -> Existing; with another -> KeyReused; conversation has an open turn -> Busy; else
    Claimed (with `claim`) or Created. A repeated Create by the same activation gets Claimed again.
    """

    new: NewTurn
    claim: ClaimBy | None = None


class Deliver(Op, frozen=True, kw_only=True):
    """Put mail into a turn's mailbox; with `claim`, own the turn at once where it has no owner.

    Order: receipt of `mail.command_id` in the tree -> Known("command"); no such turn -> Gone; receipt of `mail.wait_id` (a wait
    has one when it has ended) -> Known("wait"); a reply under message_id -> Replied; same message_id seen before -> Claimed where
    `claim` fits, else Delivered (not `fresh`); terminal -> Closed; `cap` unread already -> Full; else stored: wake = now (or
    earlier) where nobody owns it and it is not parked, then Claimed where `claim` fits, else Delivered.
    Runtime mail (`command_id` None and `runtime`) ignores the cap.

    `claim` fits where Claim would answer Claimed.
    """

    turn: str
    mail: Mail
    cap: int = 256
    runtime: bool = False
    claim: ClaimBy | None = None


class Cancel(Op, frozen=True, kw_only=True):
    """Raise a turn's cancel flag (first cause wins); with `claim` as in Deliver. A quarantined turn is woken by it.

    Gone | Closed | Claimed | Delivered (`fresh` false where the flag was up already, or acknowledged). Repeated while the flag is
    open, it wakes a turn that was parked since.
    """

    turn: str
    cause: str
    claim: ClaimBy | None = None


class Claim(Op, frozen=True, kw_only=True):
    """Own a turn that may run: no owner and wake <= now (or owned by this very activation: its own reply was lost).

    Order: absent or terminal -> Gone; owned -> Claimed or Held; parked (quarantined, and no cancel open or acknowledged) -> Gone;
    -> NotDue; -> TooNew (schema; left in place); -> UnknownAgent (left in place); else Claimed.
    """

    turn: str
    by: ClaimBy


class Renew(Op, frozen=True, kw_only=True):
    """Extend leases of turns of one partition. Renewed, one flag a lease: 0 lost; else 1, +1 there is mail, +2 an open cancel."""

    leases: tuple[tuple[str, Token], ...]
    lease_ms: int


class Save(Op, frozen=True, kw_only=True):
    """Commit one transition: state, history, events, receipts, replies, consumed mail, indexes, ownership, other turns.

    Order: the record's last save_id is this one -> Saved(replayed) as it stands now; token differs -> Fenced; record.version below
    `version` or shorter history/events than `at` -> Behind; above or longer -> Conflict; else everything is applied, in the order
    of the fields, ownership last, and the version is ``version + 1``. What a save repeats after Behind (consumed mail, children,
    mail, flags) may be there already: it is skipped.

    `progress`: the save records the result of an effect, crashes becomes 0. `ack_cancel`: the flag has been taken into the state.
    `create`: children, runnable now, born with the flag where this turn has an open or acknowledged one. `deliver`: runtime mail to
    turns of the tree (dropped where terminal or absent). `cancel`: flags to raise on turns of the tree. END closes the turn's waits
    and answers the mail it leaves unread by `closing`; END of a root frees its conversation and starts `retention_ms` for the
    whole tree.
    `usage`: absolute (input, output, total) tokens and tool calls of this turn, summed per root in the reply.
    """

    turn: str
    token: Token
    version: int
    save_id: str
    mode: Mode
    lease_ms: int
    wake: int | None = None
    schema: int
    status: str
    snapshot: bytes
    messages: Messages
    events: Events
    progress: bool = False
    ack_cancel: bool = False
    consumed: tuple[str, ...] = ()
    receipts: tuple[ReceiptRow, ...] = ()
    replies: tuple[ReplyRow, ...] = ()
    opened: tuple[WaitRow, ...] = ()
    closed: tuple[str, ...] = ()
    create: tuple[NewTurn, ...] = ()
    deliver: tuple[tuple[str, Mail], ...] = ()
    cancel: tuple[tuple[str, str], ...] = ()
    usage: tuple[int, int, int, int] = (0, 0, 0, 0)
    closing: bytes = b""
    retention_ms: int = 7 * 86_400_000
    batch: int = 16


class Abandon(Op, frozen=True, kw_only=True):
    """Give a turn back without saving, runnable after `delay_ms`. Done | Fenced."""

    turn: str
    token: Token
    delay_ms: int = 0


class Reap(Op, frozen=True, kw_only=True):
    """Take a turn from an owner whose lease ended `grace_ms` ago, or whose node `dead_node` is proved dead.

    Counts a crash; the first makes it runnable at once, later ones after ``back_off_ms * 2 ** (crashes - 2)``, at most 60 s.
    More than `max_crashes` quarantines it. Reaped | Held (renewed meanwhile) | Gone (absent, terminal, or no owner).
    """

    turn: str
    grace_ms: int
    dead_node: str | None = None
    back_off_ms: int = 1000
    max_crashes: int = 20


class Quarantine(Op, frozen=True, kw_only=True):
    """Park a turn (its owner asks: the token is checked) and leave its bytes as they are. Done | Fenced.

    Mail is still taken. Nothing wakes it but Revive and a cancel (then also mail, until it ends).
    """

    turn: str
    token: Token
    reason: str


class Revive(Op, frozen=True, kw_only=True):
    """End a quarantine: crashes 0, runnable now. Done | Gone (not quarantined, or absent)."""

    turn: str


class Discard(Op, frozen=True, kw_only=True):
    """End a quarantined record whose snapshot nobody can read: terminal with `status`, and all that END does.

    The bytes and the version stay. `notify` is runtime mail to its parent. Done | Gone (absent, terminal, or not quarantined).
    """

    turn: str
    status: str
    notify: Mail | None = None
    closing: bytes = b""
    retention_ms: int = 7 * 86_400_000


class ReadMail(Op, frozen=True, kw_only=True):
    """Read the oldest unconsumed mail and the cancel flag of a turn. MailBatch."""

    turn: str
    batch: int = 16


class Find(Op, frozen=True, kw_only=True):
    """Look up receipts in a tree, each by any of its keys (command id, wait id, call key). Found: one body or None each."""

    root: str
    commands: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()


class Look(Op, frozen=True, kw_only=True):
    """Read a turn: its record, its snapshot and the open waits of its whole tree. Looked | Gone."""

    turn: str


class ReadHistory(Op, frozen=True, kw_only=True):
    """Read history entries from position `start`, at most `limit`. Entries."""

    turn: str
    start: int = 0
    limit: int = 1000


class ReadEvents(Op, frozen=True, kw_only=True):
    """Read event batches that hold numbers above `after`, oldest first. EventBatches."""

    turn: str
    after: int = 0
    limit: int = 100


class ReadReplies(Op, frozen=True, kw_only=True):
    """Read the owner's answers under message ids. Found."""

    turn: str
    message_ids: tuple[str, ...]


class Versions(Op, frozen=True, kw_only=True):
    """Read how far turns are. Progress, in order."""

    turns: tuple[str, ...]


class Due(Op, frozen=True, kw_only=True):
    """Read turns without an owner whose wake has come (oldest first) and the next wake after now. DueTurns.

    `offset` skips turns at the head, which nobody here may be able to run.
    """

    limit: int = 64
    offset: int = 0


class Expired(Op, frozen=True, kw_only=True):
    """Read turns whose lease ended more than `grace_ms` ago or whose owner is one of `dead_nodes`. DueTurns."""

    grace_ms: int
    dead_nodes: tuple[str, ...] = ()
    limit: int = 100


class ListWaits(Op, frozen=True, kw_only=True):
    """Read open waits of all trees, oldest first. `after` is the cursor of the last page. Listing of WaitRow bodies."""

    agent: str | None = None
    tenant: str | None = None
    assignee: str | None = None
    kind: str | None = None
    without: tuple[str, ...] = ()
    limit: int = 50
    after: str | None = None


class ListTurns(Op, frozen=True, kw_only=True):
    """Read records, oldest first (by creation). Listing of Looked."""

    status: str | None = None
    agent: str | None = None
    conversation: str | None = None
    root: str | None = None
    parent: str | None = None
    tenant: str | None = None
    quarantined: bool | None = None
    limit: int = 50
    after: str | None = None


class OpenTurn(Op, frozen=True, kw_only=True):
    """Read which turn a conversation's entry names. Opened."""

    conversation: str


class Beat(Op, frozen=True, kw_only=True):
    """Announce a node and what it runs (``id@version``), or, with `leave`, take it off the list. Done."""

    node: str
    agents: tuple[str, ...] = ()
    leave: bool = False


class ListNodes(Op, frozen=True, kw_only=True):
    """Read the announced nodes. Nodes."""


class Prune(Op, frozen=True, kw_only=True):
    """Drop what is over, at most `limit` of a kind. Done.

    Trees past retention in which no turn is live, replies after 10 minutes, seen message ids after 24 hours, nodes without a beat
    for an hour.
    """

    limit: int = 500


# ------------------------------------------------------------------------------------------------------------------ replies


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
    """The conversation has an open turn."""

    turn: str
    status: str


class Claimed(Reply, frozen=True):
    """The turn is ours. `tail` are the newest history entries, ``message_count`` its whole length.

    `cancel` is the cause of an open cancel. `crashes` counts lost owners since the last recorded result. `quarantined` is true
    where only the cancel path may run.
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

    `mail` and `cancel` as in Claimed, where still owned. `usage` is the sum over the tree.
    """

    version: int
    now: int
    owned: bool
    mail: tuple[Mail, ...] = ()
    cancel: str | None = None
    usage: tuple[int, int, int, int] = (0, 0, 0, 0)
    replayed: bool = False


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
    """One record. `wait_bodies` are the encoded Suspensions of the whole tree, by turn and creation."""

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
    """Batches (first number, count, epoch of the saver, body); `last` is the newest number, `terminal` whether it is the end."""

    batches: tuple[tuple[int, int, int, bytes], ...]
    last: int
    terminal: bool


class Progress(Reply, frozen=True):
    """(version, last event, state) per turn; the version is -1 where the turn is absent."""

    turns: tuple[tuple[int, int, str], ...]


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


class NodeRow(Row, frozen=True):
    """An announced node."""

    node: str
    beat: int
    agents: tuple[str, ...] = ()


class Nodes(Reply, frozen=True):
    """The announced nodes."""

    nodes: tuple[NodeRow, ...]
    now: int


def cursor(number: int, key: str) -> str:
    """Make the cursor that stands at an entry of an index."""
    return f"{number}:{key}"


def read_cursor(text: str | None) -> tuple[int, str] | None:
    """Read a cursor back. :raises ValueError: if it is none of ours."""
    if text is None:
        return None
    number, _, key = text.partition(":")
    return int(number), key


Bell: TypeAlias = Callable[[str, str], None]


class StoreCore(Protocol):
    """The synchronous half of an in-process store."""

    def apply(self, op: Op, now: int) -> Reply:
        """Apply one operation atomically at store time `now` (ms; the core takes the greatest it has seen)."""
        ...


class StoreConnection(Protocol):
    """One node's use of a store.

    `bell` (given to `connect`) is called on the loop with ("saved", turn) after a save and with ("work", turn) where mail, a cancel
    or a new turn may need somebody; ("any", "") means look everywhere. It is a hint: it may be lost, repeated, or come early.
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


class TurnStore(Protocol):
    """A store that nodes connect to.

    `namespace` enters the ids that are made of idempotency keys. `poll_seconds` is how often a node must look for work that no bell
    announced, `None` where the bell never fails.
    """

    namespace: str
    poll_seconds: float | None

    async def connect(
        self, node: str, bell: Bell, clock: Callable[[], int], *, inline: bool = False
    ) -> StoreConnection:
        """Connect a node; `clock` gives wall milliseconds. `inline` applies operations on the loop, without threads (virtual time).

        :raises StoreUnavailable: if the store is out of reach or of a format that this release does not know.
        """
        ...
