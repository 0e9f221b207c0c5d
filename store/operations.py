"""What a store does: one record an operation, with its replies and the exact order of its checks."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from .records import ClaimBy, Events, Mail, MemoryRow, Messages, Mode, NewTurn, ReceiptRow, ReplyRow, Token, WaitRow

WhenBusy: TypeAlias = Literal["refuse", "queue", "supersede"]


class Op(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """The base of all operations."""


class Create(Op, frozen=True, kw_only=True):
    """Create a root turn, and own it at once where `claim` is given.

    Order: id exists with the same digest -> Existing; with another -> KeyReused; conversation has an open turn -> as
    `when_busy` says; else Claimed (with `claim`) or Created. A repeated Create by the same activation gets Claimed again.

    An open turn, and ``refuse`` -> Busy. ``queue``: `room` turns or more are queued already -> Busy; else the turn is
    stored at the end of the conversation's queue -> Queued. ``supersede`` (`room` does not count): as Cancel with `cause` on
    the open turn, then on every queued one in their order (which leave the queue), then the turn is stored as the only queued
    one -> Queued. A turn that is queued is never owned by this Create, with `claim` either.

    A queued turn is of state S and has no wake, whatever `new.wake` says. Mail to it (Deliver, Save.deliver) is stored and
    seen as any other, but does not wake it, and no `claim` fits; Claim answers NotDue (wake None). It leaves the queue in two
    ways. *Promoted*: whatever ends the conversation's open turn (END, Discard) makes the head of the queue the open turn,
    runnable now, and rings "work" for it, in the same step. *Cancelled* (Cancel, Save.cancel, supersede): its flag goes up, it
    is out of the queue and runnable now; it never becomes the open turn, and its end leaves the open turn as it is: an end
    frees the conversation only where its open-turn entry names the turn that ends.
    """

    new: NewTurn
    claim: ClaimBy | None = None
    when_busy: WhenBusy = "refuse"
    room: int = 64
    cause: str = ""


class Deliver(Op, frozen=True, kw_only=True):
    """Put mail into a turn's mailbox; with `claim`, own the turn at once where it has no owner.

    Order: receipt of `mail.command_id` in the tree -> Known("command"); no such turn -> Gone; receipt of `mail.wait_id`
    (a wait has one when it has ended) -> Known("wait"); a reply under message_id -> Replied; same message_id seen
    before -> Claimed where `claim` fits, else Delivered (not `fresh`); terminal -> Closed; `cap` unread already ->
    Full; else stored: wake = now (or earlier) where nobody owns it and it is neither parked nor queued, then Claimed where
    `claim` fits, else Delivered. Runtime mail (`command_id` None and `runtime`) ignores the cap.

    `claim` fits where Claim would answer Claimed.
    """

    turn: str
    mail: Mail
    cap: int = 256
    runtime: bool = False
    claim: ClaimBy | None = None


class Cancel(Op, frozen=True, kw_only=True):
    """Raise a turn's cancel flag (first cause wins); with `claim` as in Deliver. A quarantined turn is woken by it.

    A queued turn leaves its queue and is woken (see Create); so `claim` may fit.

    Gone | Closed | Claimed | Delivered (`fresh` false where the flag was up already, or acknowledged). Repeated while
    the flag is open, it wakes a turn that was parked since.
    """

    turn: str
    cause: str
    claim: ClaimBy | None = None


class Claim(Op, frozen=True, kw_only=True):
    """Own a turn that may run: no owner and wake <= now (or owned by this very activation: its own reply was lost).

    Order: absent or terminal -> Gone; owned -> Claimed or Held; parked (quarantined, and no cancel open or
    acknowledged) -> Gone; -> NotDue; -> TooNew (schema; left in place); -> UnknownAgent (left in place; not where a cancel is
    open or acknowledged: to end a turn nobody needs its agent); else Claimed.
    """

    turn: str
    by: ClaimBy


class Renew(Op, frozen=True, kw_only=True):
    """Extend leases of turns of one partition.

    Renewed, one flag a lease: 0 lost; else 1, +1 there is mail, +2 an open cancel.
    """

    leases: tuple[tuple[str, Token], ...]
    lease_ms: int


class Save(Op, frozen=True, kw_only=True):
    """Commit one transition: state, history, events, receipts, replies, consumed mail, indexes, ownership, other turns.

    Order: the record's last save_id is this one -> Saved(replayed) as it stands now; token differs -> Fenced;
    record.version below `version` or shorter history/events than `at` -> Behind; above or longer -> Conflict; else
    everything is applied, in the order of the fields, ownership last, and the version is ``version + 1``. What a save
    repeats after Behind (consumed mail, children, mail, flags) may be there already: it is skipped.

    `progress`: the save records the result of an effect, crashes becomes 0. `ack_cancel`: the flag has been taken into the state.
    `create`: children, runnable now, born with the flag where this turn has an open or acknowledged one. `deliver`: runtime mail to
    turns of the tree (dropped where terminal or absent). `cancel`: flags to raise on turns of the tree. END ends a quarantine,
    closes the turn's waits and answers the mail it leaves unread by `closing`; END of a root frees its conversation and starts
    `retention_ms` for the whole tree. An end that frees a conversation opens it for the head of its queue (see Create).
    `usage`: absolute (input, output, total) tokens and tool calls of this turn, summed per root
    in the reply. `confirm`: a store with replicas waits until one has it; `Saved.confirmed` tells.

    `memory`: entries of the conversation `conversation` (given where there is memory), written in their order: an unknown id
    is appended; a known one is replaced in its place, with a new change, its version grows by one; where the entry has this
    body and `shown` already, nothing changes (not even what `relay` would). `relay`: what is written waits to be passed on.
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
    confirm: bool = False
    conversation: str | None = None
    memory: tuple[MemoryRow, ...] = ()
    relay: bool = False


