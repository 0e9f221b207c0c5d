"""The public object: one node in one process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import final

import msgspec

from ..actors.agent import Agent
from ..actors.carried import StructTypes
from ..actors.chat import ChatMessage, UserMessage
from ..actors.checks import MAX_ID, MAX_KEY, check_flag, check_text, check_whole, shown
from ..actors.errors import InvalidDefinition
from ..actors.loader import AgentLoader
from ..actors.memory import ChatMemory
from ..actors.output import Said, output_of
from ..actors.policies import TurnOptions
from ..actors.record import JsonValue, Seconds
from ..actors.turn import Status
from ..actors.view import Page, TurnView
from ..actors.waits import Suspension, SuspensionType
from ..store import base
from ..store.urls import open_store
from . import inputs, views
from .agents import Agents
from .conversations import ConversationRef
from .hooks import Listener
from .node import Node
from .records import NodeInfo, Statistics
from .ref import TurnRef
from .settings import ChangedDefinition, Confirm, Settings, bounded, confirmed, parks
from .starting import StartRequest, start
from .world import Clock

WEEK = timedelta(days=7)


def node_of(runtime: Runtime) -> Node:
    """Return the node behind a Runtime, for the test kit."""
    return runtime._node  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the one door


@final
class Runtime:
    """Runs turns, sends messages to them, and watches them, from this process.

    An async context manager; it may be entered and left in different tasks. All periods derive from `lease`.

    :param store: ``memory://`` (private), ``memory://name`` (shared in the process), ``sqlite:///file.db``, ``redis://host:6379/0``,
        ``redis+cluster://host:7000``, or a `TurnStore`.
    :param agents: the agents this node runs, or a loader of them.
    :param node: a name for people; a random one by default.
    :param execute: False makes an API-only node: it applies answers and cancels, and starts no effect.
    :param services: handed to tools as ``ToolContext.services``.
    :param chat_memory: where conversations are remembered, instead of in the store; the same on all nodes of a store.
    :param lease: how long an owner keeps a turn without renewing; at least 1 s; by default 10 s (30 s on a server).
    :param max_active: how many turns may live here at once.
    :param drain: how long running effects may go on when the runtime is left.
    :param cancel_grace: how long a cancelled turn waits for tools that cannot be interrupted.
    :param retention: how long a tree is kept behind its root's end.
    :param confirm: ``"once"``: a `once` tool starts only when a replica of the store has the save of its start; ``"all"``: every
        save asks for that. Memory and SQLite have no replicas and take it as given; on a Redis without one nothing is confirmed,
        so no `once` tool ever starts.
    :param changed_definition: what becomes of an open turn whose agent is not what it was under the same version. ``"run"``: it
        goes on with the agent as it is now; ``"park"``: it is put into quarantine, until somebody revives it.
    :param max_snapshot: the largest snapshot and the largest message that is stored, in bytes.
    :param types: the Structs that may stand in metadata and in form data, beside JSON-like values, each under a name of its own.
        They are stored as their JSON; a node without the type has them as that.
    :raises InvalidDefinition: if an argument is wrong.
    """

    def __init__(
        self,
        store: str | base.TurnStore = "memory://",
        *,
        agents: Iterable[Agent] | AgentLoader = (),
        node: str | None = None,
        execute: bool = True,
        services: object = None,
        chat_memory: ChatMemory | None = None,
        listeners: Iterable[Listener] = (),
        lease: Seconds | None = None,
        max_active: int = 10_000,
        drain: Seconds = 20,
        cancel_grace: Seconds = 10,
        retention: Seconds = WEEK,
        confirm: Confirm | None = None,
        changed_definition: ChangedDefinition = "run",
        max_snapshot: int = 1 << 20,
        types: Iterable[type[msgspec.Struct]] = (),
        clock: Clock | None = None,
    ) -> None:
        check_text("node", node, MAX_ID, optional=True, empty=False)
        check_flag("execute", execute)
        check_whole("max_active", max_active, 1)
        check_whole("max_snapshot", max_snapshot, 4096)
        inputs.clock(clock)
        opened = open_store(store)
        settings = Settings(
            lease=bounded("lease", opened.lease_seconds if lease is None else lease, 1),
            max_active=max_active,
            drain=bounded("drain", drain),
            cancel_grace=bounded("cancel_grace", cancel_grace),
            retention=bounded("retention", retention, 1),
            max_snapshot=max_snapshot,
            max_message=max_snapshot,
            confirm=confirmed(confirm),
            park_changed=parks(changed_definition),
            relay=chat_memory is not None,
        )
        self._node = Node(
            opened,
            Agents(agents),
            node=node,
            execute=execute,
            services=services,
            listeners=inputs.listeners(listeners),
            settings=settings,
            clock=clock,
            chat_memory=inputs.chat_memory(chat_memory),
            types=StructTypes(types),
        )
        self._stop = asyncio.Event()

    # ------------------------------------------------------------------------------------------------------ life cycle

    async def __aenter__(self) -> Runtime:
        """Connect to the store and start to look for work.

        :raises StoreUnavailable: if the store is out of reach or of an unknown format.
        """
        await self._node.start()
        self._stop.clear()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Drain: claim nothing, let effects end, hand the rest over; then leave the store.

        On a clock that stands still, time passes by itself where this is left by an exception: nobody else would move it.
        """
        leaving = self._node.stop()
        await (leaving if error is None else self._node.world.clock.during(leaving))

    async def serve(self) -> None:
        """Run until SIGINT, SIGTERM or `stop`, then drain."""
        if not self._node.open:
            async with self:
                return await self.serve()
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self._stop.set)
        try:
            await self._stop.wait()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
        return None

    def stop(self) -> None:
        """Let `serve` end."""
        self._stop.set()

    @property
    def healthy(self) -> bool:
        """Tell whether the runtime is open and all its parts run."""
        return self._node.healthy

    @property
    def node(self) -> str:
        """The name of this node."""
        return self._node.node

    # ----------------------------------------------------------------------------------------------------------- turns

    async def start(
        self,
        agent: Agent[Said] | str,
        input: str | UserMessage,
        *,
        conversation: str | None = None,
        when_busy: base.WhenBusy = "refuse",
        history: Iterable[ChatMessage] | None = None,
        tenant: str | None = None,
        metadata: Mapping[str, object] | None = None,
        streaming: bool | None = None,
        options: TurnOptions | None = None,
        idempotency_key: str | None = None,
    ) -> TurnRef[Said]:
        """Start a turn; returns when it is saved, and the turn runs.

        A start that is repeated with its `idempotency_key` finds the turn of the first one.

        :param agent: one of this runtime's agents, or the id of one (then its active version; outputs are as JSON has them).
        :raises AgentNotFound: if no such agent is known here.
        :param conversation: the turn belongs to it, sees what was said there (as far as the agent's window goes), and adds to it.
        :param when_busy: what happens if the conversation has an open turn. ``"refuse"``: nothing is started. ``"queue"``: this one
            waits until it and all that were queued before have ended. ``"supersede"``: it and all queued ones are cancelled, and
            this one runs when it has ended.
        :param metadata: a dict of JSON-like values, and of Structs of the Runtime's `types`.
        :param history: what the turn sees in front of its input, instead of what was said in the conversation; ``[]`` is nothing.
        :raises ConversationBusy: if the conversation has an open turn (``"refuse"``), or 64 queued ones (``"queue"``).
        :raises IdempotencyKeyReused: if the key was used for another agent or input.
        :raises InvalidDefinition: if an argument is wrong.
        :raises SnapshotTooLarge: if a message is over the limit.
        """
        request = StartRequest(
            agent=agent,
            input=input,
            conversation=conversation,
            when_busy=when_busy,
            history=history,
            tenant=tenant,
            metadata=metadata,
            streaming=streaming,
            options=options,
            idempotency_key=idempotency_key,
        )
        output = agent.output if isinstance(agent, Agent) else None
        return TurnRef(self._node, await start(self._node, request), output)

    async def run(
        self,
        agent: Agent[Said] | str,
        input: str | UserMessage,
        *,
        conversation: str | None = None,
        when_busy: base.WhenBusy = "refuse",
        history: Iterable[ChatMessage] | None = None,
        tenant: str | None = None,
        metadata: Mapping[str, object] | None = None,
        streaming: bool | None = None,
        options: TurnOptions | None = None,
        idempotency_key: str | None = None,
        timeout: Seconds | None = None,
    ) -> TurnView[Said]:
        """Start a turn and wait until it settles (see `start` and `TurnRef.settle`)."""
        inputs.optional_seconds("timeout", timeout)
        turn = await self.start(
            agent,
            input,
            conversation=conversation,
            when_busy=when_busy,
            history=history,
            tenant=tenant,
            metadata=metadata,
            streaming=streaming,
            options=options,
            idempotency_key=idempotency_key,
        )
        return await turn.settle(timeout)

    def turn(self, turn_id: str, *, output_type: type[Said] | object = None) -> TurnRef[Said]:
        """Return a turn's address; no I/O, so a wrong id or output type is found out when it is used.

        :param output_type: what views give the `final_output` as; without it that is as JSON has it.
        :raises InvalidDefinition: if the id is no text, or the type has no JSON form.
        """
        if not isinstance(turn_id, str):
            raise InvalidDefinition(f"turn_id must be text, not {type(turn_id).__name__}")
        return TurnRef(self._node, turn_id, None if output_type is None else output_of("output_type", output_type))

    async def inbox(
        self,
        *,
        assignee: str | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        type: SuspensionType | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Page[Suspension]:
        """List the open waits that people answer, oldest first; scheduled retries only where `type` asks for them."""
        if type is not None and not isinstance(type, SuspensionType):
            raise InvalidDefinition(f"type must be a SuspensionType, not {shown(type)}")
        for name, value in (("assignee", assignee), ("tenant", tenant), ("agent", agent)):
            inputs.name(name, value)
        reply = await self._node.call(
            base.ListWaits(
                assignee=assignee,
                tenant=tenant,
                agent=agent,
                kind=None if type is None else type.value,
                without=(SuspensionType.RETRY.value,) if type is None else (),
                limit=inputs.page_limit(limit),
                after=inputs.cursor(after),
            )
        )
        assert isinstance(reply, base.WaitListing)
        return Page(views.readable_waits(reply.bodies), reply.next)

    async def turns(
        self,
        *,
        status: Status | None = None,
        agent: str | None = None,
        conversation: str | None = None,
        root: str | None = None,
        tenant: str | None = None,
        quarantined: bool | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Page[TurnView[JsonValue]]:
        """List turns, oldest first; with `quarantined=True` those that are parked."""
        if status is not None and not isinstance(status, Status):
            raise InvalidDefinition(f"status must be a Status, not {shown(status)}")
        check_flag("quarantined", quarantined, optional=True)
        for name, value in (("agent", agent), ("conversation", conversation), ("root", root), ("tenant", tenant)):
            inputs.name(name, value, limit=MAX_KEY)
        reply = await self._node.call(
            base.ListTurns(
                status=None if status is None else status.value,
                agent=agent,
                conversation=conversation,
                root=root,
                tenant=tenant,
                quarantined=quarantined,
                limit=inputs.page_limit(limit),
                after=inputs.cursor(after),
            )
        )
        assert isinstance(reply, base.TurnListing)
        return Page(tuple(views.view_of_look(look, self._node.types) for look in reply.turns), reply.next)

    def conversation(self, conversation_id: str) -> ConversationRef:
        """Return a conversation's address; no I/O."""
        check_text("conversation_id", conversation_id, MAX_KEY, empty=False)
        return ConversationRef(self._node, conversation_id)

    async def nodes(self) -> list[NodeInfo]:
        """List the nodes that have announced themselves, and what they run."""
        reply = await self._node.call(base.ListNodes())
        assert isinstance(reply, base.Nodes)
        return [NodeInfo.of(row) for row in reply.nodes]

    def statistics(self) -> Statistics:
        """Return what this node does right now."""
        node = self._node
        placement = node.placement
        actors, counts = placement.actors.values(), node.counters
        return Statistics(
            live_turns=len(actors),
            effects=sum(not task.done() for actor in actors for task in actor.tasks),
            threads=len(placement.threads) + sum(len(actor.threads) for actor in actors),
            watched_trees=node.watch.trees,
            home_partitions=len(placement.homes.mine),
            unclaimable=len(placement.skips),
            stranded=placement.skips.stranded(placement.homes.announced),
            longest_stall=node.lag.longest,
            claims=counts.claims,
            held=counts.held,
            lost=counts.lost,
            fenced=counts.fenced,
            renewals_failed=counts.renewals_failed,
            reaped=counts.reaped,
            quarantined=counts.quarantined,
            bells=counts.bells,
            unconfirmed=counts.unconfirmed,
            rewinds=counts.rewinds,
            forgotten=counts.forgotten,
            hooks_failed=counts.hooks_failed,
            relayed=counts.relayed,
            relay_failures=counts.relay_failures,
            unrelayed=node.relay.waiting,
            draining=node.draining,
        )

    def add_listener(self, listener: Listener) -> None:
        """Hand every event of turns that run here to a function, behind the save that stores it."""
        self._node.watch.listeners += inputs.listeners([listener])

    def remove_listener(self, listener: Listener) -> None:
        """Stop handing events to a function; one that was never added is ignored."""
        if listener in self._node.watch.listeners:
            self._node.watch.listeners.remove(listener)
