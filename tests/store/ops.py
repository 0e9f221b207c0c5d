"""A store's connection, by a few short words."""

from __future__ import annotations

from typing import Any

from turnhold.store import base as b

from . import make


class Ops:
    """A connection with a clock in the test's hands. Call it with an operation."""

    def __init__(self) -> None:
        self.now = make.START
        self.bells: list[tuple[str, str]] = []
        self.connection: b.StoreConnection

    async def __call__(self, op: b.Op) -> Any:
        return await self.connection.call(op)

    async def start(self, turn: str = "", by: b.ClaimBy | None = None, **more: Any) -> tuple[str, b.Token]:
        """Create a turn and own it."""
        new, claim = make.new(turn, **more), by or make.by()
        reply = await self(b.Create(new=new, claim=claim))
        assert isinstance(reply, b.Claimed), reply
        return new.turn, b.Token(claim.activation, reply.epoch)

    async def suspended(self, **more: Any) -> str:
        """Create a turn and let it sleep."""
        turn, token = await self.start()
        reply = await self(make.save(turn, token, 0, b.Mode.SUSPEND, **more))
        assert reply.owned is False
        return turn

    async def claim(self, turn: str, **more: Any) -> tuple[b.Claimed, b.Token]:
        """Own a turn that is due."""
        by = make.by(**more)
        reply = await self(b.Claim(turn=turn, by=by))
        assert isinstance(reply, b.Claimed), reply
        return reply, b.Token(by.activation, reply.epoch)

    async def due(self) -> tuple[str, ...]:
        return (await self(b.Due())).turns

    async def look(self, turn: str) -> b.Looked:
        return await self(b.Look(turn=turn))

    def owner_keys(self) -> list[str]:
        """Return the names under which this connection's node owns turns in the store."""
        return [getattr(self.connection, "key", "n1")]

    async def park(self, turn: str) -> None:
        """Quarantine a turn that is due."""
        _, token = await self.claim(turn)
        assert await self(b.Quarantine(turn=turn, token=token, reason="unreadable")) == b.Done()
