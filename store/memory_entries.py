"""What the memory store keeps of conversations' memory."""

# ruff: noqa: D102 (the methods are described in `EntryTables`)
from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from . import base
from .base import MemoryEntry, Reply
from .entries import EntryRules, Kept, Shelf
from .order import SortedIndex


class MemoryShelf(Shelf):
    """A shelf with its entries: by place, the place of each id, and the places of those that wait, by their changes."""

    entries: list[MemoryEntry] = []
    place_of: dict[str, int] = {}
    waiting: dict[int, None] = {}


class MemoryEntries(EntryRules):
    """The tables, and what only reads them."""

    def __init__(self) -> None:
        self._shelves: dict[str, MemoryShelf] = {}
        self._waiting: SortedIndex[str] = SortedIndex()
        self._notes: dict[str, dict[str, tuple[int, bytes]]] = {}

    def find_shelf(self, conversation: str) -> Shelf | None:
        shelf = self._shelves.get(conversation)
        return None if shelf is None else Shelf(conversation, 1, shelf.places, shelf.change, shelf.since)

    def put_shelf(self, shelf: Shelf) -> None:
        kept = self._shelves.get(shelf.conversation)
        if kept is None:
            kept = self._shelves[shelf.conversation] = MemoryShelf(shelf.conversation)
        if kept.since != shelf.since:
            if kept.since is not None:
                self._waiting.drop((kept.since, shelf.conversation))
            if shelf.since is not None:
                self._waiting.put((shelf.since, shelf.conversation), shelf.conversation)
        kept.places, kept.change, kept.since = shelf.places, shelf.change, shelf.since

    def drop_shelf(self, shelf: Shelf) -> None:
        if shelf.since is not None:
            self._waiting.drop((shelf.since, shelf.conversation))
        del self._shelves[shelf.conversation]

    def find_entries(self, shelf: Shelf, ids: Sequence[str]) -> Iterable[Kept]:
        kept = self._shelves.get(shelf.conversation)
        if kept is not None:
            for place in filter(None, map(kept.place_of.get, ids)):
                yield kept.entries[place - 1], place in kept.waiting

    def put_entries(self, shelf: Shelf, entries: Sequence[Kept]) -> None:
        kept = self._shelves[shelf.conversation]
        for entry, _ in sorted(entries, key=lambda each: each[0].place):
            kept.entries[entry.place - 1 : entry.place] = [entry]
            kept.place_of[entry.id] = entry.place
        for entry, waits in entries:
            kept.waiting.pop(entry.place, None)
            if waits:
                kept.waiting[entry.place] = None  # the newest change stands last

    def pass_on(self, shelf: Shelf, change: int) -> tuple[bool, bool]:
        kept = self._shelves[shelf.conversation]
        over = [place for place in kept.waiting if kept.entries[place - 1].change <= change]
        for place in over:
            del kept.waiting[place]
        return bool(over), bool(kept.waiting)

    def find_note(self, conversation: str, name: str) -> tuple[int, bytes] | None:
        return self._notes.get(conversation, {}).get(name)

    def put_note(self, conversation: str, name: str, version: int, body: bytes) -> None:
        self._notes.setdefault(conversation, {})[name] = version, body

    def drop_notes(self, conversation: str) -> None:
        self._notes.pop(conversation, None)

    def read_memory(self, op: base.ReadMemory, now: int) -> Reply:
        """Read the newest entries."""
        shelf = self._shelves.get(op.conversation)
        if shelf is None:
            return base.Memory(())
        end = shelf.place_of.get(op.before or "", shelf.places + 1) - 1
        places = range(end - 1, -1, -1)
        found = (shelf.entries[place] for place in places if shelf.entries[place].shown or not op.shown)
        newest = list(islice(found, op.limit + 1))
        return base.Memory(tuple(reversed(newest[: op.limit])), more=len(newest) > op.limit)

    def read_relay(self, op: base.ReadRelay, now: int) -> Reply:
        """Read the entries that wait."""
        shelf = self._shelves.get(op.conversation)
        if shelf is None:
            return base.Memory(())
        first = islice(shelf.waiting, op.limit)
        return base.Memory(tuple(shelf.entries[place - 1] for place in first), more=len(shelf.waiting) > op.limit)

    def relays(self, op: base.Relays, now: int) -> Reply:
        """Read the conversations with entries that wait."""
        rows = ((name, since) for (since, _), name in self._waiting.above(None) if since <= op.before)
        return base.Conversations(tuple(islice(rows, op.limit)), now)
