"""What the memory store keeps: plain dictionaries and sorted indexes.

Dictionaries of nothing but text, numbers, bytes and Structs without `gc` cost the garbage collector nothing, however many turns are
kept. A list, even an empty one, costs it something each time it looks through all that lives.
"""

# ruff: noqa: D102 (the methods are described in `Tables`)
from __future__ import annotations

from collections import deque
from itertools import islice

import msgspec

from ..actors.ids import root_of
from . import base
from .base import Mail, NewTurn, Reply, WaitRow
from .memory_entries import MemoryEntries
from .order import SortedIndex
from .rules import Rules
from .tables import NODES_MS, REPLIES_MS, SEEN_MS, ReceiptKey, Record

LATER_MS = 3_600_000


class Batch(msgspec.Struct, gc=False, frozen=True):
    """The events of one save: the number of the first, how many, the epoch of the saver, and themselves."""

    first: int
    count: int
    epoch: int
    body: bytes


class MemoryRecord(Record):
    """A record with what lies beside it. `history` and `events` are by their places, from 0."""

    snapshot: bytes = b""
    history: dict[int, bytes] = {}
    events: dict[int, Batch] = {}
    mail: dict[str, Mail] = {}
    seen: dict[str, None] = {}
    waits: dict[str, WaitRow] = {}
    counted: tuple[int, int, int, int] = (0, 0, 0, 0)


class Tree(msgspec.Struct, gc=False):
    """What is kept per root: its turns, receipts by kind and key, replies, the sum of usage."""

    turns: dict[str, None] = {}
    receipts: dict[str, bytes] = {}
    replies: dict[str, bytes] = {}
    usage: tuple[int, int, int, int] = (0, 0, 0, 0)


class Dated(msgspec.Struct, gc=False, frozen=True):
    """A message id that is kept for a while: since when, and of which turn."""

    at: int
    turn: str
    message_id: str


