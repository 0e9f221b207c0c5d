"""One node: what the actors of a process share, and its life from connecting to draining."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Protocol, TypeAlias, final

from ..actors.carried import NO_TYPES, StructTypes
from ..actors.errors import InvalidDefinition, StoreUnavailable
from ..actors.ids import base32
from ..actors.memory import ChatMemory
from ..store import base
from .agents import Agents
from .commands import Commands
from .counters import COUNTED, Counters
from .drain import drain
from .errors import Crashed
from .homes import Homes
from .hooks import Listener
from .lag import LagWatch, threshold
from .log import log
from .placement import Placement
from .relay import Relay
from .settings import Settings
from .watch import Watch
from .watching import Watching
from .world import Clock, World, gather

REPEATS = 3
BEAT_SECONDS = 60.0
LAST_RELAY_SECONDS = 5.0
Part: TypeAlias = Callable[[], Coroutine[object, object, None]]


class Fault(Protocol):
    """Something that may break a store call on purpose (see `turnhold.testing.crash`)."""

    def before(self, op: base.Op) -> None:
        """Called before an operation is sent; may let the node crash, or raise `StoreUnavailable`."""
        ...

    def after(self, op: base.Op, reply: base.Reply) -> None:
        """Called when an operation has been applied, before its reply is used; may do the same."""
        ...


@final
class Node:
    """The node behind a Runtime (see there for the arguments)."""

    def __init__(
        self,
        store: base.TurnStore,
        agents: Agents,
        *,
        node: str | None,
        execute: bool,
        services: object,
        listeners: Iterable[Listener],
        settings: Settings,
        clock: Clock | None,
        chat_memory: ChatMemory | None = None,
        types: StructTypes = NO_TYPES,
    ) -> None:
        self.world = World(clock)
        self.store = store
        self.agents = agents
        self.node = node or f"node-{base32(self.world.token(5))}"
        self.execute = execute
        self.services = services
        self.types = types
        self.settings = settings
        self.term = (settings.lease - settings.margin) / 1000
        self.watch = Watch(listeners)
        self.counters = Counters()
        # under a virtual clock all nodes are in this process, where bells do not fail
        self.poll_seconds = None if self.world.clock.virtual and not store.partitioned else store.poll_seconds
        self.draining = False
        self.dead = False
        stale = settings.stale if store.partitioned else int(3000 * BEAT_SECONDS)
        homes = Homes(self.node, agents.announced if execute else (), stale, shared=store.partitioned)
        self.placement = Placement(self, agents, homes)
        self.relay = Relay(self, chat_memory)
        self.commands = Commands(self.placement)
        self.watching = Watching(self.placement)
        self.lag = LagWatch(self.world, self.node, threshold(settings.renew))
        self.fault: Fault | None = None
        self._answered = True
        self._connection: base.StoreConnection | None = None
        self._parts: list[asyncio.Task[None]] = []
        self._dying: asyncio.Task[None] | None = None
        self._herald: asyncio.Future[None] | None = None

    # ---------------------------------------------------------------------------------------------------------- store

    async def call(self, op: base.Op) -> base.Reply:
        """Apply a store operation; after an unknown outcome the identical operation is sent again, a few times.

        Between two times it waits a moment. Not on virtual time: there somebody would have to let it pass.

        :raises StoreUnavailable: if the outcome stays unknown, or the runtime is not open.
        """
        left = REPEATS
        while True:
            connection, fault = self._connection, self.fault
            if connection is None:
                raise StoreUnavailable("the Runtime is not open; use it inside `async with`")
            if self.dead:
                raise Crashed
            try:
                reply = await (connection.call(op) if fault is None else self._faulty(connection, op, fault))
            except StoreUnavailable as error:
                left -= 1
                self._answered = error.refused
                if not left or self.dead or error.refused:
                    raise
                if not self.world.clock.virtual:
                    await self.world.sleep(0.05 + 0.15 * self.world.spread())
                continue
            if self.dead:
                raise Crashed
            self._answered = True
            if type(reply) in COUNTED:
                self.counters.note(op, reply)
            return reply

    async def _faulty(self, connection: base.StoreConnection, op: base.Op, fault: Fault) -> base.Reply:
        """Apply an operation that may break on purpose."""
        fault.before(op)
        if self.dead:
            raise Crashed
        reply = await connection.call(op)
        fault.after(op, reply)
        return reply

    def now(self) -> int:
        """Return the store's time in milliseconds."""
        return self.world.now() if self._connection is None else self._connection.now()

    def new_id(self) -> str:
        """Return a new random id."""
        return self.world.token(16).hex()

    def _bell(self, kind: str, turn_id: str) -> None:
        if kind == "saved":
            if self.placement.live(turn_id) is None:  # who lives here tells by itself
                self.watch.ring(turn_id)
        elif kind == "work":
            self.placement.work(turn_id)
        elif kind == "due":
            turn, wake, agent = turn_id.split(" ", 2)
            self.placement.due(turn, int(wake), agent)
        else:
            self.look_everywhere()

    def look_everywhere(self) -> None:
        """Bells may have been missed: look for everything they might have said."""
        self.placement.look_everywhere()
        self.watching.ring()

    # ----------------------------------------------------------------------------------------------------- life cycle

    @property
    def open(self) -> bool:
        """Tell whether the node is connected."""
        return self._connection is not None

    @property
    def healthy(self) -> bool:
        """Tell whether the node is connected, the store answers, it can renew what it has, and all its parts run."""
        reached = self._answered and not self.placement.leases.cut_off
        return self.open and not self.dead and reached and all(not part.done() for part in self._parts)

    async def start(self) -> None:
        """Connect, announce the node, and start its parts."""
        if self._connection is not None:
            raise InvalidDefinition("this Runtime is open already")
        virtual = self.world.clock.virtual
        connect, heard = self.store.connect, self.watch.heard
        self._connection = await connect(self.node, self._bell, self.world.now, inline=virtual, live=heard)
        self.watch.connect(self._connection)
        self.draining = self.dead = False
        self._dying = None
        await self.announce(first=True)
        self.lag.start()
        reap = self.settings.reap / 1000
        period, dead = reap if virtual else min(reap, 0.5), self._connection.dead_nodes
        parts: dict[str, Part] = {"renewer": self.placement.leases.run, "keeper": self._keep}
        if self.poll_seconds is not None:
            parts["watcher"] = lambda: self.watching.run(self.poll_seconds)
        if self.settings.relay:
            parts["relay"] = self.relay.run
        if self.execute:
            parts["poller"] = lambda: self.placement.poller.run(self.poll_seconds)
            parts["reaper"] = lambda: self.placement.reaper.run(period, dead)
        self._parts = [self.world.spawn(self._part(name, part), f"{name} of {self.node}") for name, part in parts.items()]

    async def stop(self) -> None:
        """Drain, and leave the store. A turn whose thread still runs keeps its lease; everything else is given away."""
        if self._connection is None and self._dying is None:
            return
        stuck = True
        try:
            if self.store.partitioned and self._herald is not None and not self._herald.done():
                self.draining = True
                self._herald.set_result(None)
            if not self.dead:
                stuck = await drain(self)
                await self.relay.settle(min(LAST_RELAY_SECONDS, self.settings.drain / 1000))
        finally:
            for part in self._parts:
                part.cancel()
            self._end()
            self._lose_all()
            try:
                await gather(self._parts)
                self._lose_all()  # brought here by a claim that took longer than the drain
                await gather(list(self.placement.tasks))
                if not self.dead and not stuck:
                    await self.beat(leave=True)
                if self._dying is not None:  # crashed before, or while it drained
                    await gather([self._dying])
            finally:  # also where this is cancelled, again and again
                self._parts = []
                connection, self._connection = self._connection, None
                self.watch.disconnect()  # who still waits here is told that nobody will ring any more
                try:
                    if connection is not None:
                        await connection.close()
                finally:
                    await self.agents.close()

    def _end(self) -> None:
        self.lag.stop()
        self.placement.offers.clear()

    def _lose_all(self) -> None:
        for actor in list(self.placement.actors.values()):
            actor.lose()

    def crash(self) -> asyncio.Task[None]:
        """Die at this instant as a killed process would; the task ends when nothing of the node is left."""
        self.dead = True
        if self._dying is None:
            self._dying = self.world.spawn(self._die(), f"death of {self.node}")
        return self._dying

    async def kill(self) -> None:
        """Die as a killed process would: no further store call, every task ended, nothing given back."""
        await gather([self.crash()])

    async def _die(self) -> None:
        tasks = [*self._parts, *self.placement.tasks]
        self._end()
        for actor in list(self.placement.actors.values()):
            actor.lost = True
        for task in tasks:
            task.cancel()
        await gather(tasks)
        self._parts = []
        connection, self._connection = self._connection, None
        self.watch.disconnect()
        if connection is not None:
            await connection.close()

    async def beat(self, *, leave: bool = False) -> bool:
        """Announce the node, or take it off the list; tell whether the store took it.

        A node that drains announces no agent where nodes share partitions: the others take over its share at once.
        """
        silent = not self.execute or (self.draining and self.store.partitioned)
        try:
            await self.call(base.Beat(node=self.node, agents=() if silent else self.agents.announced, leave=leave))
        except StoreUnavailable as error:
            log.warning("heartbeat_failed", node=self.node, error=str(error))
            return False
        return True

    def learn_agents(self) -> None:
        """Ask the loader again; where it knows other agents now, look for turns of them.

        :raises InvalidDefinition: if it says nothing that can be announced.
        """
        if self.execute and self.agents.refresh():
            placement = self.placement
            placement.homes.run(self.agents.announced)
            placement.skips.learned(self.agents.known)
            placement.poller.look_everywhere()
            if self._herald is not None and not self._herald.done():
                self._herald.set_result(None)

    async def announce(self, *, first: bool = False) -> bool:
        """Announce the node, and learn of the others where that matters; tell whether the store took it."""
        try:
            self.learn_agents()
        except Exception:
            if first:
                raise
            log.exception("loader_failed", node=self.node)  # what it said last is announced: the node lives
        if not await self.beat():
            return False
        placement = self.placement
        if self.execute and (first or placement.homes.shared or placement.skips):
            try:
                reply = await self.call(base.ListNodes())
            except StoreUnavailable as error:
                log.warning("nodes_unknown", node=self.node, error=str(error))
                return False
            assert isinstance(reply, base.Nodes)
            placement.homes.learn(reply)
        return True

    # ---------------------------------------------------------------------------------------------------------- parts

    async def _part(self, name: str, work: Part) -> None:
        """Run a part for as long as the node lives; one that fails is noted and started again."""
        while True:
            try:
                return await work()
            except Crashed:
                return None
            except Exception:
                log.exception("part_failed", part=name, node=self.node)
            await self.world.sleep(1)

    async def _keep(self) -> None:
        """Announce the node now and then (more often where others go by it), and drop what is over."""
        period = self.settings.renew / 1000 if self.store.partitioned else BEAT_SECONDS
        prune_at = self.world.monotonic() + 0.9 * BEAT_SECONDS
        while True:
            self._herald = asyncio.get_running_loop().create_future()
            await self.world.rest(self._herald, period * (0.9 + 0.1 * self.world.spread()))
            await self.announce()
            if self.world.monotonic() < prune_at:
                continue
            prune_at = self.world.monotonic() + 0.9 * BEAT_SECONDS
            try:
                await self.call(base.Prune())
            except StoreUnavailable as error:
                log.warning("prune_failed", error=str(error))
