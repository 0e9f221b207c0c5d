"""A store as one node of a race sees it: calls that stand still, come late or not at all, bells that nobody hears."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import final

from ..actors.errors import StoreUnavailable
from ..runtime.world import World
from ..store.base import Bell, Live, Op, Reply, StoreConnection, TurnStore
from ..store.rules import OPERATIONS
from .clock import VirtualClock
from .witness import Witness


def fits(operation: str, op: Op) -> bool:
    """Tell whether a name (or ``*``) is that of an operation."""
    return operation in {"*", OPERATIONS[type(op)]}


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
class Ears:
    """How a node hears the bells of the store: at once, not at all (`deaf`), or late and in the wrong order (`slow`)."""

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts
        self.deaf = self.slow = False
        self._bell: Bell | None = None
        self._late: list[tuple[str, str]] = []

    @property
    def open(self) -> bool:
        """Tell whether it hears all bells at once."""
        return not self.deaf and not self.slow

    def connect(self, bell: Bell) -> None:
        """Hear for a node; what its predecessor has not heard is lost."""
        self._bell = bell
        self._late = []
        self.deaf = self.slow = False

    def ring(self, kind: str, turn: str) -> None:
        """A bell rings."""
        if self.deaf or self._bell is None:
            self.counts["bells lost"] += 1
        elif self.slow:
            self.counts["bells late"] += 1
            self._late.append((kind, turn))
        else:
            self._bell(kind, turn)

    def hear(self) -> None:
        """Hear again, and now what has come meanwhile, the newest first. What was lost stays lost."""
        self.deaf = self.slow = False
        late, self._late = self._late, []
        for kind, turn in reversed(late):
            self.ring(kind, turn)


@final
class Wire:
    """The way to the store: calls that take their time are overtaken by others, and some arrive behind their own repetition."""

    def __init__(self, clock: VirtualClock, counts: Counter[str]) -> None:
        self.counts = counts
        self.slow = ""
        self.delay = 0.0
        self.losing = ""
        self.late: deque[Op] = deque(maxlen=8)
        self._world = World(clock)

    @property
    def clear(self) -> bool:
        """Tell whether calls pass at once."""
        return not self.slow and not self.losing

    def clean(self) -> None:
        """Let all calls pass at once from now on."""
        self.slow = self.losing = ""

    async def passed(self, op: Op) -> None:
        """Return when an operation has arrived. :raises StoreUnavailable: if it is under way still, and counts as lost."""
        if self.losing and fits(self.losing, op):
            self.losing = ""
            self.late.append(op)
            self.counts["calls lost under way"] += 1
            raise StoreUnavailable("no answer in time (a test)")
        if self.slow and fits(self.slow, op):
            self.counts["slow calls"] += 1
            await self._world.sleep(self.delay)


@final
class GatedStore:
    """A store as one node sees it: behind a gate, and under the eyes of a witness."""

    def __init__(
        self,
        store: TurnStore,
        gate: Gate,
        witness: Witness,
        wire: Wire | None = None,
        ears: Ears | None = None,
        graves: Sequence[str] = (),
    ) -> None:
        self.namespace = store.namespace
        self.poll_seconds = store.poll_seconds
        self.lease_seconds = store.lease_seconds
        self.partitioned = store.partitioned
        self.proves_death = store.proves_death
        self._store = store
        self._gate = gate
        self._witness = witness
        self._wire = wire
        self._ears = ears
        self._graves = graves

    async def connect(
        self, node: str, bell: Bell, clock: Callable[[], int], *, inline: bool = False, live: Live | None = None
    ) -> StoreConnection:
        """Connect a node."""
        if self._ears is not None:
            self._ears.connect(bell)
            bell = self._ears.ring
        connection = await self._store.connect(node, bell, clock, inline=inline, live=live)
        return GatedConnection(connection, self._gate, self._witness, self._wire, self._graves)


@final
class GatedConnection:
    """One node's use of a store (see `GatedStore`)."""

    def __init__(self, connection: StoreConnection, gate: Gate, witness: Witness, wire: Wire | None, graves: Sequence[str]) -> None:
        self._connection = connection
        self._gate = gate
        self._witness = witness
        self._wire = wire
        self.now = connection.now
        self._graves = graves
        self.close = connection.close
        self.watch, self.unwatch = connection.watch, connection.unwatch
        self.publish, self.wants = connection.publish, connection.wants

    def dead_nodes(self) -> Sequence[str]:
        """Return the nodes that are proved dead, those included whose process has ended with threads in it."""
        return (*self._connection.dead_nodes(), *self._graves)

    async def call(self, op: Op) -> Reply:
        """Apply an operation."""
        self._witness.counts["store calls"] += 1
        await self._gate.passed()
        if self._wire is not None and not self._wire.clear:
            await self._wire.passed(op)
            await self._gate.passed()
        reply = await self._connection.call(op)
        self._witness.applied(op, reply)
        if self._gate.behind and fits(self._gate.behind, op):
            self._gate.close()
        self._witness.counts["calls stood still"] += self._gate.shut
        await self._gate.passed()
        return reply
