"""What must be true of conversations' memory, told by watching operations and replies (beside `ghost`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...store import base as b
from .expect import expect


@dataclass
class Shelf:
    """What is known of one conversation: its entries in order, those that wait, since when, its notes."""

    entries: dict[str, b.MemoryEntry] = field(default_factory=dict)
    waits: set[str] = field(default_factory=set)
    since: int | None = None
    change: int = 0
    notes: dict[str, tuple[int, bytes]] = field(default_factory=dict)

    def write(self, row: b.MemoryRow, now: int, *, relay: bool) -> None:
        """Append an entry, or replace it."""
        self.change = max(self.change + 1, now)
        old = self.entries.get(row.id)
        place, version, at = (len(self.entries) + 1, 0, now) if old is None else (old.place, old.version + 1, old.at)
        self.entries[row.id] = b.MemoryEntry(row.id, row.body, row.shown, place, version, self.change, at)
        if relay or row.id in self.waits:
            self.waits.add(row.id)
            self.since = now if self.since is None else self.since

    def holds(self, row: b.MemoryRow) -> bool:
        """Tell whether an entry is there as it is to be written."""
        old = self.entries.get(row.id)
        return old is not None and (old.body, old.shown) == (row.body, row.shown)

    def waiting(self) -> list[b.MemoryEntry]:
        """Return what waits, by its changes."""
        return sorted((self.entries[name] for name in self.waits), key=lambda entry: entry.change)


@dataclass
class GhostMemory:
    """The rules."""

    shelves: dict[str, Shelf] = field(default_factory=dict)

    def shelf(self, talk: str) -> Shelf:
        """Return what is known of a conversation."""
        return self.shelves.setdefault(talk, Shelf())

    def saved(self, op: b.Save, now: int) -> None:
        """Take in what a save brings."""
        for row in op.memory if op.conversation is not None else ():
            shelf = self.shelf(op.conversation or "")
            if not shelf.holds(row):
                shelf.write(row, now, relay=op.relay)

    def writememory(self, op: b.WriteMemory, reply: b.Reply, now: int) -> None:
        """Judge a write."""
        shelf = self.shelf(op.conversation)
        old = shelf.entries.get(op.row.id)
        if op.expected is None:
            if old is None:
                shelf.write(op.row, now, relay=op.relay)
            return expect(reply == b.Done(), "an entry was not taken")
        version = -1 if old is None else old.version
        if version == op.expected:
            shelf.write(op.row, now, relay=op.relay)
        elif version < 0 or version != op.expected + 1 or not shelf.holds(op.row):
            return expect(reply == b.Conflict(version), "an entry was written over", version)
        return expect(reply == b.Done(), "an entry was not replaced")

    def readmemory(self, op: b.ReadMemory, reply: b.Reply, now: int) -> None:
        """Judge a page."""
        entries = self.shelf(op.conversation).entries
        end = entries[op.before].place if op.before in entries else len(entries) + 1
        found = [entry for entry in entries.values() if entry.place < end and (entry.shown or not op.shown)]
        expect(reply == _memory(found[-op.limit :], more=len(found) > op.limit), "memory has a gap", found)

    def findmemory(self, op: b.FindMemory, reply: b.Reply, now: int) -> None:
        """Judge entries that were found."""
        entries = self.shelf(op.conversation).entries
        expect(reply == _memory(entries[name] for name in op.ids if name in entries), "an entry is not found")

    def clearmemory(self, op: b.ClearMemory, reply: b.Reply, now: int) -> None:
        """Forget it."""
        self.shelves.pop(op.conversation, None)
        expect(reply == b.Done(), "memory cannot be cleared")

    def readrelay(self, op: b.ReadRelay, reply: b.Reply, now: int) -> None:
        """Judge what waits."""
        found = self.shelf(op.conversation).waiting()
        expect(reply == _memory(found[: op.limit], more=len(found) > op.limit), "what waits is wrong", found)

    def relays(self, op: b.Relays, reply: b.Reply, now: int) -> None:
        """Judge who waits."""
        rows = [(shelf.since, talk) for talk, shelf in self.shelves.items() if shelf.since is not None and shelf.since <= op.before]
        want = tuple((talk, since) for since, talk in sorted(rows)[: op.limit])
        expect(reply == b.Conversations(want, now), "conversations that wait are wrong", want)

    def relayed(self, op: b.Relayed, reply: b.Reply, now: int) -> None:
        """Take in what was passed on."""
        shelf = self.shelf(op.conversation)
        over = {entry.id for entry in shelf.waiting() if entry.change <= op.change}
        shelf.waits -= over
        if over:
            shelf.since = now if shelf.waits else None
        expect(reply == b.Done(), "nothing can be passed on")

    def readnote(self, op: b.ReadNote, reply: b.Reply, now: int) -> None:
        """Judge a note."""
        note = self.shelf(op.conversation).notes.get(op.name, (0, None))
        expect(reply == b.Noted(*note), "a note was lost", note)

    def writenote(self, op: b.WriteNote, reply: b.Reply, now: int) -> None:
        """Judge the writing of a note."""
        notes = self.shelf(op.conversation).notes
        version, body = notes.get(op.name, (0, None))
        if version == op.expected:
            notes[op.name] = version + 1, op.body
        elif (version, body) != (op.expected + 1, op.body):
            return expect(reply == b.Conflict(version), "a note was written over", version)
        return expect(reply == b.Done(), "a note was not taken")


def _memory(entries: Iterable[b.MemoryEntry], *, more: bool = False) -> b.Memory:
    return b.Memory(tuple(entries), more)
