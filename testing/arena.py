"""Several nodes on one store and one clock, each of which may die, freeze, or be cut off from the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, TypeVar, final

from ..actors.agent import Agent
from ..actors.errors import StoreUnavailable
from ..runtime.runtime import Runtime, node_of
from ..store import base
from ..store.base import Op, Reply, TurnStore
from .clock import VirtualClock
from .crashes import Crash, Point
from .gates import Ears, Gate, GatedStore, Wire
from .witness import Witness

__all__ = ["Cut", "Gate", "GatedStore", "Seat", "Threads"]

Cut: TypeAlias = Literal["", "renew", "all"]
T = TypeVar("T")
CROWD = 10_000
POLL_SECONDS = 2.0


@final
class Threads:
    """Worker threads on virtual time: a function is done at once, but while they are held its thread goes on."""

    def __init__(self) -> None:
        self.held = False
        self._waiting: set[asyncio.Future[None]] = set()

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function; what comes of it is known when its thread has ended."""
        try:
            value, error = function(), None
        except BaseException as raised:
            value, error = None, raised
        while self.held:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(ended)
            try:
                await ended
            finally:
                self._waiting.discard(ended)
        if error is not None:
            raise error
        return value  # pyright: ignore[reportReturnType] - what the function has returned

    def let_go(self) -> None:
        """Let all of them end."""
        self.held = False
        for ended in self._waiting:
            if not ended.done():
                ended.set_result(None)


@final
class Seat:
    """A place for a node; when one has died, another takes it."""

    def __init__(
        self,
        number: int,
        store: TurnStore,
        agents: Sequence[Agent],
        clock: VirtualClock,
        witness: Witness,
        graves: list[str] | None = None,
    ) -> None:
        self.number = number
        self.graves = [] if graves is None else graves
        self.gate, self.threads = Gate(), Threads()
        self.ears, self.wire = Ears(witness.counts), Wire(clock, witness.counts)
        self.armed: list[tuple[Point, Crash]] = []
        self.cut: Cut = ""
        self.lives = 0
        self.room = CROWD
        self.polls = False
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
        """Tell whether the node lives, moves, hears, reaches the store, and will go on so."""
        node = node_of(self.runtime)
        free = not self.gate.shut and not self.gate.behind and not self.cut and not self.threads.held
        return free and not node.dead and self.ears.open and self.wire.clear and node.fault is self

    async def open(self, lease: float) -> None:
        """Let a new node sit down."""
        self.lives += 1
        self.cut = ""
        self.gate.open()
        self.wire.clean()
        self._runtime = Runtime(
            GatedStore(self._store, self.gate, self._witness, self.wire, self.ears, self.graves),
            agents=self.agents,
            node=f"node-{self.number}-{self.lives}",
            clock=self._clock,
            lease=lease,
            drain=5,
            max_active=self.room,
        )
        node = node_of(self.runtime)
        node.fault = self
        setattr(node.world, "thread", self.threads.run)  # noqa: B010 - the seam that a race needs to repeat
        if self.polls:
            node.poll_seconds = POLL_SECONDS
        await self.runtime.__aenter__()

    def before(self, op: Op) -> None:
        """Let nothing through that is cut off."""
        if self.cut == "all" or (self.cut == "renew" and isinstance(op, base.Renew)):
            self._witness.counts["calls cut off"] += 1
            raise StoreUnavailable("this node is cut off from the store (a test)")

    def after(self, op: Op, reply: Reply) -> None:
        """Let every reply through."""

    def arm(self, operation: str, point: Point, nth: int) -> None:
        """Let the node crash at a store call to come."""
        node = node_of(self.runtime)
        node.fault = crash = Crash(node, operation, point, nth)
        self.armed.append((point, crash))

    async def kill(self) -> None:
        """Let the node die now, and its threads with it."""
        death = node_of(self.runtime).crash()
        self.threads.let_go()
        self.gate.open(broken=True)
        await death

    async def leave(self) -> None:
        """Drain the node and let it go; threads that run on end with their process."""
        node_of(self.runtime).fault = self
        self.cut = ""
        self.wire.clean()
        if not self.dead:
            self.ears.hear()
        self.gate.open(broken=self.dead)
        try:
            await self.runtime.__aexit__(None, None, None)
        finally:
            if self.threads.held:
                self.graves.append(self.runtime.node)
            self.threads.let_go()

    async def again(self, lease: float) -> None:
        """Leave, dead or alive, and let a new node sit down."""
        await self.leave()
        await self.open(lease)
