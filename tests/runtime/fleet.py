"""Several nodes on a store whose nodes share its partitions, in memory and on one virtual clock."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from turnhold import Agent, Runtime, tool
from turnhold.actors.errors import StoreUnavailable
from turnhold.actors.ids import partition_of
from turnhold.runtime.runtime import node_of
from turnhold.store import base
from turnhold.store.memory import MemoryConnection, MemoryStore
from turnhold.testing import ScriptedModel, VirtualClock, call

if TYPE_CHECKING:
    from collections.abc import Callable

LEASE = 30.0
EVERYTHING = 1 << 30


class Line:
    """A node's way to the store: counts what passes, may refuse or hang."""

    def __init__(self, connection: MemoryConnection) -> None:
        self._connection = connection
        self.seen: list[base.Op] = []
        self.broken: tuple[type[base.Op], ...] = ()
        self.hanging: tuple[type[base.Op], ...] = ()
        self.refused = False
        self.now, self.close, self.dead_nodes = connection.now, connection.close, connection.dead_nodes
        self.watch, self.unwatch = connection.watch, connection.unwatch
        self.publish, self.wants = connection.publish, connection.wants

    async def call(self, op: base.Op) -> base.Reply:
        self.seen.append(op)
        if isinstance(op, self.hanging):
            await asyncio.get_running_loop().create_future()
        if isinstance(op, self.broken):
            raise StoreUnavailable("the line is down", refused=self.refused)
        if not isinstance(op, base.Due) or op.partitions is None:
            return await self._connection.call(op)
        reply = await self._connection.call(base.Due(limit=EVERYTHING))
        assert isinstance(reply, base.DueTurns)
        turns = [turn for turn in reply.turns if partition_of(turn) in op.partitions]
        return base.DueTurns(tuple(turns[op.offset : op.offset + op.limit]), reply.next, reply.now)

    def counts(self) -> Counter[str]:
        return Counter(type(op).__name__ for op in self.seen)


class Partitioned(MemoryStore):
    """A memory store that behaves as one across machines: its nodes share partitions, and bells get lost while it is `deaf`."""

    poll_seconds = 1.0
    lease_seconds = LEASE
    partitioned = True
    proves_death = False

    def __init__(self) -> None:
        super().__init__()
        self.deaf = False
        self.lines: dict[str, Line] = {}

    async def connect(  # type: ignore[override] - a line does what the runtime asks of a connection
        self, node: str, bell: base.Bell, clock: Callable[[], int], *, inline: bool = False, live: base.Live | None = None
    ) -> Any:
        def ring(kind: str, turn: str) -> None:
            record = self.core.find_turn(turn)
            if self.deaf:
                return
            if kind == "work" and record is not None and record.activation is None:
                kind, turn = "due", f"{turn} {record.wake} {record.agent}@{record.agent_version}"
                if record.wake is None:
                    return
            bell(kind, turn)

        line = self.lines[node] = Line(await super().connect(node, ring, clock, inline=inline, live=live))
        return line


class Fleet:
    """Nodes by name; all are left at the end."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.clock = VirtualClock()
        self.store = Partitioned() if store is None else store
        self.runtimes: dict[str, Runtime] = {}

    async def open(self, name: str, *agents: Agent, **options: Any) -> Runtime:
        runtime = Runtime(self.store, agents=agents, node=name, clock=self.clock, lease=LEASE, **options)
        await runtime.__aenter__()
        self.runtimes[name] = runtime
        return runtime

    async def meet(self) -> None:
        """Let time pass until all nodes know of each other."""
        await self.clock.advance(LEASE / 3)
        for line in self.lines.values():
            line.seen.clear()

    @property
    def lines(self) -> dict[str, Line]:
        assert isinstance(self.store, Partitioned)
        return self.store.lines

    async def close(self, name: str) -> None:
        leaving = asyncio.ensure_future(self.runtimes.pop(name).__aexit__(None, None, None))
        while not leaving.done():
            await self.clock.advance(1)
        await leaving

    async def kill(self, name: str) -> None:
        await node_of(self.runtimes.pop(name)).kill()

    async def close_all(self) -> None:
        for line in self.store.lines.values() if isinstance(self.store, Partitioned) else ():
            line.broken = line.hanging = ()
        for name in list(self.runtimes):
            await self.close(name)


class Bench:
    """A tool that runs until it is let go, and an agent that calls it once."""

    def __init__(self, name: str = "shop") -> None:
        self.opened = asyncio.Event()
        self.starts = 0

        @tool(effect="repeatable")
        async def work() -> str:
            """Work."""
            self.starts += 1
            await self.opened.wait()
            return "worked"

        self.agent = Agent(name, model=ScriptedModel(call("work"), "done"), tools=[work])
