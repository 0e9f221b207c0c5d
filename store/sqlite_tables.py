"""What the SQLite store keeps: the tables of ``sql/schema.sql``, as the rules need them."""

# ruff: noqa: D102 (the methods are described in `Tables`)
from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from ..actors.ids import root_of
from . import base
from .base import Mail, NewTurn, Reply, WaitRow
from .rules import Rules
from .sqlite_entries import SqliteEntries
from .tables import ReceiptKey, Record

COLUMNS = tuple(name for name in Record.__struct_fields__ if name != "usage")
USAGE = ("used_in", "used_out", "used_total", "calls", "children")
ALL = ", ".join((*COLUMNS, *USAGE, "id"))
FIXED = COLUMNS.index("created") + 1
CHANGING = (*COLUMNS[FIXED:], *USAGE)
INSERT = f"INSERT INTO turns({ALL}) VALUES ({', '.join('?' * (len(COLUMNS) + len(USAGE) + 1))})"  # noqa: S608
RECEIPT = (
    "SELECT r.body FROM turns t JOIN receipt_keys k ON k.tree = t.id AND k.key = ? JOIN receipts r ON r.id = k.receipt"
    " WHERE t.turn = ?"
)
REPLY = "SELECT r.body FROM turns t JOIN replies r ON r.tree = t.id AND r.message = ? WHERE t.turn = ? ORDER BY r.id DESC LIMIT 1"
# everything that a delivery looks at, in one statement
DELIVERY = (
    f"SELECT {ALL},"  # noqa: S608
    " (SELECT body FROM receipt_keys k JOIN receipts r ON r.id = k.receipt WHERE k.tree = tree_id AND k.key = ?),"
    " (SELECT body FROM receipt_keys k JOIN receipts r ON r.id = k.receipt WHERE k.tree = tree_id AND k.key = ?),"
    " (SELECT body FROM replies r WHERE r.tree = tree_id AND r.message = ? ORDER BY r.id DESC LIMIT 1),"
    " (SELECT 1 FROM seen s WHERE s.turn = turns.id AND s.message = ?)"
    " FROM turns, (SELECT id AS tree_id FROM turns WHERE turn = ?) WHERE turn = ?"
)
KEYS = "INSERT OR REPLACE INTO receipt_keys(tree, key, receipt) VALUES "
PREFIXES: dict[ReceiptKey, tuple[str, str]] = {"command": ("c", "c"), "wait": ("w", "W"), "call": ("k", "K")}
pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder(list[bytes]).decode


class SqliteRecord(Record):
    """A record with its row."""

    id: int = 0
    children: int = 0
    stored: tuple[Any, ...] = ()
    snapshot: bytes | None = None
    tail: tuple[bytes, ...] | None = None


