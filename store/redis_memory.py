"""What conversations keep on Redis: memory, what of it waits to be passed on, and notes."""

from __future__ import annotations

from typing import Any

from . import base
from .base import MemoryEntry, Reply
from .redis_pack import Script
from .redis_reads import RedisReads, scored
from .redis_replies import reply_of

PAGE = 256  # entries that one script reads


class RedisMemory(RedisReads):
    """Operations on conversations beside their turns."""

    async def write_memory(self, op: base.WriteMemory) -> Reply:
        """Append or replace an entry."""
        row = op.row
        keys = self.keys.head_of_conversation(op.conversation, "relay") + self.keys.conversation(op.conversation, "mox")
        expected = "" if op.expected is None else op.expected
        script: Script = ("remember", keys, [op.conversation, int(op.relay), row.id, int(row.shown), row.body, expected])
        return reply_of(op, *await self.run([script]))

    async def read_memory(self, op: base.ReadMemory) -> Reply:
        """Read entries back from the newest, page by page, one more than is asked for: it tells whether there are more."""
        keys = self.keys.head_of_conversation(op.conversation) + self.keys.conversation(op.conversation, "mo")
        found: list[MemoryEntry] = []
        place: int | str = ""
        while place != 1 and (wanted := op.limit + 1 - len(found)) > 0:
            script: Script = ("recall", keys, [min(wanted, PAGE), int(op.shown), place, op.before or ""])
            ((place, *flat),) = await self.run([script])
            found += _entries(flat)
        return base.Memory(tuple(reversed(found[: op.limit])), len(found) > op.limit)

    async def find_memory(self, op: base.FindMemory) -> Reply:
        """Read entries by their ids."""
        if not op.ids:
            return base.Memory(())
        (key,) = self.keys.conversation(op.conversation, "m")
        (packed,) = await self.ask([("HMGET", key, *(f"e{name}" for name in op.ids))])
        return base.Memory(tuple(_entry(name, found) for name, found in zip(op.ids, packed, strict=True) if found is not None))

    async def clear_memory(self, op: base.ClearMemory) -> Reply:
        """Drop memory, notes and relay."""
        keys = self.keys.head_of_conversation(op.conversation, "relay") + self.keys.conversation(op.conversation, "moxn")
        return reply_of(op, *await self.run([("forget", keys, [op.conversation])]))

    async def relays(self, op: base.Relays) -> Reply:
        """Read which conversations have changes to pass on; a partition whose master is away is left out."""
        span = ("-inf", op.before, "BYSCORE", "LIMIT", 0, op.limit, "WITHSCORES")
        answers = await self.ask([("ZRANGE", f"{tag}relay", *span) for tag in self.keys.tags], partly=True)
        waiting = sorted(entry for answer in answers if answer is not None for entry in scored(answer))
        return base.Conversations(tuple((name, since) for since, name in waiting[: op.limit]), self.now())

    async def read_relay(self, op: base.ReadRelay) -> Reply:
        """Read entries that wait to be passed on."""
        keys = self.keys.head_of_conversation(op.conversation) + self.keys.conversation(op.conversation, "mx")
        ((count, *flat),) = await self.run([("waiting", keys, [op.limit])])
        entries = _entries(flat)
        return base.Memory(tuple(entries), count > len(entries))

    async def relayed(self, op: base.Relayed) -> Reply:
        """Forget what has been passed on."""
        keys = self.keys.head_of_conversation(op.conversation, "relay") + self.keys.conversation(op.conversation, "x")
        return reply_of(op, *await self.run([("relayed", keys, [op.conversation, op.change])]))

    async def read_note(self, op: base.ReadNote) -> Reply:
        """Read a note."""
        (found,) = await self.ask([("HGET", *self.keys.conversation(op.conversation, "n"), op.name)])
        if found is None:
            return base.Noted(0)
        version, body = found.split(b"\0", 1)
        return base.Noted(int(version), body)

    async def write_note(self, op: base.WriteNote) -> Reply:
        """Replace a note."""
        keys = self.keys.head_of_conversation(op.conversation) + self.keys.conversation(op.conversation, "n")
        return reply_of(op, *await self.run([("note", keys, [op.name, op.expected, op.body])]))


def _entry(name: str, packed: bytes) -> MemoryEntry:
    place, version, change, at, shown, body = packed.split(b"\0", 5)
    return MemoryEntry(name, body, shown == b"1", int(place), int(version), int(change), int(at))


def _entries(flat: list[Any]) -> list[MemoryEntry]:
    return [_entry(name.decode(), packed) for name, packed in zip(flat[::2], flat[1::2], strict=True)]
