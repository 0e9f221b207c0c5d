"""What the SQLite store keeps of conversations' memory: the tables ``shelves``, ``memory`` and ``notes``."""

# ruff: noqa: D102 (the methods are described in `EntryTables`)
from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import base
from .base import MemoryEntry, Reply
from .entries import EntryRules, Kept, Shelf

ENTRY = "entry, body, shown, place, version, change, at"
# without being told, SQLite looks through all entries of a conversation
BY_ENTRY = "memory INDEXED BY memory_entry"
BY_CHANGE = "memory INDEXED BY memory_waits"
CHUNK = 100


class SqliteEntries(EntryRules):
    """The tables, and what only reads them."""

    _run: Callable[..., sqlite3.Cursor]

    def find_shelf(self, conversation: str) -> Shelf | None:
        read = "SELECT conversation, id, places, change, since FROM shelves WHERE conversation = ?"
        row = self._run(read, (conversation,)).fetchone()
        return None if row is None else Shelf(*row)

    def put_shelf(self, shelf: Shelf) -> None:
        values = (shelf.places, shelf.change, shelf.since)
        if shelf.id:
            self._run("UPDATE shelves SET places = ?, change = ?, since = ? WHERE id = ?", (*values, shelf.id))
        else:
            write = "INSERT INTO shelves(conversation, places, change, since) VALUES (?, ?, ?, ?)"
            shelf.id = self._run(write, (shelf.conversation, *values)).lastrowid or 0

    def drop_shelf(self, shelf: Shelf) -> None:
        self._run("DELETE FROM memory WHERE shelf = ?", (shelf.id,))
        self._run("DELETE FROM shelves WHERE id = ?", (shelf.id,))

    def find_entries(self, shelf: Shelf, ids: Sequence[str]) -> Iterable[Kept]:
        for start in range(0, len(ids) if shelf.places else 0, CHUNK):
            some = ids[start : start + CHUNK]
            marks = ", ".join("?" * len(some))
            read = f"SELECT {ENTRY}, waits FROM {BY_ENTRY} WHERE shelf = ? AND entry IN ({marks})"  # noqa: S608
            for row in self._run(read, (shelf.id, *some)).fetchall():
                yield _entry(row[:-1]), row[-1] == 1

    def put_entries(self, shelf: Shelf, entries: Sequence[Kept]) -> None:
        for start in range(0, len(entries), CHUNK):
            some = entries[start : start + CHUNK]
            rows = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?)"] * len(some))
            values: list[Any] = []
            for entry, waits in some:
                values += (shelf.id, entry.id, entry.body, entry.shown, entry.place, entry.version, entry.change, entry.at, waits)
            self._run(f"INSERT OR REPLACE INTO memory(shelf, {ENTRY}, waits) VALUES {rows}", values)  # noqa: S608

    def pass_on(self, shelf: Shelf, change: int) -> tuple[bool, bool]:
        end = f"UPDATE {BY_CHANGE} SET waits = 0 WHERE shelf = ? AND change <= ? AND waits = 1"  # noqa: S608
        ended = self._run(end, (shelf.id, change)).rowcount > 0
        left = self._run(f"SELECT 1 FROM {BY_CHANGE} WHERE shelf = ? AND waits = 1 LIMIT 1", (shelf.id,)).fetchone()  # noqa: S608
        return ended, left is not None

    def find_note(self, conversation: str, name: str) -> tuple[int, bytes] | None:
        return self._run("SELECT version, body FROM notes WHERE conversation = ? AND name = ?", (conversation, name)).fetchone()

    def put_note(self, conversation: str, name: str, version: int, body: bytes) -> None:
        write = "INSERT OR REPLACE INTO notes(conversation, name, version, body) VALUES (?, ?, ?, ?)"
        self._run(write, (conversation, name, version, body))

    def drop_notes(self, conversation: str) -> None:
        self._run("DELETE FROM notes WHERE conversation = ?", (conversation,))

    def read_memory(self, op: base.ReadMemory, now: int) -> Reply:
        """Read the newest entries."""
        shelf = self.find_shelf(op.conversation)
        if shelf is None:
            return base.Memory(())
        place = shelf.places + 1
        if op.before is not None:
            read = f"SELECT place FROM {BY_ENTRY} WHERE shelf = ? AND entry = ?"  # noqa: S608
            (place,) = self._run(read, (shelf.id, op.before)).fetchone() or (place,)
        shown = " AND shown = 1" if op.shown else ""
        rows = self._run(
            f"SELECT {ENTRY} FROM memory WHERE shelf = ? AND place < ?{shown} ORDER BY place DESC LIMIT ?",  # noqa: S608
            (shelf.id, place, op.limit + 1),
        ).fetchall()
        return base.Memory(tuple(map(_entry, reversed(rows[: op.limit]))), more=len(rows) > op.limit)

    def read_relay(self, op: base.ReadRelay, now: int) -> Reply:
        """Read the entries that wait."""
        shelf = self.find_shelf(op.conversation)
        if shelf is None or shelf.since is None:
            return base.Memory(())
        read = f"SELECT {ENTRY} FROM {BY_CHANGE} WHERE shelf = ? AND waits = 1 ORDER BY change LIMIT ?"  # noqa: S608
        rows = self._run(read, (shelf.id, op.limit + 1)).fetchall()
        return base.Memory(tuple(map(_entry, rows[: op.limit])), more=len(rows) > op.limit)

    def relays(self, op: base.Relays, now: int) -> Reply:
        """Read the conversations with entries that wait."""
        read = "SELECT conversation, since FROM shelves WHERE since <= ? ORDER BY since, conversation LIMIT ?"
        return base.Conversations(tuple(self._run(read, (op.before, op.limit)).fetchall()), now)


def _entry(row: tuple[Any, ...]) -> MemoryEntry:
    name, body, shown, *numbers = row
    return MemoryEntry(name, body, shown == 1, *numbers)
