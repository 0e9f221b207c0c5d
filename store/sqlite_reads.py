"""What only reads the SQLite store, and what drops rows that are over."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from . import base
from .base import Reply
from .below import below
from .sqlite_statements import ALL
from .sqlite_tables import SqliteRecord, SqliteTables, record_of, unpack
from .tables import NODES_MS, REPLIES_MS, SEEN_MS, Record

LATER_MS = 3_600_000
MEMBER = "SELECT id, turn, parent, state, wake FROM turns WHERE"
TREE = f"{MEMBER} turn = :root UNION ALL {MEMBER} root = :root ORDER BY id"
FIELDS = frozenset(base.Looked.__struct_fields__) & frozenset(Record.__struct_fields__)


class Member(NamedTuple):
    """A turn of a tree."""

    id: int
    turn: str
    parent: str | None
    state: str
    wake: int | None


class SqliteReads(SqliteTables):
    """The operations that page through tables."""

    def look(self, op: base.Look, now: int) -> Reply:
        """Read a turn, and the open waits of it and of all below it."""
        record = self.find_turn(op.turn)
        return base.Gone() if record is None else self._looked(record, now, {})

    def read_history(self, op: base.ReadHistory, now: int) -> Reply:
        """Read history entries."""
        rows = self._run(
            "SELECT message_at, message_bodies FROM log WHERE turn = (SELECT id FROM turns WHERE turn = ?) AND messages > 0"
            " AND message_at + messages > ? ORDER BY id",
            (op.turn, op.start),
        )
        bodies: list[bytes] = []
        for at, packed in rows:
            bodies += unpack(packed)[max(op.start - at, 0) :]
            if len(bodies) >= op.limit:
                break
        return base.Entries(tuple(bodies[: op.limit]))

    def read_events(self, op: base.ReadEvents, now: int) -> Reply:
        """Read event batches."""
        record = self.find_turn(op.turn)
        if record is None:
            return base.EventBatches((), 0, terminal=False)
        rows = self._run(
            "SELECT event_at + 1, events, epoch, event_body FROM log WHERE turn = ? AND events > 0 AND event_at + events > ?"
            " ORDER BY id LIMIT ?",
            (record.id, op.after, op.limit),
        )
        batches = tuple((first, count, epoch, body or b"") for first, count, epoch, body in rows)
        return base.EventBatches(batches, record.event_count, record.state == "T")

    def versions(self, op: base.Versions, now: int) -> Reply:
        """Read how far turns are."""
        below = "SELECT coalesce(sum(version + quarantined_at), 0) FROM turns AS child WHERE child.root = turns.turn"
        tree = f"iif(root IS NULL, quarantined_at + ({below}), 0)"
        read = f"SELECT version, event_count, state, {tree} FROM turns WHERE turn = ?"  # noqa: S608 - no value in it
        rows = [self._run(read, (turn,)).fetchone() for turn in op.turns]
        return base.Progress(tuple((-1, 0, "", 0) if row is None else row for row in rows))

    def due(self, op: base.Due, now: int) -> Reply:
        """Read turns that may run."""
        read = "SELECT turn FROM turns WHERE wake <= ? ORDER BY wake, turn LIMIT ? OFFSET ?"
        ready = tuple(turn for (turn,) in self._run(read, (now, op.limit, op.offset)))
        (later,) = self._run("SELECT min(wake) FROM turns WHERE wake > ?", (now,)).fetchone()
        return base.DueTurns(ready, later, now)

    def expired(self, op: base.Expired, now: int) -> Reply:
        """Read turns whose owner is gone."""
        over: list[tuple[int, str]] = []
        later: list[int] = []
        for turn, lease, node in self._run("SELECT turn, lease, node FROM turns WHERE node IS NOT NULL"):
            if (ends := lease + op.grace_ms) <= now or node in op.dead_nodes:
                over.append((ends, turn))
            else:
                later.append(ends)
        return base.DueTurns(tuple(turn for _, turn in sorted(over)[: op.limit]), min(later, default=None), now)

    def list_waits(self, op: base.ListWaits, now: int) -> Reply:
        """Read open waits of all trees."""
        created, key = base.read_cursor(op.after) or (-1, "0")
        equal = {"agent": op.agent, "tenant": op.tenant, "assignee": op.assignee, "kind": op.kind}
        where, values = _equal(equal)
        where += "".join(" AND kind <> ?" for _ in op.without)
        rows = self._run(
            f"SELECT created, id, body FROM waits WHERE (created, id) > (?, ?){where} ORDER BY created, id LIMIT ?",  # noqa: S608
            (created, base.read_number(op.after or "", key), *values, *op.without, op.limit + 1),
        ).fetchall()
        page = rows[: op.limit]
        more = base.cursor(page[-1][0], str(page[-1][1])) if page and len(rows) > op.limit else None
        return base.WaitListing(tuple(body for _, _, body in page), more)

    def list_turns(self, op: base.ListTurns, now: int) -> Reply:
        """Read records."""
        _, key = base.read_cursor(op.after) or (0, "0")
        equal = {"status": op.status, "agent": op.agent, "conversation": op.conversation, "parent": op.parent, "tenant": op.tenant}
        where, values = _equal(equal)
        if op.root is not None:
            where, values = where + " AND (turn = ? AND parent IS NULL OR root = ?)", [*values, op.root, op.root]
        if op.quarantined is not None:
            where += f" AND quarantine IS {'NOT ' if op.quarantined else ''}NULL"
        rows = self._run(
            f"SELECT {ALL} FROM turns WHERE id > ?{where} ORDER BY id LIMIT ?",  # noqa: S608
            (base.read_number(op.after or "", key), *values, op.limit + 1),
        ).fetchall()
        page = [record_of(row) for row in rows[: op.limit]]
        more = base.cursor(page[-1].created, str(page[-1].id)) if page and len(rows) > op.limit else None
        trees: dict[str, list[Member]] = {}
        return base.TurnListing(tuple(self._looked(record, now, trees) for record in page), more)

    def list_nodes(self, op: base.ListNodes, now: int) -> Reply:
        """Read the announced nodes."""
        rows = self._run("SELECT node, beat, agents FROM nodes ORDER BY node")
        decode = msgspec.json.Decoder(tuple[str, ...]).decode
        return base.Nodes(tuple(base.NodeRow(node, beat, decode(agents)) for node, beat, agents in rows), now)

    def prune(self, op: base.Prune, now: int) -> Reply:
        """Drop what is over."""
        run = self._run
        run(
            "DELETE FROM replies WHERE id <= (SELECT max(id) FROM (SELECT id, at FROM replies ORDER BY id LIMIT ?) WHERE at <= ?)",
            (op.limit, now - REPLIES_MS),
        )
        old = run("SELECT id, turn, message, at FROM seen ORDER BY id LIMIT ?", (op.limit,)).fetchall()
        for row, turn, message, at in old:
            if at > now - SEEN_MS:
                break
            run("DELETE FROM seen WHERE id = ?", (row,))
            if run("SELECT 1 FROM mail WHERE turn = ? AND message = ?", (turn, message)).fetchone():
                run("INSERT INTO seen(turn, message, at) VALUES (?, ?, ?)", (turn, message, now))
        over = run("SELECT id, turn FROM turns WHERE expires <= ? ORDER BY expires LIMIT ?", (now, op.limit)).fetchall()
        for row, root in over:
            if run("SELECT 1 FROM turns WHERE root = ? AND state <> 'T'", (root,)).fetchone():
                run("UPDATE turns SET expires = ? WHERE id = ?", (now + LATER_MS, row))
            else:
                self._drop_tree(row, root)
        run("DELETE FROM nodes WHERE beat <= ?", (now - NODES_MS,))
        self.look_again()
        return base.Done()

    def _drop_tree(self, row: int, root: str) -> None:
        run = self._run
        tree = [row, *[child for (child,) in run("SELECT id FROM turns WHERE root = ?", (root,)).fetchall()]]
        run("DELETE FROM receipts WHERE id IN (SELECT receipt FROM receipt_keys WHERE tree = ?)", (row,))
        run("DELETE FROM receipt_keys WHERE tree = ?", (row,))
        run("DELETE FROM replies WHERE tree = ?", (row,))
        for turn in tree:
            for table in ("log", "waits", "mail", "seen"):
                run(f"DELETE FROM {table} WHERE turn = ?", (turn,))  # noqa: S608
            run("DELETE FROM snapshots WHERE id = ?", (turn,))
            run("DELETE FROM turns WHERE id = ?", (turn,))

    def _looked(self, record: SqliteRecord, now: int, trees: dict[str, list[Member]]) -> base.Looked:
        tree = self._below(record, trees)
        waits = "SELECT body FROM waits WHERE turn = ? ORDER BY id"
        known: dict[str, Any] = {name: getattr(record, name) for name in FIELDS}
        return base.Looked(
            snapshot=self.read_snapshot(record),
            now=now,
            wait_bodies=tuple(body for row in tree for (body,) in self._run(waits, (row.id,))),
            live_turns=sum(row.state != "T" for row in tree),
            runnable_turns=sum(row.state in {"A", "R"} or (row.wake is not None and row.wake <= now) for row in tree),
            **known,
        )

    def _below(self, record: SqliteRecord, trees: dict[str, list[Member]]) -> list[Member]:
        """Return a turn and all turns below it, depth first; `trees` keeps what was read."""
        if record.turn == record.root and not record.children:
            return [Member(record.id, record.turn, None, record.state, record.wake)]
        if (rows := trees.get(record.root)) is None:
            rows = trees[record.root] = [Member(*row) for row in self._run(TREE, {"root": record.root})]
        by_name = {row.turn: row for row in rows}
        return [by_name[name] for name in below(record.turn, [(row.turn, row.parent) for row in rows])]


def _equal(wanted: dict[str, str | None]) -> tuple[str, list[str]]:
    given = {name: value for name, value in wanted.items() if value is not None}
    return "".join(f" AND {name} = ?" for name in given), list(given.values())
