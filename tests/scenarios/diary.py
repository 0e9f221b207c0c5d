"""A chat memory of an application, for the scenarios."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from turnhold import MemoryMessage, Runtime
from turnhold.runtime.memory import readable_entries
from turnhold.runtime.runtime import node_of
from turnhold.store import base

from .lab import shown, talk


class Diary:
    """A memory in this process; `down` makes calls fail, `slow` lets them wait, `calls` tells what was called."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, MemoryMessage]] = {}
        self.calls: list[str] = []
        self.down: BaseException | None = None
        self.slow: asyncio.Event | None = None
        self.fail_at = 0

    async def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.slow is not None:
            await self.slow.wait()
        if self.down is not None:
            raise self.down
        if self.fail_at and len(self.calls) == self.fail_at:
            raise ConnectionError("once")

    async def append(self, conversation_id: str, message: MemoryMessage) -> bool:
        await self._called("append")
        rows = self.rows.setdefault(conversation_id, {})
        new = message.id not in rows
        rows.setdefault(message.id, message)
        return new

    async def page(self, conversation_id: str, before: str | None = None, limit: int = 64) -> Sequence[MemoryMessage]:
        await self._called("page")
        rows = list(self.rows.get(conversation_id, {}).values())
        if before is not None:
            rows = rows[: [row.id for row in rows].index(before)]
        return rows[-limit:]

    async def get(self, conversation_id: str, message_id: str) -> MemoryMessage | None:
        await self._called("get")
        return self.rows.get(conversation_id, {}).get(message_id)

    async def replace(self, conversation_id: str, message: MemoryMessage, expected_version: int) -> bool:
        await self._called("replace")
        rows = self.rows.get(conversation_id, {})
        if message.id not in rows or rows[message.id].version != expected_version:
            return False
        rows[message.id] = message
        return True

    def said(self, conversation: str = "c") -> list[str]:
        return talk(shown(self.rows.get(conversation, {}).values()))

    def cards(self, conversation: str = "c") -> list[Any]:
        return [row.message for row in self.rows.get(conversation, {}).values() if not row.shown]


async def stored(runtime: Runtime) -> list[MemoryMessage]:
    """What the memory in the store has."""
    reply = await node_of(runtime).call(base.ReadMemory(conversation="c", limit=1000))
    assert isinstance(reply, base.Memory)
    return readable_entries("c", reply.entries)


async def unpassed(runtime: Runtime) -> int:
    reply = await node_of(runtime).call(base.ReadRelay(conversation="c"))
    assert isinstance(reply, base.Memory)
    return len(reply.entries)
