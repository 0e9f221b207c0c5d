"""What the SQLite store says to its database on the paths that are walked most; the rest stands where it is used."""

from __future__ import annotations

from .sqlite_batch import Kind
from .tables import Record

COLUMNS = tuple(name for name in Record.__struct_fields__ if name != "usage")
USAGE = ("used_in", "used_out", "used_total", "calls", "children")
ALL = ", ".join((*COLUMNS, *USAGE, "id"))
FIXED = COLUMNS.index("created") + 1
BESIDE = len(COLUMNS) + len(USAGE) + 1
CHANGING = (*COLUMNS[FIXED:], *USAGE)
NEW_TURN = Kind(f"INSERT INTO turns({ALL}) VALUES", f"({', '.join('?' * (len(COLUMNS) + len(USAGE) + 1))})")
SNAPSHOT = Kind("INSERT OR REPLACE INTO snapshots(id, body) VALUES", "(?, ?)")
LOG = Kind(
    "INSERT INTO log(turn, message_at, messages, event_at, events, epoch, message_bodies, event_body) VALUES",
    "(?, ?, ?, ?, ?, ?, ?, ?)",
)
CLOSE = "DELETE FROM waits WHERE turn = ? AND wait = ?"
TAKE = "DELETE FROM mail WHERE turn = ? AND message = ?"
CLOSED = Kind(
    "DELETE FROM waits WHERE id IN (SELECT w.id FROM (VALUES",
    "(?, ?)",
    ") AS v CROSS JOIN waits w ON w.turn = v.column1 AND w.wait = v.column2)",
    one=CLOSE,
)
OPENED = Kind("INSERT INTO waits(turn, wait, kind, created, agent, tenant, assignee, body) VALUES", "(?, ?, ?, ?, ?, ?, ?, ?)")
TAKEN = Kind(
    "DELETE FROM mail WHERE id IN (SELECT m.id FROM (VALUES",
    "(?, ?)",
    ") AS v CROSS JOIN mail m ON m.turn = v.column1 AND m.message = v.column2)",
    one=TAKE,
)
MAIL = Kind("INSERT INTO mail(turn, message, command, wait, at, body) VALUES", "(?, ?, ?, ?, ?, ?)")
SEEN = Kind("INSERT OR IGNORE INTO seen(turn, message, at) VALUES", "(?, ?, ?)")
RECEIPTS = Kind("INSERT INTO receipts(id, tree, body) VALUES", "(?, ?, ?)")
KEYS = Kind("INSERT OR REPLACE INTO receipt_keys(tree, key, receipt) VALUES", "(?, ?, ?)")
REPLIES = Kind("INSERT INTO replies(tree, message, at, body) VALUES", "(?, ?, ?, ?)")
FIND = Kind(f"SELECT {ALL} FROM turns WHERE turn IN (", "?", ")")  # noqa: S608
TAIL = "SELECT message_bodies FROM log WHERE turn = ? AND messages > 0 ORDER BY id DESC"
KINDS = (NEW_TURN, SNAPSHOT, LOG, CLOSED, OPENED, TAKEN, MAIL, SEEN, RECEIPTS, KEYS, REPLIES)
RECEIPT = (
    "SELECT r.body FROM turns t JOIN receipt_keys k ON k.tree = t.id AND k.key = ? JOIN receipts r ON r.id = k.receipt"
    " WHERE t.turn = ?"
)
REPLY = "SELECT r.body FROM turns t JOIN replies r ON r.tree = t.id AND r.message = ? WHERE t.turn = ? ORDER BY r.id DESC LIMIT 1"
# everything that deliveries look at
DELIVERY = Kind(
    f"SELECT v.column1, {', '.join(f't.{name}' for name in (*COLUMNS, *USAGE, 'id'))},"  # noqa: S608
    " (SELECT body FROM receipt_keys k JOIN receipts r ON r.id = k.receipt WHERE k.tree = tree.id AND k.key = v.column4),"
    " (SELECT body FROM receipt_keys k JOIN receipts r ON r.id = k.receipt WHERE k.tree = tree.id AND k.key = v.column5),"
    " (SELECT body FROM replies r WHERE r.tree = tree.id AND r.message = v.column6 ORDER BY r.id DESC LIMIT 1),"
    " (SELECT 1 FROM seen s WHERE s.turn = t.id AND s.message = v.column6),"
    " (SELECT count(*) FROM waits w WHERE w.turn = t.id), (SELECT min(wait) FROM waits w WHERE w.turn = t.id),"
    " (SELECT body FROM snapshots s WHERE s.id = t.id)"
    " FROM (VALUES",
    "(?, ?, ?, ?, ?, ?)",
    ") AS v CROSS JOIN turns t ON t.turn = v.column2 CROSS JOIN turns tree ON tree.turn = v.column3",
)
