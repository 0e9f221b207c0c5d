"""A connection to a Redis store, and what it hears."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from turnhold.store import base as b
from turnhold.store.redis import RedisStore
from turnhold.testing.conformance import make

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

PATIENCE = 10
LOOK = 0.002


class Hearing:
    """Takes bells, or live events, and lets a test wait for one."""

    def __init__(self) -> None:
        self.all: list[tuple[Any, Any]] = []
        self._changed = asyncio.Event()

    def __call__(self, first: Any, second: Any) -> None:
        self.all.append((first, second))
        self._changed.set()

    async def rung(self, first: Any, second: Any, *, times: int = 1) -> None:
        """Wait until it has been heard so many times."""
        async with asyncio.timeout(PATIENCE):
            while self.all.count((first, second)) < times:
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def connected(url: str, node: str = "n1", bells: Hearing | None = None, **more: Any) -> AsyncIterator[Any]:
    """A connection to a store."""
    connection = await RedisStore(url).connect(node, bells or Hearing(), lambda: 0, **more)
    try:
        yield connection
    finally:
        await connection.close()


async def owned(connection: Any, turn: str = "", **more: Any) -> tuple[str, b.Token]:
    """Create a turn and own it."""
    new, claim = make.new(turn, **more), make.by()
    reply = await connection.call(b.Create(new=new, claim=claim))
    assert isinstance(reply, b.Claimed), reply
    return new.turn, b.Token(claim.activation, reply.epoch)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what only a server, or time, can bring about."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - a server tells nobody
            await asyncio.sleep(LOOK)
