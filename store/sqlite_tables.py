"""What the SQLite store keeps: the tables of ``sql/schema.sql``, as the rules need them."""

# ruff: noqa: D102 (the methods are described in `Tables`)
from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import compress
from operator import ne
from typing import Any

import msgspec

from ..actors.ids import root_of
from . import base
from .base import Mail, NewTurn, Op, Reply, WaitRow
from .rules import Rules
from .sqlite_batch import Kind, write
from .sqlite_entries import SqliteEntries
from .sqlite_statements import (
    ALL,
    BESIDE,
    CHANGING,
    CLOSE,
    CLOSED,
    COLUMNS,
    DELIVERY,
    FIND,
    FIXED,
    KEYS,
    KINDS,
    LOG,
    MAIL,
    NEW_TURN,
    OPENED,
    RECEIPT,
    RECEIPTS,
    REPLIES,
    REPLY,
    SEEN,
    SNAPSHOT,
    TAIL,
    TAKE,
    TAKEN,
)
from .tables import ReceiptKey, Record

OWNED = 20_000  # records of turns with an owner that are kept between transactions
AHEAD = 16  # reads of one statement
PREFIXES: dict[ReceiptKey, tuple[str, str]] = {"command": ("c", "c"), "wait": ("w", "W"), "call": ("k", "K")}
pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder(list[bytes]).decode


class SqliteRecord(Record):
    """A record with its row, and with what is known of other tables; `None` is unknown.

    For as long as the record is kept: `letters`, the ids of unread mail, and `open`, the ends of the ids of its open waits. In one
    transaction: `snapshot`, `tail`, and `mailbox`.
    """

    id: int = 0
    children: int = 0
    stored: tuple[Any, ...] = ()
    snapshot: bytes | None = None
    tail: tuple[bytes, ...] | None = None
    mailbox: list[Mail] | None = None
    letters: set[str] | None = None
    open: set[str] | None = None


