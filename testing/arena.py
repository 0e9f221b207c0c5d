"""Several nodes on one store and one clock, each of which may die, freeze, or be cut off from the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, final

from ..actors.agent import Agent
from ..actors.errors import StoreUnavailable
from ..runtime.runtime import Runtime, node_of
from ..store import base
from ..store.base import Bell, Live, Op, Reply, StoreConnection, TurnStore
from ..store.rules import OPERATIONS
from .clock import VirtualClock
from .crashes import Crash, Point
from .witness import Witness

Cut: TypeAlias = Literal["", "renew", "all"]


@final
class Gate:
    """Where a frozen node stands still: before a store call is sent, or before its reply is heard.

    `behind` is the operation whose reply will be the first not to be heard.
    """

    def __init__(self) -> None:
        self.behind = ""
        self._opened: asyncio.Event | None = None
        self._broken = False

    @property
    def shut(self) -> bool:
        """Tell whether the node is frozen."""
        return self._opened is not None

    def close(self) -> None:
        """Freeze."""
        if self._opened is None:
            self._opened = asyncio.Event()

    def open(self, *, broken: bool = False) -> None:
        """Thaw; `broken` means that the node has died meanwhile, and nothing of it reaches the store any more."""
        self._broken, self.behind = broken, ""
        if self._opened is not None:
            self._opened.set()
            self._opened = None

    async def passed(self) -> None:
        """Return when the gate is open. :raises StoreUnavailable: if the node is dead."""
        while self._opened is not None:
            await self._opened.wait()
        if self._broken:
            raise StoreUnavailable("this node is dead")


@final
class GatedStore:
    """A store as one node sees it: behind a gate, and under the eyes of a witness."""

    def __init__(self, store: TurnStore, gate: Gate, witness: Witness) -> None:
        self.namespace = store.namespace
        self.poll_seconds = store.poll_seconds
        self.lease_seconds = store.lease_seconds
        self.partitioned = store.partitioned
        self.proves_death = store.proves_death
        self._store = store
        self._gate = gate
        self._witness = witness

    async def connect(
        self, node: str, bell: Bell, clock: Callable[[], int], *, inline: bool = False, live: Live | None = None
    ) -> StoreConnection:
        """Connect a node."""
        connection = await self._store.connect(node, bell, clock, inline=inline, live=live)
        return GatedConnection(connection, self._gate, self._witness)


@final
class GatedConnection:
    """One node's use of a store (see `GatedStore`)."""

    def __init__(self, connection: StoreConnection, gate: Gate, witness: Witness) -> None:
        self._connection = connection
        self._gate = gate
        self._witness = witness
        self.now = connection.now
        self.dead_nodes: Callable[[], Sequence[str]] = connection.dead_nodes
        self.close = connection.close
        self.watch, self.unwatch = connection.watch, connection.unwatch
        self.publish, self.wants = connection.publish, connection.wants

    async def call(self, op: Op) -> Reply:
        """Apply an operation."""
        await self._gate.passed()
        reply = await self._connection.call(op)
        self._witness.applied(op, reply)
        if self._gate.behind in {"*", OPERATIONS[type(op)]}:
            self._gate.close()
        await self._gate.passed()
        return reply


@final
class Seat:
    """A place for a node; when one has died, another takes it."""

    def __init__(self, number: int, store: TurnStore, agents: Sequence[Agent], clock: VirtualClock, witness: Witness) -> None:
        self.number = number
        self.gate = Gate()
        self.cut: Cut = ""
        self.lives = 0
        self._store = store
        self.agents = agents
        self._clock = clock
        self._witness = witness
        self._runtime: Runtime | None = None

    @property
    def runtime(self) -> Runtime:
        """Return the node that sits here."""
        assert self._runtime is not None, "the seat has been opened"
        return self._runtime

    @property
    def dead(self) -> bool:
        """Tell whether the node has died."""
        return node_of(self.runtime).dead

    @property
    def well(self) -> bool:
        """Tell whether the node lives, moves, reaches the store, and will go on so."""
        node = node_of(self.runtime)
        return not node.dead and not self.gate.shut and not self.gate.behind and not self.cut and node.fault is self

    async def open(self, lease: float) -> None:
        """Let a new node sit down."""
        self.lives += 1
        self.cut = ""
        self.gate.open()
        self._runtime = Runtime(
            GatedStore(self._store, self.gate, self._witness),
            agents=self.agents,
            node=f"node-{self.number}-{self.lives}",
            clock=self._clock,
            lease=lease,
            drain=5,
        )
        node_of(self.runtime).fault = self
        await self.runtime.__aenter__()

    def before(self, op: Op) -> None:
        """Let nothing through that is cut off."""
        if self.cut == "all" or (self.cut == "renew" and isinstance(op, base.Renew)):
            raise StoreUnavailable("this node is cut off from the store (a test)")

    def after(self, op: Op, reply: Reply) -> None:
        """Let every reply through."""

    def arm(self, operation: str, point: Point, nth: int) -> None:
        """Let the node crash at a store call to come."""
        node = node_of(self.runtime)
        node.fault = Crash(node, operation, point, nth)

    async def kill(self) -> None:
        """Let the node die now."""
        death = node_of(self.runtime).crash()
        self.gate.open(broken=True)
        await death

    async def leave(self) -> None:
        """Drain the node and let it go."""
        node_of(self.runtime).fault = self
        self.cut = ""
        self.gate.open(broken=self.dead)
        await self.runtime.__aexit__(None, None, None)

    async def again(self, lease: float) -> None:
        """Leave, dead or alive, and let a new node sit down."""
        await self.leave()
        await self.open(lease)
