"""Which turns live here: claims, renewals, take-over, the bells.

An entry in the registry is made before a claim is sent and removed only when the activation's last task has ended, so a process
has at most one activation of a turn, without a lock. A thread may outlive its activation: it keeps its slot, and the turn is not
taken up again here by itself; only an answer or a cancel may do that before the thread has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import TypeAlias, TypeVar

from ..actors.agent import Agent
from ..actors.chat import CallEdited
from ..actors.errors import SnapshotCorrupt, SnapshotTooNew, StoreUnavailable, TurnholdError
from ..actors.history import readable
from ..actors.ids import partition_of
from ..actors.machine import messages as m
from ..actors.machine.draft import Draft
from ..actors.turn import SCHEMA, TurnState
from ..store import base, codec
from .actor import Actor
from .agents import Agents
from .host import Host
from .log import log
from .world import gather

SKIP_SECONDS = 60.0
T = TypeVar("T")
Dead: TypeAlias = Callable[[], Iterable[str]]


class LoaderFailed(Exception):
    """The loader raised instead of giving an agent; `delay` says in how many milliseconds it is asked again."""

    def __init__(self, failures: int) -> None:
        super().__init__(failures)
        self.delay = min(60_000, 1000 << min(failures - 1, 6))


class Placement:
    """The registry of live activations, and the claims and leases behind it."""

    def __init__(self, host: Host, agents: Agents) -> None:
        self.host = host
        self.agents = agents
        self.actors: dict[str, Actor] = {}
        self.claiming: set[str] = set()
        self.threads: dict[asyncio.Task[object], str] = {}
        self.tasks: dict[asyncio.Task[None], str] = {}
        self.skipped: dict[str, float] = {}
        self.failures: dict[str, int] = {}
        self.claims = self.lost = self.reaped = 0
        self._ring: asyncio.Future[None] | None = None
        self._alarm: asyncio.Future[None] | None = None
        self._alarmed = False
        self._idle: asyncio.Future[None] | None = None
        self._rung = True
        self._left = False  # a due turn was left where it is: look again when an activation has ended

    # ------------------------------------------------------------------------------------------------------- registry

    def live(self, turn_id: str) -> Actor | None:
        """Return the activation of a turn that takes messages here."""
        actor = self.actors.get(turn_id)
        return actor if actor is not None and actor.accepting and not actor.lost else None

    def here(self, turn_id: str) -> bool:
        """Tell whether this process has, or is about to have, an activation of a turn."""
        return turn_id in self.actors or turn_id in self.claiming

    def held(self, turn_id: str) -> bool:
        """Tell whether a turn is here, or a thread still runs that an activation of it has left behind."""
        return self.here(turn_id) or turn_id in self.threads.values()

    @property
    def free(self) -> int:
        """Return how many more turns may live here; asked before a claim, never after."""
        if self.host.draining:
            return 0
        return self.host.settings.max_active - len(self.actors) - len(self.claiming) - len(self.threads)

    def claim_by(self) -> base.ClaimBy:
        """Return this node's wish to own a turn, under a new activation."""
        settings = self.host.settings
        return base.ClaimBy(
            activation=self.host.new_id(),
            node=self.host.node,
            lease_ms=settings.lease,
            agents=self.agents.known if self.host.execute else None,
            schema=SCHEMA,
            tail=settings.tail if self.host.execute else 0,
            batch=settings.batch,
        )

    async def owning(self, turn_id: str, by: base.ClaimBy | None, work: Callable[[], Coroutine[object, object, T]]) -> T:
        """Do what may make this node the owner of a turn, by the claim `by`, and bring the turn to life.

        A caller that is cancelled in the middle leaves behind no turn that the store has given to us and that nobody runs: the same
        work is done again, by a task of this node, and the same claim finds what it got.
        """
        if by is None:
            return await work()
        self.claiming.add(turn_id)
        again = False
        try:
            return await work()
        except asyncio.CancelledError:
            again = True
            task = self.host.world.spawn(self._again(turn_id, work), f"claim {turn_id}")
            self.tasks[task] = turn_id
            task.add_done_callback(self._over)
            raise
        finally:
            if not again:
                self.claiming.discard(turn_id)

    async def _again(self, turn_id: str, work: Callable[[], Coroutine[object, object, object]]) -> None:
        try:
            await work()
        except TurnholdError as error:
            log.info("abandoned_claim", turn=turn_id, error=str(error))
        finally:
            self.claiming.discard(turn_id)

    async def activate(
        self, turn_id: str, by: base.ClaimBy, claimed: base.Claimed, sent: float, checked: str | None = None
    ) -> Actor | None:
        """Bring a claimed turn to life; `None` where that is not possible here (it was given back, or parked)."""
        self.claims += 1
        token = base.Token(by.activation, claimed.epoch)
        try:
            state = codec.decode_state(turn_id, claimed.schema, claimed.snapshot)
            codec.check_counts(state, claimed.message_count, claimed.event_count)
            agent = await self._loaded(state) if self.host.execute else None
            tail = codec.decode_entries(turn_id, claimed.tail) if len(claimed.tail) == claimed.message_count else None
        except SnapshotCorrupt as error:
            log.exception("snapshot_unreadable", turn=turn_id)
            await self.host.call(base.Quarantine(turn=turn_id, token=token, reason=str(error)[:500]))
            return None
        except SnapshotTooNew:
            await self._give_back(turn_id, token)
            return None
        except LoaderFailed as error:
            await self.host.call(base.Abandon(turn=turn_id, token=token, delay_ms=error.delay))
            return None
        if self.host.execute and agent is None:
            await self._give_back(turn_id, token)
            return None
        actor = Actor(self.host, state, token, claimed.version, agent, sent)
        if tail is not None:
            actor.messages = readable(tail)
            actor.edited = any(isinstance(entry, CallEdited) for entry in tail)
        actor.mailbox.tell(m.Activated(claimed.crashes, claimed.quarantined))
        actor.intake.put(claimed.mail, claimed.cancel, checked)
        self.adopt(actor)
        return actor

    async def _loaded(self, state: TurnState) -> Agent | None:
        """Return a turn's agent. :raises LoaderFailed: if the loader raised; counted by agent, until it gives one again."""
        key = f"{state.agent_id}@{state.agent_version}"
        try:
            agent = await self.agents.exact(state.agent_id, state.agent_version)
        except Exception as error:
            failures = self.failures[key] = self.failures.get(key, 0) + 1
            log.exception("loader_failed", turn=state.turn_id, agent=key, failures=failures)
            raise LoaderFailed(failures) from error
        self.failures.pop(key, None)
        return agent

    def adopt(self, actor: Actor, saved: Draft | None = None) -> None:
        """Enter an activation and let it run."""
        self.actors[actor.turn_id] = actor
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        task = self.host.world.spawn(self._live(actor, saved), f"turn {actor.turn_id}")
        self.tasks[task] = actor.turn_id
        task.add_done_callback(self._over)

    async def _live(self, actor: Actor, saved: Draft | None) -> None:
        try:
            await actor.run(saved)
        except Exception:
            log.exception("actor_failed", turn=actor.turn_id)
            actor.lost = True
        finally:
            if actor.lost:
                self.lost += 1
                self.host.watch.ring(actor.turn_id)
            if self.actors.get(actor.turn_id) is actor:
                del self.actors[actor.turn_id]
            for thread in actor.threads:
                self.threads[thread] = actor.turn_id
                thread.add_done_callback(self._thread_over)
            if self._left or actor.lost or actor.mailbox.rung:
                self.ring()

    def _over(self, task: asyncio.Task[None]) -> None:
        self.tasks.pop(task, None)

    def _thread_over(self, thread: asyncio.Task[object]) -> None:
        del self.threads[thread]
        self.ring()

    async def _give_back(self, turn_id: str, token: base.Token) -> None:
        self._skip(turn_id)
        await self.host.call(base.Abandon(turn=turn_id, token=token, delay_ms=1000))

    def _skip(self, turn_id: str) -> None:
        self.skipped[turn_id] = self.host.world.monotonic() + SKIP_SECONDS

    # ---------------------------------------------------------------------------------------------------------- bells

    def ring(self) -> None:
        """Let the poller look for work."""
        self._rung = True
        if self._ring is not None and not self._ring.done():
            self._ring.set_result(None)

    def alarm(self) -> None:
        """Let the reaper look whether somebody has died."""
        self._alarmed = True
        if self._alarm is not None and not self._alarm.done():
            self._alarm.set_result(None)

    def work(self, turn_id: str) -> None:
        """Mail, a cancel or a new turn may need somebody."""
        actor = self.live(turn_id)
        if actor is not None:
            actor.mailbox.ring()
        else:
            self.skipped.pop(turn_id, None)
            self.ring()

    # --------------------------------------------------------------------------------------------------------- poller

    async def poll(self, period: float | None) -> None:
        """Claim what may run, for as long as this node lives. Sleeps until a bell, the next wake, or the period."""
        world = self.host.world
        while True:
            self._rung = False
            pause = period
            self._left = self.free <= 0
            if not self._left:
                try:
                    pause = await self._claim_due(period)
                except StoreUnavailable as error:
                    log.warning("poll_failed", error=str(error))
                    pause = 1.0
            self._ring = asyncio.get_running_loop().create_future()
            if self._rung:
                self._ring.set_result(None)
            await world.rest(self._ring, pause)

    async def _claim_due(self, period: float | None) -> float | None:
        world = self.host.world
        now = world.monotonic()
        self.skipped = {turn: until for turn, until in self.skipped.items() if until > now}
        window = min(64, 4 * self.free)
        reply = await self.host.call(base.Due(limit=window + len(self.skipped)))
        assert isinstance(reply, base.DueTurns)
        due = [turn for turn in reply.turns if turn not in self.skipped]
        todo = [turn for turn in due if not self.held(turn)][: self.free]
        self._left = len(todo) < len(due)
        if todo:
            self.claiming.update(todo)
            await gather([world.spawn(self._claim(turn), f"claim {turn}") for turn in todo])
            self.ring()
        if reply.next is None:
            return period
        wait = max(0.0, (reply.next - reply.now) / 1000)
        return wait if period is None else min(wait, period)

    async def _claim(self, turn_id: str) -> None:
        try:
            by = self.claim_by()
            sent = self.host.world.monotonic()
            reply = await self.host.call(base.Claim(turn=turn_id, by=by))
            if isinstance(reply, base.Claimed):
                await self.activate(turn_id, by, reply, sent)
            elif isinstance(reply, base.UnknownAgent | base.TooNew):
                self._skip(turn_id)
        except StoreUnavailable as error:
            log.warning("claim_failed", turn=turn_id, error=str(error))
        finally:
            self.claiming.discard(turn_id)

    # --------------------------------------------------------------------------------------------------------- leases

    async def renew(self) -> None:
        """Extend the leases of all that lives here, for as long as this node lives."""
        world, settings = self.host.world, self.host.settings
        while True:
            if not self.actors:
                self._idle = asyncio.get_running_loop().create_future()
                await self._idle
            await world.sleep(settings.renew / 1000 * (0.9 + 0.1 * world.spread()))
            await self.renew_now()

    async def renew_now(self) -> None:
        """Extend all leases once; learn of mail, cancels and losses."""
        groups: dict[int, list[Actor]] = {}
        for actor in self.actors.values():
            if not actor.lost:
                groups.setdefault(partition_of(actor.turn_id), []).append(actor)
        for actors in groups.values():
            try:
                await self._renew(actors)
            except StoreUnavailable as error:
                log.warning("renewal_failed", error=str(error), turns=len(actors))
        for actor in list(self.actors.values()):
            if not actor.owns():
                actor.lose()

    async def _renew(self, actors: list[Actor]) -> None:
        sent = self.host.world.monotonic()
        leases = tuple((actor.turn_id, actor.token) for actor in actors)
        reply = await self.host.call(base.Renew(leases=leases, lease_ms=self.host.settings.lease))
        assert isinstance(reply, base.Renewed)
        for actor, flag in zip(actors, reply.flags, strict=True):
            if flag == 0:
                if actor.accepting and self.actors.get(actor.turn_id) is actor:
                    actor.lose()
                continue
            actor.extend(sent)
            if flag > 1:
                actor.mailbox.ring()

    async def reap(self, period: float, dead: Dead) -> None:
        """Take over from owners that are gone, for as long as this node lives. Never from its own activations.

        It looks when a lease may be over (between `period` and a whole lease from now), and when an alarm says that somebody has
        died. A node that wakes much later than it meant to was stalled, and so may the others have been: it renews first, and
        reaps nothing until they had the time to renew, too.
        """
        world, settings = self.host.world, self.host.settings
        quiet_until = 0.0
        due = world.monotonic() + period
        while True:
            self._alarm = asyncio.get_running_loop().create_future()
            if self._alarmed:
                self._alarm.set_result(None)
            await world.wait(self._alarm, due - world.monotonic())
            self._alarmed = False
            now = world.monotonic()
            if now - due > settings.renew / 1000:
                quiet_until = now + (settings.renew + settings.grace) / 1000
                await self.renew_now()
            dead_nodes = tuple(dead())
            if not dead_nodes and now < max(due, quiet_until):
                due = max(due, quiet_until)
                continue
            try:
                due = now + await self._reap(period, dead_nodes)
            except StoreUnavailable as error:
                log.warning("reap_failed", error=str(error))
                due = now + period

    async def _reap(self, period: float, dead_nodes: tuple[str, ...]) -> float:
        """Take over what there is; return after how many seconds there may be more."""
        settings, world = self.host.settings, self.host.world
        expired = base.Expired(grace_ms=settings.grace, dead_nodes=dead_nodes)
        while True:
            reply = await self.host.call(expired)
            assert isinstance(reply, base.DueTurns)
            before = self.reaped
            todo = [turn for turn in reply.turns if not self.held(turn)]
            await gather([world.spawn(self._take_over(turn, settings.grace, dead_nodes), f"reap {turn}") for turn in todo])
            if len(reply.turns) < expired.limit or self.reaped == before:
                break
        left = settings.lease if reply.next is None else reply.next - reply.now
        return max(period, min(left, settings.lease) / 1000)

    async def _take_over(self, turn: str, grace: int, dead_nodes: tuple[str, ...]) -> None:
        try:
            for dead_node in dead_nodes or (None,):
                taken = await self.host.call(base.Reap(turn=turn, grace_ms=grace, dead_node=dead_node))
                if isinstance(taken, base.Reaped):
                    self.reaped += 1
                    return
        except StoreUnavailable as error:
            log.warning("reap_failed", turn=turn, error=str(error))