class Abandon(Op, frozen=True, kw_only=True):
    """Give a turn back without saving, runnable after `delay_ms`. Done | Fenced."""

    turn: str
    token: Token
    delay_ms: int = 0


class Reap(Op, frozen=True, kw_only=True):
    """Take a turn from an owner whose lease ended `grace_ms` ago, or whose node `dead_node` is proved dead.

    Counts a crash; the first makes it runnable at once, later ones after ``back_off_ms * 2 ** (crashes - 2)``, at most
    60 s. More than `max_crashes` quarantines it. Reaped | Held (renewed meanwhile) | Gone (absent, terminal, or no
    owner).
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

    The bytes and the version stay. `notify` is runtime mail to its parent. Done | Gone (absent, terminal, or not
    quarantined).
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
    """Look up receipts in a tree, each by any of its keys (command id, wait id, call key).

    Found: one body or None each.
    """

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

    `offset` skips turns at the head, which nobody here may be able to run. `partitions` are those that matter, None all: a
    hint, for stores where looking everywhere costs more.
    """

    limit: int = 64
    offset: int = 0
    partitions: tuple[int, ...] | None = None


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


class ListQueue(Op, frozen=True, kw_only=True):
    """Read a conversation's queued turns, all of them, in their order. DueTurns (`next` is None)."""

    conversation: str


class WriteMemory(Op, frozen=True, kw_only=True):
    """Write one entry of a conversation's memory, and let it wait to be passed on with `relay`.

    Without `expected`: an unknown id is appended; a known one -> Done, and nothing changes. With `expected`: a known id of
    that version is replaced in its place, with a new change, its version grows by one -> Done (though the body be the same);
    of the version after `expected`, with this body and `shown` -> Done, and nothing changes (it is this write, sent again);
    of another version, or unknown -> Conflict (version, or -1).

    Memory does not expire and is independent of turns: they may be over, dropped, or never have been.
    """

    conversation: str
    row: MemoryRow
    expected: int | None = None
    relay: bool = False


class ReadMemory(Op, frozen=True, kw_only=True):
    """Read entries of a conversation: the newest `limit` by place before the entry `before` (of all where None or unknown). Memory.

    With `shown` only those that models may see: neither `limit` nor `more` counts others (`before` may be one). Oldest first in
    the reply; `more` tells whether there are such entries before them.
    """

    conversation: str
    before: str | None = None
    limit: int = 64
    shown: bool = False


class FindMemory(Op, frozen=True, kw_only=True):
    """Read entries of a conversation by their ids; unknown ones are left out. Memory, in the order asked for."""

    conversation: str
    ids: tuple[str, ...]


class ClearMemory(Op, frozen=True, kw_only=True):
    """Drop a conversation's memory, notes and relay, and nothing of its turns or queue. Done, also where there is nothing."""

    conversation: str


class Relays(Op, frozen=True, kw_only=True):
    """Read which conversations have entries that wait to be passed on, since `before` (ms, inclusive) or longer. Conversations.

    The longest waiting first, then by name. An entry waits from a write with `relay` until Relayed names its newest change or a
    later one; a write to an entry that waits, with `relay` or not, leaves it waiting with the new change. A conversation waits
    since the store time of the write that made an entry wait where none did, or as Relayed says.
    """

    before: int
    limit: int = 64


class ReadRelay(Op, frozen=True, kw_only=True):
    """Read entries that wait to be passed on, each once, as they are now, by their newest change, the oldest first. Memory.

    `more` tells whether others wait behind them.
    """

    conversation: str
    limit: int = 64


class Relayed(Op, frozen=True, kw_only=True):
    """All entries that wait with a change up to `change` have been passed on: they wait no longer. Done.

    The conversation leaves Relays where none waits any more; else it counts as waiting since now. Where there was none to end
    (it was said before), nothing changes. A change before ClearMemory says nothing of what was written after it.
    """

    conversation: str
    change: int


class ReadNote(Op, frozen=True, kw_only=True):
    """Read a note on a conversation: a small record that is no entry. Noted (version 0 and no body where there is none)."""

    conversation: str
    name: str


class WriteNote(Op, frozen=True, kw_only=True):
    """Write a note whose version is `expected` (0: there is none yet); its version grows by one. Done | Conflict (version, or 0).

    A note of the version after `expected` with this body -> Done, and nothing changes (it is this write, sent again).
    """

    conversation: str
    name: str
    body: bytes
    expected: int


class Beat(Op, frozen=True, kw_only=True):
    """Announce a node and what it runs (``id@version``), or, with `leave`, take it off the list. Done."""

    node: str
    agents: tuple[str, ...] = ()
    leave: bool = False


class ListNodes(Op, frozen=True, kw_only=True):
    """Read the announced nodes, by their names. Nodes."""


class Prune(Op, frozen=True, kw_only=True):
    """Drop what is over, at most `limit` of a kind. Done.

    Trees past retention in which no turn is live, replies after 10 minutes, seen message ids after 24 hours, nodes
    without a beat for an hour.
    """

    limit: int = 500
