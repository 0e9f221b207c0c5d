"""What the operations on a conversation's memory do, for the stores that live in this process (beside `rules`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from . import base
from .base import MemoryEntry, MemoryRow, Reply

Kept: TypeAlias = "tuple[MemoryEntry, bool]"  # an entry, and whether it waits to be passed on


class Shelf(msgspec.Struct, gc=False):
    """What is kept of a conversation beside its entries: the last place and change, and since when entries wait, if any do.

    `id` is its row, 0 where it is not stored yet.
    """

    conversation: str
    id: int = 0
    places: int = 0
    change: int = 0
    since: int | None = None


class EntryTables(ABC):
    """What the rules need of a store."""

    @abstractmethod
    def find_shelf(self, conversation: str) -> Shelf | None:
        """Return a conversation's shelf; what is changed in it counts when it is put."""

    @abstractmethod
    def put_shelf(self, shelf: Shelf) -> None:
        """Store a shelf; a new one gets its id."""

    @abstractmethod
    def drop_shelf(self, shelf: Shelf) -> None:
        """Drop a shelf with all its entries."""

    @abstractmethod
    def find_entries(self, shelf: Shelf, ids: Sequence[str]) -> Iterable[Kept]:
        """Return the entries of these ids that there are."""

    @abstractmethod
    def put_entries(self, shelf: Shelf, entries: Sequence[Kept]) -> None:
        """Store entries at their places; in order of their changes."""

    @abstractmethod
    def pass_on(self, shelf: Shelf, change: int) -> tuple[bool, bool]:
        """End the waiting of entries up to a change; tell whether one did wait, and whether others still do."""

    @abstractmethod
    def find_note(self, conversation: str, name: str) -> tuple[int, bytes] | None:
        """Return a note's version and body."""

    @abstractmethod
    def put_note(self, conversation: str, name: str, version: int, body: bytes) -> None:
        """Store a note."""

    @abstractmethod
    def drop_notes(self, conversation: str) -> None:
        """Drop a conversation's notes."""


class EntryRules(EntryTables):
    """The operations that write."""

    def remember(self, conversation: str, rows: Sequence[MemoryRow], now: int, *, relay: bool) -> None:
        """Write what a save brings."""
        shelf = self.find_shelf(conversation) or Shelf(conversation)
        known = {kept[0].id: kept for kept in self.find_entries(shelf, [row.id for row in rows])}
        changed: dict[str, Kept] = {}
        for row in rows:
            kept = known.get(row.id)
            if kept is None or not _holds(kept[0], row):
                changed.pop(row.id, None)  # in order of changes
                known[row.id] = changed[row.id] = _written(shelf, kept, row, now, relay=relay)
        if changed:
            self.put_shelf(shelf)
            self.put_entries(shelf, list(changed.values()))

    def write_memory(self, op: base.WriteMemory, now: int) -> Reply:
        """Write one entry."""
        row, expected = op.row, op.expected
        shelf = self.find_shelf(op.conversation) or Shelf(op.conversation)
        kept = next(iter(self.find_entries(shelf, [row.id])), None)
        if expected is None:
            if kept is not None:
                return base.Done()
        elif kept is None:
            return base.Conflict(-1)
        elif (version := kept[0].version) != expected:
            repeated = version == expected + 1 and _holds(kept[0], row)
            return base.Done() if repeated else base.Conflict(version)
        written = _written(shelf, kept, row, now, relay=op.relay)
        self.put_shelf(shelf)
        self.put_entries(shelf, [written])
        return base.Done()

    def find_memory(self, op: base.FindMemory, now: int) -> Reply:
        """Read entries by their ids."""
        shelf = self.find_shelf(op.conversation)
        if shelf is None:
            return base.Memory(())
        known = {entry.id: entry for entry, _ in self.find_entries(shelf, op.ids)}
        return base.Memory(tuple(known[name] for name in op.ids if name in known))

    def clear_memory(self, op: base.ClearMemory, now: int) -> Reply:
        """Drop a conversation's memory."""
        shelf = self.find_shelf(op.conversation)
        if shelf is not None:
            self.drop_shelf(shelf)
        self.drop_notes(op.conversation)
        return base.Done()

    def relayed(self, op: base.Relayed, now: int) -> Reply:
        """End the waiting of entries."""
        shelf = self.find_shelf(op.conversation)
        if shelf is not None and shelf.since is not None:
            ended, waiting = self.pass_on(shelf, op.change)
            if ended:
                shelf.since = now if waiting else None
                self.put_shelf(shelf)
        return base.Done()

    def read_note(self, op: base.ReadNote, now: int) -> Reply:
        """Read a note."""
        note = self.find_note(op.conversation, op.name)
        return base.Noted(0) if note is None else base.Noted(*note)

    def write_note(self, op: base.WriteNote, now: int) -> Reply:
        """Write a note."""
        version, body = self.find_note(op.conversation, op.name) or (0, None)
        if version != op.expected:
            repeated = version == op.expected + 1 and body == op.body
            return base.Done() if repeated else base.Conflict(version)
        self.put_note(op.conversation, op.name, version + 1, op.body)
        return base.Done()


def _holds(entry: MemoryEntry, row: MemoryRow) -> bool:
    return entry.body == row.body and entry.shown == row.shown


def _written(shelf: Shelf, kept: Kept | None, row: MemoryRow, now: int, *, relay: bool) -> Kept:
    """Return an entry as it is after a write, and count the write on its shelf."""
    shelf.change = max(shelf.change + 1, now)
    if kept is None:
        shelf.places += 1
        place, version, at, waits = shelf.places, 0, now, relay
    else:
        place, version, at, waits = kept[0].place, kept[0].version + 1, kept[0].at, relay or kept[1]
    if waits and shelf.since is None:
        shelf.since = now
    return MemoryEntry(row.id, row.body, row.shown, place, version, shelf.change, at), waits
