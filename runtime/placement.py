"""Which turns live here: the registry of activations, the claims behind it, the bells.

An entry in the registry is made before a claim is sent and removed only when the activation's last task has ended, so a process
has at most one activation of a turn, without a lock. A thread may outlive its activation: it keeps its slot, and the turn is not
taken up again here by itself; only an answer or a cancel may do that before the thread has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from ..actors.agent import Agent
from ..actors.errors import SnapshotCorrupt, SnapshotTooNew, StoreUnavailable, TurnholdError
from ..actors.ids import partition_of
from ..actors.machine import messages as m
from ..actors.machine.draft import NOBODY
from ..actors.turn import SCHEMA, TurnState
from ..store import base, codec
from .actor import Actor
from .agents import Agents
from .errors import Crashed
from .guard import TimeLimit, stray
from .homes import Homes
from .host import Host
from .leases import Leases
from .log import log
from .offers import Offers
from .polling import Poller
from .reaping import Reaper
from .skips import Skips

T = TypeVar("T")


class LoaderFailed(Exception):
    """The loader raised, or took too long, instead of giving an agent; `delay` says in how many milliseconds it is asked again."""

    def __init__(self, failures: int) -> None:
        super().__init__(failures)
        self.delay = min(60_000, 1000 << min(failures - 1, 6))


class Placement:
    """The registry of live activations, and what brings them here, keeps them here, and takes them over.

    :param homes: the other nodes, and who looks where.
    """

    def __init__(self, host: Host, agents: Agents, homes: Homes) -> None:
        self.host = host
        self.agents = agents
        self.homes = homes
        self.actors: dict[str, Actor] = {}
        self.claiming: set[str] = set()
        self.threads: dict[asyncio.Task[object], str] = {}
        self.tasks: dict[asyncio.Task[None], str] = {}
        self.failures: dict[str, int] = {}
        self.skips = Skips(host.world.monotonic)
        self.leases = Leases(host, self.actors)
        self.poller = Poller(self, homes)
        self.offers = Offers(self)
        self.reaper = Reaper(self)

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
        """Return how many more turns may live here; asked before a claim, never after.

        None while the node leaves, and none while it cannot renew what it has.
        """
        if self.host.draining or self.leases.cut_off:
            return 0
        return self.host.settings.max_active - len(self.actors) - len(self.claiming) - len(self.threads)

    def claim_by(self, *, new: bool = False) -> base.ClaimBy:
        """Return this node's wish to own a turn, under a new activation; of a new one it knows the history."""
        host, settings = self.host, self.host.settings
        return base.ClaimBy(
            activation=host.new_id(),
            node=host.node,
            lease_ms=settings.lease,
            agents=self.agents.known if host.execute else None,
            schema=SCHEMA,
            tail=settings.tail if host.execute and not new else 0,
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
                self._claimed(turn_id)

    async def _again(self, turn_id: str, work: Callable[[], Coroutine[object, object, object]]) -> None:
        try:
            await work()
        except TurnholdError as error:
            log.info("abandoned_claim", turn=turn_id, error=str(error))
        finally:
            self._claimed(turn_id)

    async def activate(
        self, turn_id: str, by: base.ClaimBy, claimed: base.Claimed, sent: float, brought: Mapping[str, m.MailMessage] | None = None
    ) -> Actor | None:
        """Bring a claimed turn to life; `None` where that is not possible here (it was given back, or parked).

        :param brought: the mail that was delivered in the same step, as the sender has it (see `Intake.put`).
        """
        host = self.host
        execute = host.execute
        host.counters.claims += 1
        token = base.Token(by.activation, claimed.epoch)
        try:
            state = codec.decode_state(turn_id, claimed.schema, claimed.snapshot)
            codec.check_counts(state, claimed.message_count, claimed.event_count)
            agent, delegates = await self._loaded(state) if execute else (None, NOBODY)
            tail = codec.decode_entries(turn_id, claimed.tail) if execute else []
        except SnapshotCorrupt as error:
            log.exception("snapshot_unreadable", turn=turn_id)
            await host.call(base.Quarantine(turn=turn_id, token=token, reason=str(error)[:500]))
            return None
        except SnapshotTooNew:
            await self._give_back(turn_id, token)
            return None
        except LoaderFailed as error:
            await host.call(base.Abandon(turn=turn_id, token=token, delay_ms=error.delay))
            return None
        if host.dead:  # since the loader was asked; a task that is cancelled before it begins would leave its actor behind
            raise Crashed
        if execute and agent is None and claimed.cancel is None and state.ending is None:
            await self._give_back(turn_id, token)
            return None
        actor = Actor(host, state, token, claimed.version, agent, delegates)
        actor.extend(sent)
        actor.recall.begin(tail, claimed.message_count)
        actor.mailbox.tell(m.Activated(claimed.crashes, claimed.quarantined))
        actor.intake.put(claimed.mail, claimed.cancel, brought)
        self.adopt(actor)
        return actor

    async def _loaded(self, state: TurnState) -> tuple[Agent | None, Mapping[str, Agent[Any]]]:
        """Return a turn's agent, and who may get tasks of it.

        :raises LoaderFailed: if the loader raised; counted by agent, until it gives one again.

        It is not waited for longer than a renewal period: the poller waits, too, and nobody renews the turn meanwhile.
        """
        try:
            agent = await self.agents.exact(state.agent_id, state.agent_version, self._limited)
            delegates = NOBODY if agent is None or agent.planning is None else await self.agents.delegates(agent, self._limited)
        except BaseException as error:  # a cancellation that the loader let out, too: it would end the poller, or who answers
            if isinstance(error, asyncio.CancelledError) and not stray():
                raise
            key = f"{state.agent_id}@{state.agent_version}"
            failures = self.failures[key] = self.failures.get(key, 0) + 1
            log.exception("loader_failed", turn=state.turn_id, agent=key, failures=failures)
            raise LoaderFailed(failures) from error
        if self.failures:
            self.failures.pop(f"{state.agent_id}@{state.agent_version}", None)
        return agent, delegates

    @contextmanager
    def _limited(self) -> Generator[None]:
        limit = TimeLimit(self.host.world, self.host.settings.renew / 1000)
        try:
            yield
        except asyncio.CancelledError:
            if limit.caught():
                raise TimeoutError("the loader takes too long") from None
            raise
        finally:
            limit.stop()

    def adopt(self, actor: Actor) -> None:
        """Enter an activation and let it run."""
        turn_id = actor.turn_id
        self.actors[turn_id] = actor
        self.leases.watch(actor)
        self.skips.drop(turn_id)
        self.offers.taken(turn_id)
        self.tasks[self.host.world.spawn(self._live(actor), f"turn {turn_id}")] = turn_id

    async def _live(self, actor: Actor) -> None:
        turn_id = actor.turn_id
        try:
            await actor.run()
        except Exception:
            log.exception("actor_failed", turn=turn_id)
            actor.lost = True
        finally:
            if actor.lost:
                self.host.counters.lost += not actor.parked
                self.host.watch.ring(turn_id)
            if self.actors.get(turn_id) is actor:
                del self.actors[turn_id]
            for thread in actor.threads:
                self.threads[thread] = turn_id
                thread.add_done_callback(self._thread_over)
            self.offers.ended(turn_id)
            if self.poller.left or actor.lost or actor.mailbox.rung:
                self.ring()
            self._forget()

    def _forget(self) -> None:
        """Forget the task that runs: nothing of it is left but its return."""
        task = asyncio.current_task()
        assert task is not None
        del self.tasks[task]

    def _over(self, task: asyncio.Task[None]) -> None:
        self.tasks.pop(task, None)

    def _thread_over(self, thread: asyncio.Task[object]) -> None:
        del self.threads[thread]
        self.ring()

    async def _give_back(self, turn_id: str, token: base.Token) -> None:
        self.skips.add(turn_id)
        await self.host.call(base.Abandon(turn=turn_id, token=token, delay_ms=1000))

    # --------------------------------------------------------------------------------------------------------- claims

    def take(self, turn_id: str) -> None:
        """Claim a turn by a task of this node; it is not here, and there is room for it."""
        self.claiming.add(turn_id)
        task = self.host.world.spawn(self._take(turn_id), f"claim {turn_id}")
        self.tasks[task] = turn_id
        task.add_done_callback(self._over)

    async def _take(self, turn_id: str) -> None:
        await self.claim(turn_id)

    async def claim(self, turn_id: str) -> bool:
        """Claim a turn that is in `claiming`; tell whether the store has answered something that changes what is due."""
        try:
            by = self.claim_by()
            sent = self.host.world.monotonic()
            reply = await self.host.call(base.Claim(turn=turn_id, by=by))
            match reply:
                case base.Claimed():
                    await self.activate(turn_id, by, reply, sent)
                case base.UnknownAgent(agent, version):
                    self.skips.add(turn_id, f"{agent}@{version}")
                case base.TooNew():
                    self.skips.add(turn_id)
                case _:
                    self.skips.drop(turn_id)
        except StoreUnavailable as error:
            log.warning("claim_failed", turn=turn_id, error=str(error))
            self.offers.failed(turn_id)
            return False
        finally:
            self._claimed(turn_id)
        if isinstance(reply, base.NotDue) and reply.wake is not None and self.homes.shared:
            self.offers.again(turn_id, reply.wake)
        return not isinstance(reply, base.NotDue | base.Gone)

    def _claimed(self, turn_id: str) -> None:
        """A claim is over, however it ended."""
        self.claiming.discard(turn_id)
        if turn_id not in self.actors:
            self.offers.ended(turn_id)

    # ---------------------------------------------------------------------------------------------------------- bells

    def ring(self) -> None:
        """Let the poller look for work."""
        self.poller.ring()

    def look_everywhere(self) -> None:
        """Anything may have happened: look for work in all partitions, for mail, and whether somebody has died."""
        self.poller.look_everywhere()
        self.reaper.alarm()
        if self.homes.shared:  # bells were lost, so the store was out of reach: of the others too, perhaps
            self.reaper.doubt()
            self.leases.hurry()

    async def renew_now(self) -> None:
        """Learn who here has mail, where bells are often missed and a renewal is cheap."""
        if not self.homes.shared:
            await self.leases.renew_now()

    def work(self, turn_id: str) -> None:
        """Mail, a cancel or a new turn may need somebody. On a partitioned store only an owner is meant."""
        self.host.counters.bells += 1
        actor = self.live(turn_id)
        if actor is not None:
            actor.mailbox.ring()
        elif not self.homes.shared:
            if self.skips.rung(turn_id):
                self.poller.look_everywhere()
            self.ring()

    def due(self, turn_id: str, wake: int, agent: str) -> None:
        """A turn without an owner may be claimed from `wake` (store ms) on by those who run its agent (``id@version``).

        Everybody hears this; the home of its partition among them acts on it. A turn that lives here may just be let go by the
        very save that rang.
        """
        self.host.counters.bells += 1
        actor = self.live(turn_id)
        if actor is not None:
            actor.mailbox.ring()
        if self.homes.takes(partition_of(turn_id), agent):
            self.skips.rung(turn_id)
            self.offers.add(turn_id, wake)
        elif not self.homes.announced(agent):
            self.skips.rung(turn_id)  # a cancel, perhaps, which needs nobody who runs the agent: whoever looks next finds it