class SqliteTables(SqliteEntries, Rules[SqliteRecord]):
    """The tables, on one connection. `flush` writes what operations have changed."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.roused: list[str] = []
        self._connection = connection
        self._run = connection.cursor().execute
        self._rows: dict[Kind, list[tuple[Any, ...]]] = {kind: [] for kind in KINDS}  # that wait to be written
        self._records: dict[str, SqliteRecord] = {}  # of this transaction
        self._owned: dict[str, SqliteRecord] = {}  # of turns with an owner, as they were stored last
        self._dirty: set[str] = set()  # roots of trees with rows that are not written yet
        self._opening: set[int] = set()  # rows of turns with waits that are not written yet
        self._touched: set[str] = set()  # roots of trees in which this transaction has written before
        self._ahead: dict[int, tuple[Any, ...]] = {}  # what deliveries look at, by their addresses
        self._absent: set[str] = set()  # turns that there were not when the transaction began
        self._known: dict[tuple[str, str | None], Any] = {}
        self._next_id = self._next_receipt = 0
        self._updates: dict[tuple[bool, ...], Kind] = {}

    def flush(self) -> None:
        """Write what has changed in the records, and all rows that wait."""
        changes: dict[tuple[bool, ...], list[tuple[Any, ...]]] = {}
        for record in self._records.values():
            values = _changing(record)
            if not record.stored:
                fixed = msgspec.structs.astuple(record)[:FIXED]
                root = None if record.root == record.turn else record.root
                self._rows[NEW_TURN].append((fixed[0], root, *fixed[2:], *values, record.id))
            elif values != record.stored:
                # only what differs: an index on a column that is set is rewritten, even with the same value
                changed = tuple(map(ne, values, record.stored))
                changes.setdefault(changed, []).append((*compress(values, changed), record.id))
            record.stored = values
        for kind, rows in self._rows.items():
            if rows:
                write(self._run, kind, rows)
                rows.clear()
        for changed, rows in changes.items():
            write(self._run, self._updates.get(changed) or self._update_of(changed), rows)
        self._touched |= self._dirty
        self._dirty.clear()
        self._opening.clear()

    def next(self) -> None:
        """An operation has ended."""
        if self._known:
            self._known.clear()

    def look_again(self) -> None:
        """Rows of turns without an owner have changed under what was read in this transaction."""
        self._records.clear()
        self._ahead.clear()
        self._absent.clear()

    def forget(self, *, stored: bool = False) -> None:
        """The transaction is over: forget what was read; of turns with an owner keep the record where it was `stored`."""
        if stored:
            for turn, record in self._records.items():
                if record.activation is None:
                    self._owned.pop(turn, None)
                elif turn in self._owned or len(self._owned) < OWNED:
                    record.snapshot = record.tail = None
                    record.mailbox = None if record.unread else []
                    self._owned[turn] = record
        else:
            self._owned.clear()
            for rows in self._rows.values():
                rows.clear()
            self._dirty.clear()
            self._opening.clear()
            self._next_id = self._next_receipt = 0
        self._records.clear()
        self._touched.clear()
        self._ahead.clear()
        self._absent.clear()
        self._known.clear()

    def others_wrote(self) -> None:
        """Another connection has changed the file: what is known of it may be wrong."""
        self._owned.clear()
        self._next_id = self._next_receipt = 0

    def _update_of(self, changed: tuple[bool, ...]) -> Kind:
        columns = tuple(compress(CHANGING, changed))
        count = len(columns)
        names = ", ".join(f"{column} = v.column{number}" for number, column in enumerate(columns, 1))
        one = ", ".join(f"{column} = ?" for column in columns)
        kind = Kind(
            f"UPDATE turns SET {names} FROM (VALUES",  # noqa: S608
            f"({', '.join('?' * (count + 1))})",
            f") AS v WHERE turns.id = v.column{count + 1}",
            one=f"UPDATE turns SET {one} WHERE id = ?",  # noqa: S608
        )
        self._updates[changed] = kind
        return kind

    def _put(self, record: SqliteRecord, kind: Kind, row: tuple[Any, ...]) -> None:
        """Let a row wait to be written."""
        self._dirty.add(record.root)
        self._rows[kind].append(row)

    def _read(self, root: str, query: str, values: tuple[Any, ...]) -> sqlite3.Cursor:
        """Read what is of one tree."""
        if root in self._dirty:
            self.flush()
        return self._run(query, values)

    def find_turn(self, turn: str) -> SqliteRecord | None:
        record = self._records.get(turn)
        if record is None:
            if turn in self._absent:
                return None
            record = self._owned.get(turn)
            if record is None:
                row = self._run(f"SELECT {ALL} FROM turns WHERE turn = ?", (turn,)).fetchone()  # noqa: S608
                if row is None:
                    return None
                record = record_of(row)
            self._records[turn] = record
        return record

    def add_turn(self, new: NewTurn, now: int) -> SqliteRecord:
        row = self._next_id
        if not row:
            self.flush()
            row = int(self._run("SELECT coalesce(max(id), 0) + 1 FROM turns").fetchone()[0])
        self._next_id = row + 1
        record = SqliteRecord(
            turn=new.turn,
            root=root_of(new.turn),
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
            message_count=len(new.messages.bodies),
            event_count=new.events.count,
            id=row,
            snapshot=new.snapshot,
            tail=new.messages.bodies,
            mailbox=[],
            letters=set(),
            open=set(),
        )
        if record.root != record.turn and (root := self.find_turn(record.root)) is not None:
            root.children += 1
        self._records[new.turn] = record
        self._put(record, SNAPSHOT, (row, new.snapshot))
        self._append(record, new.messages, new.events)
        return record

    def put_snapshot(self, record: SqliteRecord, snapshot: bytes) -> None:
        record.snapshot = snapshot
        self._put(record, SNAPSHOT, (record.id, snapshot))

    def read_snapshot(self, record: SqliteRecord) -> bytes:
        if record.snapshot is not None:
            return record.snapshot
        return self._read(record.root, "SELECT body FROM snapshots WHERE id = ?", (record.id,)).fetchone()[0]

    def append(self, record: SqliteRecord, messages: base.Messages, events: base.Events) -> None:
        record.tail = None
        self._append(record, messages, events)

    def _append(self, record: SqliteRecord, messages: base.Messages, events: base.Events) -> None:
        bodies = pack(messages.bodies) if messages.bodies else None
        row = (record.id, messages.at, len(messages.bodies), events.at, events.count, record.epoch, bodies, events.body or None)
        self._put(record, LOG, row)

    def read_tail(self, record: SqliteRecord, count: int) -> tuple[bytes, ...]:
        if record.tail is not None:
            return record.tail[-count:]
        tail: list[bytes] = []
        rows = self._read(record.root, TAIL, (record.id,))
        for (bodies,) in rows:
            tail[:0] = unpack(bodies)
            if len(tail) >= count:
                break
        return tuple(tail[-count:])

    def set_wake(self, record: SqliteRecord, wake: int | None) -> None:
        record.wake = wake

    def set_owner(self, record: SqliteRecord, activation: str | None, node: str | None) -> None:
        record.activation, record.node = activation, node

    def set_expiry(self, record: SqliteRecord, expires: int) -> None:
        record.expires = expires

    def was_seen(self, record: SqliteRecord, message_id: str) -> bool:
        if ("seen", message_id) in self._known:
            return self._known["seen", message_id] is not None
        read = "SELECT 1 FROM seen WHERE turn = ? AND message = ?"
        return self._read(record.root, read, (record.id, message_id)).fetchone() is not None

    def put_mail(self, record: SqliteRecord, mail: Mail) -> None:
        if record.mailbox is not None:
            record.mailbox.append(mail)
        if record.letters is not None:
            record.letters.add(mail.message_id)
        self._put(record, MAIL, (record.id, mail.message_id, mail.command_id, mail.wait_id, mail.at, mail.body))
        self._put(record, SEEN, (record.id, mail.message_id, mail.at))

    def take_mail(self, record: SqliteRecord, message_id: str, now: int) -> bool:
        found = False
        if record.letters is None:
            found = record.unread > 0 and self._read(record.root, TAKE, (record.id, message_id)).rowcount > 0
        elif message_id in record.letters:
            found = True
            record.letters.discard(message_id)
            if record.mailbox:  # put in this very transaction
                self.flush()
            self._put(record, TAKEN, (record.id, message_id))
        record.mailbox = None
        if not found:
            self._put(record, SEEN, (record.id, message_id, now))
        return found

    def read_mailbox(self, record: SqliteRecord, limit: int | None) -> tuple[Mail, ...]:
        if record.mailbox is not None:
            return tuple(record.mailbox[:limit])
        read = "SELECT message, body, command, wait, at FROM mail WHERE turn = ? ORDER BY id LIMIT ?"
        rows = self._read(record.root, read, (record.id, -1 if limit is None else limit))
        return tuple(Mail(*row) for row in rows)

    def empty_mailbox(self, record: SqliteRecord) -> None:
        self._read(record.root, "DELETE FROM mail WHERE turn = ?", (record.id,))
        record.mailbox, record.letters = [], set()

    def put_wait(self, record: SqliteRecord, wait: WaitRow) -> None:
        name = wait.id.removeprefix(record.turn)
        if record.open is None or name in record.open:
            self._read(record.root, CLOSE, (record.id, name))
        if record.open is not None:
            record.open.add(name)
        self._opening.add(record.id)
        row = (record.id, name, wait.kind, wait.created, wait.agent, wait.tenant, wait.assignee, wait.body)
        self._put(record, OPENED, row)

    def drop_wait(self, record: SqliteRecord, wait_id: str) -> None:
        name = wait_id.removeprefix(record.turn)
        if record.open is None:
            self._read(record.root, CLOSE, (record.id, name))
        elif name in record.open:
            record.open.discard(name)
            if record.id in self._opening:
                self.flush()
            self._put(record, CLOSED, (record.id, name))

    def drop_waits(self, record: SqliteRecord) -> None:
        if record.open is None or record.open:
            self._read(record.root, "DELETE FROM waits WHERE turn = ?", (record.id,))
        record.open = set()

    def put_receipt(self, record: SqliteRecord, receipt: base.ReceiptRow) -> None:
        tree, row = self._tree(record), self._next_receipt
        if not row:
            row = int(self._run("SELECT coalesce(max(id), 0) + 1 FROM receipts").fetchone()[0])  # none waits to be written
        self._next_receipt = row + 1
        self._put(record, RECEIPTS, (row, tree, receipt.body))
        self._put(record, KEYS, (tree, receipt_key(record.root, "wait", receipt.wait_id), row))
        if receipt.command_id is not None:
            self._put(record, KEYS, (tree, receipt_key(record.root, "command", receipt.command_id), row))
        if receipt.call_key is not None:
            self._put(record, KEYS, (tree, receipt_key(record.root, "call", receipt.call_key), row))

    def read_receipt(self, root: str, kind: ReceiptKey, key: str) -> bytes | None:
        if (kind, key) in self._known:
            return self._known[kind, key]
        row = self._read(root, RECEIPT, (receipt_key(root, kind, key), root)).fetchone()
        return None if row is None else row[0]

    def put_reply(self, record: SqliteRecord, message_id: str, body: bytes, now: int) -> None:
        self._put(record, REPLIES, (self._tree(record), message_id, now, body))

    def read_reply(self, root: str, message_id: str) -> bytes | None:
        if ("reply", message_id) in self._known:
            return self._known["reply", message_id]
        row = self._read(root, REPLY, (message_id, root)).fetchone()
        return None if row is None else row[0]

    def look_ahead(self, ops: Sequence[Op]) -> None:
        """Read with one statement what all deliveries of a transaction look at, and with another which creations are new."""
        delivered = [op for op in ops if isinstance(op, base.Deliver)]
        for first in range(0, len(delivered), AHEAD):
            some = delivered[first : first + AHEAD]
            values = [value for place, op in enumerate(some) for value in _delivery(place, op)]
            for place, *row in self._run(DELIVERY.text(len(some)), values).fetchall():
                self._ahead[id(some[int(place)])] = tuple(row)
        created = [op.new.turn for op in ops if isinstance(op, base.Create)]
        for first in range(0, len(created), AHEAD):
            some = created[first : first + AHEAD]
            rows: list[tuple[Any, ...]] = self._run(FIND.text(len(some)), some).fetchall()
            for row in rows:
                self._records[row[0]] = self._owned.get(row[0]) or record_of(row)
            self._absent.update(turn for turn in some if turn not in self._records)

    def deliver(self, op: base.Deliver, now: int) -> Reply:
        """Put mail into a mailbox."""
        row = self._ahead.pop(id(op), None)
        if row is not None and not self._wrote(root_of(op.turn)):
            record = self._records.get(op.turn) or self._owned.get(op.turn) or record_of(row[:BESIDE])
            self._records[op.turn] = record
            *values, waits, wait, snapshot = row[BESIDE:]
            record.snapshot, record.open = snapshot, {wait} if waits == 1 else None if waits else set()
            mail = op.mail
            asked = (("command", mail.command_id), ("wait", mail.wait_id), ("reply", mail.message_id), ("seen", mail.message_id))
            self._known = dict(zip(asked, values, strict=True))
            if op.claim is not None and op.claim.tail and record.activation is None and record.tail is None:
                record.tail = self.read_tail(record, op.claim.tail)
                reply = super().deliver(op, now)
                record.tail = None  # another claim may want more
                return reply
        return super().deliver(op, now)

    def _wrote(self, root: str) -> bool:
        """Tell whether this transaction has written in a tree."""
        return root in self._dirty or root in self._touched

    def open_turn_of(self, conversation: str) -> str | None:
        row = self._run("SELECT turn FROM conversations WHERE conversation = ?", (conversation,)).fetchone()
        return None if row is None else row[0]

    def set_open_turn(self, conversation: str, turn: str | None) -> None:
        if turn is None:
            self._run("DELETE FROM conversations WHERE conversation = ?", (conversation,))
        else:
            self._run("INSERT OR REPLACE INTO conversations(conversation, turn) VALUES (?, ?)", (conversation, turn))

    def is_queued(self, record: SqliteRecord) -> bool:
        read = "SELECT 1 FROM queue WHERE conversation = ? AND turn = ?"
        return self._run(read, (record.conversation, record.id)).fetchone() is not None

    def enqueue(self, record: SqliteRecord) -> None:
        self._run("INSERT INTO queue(conversation, turn) VALUES (?, ?)", (record.conversation, record.id))

    def dequeue(self, record: SqliteRecord) -> None:
        self._run("DELETE FROM queue WHERE conversation = ? AND turn = ?", (record.conversation, record.id))

    def queue_of(self, conversation: str, limit: int | None = None) -> tuple[str, ...]:
        self.flush()  # the queue names the rows of turns
        read = "SELECT t.turn FROM queue q JOIN turns t ON t.id = q.turn WHERE q.conversation = ? ORDER BY q.turn LIMIT ?"
        rows = self._run(read, (conversation, -1 if limit is None else limit)).fetchall()
        return tuple(turn for (turn,) in rows)

    def queue_length(self, conversation: str) -> int:
        return self._run("SELECT count(*) FROM queue WHERE conversation = ?", (conversation,)).fetchone()[0]

    def total_usage(self, record: SqliteRecord) -> tuple[int, int, int, int]:
        if record.turn == record.root and not record.children:
            return record.usage
        self.flush()
        row = self._run(
            "SELECT count(*), sum(used_in), sum(used_out), sum(used_total), sum(calls) FROM turns WHERE root = ? AND id <> ?",
            (record.root, record.id),
        ).fetchone()
        used, others = record.usage, row[1:] if row[0] else (0, 0, 0, 0)
        root = self.find_turn(record.root) if record.turn != record.root else None
        more = (0, 0, 0, 0) if root is None else root.usage
        return (
            used[0] + others[0] + more[0],
            used[1] + others[1] + more[1],
            used[2] + others[2] + more[2],
            used[3] + others[3] + more[3],
        )

    def beat(self, op: base.Beat, now: int) -> Reply:
        """Announce a node, or take it off the list."""
        if op.leave:
            self._run("DELETE FROM nodes WHERE node = ?", (op.node,))
        else:
            agents = msgspec.json.encode(op.agents).decode()
            self._run("INSERT OR REPLACE INTO nodes(node, beat, agents) VALUES (?, ?, ?)", (op.node, now, agents))
        return base.Done()

    def _tree(self, record: SqliteRecord) -> int:
        if record.root == record.turn:
            return record.id
        root = self.find_turn(record.root)
        return record.id if root is None else root.id


def record_of(row: tuple[Any, ...]) -> SqliteRecord:
    """Make a record from a row of `ALL`."""
    count = len(COLUMNS)
    values: tuple[Any, ...] = (*row[:count], row[count : count + 4], row[count + 5], row[count + 4], row[FIXED : count + 5])
    record = SqliteRecord(*values)
    record.root = record.root or record.turn
    if not record.unread:
        record.mailbox, record.letters = [], set()
    return record


def _delivery(place: int, op: base.Deliver) -> tuple[Any, ...]:
    """Return a row of `DELIVERY`."""
    mail, root = op.mail, root_of(op.turn)
    keys = (receipt_key(root, "command", mail.command_id or ""), receipt_key(root, "wait", mail.wait_id or ""))
    return (place, op.turn, root, *keys, mail.message_id)


def receipt_key(root: str, kind: ReceiptKey, key: str) -> str:
    """Make the key of a receipt within its tree; most begin with the root's id, which is left out."""
    inside, outside = PREFIXES[kind]
    if inside != outside and key.startswith(root):
        return inside + key[len(root) :]
    return outside + key


def _changing(record: SqliteRecord) -> tuple[Any, ...]:
    values = msgspec.structs.astuple(record)
    return (*values[FIXED : len(COLUMNS)], *record.usage, record.children)
