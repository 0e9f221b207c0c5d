"""How a turn comes into the world: checked, drafted, created and claimed in one step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ..actors.agent import Agent
from ..actors.chat import ChatMessage, UserMessage
from ..actors.checks import MAX_ID, MAX_KEY, check_flag, check_text
from ..actors.errors import AgentNotFound, ConversationBusy, IdempotencyKeyReused, InvalidDefinition
from ..actors.ids import RANDOM_BYTES, root_id
from ..actors.machine.create import digest_of, new_turn
from ..actors.machine.draft import NOBODY, Context, Draft
from ..actors.machine.ending import superseded_by
from ..actors.policies import ExecutionPolicy, TurnOptions
from ..store import base
from . import inputs, persist
from .actor import Actor

if TYPE_CHECKING:
    from .node import Node

ROOM = 64
"""How many turns a conversation lets wait."""
USUAL = TurnOptions()


class StartRequest(msgspec.Struct, gc=False, frozen=True, kw_only=True):
    """The arguments of `Runtime.start`, as they were given."""

    agent: Agent | str
    input: str | UserMessage
    conversation: str | None
    history: Iterable[ChatMessage] | None
    tenant: str | None
    metadata: Mapping[str, object] | None
    streaming: bool | None
    options: TurnOptions | None
    idempotency_key: str | None
    when_busy: base.WhenBusy = "refuse"


class Definition(msgspec.Struct, gc=False, frozen=True):
    """What a start needs of an agent; on a node that runs nothing the agent itself is unknown."""

    id: str
    version: str
    policy: ExecutionPolicy | None = None
    instructions: str | None = None
    agent: Agent | None = None
    delegates: Mapping[str, Agent[Any]] = NOBODY


async def find_agent(node: Node, agent: Agent | str) -> Agent:
    """Return the agent that is meant. :raises AgentNotFound: if it is not known here."""
    if isinstance(agent, Agent):
        if await node.agents.exact(agent.id, agent.version) is not agent:
            raise AgentNotFound(agent.id, agent.version)
        found = agent
    elif isinstance(agent, str):
        check_text("agent", agent, MAX_ID, empty=False)
        found = await node.agents.active(agent)
    else:
        raise InvalidDefinition(f"agent must be an Agent or the id of one, not {type(agent).__name__}")
    if found.key not in node.agents.known:  # the loader has learned of it since it was asked the last time
        node.learn_agents()
    return found


async def find_definition(node: Node, agent: Agent | str) -> Definition:
    """Return the agent that is meant, or, on a node that runs nothing, what some executor announces under its id.

    A node announces its agents in the loader's order, the active version of an id last; the node seen last decides.
    """
    try:
        found = await find_agent(node, agent)
        delegates = NOBODY if found.planning is None else await node.agents.delegates(found)
        return Definition(found.id, found.version, found.policy, found.instructions, found, delegates)
    except AgentNotFound:
        if node.execute or not isinstance(agent, str):
            raise
        reply = await node.call(base.ListNodes())
        assert isinstance(reply, base.Nodes)
        rows = sorted(reply.nodes, key=lambda row: row.beat)
        versions = [key.rpartition("@")[2] for row in rows for key in row.agents if key.rpartition("@")[0] == agent]
        if not versions:
            raise
        return Definition(agent, versions[-1])


async def start(node: Node, request: StartRequest) -> str:
    """Start a turn and return its id (see `Runtime.start`)."""
    settings = node.settings
    message = inputs.user_message(request.input, settings)
    inputs.name("conversation", request.conversation, limit=MAX_KEY)
    inputs.name("tenant", request.tenant)
    inputs.name("idempotency_key", request.idempotency_key, limit=MAX_KEY)
    check_flag("streaming", request.streaming, optional=True)
    options = USUAL if request.options is None else request.options
    if not isinstance(options, TurnOptions):
        raise InvalidDefinition(f"options must be TurnOptions, not {type(options).__name__}")
    inputs.when_busy(request.when_busy, request.conversation)
    history = inputs.history(request.history, settings)
    metadata, marks = inputs.metadata(node.types, request.metadata, options.metadata)
    found = await find_definition(node, request.agent)
    by = node.placement.claim_by(new=True) if found.agent is not None and node.execute and node.placement.free > 0 else None
    root = root_id(node.world.token(RANDOM_BYTES), request.conversation, request.idempotency_key, node.store.namespace)
    while True:
        draft = new_turn(
            root,
            found.id,
            found.version,
            message,
            _context(node, found, by),
            instructions=found.instructions,
            history=history,
            policy=options.execution_policy or found.policy,
            conversation=request.conversation,
            tenant=request.tenant,
            metadata=metadata,
            marks=marks,
            streaming=options.streaming if request.streaming is None else request.streaming,
            bound=found.agent is not None,
            recalls=request.history is None,
        )
        if by is None or not draft.state.status.terminal:
            digest = "" if request.idempotency_key is None else digest_of(found.id, message)
            return await _create(node, request, draft, digest, by)
        by = None  # a budget of nothing: it is created READY like every turn, and ends in its first activation


def _context(node: Node, found: Definition, by: base.ClaimBy | None) -> Context:
    return Context(
        now=node.now(),
        activation="" if by is None else by.activation,
        agent=found.agent,
        execute=by is not None,
        delegates=found.delegates,
        spread=node.world.spread(),
    )


async def _create(node: Node, request: StartRequest, draft: Draft, digest: str, by: base.ClaimBy | None) -> str:
    new = persist.new_turn_of(draft, digest, node.settings)
    cause = superseded_by(new.turn) if request.when_busy == "supersede" else ""

    async def created() -> str:
        sent = node.world.monotonic()
        reply = await node.call(base.Create(new=new, claim=by, when_busy=request.when_busy, room=ROOM, cause=cause))
        match reply:
            case base.Claimed():
                assert by is not None
                token = base.Token(by.activation, reply.epoch)
                actor = Actor(node, draft.state, token, reply.version, draft.context.agent, draft.context.delegates)
                actor.extend(sent)
                actor.recall.begin(draft.messages, len(draft.messages))
                actor.intake.put(reply.mail, reply.cancel)
                actor.first = draft.actions
                if node.watch.listeners:
                    node.watch.tell_all(persist.first_events(draft))
                node.placement.adopt(actor)
            case base.Busy():
                raise ConversationBusy(request.conversation or "", reply.turn, reply.status, reply.queued)
            case base.KeyReused():
                raise IdempotencyKeyReused(reply.turn, request.idempotency_key or "")
            case base.Existing():
                return reply.turn
            case base.Created() | base.Queued():
                node.watch.tell_all(persist.first_events(draft))
            case _:
                pass
        return new.turn

    return await node.placement.owning(new.turn, by, created)
