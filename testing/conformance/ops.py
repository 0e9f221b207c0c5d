"""A store's connection, by a few short words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar, final

import msgspec

from ...actors.ids import root_of
from ...runtime.world import World
from ...store import base as b
from . import make
from .expect import Violation, equal, is_a

BELL_SECONDS = 10
R = TypeVar("R", bound=b.Reply)


@final
class Time:
    """The time of one store: ours to move where the store `follows` the clock it is given, else its own."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.follows = True
        self.set = self.seen = make.START

    def clock(self) -> int:
        """Return the wall time for `connect`."""
        return self.set if self.follows else self.world.now()

    @property
    def now(self) -> int:
        """The time of the store: ours, or the one it said last."""
        return max(self.set, self.seen) if self.follows else self.seen


@final
class Ops:
    """A connection with a clock in the check's hands. Call it with an operation."""

    def __init__(self, factory: Callable[[], b.TurnStore], store: b.TurnStore, time: Time, node: str, left: AsyncExitStack) -> None:
        self.factory, self.store, self.time, self.node = factory, store, time, node
        self.bells: list[tuple[str, str]] = []
        self.shown: list[tuple[str, bytes]] = []
        self.connection: b.StoreConnection
        self._left = left
        self._rung: asyncio.Future[None] | None = None

    @classmethod
    @asynccontextmanager
    async def on(cls, factory: Callable[[], b.TurnStore], world: World) -> AsyncGenerator[Ops]:
        """Connect to a new store, and find out whose time it has."""
        time = Time(world)
        store = factory()
        async with AsyncExitStack() as left:
            ops = await cls(factory, store, time, "n1", left).connect()
            reply = is_a(await ops(b.ListNodes()), b.Nodes)
            if reply.now != make.START:
                await ops.connection.close()  # what it learned of our clock is wrong
                time.follows, time.seen = False, reply.now
                ops = await cls(factory, store, time, "n1", left).connect()
            yield ops

    async def connect(self) -> Ops:
        """Connect."""
        self.connection = await self.store.connect(self.node, self._ring, self.time.clock, live=self._show)
        self._left.push_async_callback(self.connection.close)
        return self

    async def beside(self, node: str = "n2") -> Ops:
        """Connect another node to the same store."""
        return await Ops(self.factory, self.store, self.time, node, self._left).connect()

    async def elsewhere(self) -> Ops:
        """Connect to another new store."""
        time = Time(self.time.world)
        time.follows, time.set, time.seen = self.time.follows, self.time.set, 0
        return await Ops(self.factory, self.factory(), time, self.node, self._left).connect()

    async def __call__(self, op: b.Op) -> Any:
        """Apply an operation."""
        reply = await self.connection.call(op)
        now = getattr(reply, "now", None)
        if isinstance(now, int):
            if self.time.follows and now < self.time.seen:
                raise Violation(f"time went back from {self.time.seen} to {now}: {reply!r}")
            self.time.seen = now  # of a store with several servers, one may be behind the other
        return reply

    @property
    def now(self) -> int:
        """The store's time (of the last reply that told it)."""
        return self.time.now

    def later(self, milliseconds: int) -> None:
        """Move time; only a `timed` check may."""
        self.time.set += milliseconds

    # -- bells

    def _ring(self, kind: str, turn: str) -> None:
        self.bells.append((kind, turn))
        if self._rung is not None and not self._rung.done():
            self._rung.set_result(None)

    def _show(self, root: str, body: bytes) -> None:
        self.shown.append((root, body))

    async def heard(self, kind: str, turn: str) -> None:
        """Wait for a bell that tells it, or one that says to look everywhere. :raises Violation: if none comes."""
        until = self.time.world.monotonic() + BELL_SECONDS
        while not any(_tells(bell, kind, turn) for bell in self.bells):
            self._rung = asyncio.get_running_loop().create_future()
            left = until - self.time.world.monotonic()
            if left <= 0 or not await self.time.world.wait(self._rung, left):
                raise Violation(f"no bell {kind!r} for {turn} in {BELL_SECONDS} s; heard: {self.bells}")

    # -- what is done often

    async def start(self, turn: str = "", by: b.ClaimBy | None = None, **more: Any) -> tuple[str, b.Token]:
        """Create a turn and own it."""
        new, claim = make.new(turn, **more), by or make.by(node=self.node)
        reply = is_a(await self(b.Create(new=new, claim=claim)), b.Claimed)
        return new.turn, b.Token(claim.activation, reply.epoch)

    async def suspended(self, **more: Any) -> str:
        """Create a turn and let it sleep."""
        turn, token = await self.start()
        reply = await self(make.save(turn, token, 0, b.Mode.SUSPEND, **more))
        equal(is_a(reply, b.Saved).owned, expected=False)
        return turn

    async def claim(self, turn: str, **more: Any) -> tuple[b.Claimed, b.Token]:
        """Own a turn that is due."""
        by = make.by(**({"node": self.node} | more))
        reply = is_a(await self(b.Claim(turn=turn, by=by)), b.Claimed)
        return reply, b.Token(by.activation, reply.epoch)

    async def due(self) -> tuple[str, ...]:
        """Read which turns are due."""
        return is_a(await self(b.Due()), b.DueTurns).turns

    async def look(self, turn: str) -> b.Looked:
        """Read a turn."""
        return is_a(await self(b.Look(turn=turn)), b.Looked)

    async def park(self, turn: str) -> None:
        """Quarantine a turn that is due."""
        _, token = await self.claim(turn)
        equal(await self(b.Quarantine(turn=turn, token=token, reason="unreadable")), b.Done())


def timeless(reply: R) -> R:
    """Return a reply without the time at which it was given."""
    return msgspec.structs.replace(reply, now=0)


def _tells(bell: tuple[str, str], kind: str, turn: str) -> bool:
    if bell[0] == "any":
        return True
    if kind == "work" and bell[0] == "due":
        return bell[1].split(" ")[0] == turn
    return bell == (kind, turn) or (kind == "saved" and bell == (kind, root_of(turn)))