class SqliteTables(SqliteEntries, Rules[SqliteRecord]):
    """The tables, on one connection. `flush` writes the records that an operation has changed."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.roused: list[str] = []
        self._connection = connection
        self._run = connection.cursor().execute
        self._records: dict[str, SqliteRecord] = {}
        self._known: dict[tuple[str, str], Any] = {}
        self._next_id = 0
        self._updates: dict[tuple[int, ...], str] = {}

    def flush(self) -> None:
        """Write what has changed in the records, and forget them."""
        for record in self._records.values():
            values = _changing(record)
            if not record.stored:
                fixed = msgspec.structs.astuple(record)[:FIXED]
                root = None if record.root == record.turn else record.root
                self._run(INSERT, (fixed[0], root, *fixed[2:], *values, record.id))
            elif values != record.stored:
                self._update(record.id, values, record.stored)
        self._records.clear()
        self._known.clear()

    def forget(self) -> None:
        """Forget everything read; the transaction is over."""
        self._records.clear()
        self._known.clear()
        self._next_id = 0

    def _update(self, row: int, values: tuple[Any, ...], stored: tuple[Any, ...]) -> None:
        # only what differs: an index on a column that is set is rewritten, even with the same value
        changed = tuple(place for place, value in enumerate(values) if value != stored[place])
        statement = self._updates.get(changed)
        if statement is None:
            names = ", ".join(f"{CHANGING[place]} = ?" for place in changed)
            statement = self._updates[changed] = f"UPDATE turns SET {names} WHERE id = ?"  # noqa: S608
        self._run(statement, (*[values[place] for place in changed], row))

    def find_turn(self, turn: str) -> SqliteRecord | None:
        record = self._records.get(turn)
        if record is None:
            row = self._run(f"SELECT {ALL} FROM turns WHERE turn = ?", (turn,)).fetchone()  # noqa: S608
            if row is not None:
                record = self._records[turn] = record_of(row)
        return record

    def add_turn(self, new: NewTurn, now: int) -> SqliteRecord:
        row = self._next_id or int(self._run("SELECT coalesce(max(id), 0) + 1 FROM turns").fetchone()[0])
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
        )
        if record.root != record.turn and (root := self.find_turn(record.root)) is not None:
            root.children += 1
        self._records[new.turn] = record
        self._run("INSERT INTO snapshots(id, body) VALUES (?, ?)", (record.id, new.snapshot))
        self.append(record, new.messages, new.events)
        return record

    def put_snapshot(self, record: SqliteRecord, snapshot: bytes) -> None:
        self._run("UPDATE snapshots SET body = ? WHERE id = ?", (snapshot, record.id))

    def read_snapshot(self, record: SqliteRecord) -> bytes:
        if record.snapshot is not None:
            return record.snapshot
        return self._run("SELECT body FROM snapshots WHERE id = ?", (record.id,)).fetchone()[0]

    def append(self, record: SqliteRecord, messages: base.Messages, events: base.Events) -> None:
        bodies = pack(messages.bodies) if messages.bodies else None
        row = (record.id, messages.at, len(messages.bodies), events.at, events.count, record.epoch, bodies, events.body or None)
        self._run(
            "INSERT INTO log(turn, message_at, messages, event_at, events, epoch, message_bodies, event_body)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            row,
        )

    def read_tail(self, record: SqliteRecord, count: int) -> tuple[bytes, ...]:
        if record.tail is not None:
            return record.tail[-count:]
        tail: list[bytes] = []
        rows = self._run("SELECT message_bodies FROM log WHERE turn = ? AND messages > 0 ORDER BY id DESC", (record.id,))
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
        found = self._run("SELECT 1 FROM seen WHERE turn = ? AND message = ?", (record.id, message_id)).fetchone()
        return found is not None

    def put_mail(self, record: SqliteRecord, mail: Mail) -> None:
        self._run(
            "INSERT INTO mail(turn, message, command, wait, at, body) VALUES (?, ?, ?, ?, ?, ?)",
            (record.id, mail.message_id, mail.command_id, mail.wait_id, mail.at, mail.body),
        )
        self._run("INSERT INTO seen(turn, message, at) VALUES (?, ?, ?)", (record.id, mail.message_id, mail.at))

    def take_mail(self, record: SqliteRecord, message_id: str, now: int) -> bool:
        if record.unread and self._run("DELETE FROM mail WHERE turn = ? AND message = ?", (record.id, message_id)).rowcount:
            return True
        self._run("INSERT OR IGNORE INTO seen(turn, message, at) VALUES (?, ?, ?)", (record.id, message_id, now))
        return False

    def read_mailbox(self, record: SqliteRecord, limit: int | None) -> tuple[Mail, ...]:
        rows = self._run(
            "SELECT message, body, command, wait, at FROM mail WHERE turn = ? ORDER BY id LIMIT ?",
            (record.id, -1 if limit is None else limit),
        )
        return tuple(Mail(*row) for row in rows)

    def empty_mailbox(self, record: SqliteRecord) -> None:
        self._run("DELETE FROM mail WHERE turn = ?", (record.id,))

    def put_wait(self, record: SqliteRecord, wait: WaitRow) -> None:
        self.drop_wait(record, wait.id)
        self._run(
            "INSERT INTO waits(turn, wait, kind, created, agent, tenant, assignee, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                record.id,
                wait.id.removeprefix(record.turn),
                wait.kind,
                wait.created,
                wait.agent,
                wait.tenant,
                wait.assignee,
                wait.body,
            ),
        )

    def drop_wait(self, record: SqliteRecord, wait_id: str) -> None:
        self._run("DELETE FROM waits WHERE turn = ? AND wait = ?", (record.id, wait_id.removeprefix(record.turn)))

    def drop_waits(self, record: SqliteRecord) -> None:
        self._run("DELETE FROM waits WHERE turn = ?", (record.id,))

    def put_receipt(self, record: SqliteRecord, receipt: base.ReceiptRow) -> None:
        tree = self._tree(record)
        row = self._run("INSERT INTO receipts(tree, body) VALUES (?, ?)", (tree, receipt.body)).lastrowid
        keys: list[str] = [receipt_key(record.root, "wait", receipt.wait_id)]
        if receipt.command_id is not None:
            keys.append(receipt_key(record.root, "command", receipt.command_id))
        if receipt.call_key is not None:
            keys.append(receipt_key(record.root, "call", receipt.call_key))
        rows = [value for key in keys for value in (tree, key, row)]
        self._run(KEYS + ", ".join(["(?, ?, ?)"] * len(keys)), rows)

    def read_receipt(self, root: str, kind: ReceiptKey, key: str) -> bytes | None:
        if (kind, key) in self._known:
            return self._known[kind, key]
        row = self._run(RECEIPT, (receipt_key(root, kind, key), root)).fetchone()
        return None if row is None else row[0]

    def put_reply(self, record: SqliteRecord, message_id: str, body: bytes, now: int) -> None:
        self._run("INSERT INTO replies(tree, message, at, body) VALUES (?, ?, ?, ?)", (self._tree(record), message_id, now, body))

    def read_reply(self, root: str, message_id: str) -> bytes | None:
        if ("reply", message_id) in self._known:
            return self._known["reply", message_id]
        row = self._run(REPLY, (message_id, root)).fetchone()
        return None if row is None else row[0]

    def deliver(self, op: base.Deliver, now: int) -> Reply:
        """Put mail into a mailbox."""
        mail, root = op.mail, root_of(op.turn)
        command, wait = mail.command_id or "", mail.wait_id or ""
        keys = receipt_key(root, "command", command), receipt_key(root, "wait", wait)
        row = self._run(DELIVERY, (*keys, mail.message_id, mail.message_id, root, op.turn)).fetchone()
        if row is not None:
            self._records[op.turn] = record_of(row[:-4])
            found = (("command", command), ("wait", wait), ("reply", mail.message_id), ("seen", mail.message_id))
            self._known = dict(zip(found, row[-4:], strict=True))
        return super().deliver(op, now)

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
        read = "SELECT t.turn FROM queue q JOIN turns t ON t.id = q.turn WHERE q.conversation = ? ORDER BY q.turn LIMIT ?"
        return tuple(turn for (turn,) in self._run(read, (conversation, -1 if limit is None else limit)))

    def queue_length(self, conversation: str) -> int:
        return self._run("SELECT count(*) FROM queue WHERE conversation = ?", (conversation,)).fetchone()[0]

    def total_usage(self, record: SqliteRecord) -> tuple[int, int, int, int]:
        if record.turn == record.root and not record.children:
            return record.usage
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
    return record


def receipt_key(root: str, kind: ReceiptKey, key: str) -> str:
    """Make the key of a receipt within its tree; most begin with the root's id, which is left out."""
    inside, outside = PREFIXES[kind]
    if inside != outside and key.startswith(root):
        return inside + key[len(root) :]
    return outside + key


def _changing(record: SqliteRecord) -> tuple[Any, ...]:
    values = msgspec.structs.astuple(record)
    return (*values[FIXED : len(COLUMNS)], *record.usage, record.children)
