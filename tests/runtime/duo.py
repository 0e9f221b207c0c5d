"""Two nodes on one store and one clock, with gates before their store calls."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from turnhold import (
    Agent,
    Runtime,
    ToolContext,
    tool,
)
from turnhold.store import base
from turnhold.testing import ScriptedModel, call
from turnhold.testing.arena import Seat
from turnhold.testing.loop import VirtualLoop
from turnhold.testing.witness import Witness

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from turnhold.actors.tools import ToolEffect

LEASE = 10.0


class World:
    """Two nodes on a store of their own, and an agent whose gated tool waits until it is let go."""

    def __init__(
        self, store: base.TurnStore, effect: ToolEffect = "once", replies: tuple = (call("refund", amount=25), "done")
    ) -> None:
        self.loop = VirtualLoop()
        self.clock = self.loop.clock
        self.started: list[tuple[str, int]] = []
        self.seconds = 0.0

        @tool(approval=True, effect=effect)
        async def refund(amount: int) -> str:
            """Refund an amount."""
            context = ToolContext.current()
            self.started.append((context.idempotency_key, context.attempt))
            await asyncio.sleep(self.seconds)
            return f"refunded {amount}"

        @tool
        async def look_up() -> str:
            """Look something up."""
            return "fine"

        self.agent = Agent("shop", model=ScriptedModel(*replies), tools=[refund, look_up])
        self.witness = Witness()
        self.first, self.second = (Seat(number, store, [self.agent], self.clock, self.witness) for number in range(2))

    @property
    def a(self) -> Runtime:
        return self.first.runtime

    @property
    def b(self) -> Runtime:
        return self.second.runtime

    def run(self, program: Coroutine[object, object, None]) -> None:
        async def whole() -> None:
            await self.first.open(LEASE)
            await self.second.open(LEASE)
            try:
                await program
            finally:
                await self.first.leave()
                await self.second.leave()

        try:
            self.loop.run_until_complete(whole())
        finally:
            self.loop.close()
        self.witness.testify()