class MemoryTables(MemoryEntries, Rules[MemoryRecord]):
    """The tables and indexes."""

    def __init__(self) -> None:
        super().__init__()
        self.roused: list[str] = []
        self._turns: dict[str, MemoryRecord] = {}
        self._trees: dict[str, Tree] = {}
        self._open: dict[str, str] = {}
        self._queues: dict[str, dict[str, None]] = {}
        self._owned: dict[str, None] = {}
        self._wakes: SortedIndex[str] = SortedIndex()
        self._waits: SortedIndex[WaitRow] = SortedIndex()
        self._created: SortedIndex[str] = SortedIndex()
        self._expiring: SortedIndex[str] = SortedIndex()
        self._replied: deque[Dated] = deque()
        self._seen: deque[Dated] = deque()
        self._nodes: dict[str, base.NodeRow] = {}

    def find_turn(self, turn: str) -> MemoryRecord | None:
        return self._turns.get(turn)

    def add_turn(self, new: NewTurn, now: int) -> MemoryRecord:
        root = root_of(new.turn)
        record = MemoryRecord(
            turn=new.turn,
            root=root,
            parent=new.parent,
            agent=new.agent,
            agent_version=new.agent_version,
            conversation=new.conversation,
            tenant=new.tenant,
            digest=new.digest,
            created=now,
            schema=new.schema,
            status=new.status,
            updated=now,
            snapshot=new.snapshot,
        )
        self.append(record, new.messages, new.events)
        record.message_count, record.event_count = len(new.messages.bodies), new.events.count
        self._turns[new.turn] = record
        tree = self._trees.get(root)
        if tree is None:
            tree = self._trees[root] = Tree()
        tree.turns[new.turn] = None
        self._created.put((now, new.turn), new.turn)
        return record

    def put_snapshot(self, record: MemoryRecord, snapshot: bytes) -> None:
        record.snapshot = snapshot

    def read_snapshot(self, record: MemoryRecord) -> bytes:
        return record.snapshot

    def append(self, record: MemoryRecord, messages: base.Messages, events: base.Events) -> None:
        history = record.history
        for body in messages.bodies:
            history[len(history)] = body
        if events.count:
            record.events[len(record.events)] = Batch(events.at + 1, events.count, record.epoch, events.body)

    def read_tail(self, record: MemoryRecord, count: int) -> tuple[bytes, ...]:
        history = record.history
        return tuple(map(history.__getitem__, range(max(0, len(history) - count), len(history))))

    def set_wake(self, record: MemoryRecord, wake: int | None) -> None:
        if record.wake != wake:
            if record.wake is not None:
                self._wakes.drop((record.wake, record.turn))
            if wake is not None:
                self._wakes.put((wake, record.turn), record.turn)
            record.wake = wake

    def set_owner(self, record: MemoryRecord, activation: str | None, node: str | None) -> None:
        record.activation, record.node = activation, node
        if activation is None:
            self._owned.pop(record.turn, None)
        else:
            self._owned[record.turn] = None

    def set_expiry(self, record: MemoryRecord, expires: int) -> None:
        record.expires = expires
        self._expiring.put((expires, record.root), record.root)

    def was_seen(self, record: MemoryRecord, message_id: str) -> bool:
        return message_id in record.seen

    def put_mail(self, record: MemoryRecord, mail: Mail) -> None:
        record.mail[mail.message_id] = mail
        record.seen[mail.message_id] = None
        self._seen.append(Dated(mail.at, record.turn, mail.message_id))

    def take_mail(self, record: MemoryRecord, message_id: str, now: int) -> bool:
        if record.mail.pop(message_id, None) is not None:
            return True
        if message_id not in record.seen:
            record.seen[message_id] = None
            self._seen.append(Dated(now, record.turn, message_id))
        return False

    def read_mailbox(self, record: MemoryRecord, limit: int | None) -> tuple[Mail, ...]:
        return tuple(islice(record.mail.values(), limit))

    def empty_mailbox(self, record: MemoryRecord) -> None:
        record.mail = {}

    def put_wait(self, record: MemoryRecord, wait: WaitRow) -> None:
        self.drop_wait(record, wait.id)
        record.waits[wait.id] = wait
        self._waits.put((wait.created, wait.id), wait)

    def drop_wait(self, record: MemoryRecord, wait_id: str) -> None:
        wait = record.waits.pop(wait_id, None)
        if wait is not None:
            self._waits.drop((wait.created, wait_id))

    def drop_waits(self, record: MemoryRecord) -> None:
        for wait_id in list(record.waits):
            self.drop_wait(record, wait_id)

    def put_receipt(self, record: MemoryRecord, receipt: base.ReceiptRow) -> None:
        receipts = self._trees[record.root].receipts
        receipts[f"wait {receipt.wait_id}"] = receipt.body
        if receipt.command_id is not None:
            receipts[f"command {receipt.command_id}"] = receipt.body
        if receipt.call_key is not None:
            receipts[f"call {receipt.call_key}"] = receipt.body

    def read_receipt(self, root: str, kind: ReceiptKey, key: str) -> bytes | None:
        tree = self._trees.get(root)
        return None if tree is None else tree.receipts.get(f"{kind} {key}")

    def put_reply(self, record: MemoryRecord, message_id: str, body: bytes, now: int) -> None:
        self._trees[record.root].replies[message_id] = body
        self._replied.append(Dated(now, record.root, message_id))

    def read_reply(self, root: str, message_id: str) -> bytes | None:
        tree = self._trees.get(root)
        return None if tree is None else tree.replies.get(message_id)

    def open_turn_of(self, conversation: str) -> str | None:
        return self._open.get(conversation)

    def set_open_turn(self, conversation: str, turn: str | None) -> None:
        if turn is None:
            self._open.pop(conversation, None)
        else:
            self._open[conversation] = turn

    def is_queued(self, record: MemoryRecord) -> bool:
        return record.turn in self._queues.get(record.conversation or "", ())

    def enqueue(self, record: MemoryRecord) -> None:
        self._queues.setdefault(record.conversation or "", {})[record.turn] = None

    def dequeue(self, record: MemoryRecord) -> None:
        queue = self._queues[record.conversation or ""]
        del queue[record.turn]
        if not queue:
            del self._queues[record.conversation or ""]

    def queue_of(self, conversation: str, limit: int | None = None) -> tuple[str, ...]:
        return tuple(islice(self._queues.get(conversation, ()), limit))

    def queue_length(self, conversation: str) -> int:
        return len(self._queues.get(conversation, ()))

    def total_usage(self, record: MemoryRecord) -> tuple[int, int, int, int]:
        tree, used, was = self._trees[record.root], record.usage, record.counted
        if used != was:
            record.counted = used
            if (total := tree.usage) == was:  # no other turn has used anything
                tree.usage = used
            else:
                a, b, c, d = total
                tree.usage = (a + used[0] - was[0], b + used[1] - was[1], c + used[2] - was[2], d + used[3] - was[3])
        return tree.usage

    def beat(self, op: base.Beat, now: int) -> Reply:
        """Announce a node, or take it off the list."""
        if op.leave:
            self._nodes.pop(op.node, None)
        else:
            self._nodes[op.node] = base.NodeRow(op.node, now, op.agents)
        return base.Done()

    def prune(self, op: base.Prune, now: int) -> Reply:
        """Drop what is over."""
        for said in _over(self._replied, now - REPLIES_MS, op.limit):
            tree = self._trees.get(said.turn)
            if tree is not None:
                tree.replies.pop(said.message_id, None)
        for heard in _over(self._seen, now - SEEN_MS, op.limit):
            record = self._turns.get(heard.turn)
            if record is not None and heard.message_id in record.mail:
                self._seen.append(Dated(now, heard.turn, heard.message_id))
            elif record is not None:
                record.seen.pop(heard.message_id, None)
        for key, root in list(islice(self._expiring.above(None), op.limit)):
            if key[0] > now:
                break
            self._expiring.drop(key)
            if any(self._turns[turn].state != "T" for turn in self._trees[root].turns):
                self._expiring.put((now + LATER_MS, root), root)
            else:
                self._drop_tree(root)
        for node in [row.node for row in self._nodes.values() if row.beat + NODES_MS <= now]:
            del self._nodes[node]
        return base.Done()

    def _drop_tree(self, root: str) -> None:
        for turn in self._trees.pop(root).turns:
            record = self._turns.pop(turn)
            self._created.drop((record.created, turn))


def _over(rows: deque[Dated], until: int, limit: int) -> list[Dated]:
    """Take the rows from before a time."""
    taken: list[Dated] = []
    while rows and rows[0].at <= until and len(taken) < limit:
        taken.append(rows.popleft())
    return taken
