"""One check of a store, and how it is run: on a new store, in bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias, final

from ...runtime.world import World
from ...store.base import TurnStore
from .expect import Violation
from .ops import Ops

Body: TypeAlias = Callable[[Ops], Awaitable[None]]
Factory: TypeAlias = Callable[[], TurnStore]
SECONDS = 60


@final
@dataclass(frozen=True)
class StoreCheck:
    """One check. `says` is what it holds the store to; `timed` ones move time, which a store with a clock of its own forbids."""

    name: str
    says: str
    timed: bool
    body: Body

    def __str__(self) -> str:
        return self.name

    async def run(self, factory: Factory) -> bool:
        """Run on a new store; return false if it was left out, because the store does not follow the clock given to `connect`.

        :param factory: a function that returns a new, empty store each time.
        :raises AssertionError: if the store is wrong.
        """
        world = World()
        work = world.spawn(self._on(factory, world), f"check of a store: {self.name}")
        try:
            if not await world.wait(work, SECONDS):
                raise Violation(f"not done after {SECONDS} s: a call did not come back")
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work}, timeout=SECONDS)
        return work.result()

    async def _on(self, factory: Factory, world: World) -> bool:
        async with Ops.on(factory, world) as ops:
            if self.timed and not ops.time.follows:
                return False
            await self.body(ops)
        return True


CHECKS: list[StoreCheck] = []


def check(body: Body) -> Body:
    """Enter a check on the list; its docstring says what it holds a store to."""
    enter(*_described(body), body, timed=False)
    return body


def timed(body: Body) -> Body:
    """Enter a check that moves time."""
    enter(*_described(body), body, timed=True)
    return body


def enter(name: str, says: str, body: Body, *, timed: bool) -> None:
    """Enter a check under a name of its own."""
    CHECKS.append(StoreCheck(name, says, timed, body))


def _described(body: Body) -> tuple[str, str]:
    return str(getattr(body, "__name__", "check")), (body.__doc__ or "").strip()
