"""The first draft of a turn."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from ..carried import Marks
from ..chat import ChatMessage, SystemMessage, UserMessage
from ..events import TURN_STARTED
from ..policies import ExecutionPolicy
from ..record import JsonObject
from ..turn import Tree, TurnState
from ..used import active_ms
from . import limits, recall
from .advance import settle
from .draft import DEFAULT_POLICY, ChildTurn, Context, Draft
from .messages import StartChild


def digest_of(agent_id: str, input: UserMessage) -> str:
    """Return the digest by which a repeated start is recognised."""
    return hashlib.sha256(msgspec.json.encode((agent_id, input), order="deterministic")).hexdigest()[:32]


def new_turn(
    turn_id: str,
    agent_id: str,
    agent_version: str,
    input: UserMessage,
    context: Context,
    *,
    instructions: str | None = None,
    history: Sequence[ChatMessage] = (),
    policy: ExecutionPolicy | None = None,
    parent: str | None = None,
    conversation: str | None = None,
    tenant: str | None = None,
    metadata: JsonObject | None = None,
    marks: Marks = (),
    streaming: bool = False,
    bound: bool = True,
    recalls: bool = True,
) -> Draft:
    """Return a READY turn, taken as far as the context allows (with `execute`, its first model request is intended).

    :param bound: False where the agent is not known here; the first executor adds what is missing.
    :param recalls: whether a root asks what its conversation remembers; False where it was given another history.
    """
    now = context.now
    draft = Draft(
        TurnState(
            turn_id=turn_id,
            agent_id=agent_id,
            agent_version=agent_version,
            parent_turn_id=parent,
            conversation_id=conversation,
            tenant=tenant,
            metadata=metadata or None,
            metadata_marks=marks,
            streaming=streaming,
            policy=policy if policy != DEFAULT_POLICY else None,
            created_at=now,
            updated_at=now,
        ),
        context,
    )
    if bound and context.agent is not None:
        draft.state.definition = context.agent.digest
    opening = [*(message for message in history if not isinstance(message, SystemMessage)), input]
    if conversation is not None and parent is None:
        recall.set_aside(draft, [*opening], recall=recalls, bound=bound)
    elif bound:
        recall.open_history(draft, instructions, opening)
    else:
        draft.state.opening = [*opening]
    draft.emit(TURN_STARTED)
    settle(draft)
    return draft


def new_child(parent: TurnState, message: StartChild, now: int) -> ChildTurn:
    """Return a child that inherits its parent's conversation, tenant, metadata, streaming, and what bounds the tree."""
    own = message.metadata or {}
    draft = new_turn(
        message.child_id,
        message.agent_id,
        message.agent_version,
        message.input,
        Context(now=now, activation="", execute=False),
        instructions=message.instructions,
        policy=message.policy,
        parent=parent.turn_id,
        conversation=parent.conversation_id,
        tenant=parent.tenant,
        metadata={**(parent.metadata or {}), **own},
        marks=(*(mark for mark in parent.metadata_marks if own.keys().isdisjoint(mark[0][:1])), *message.marks),
        streaming=parent.streaming,
        bound=message.bound,
    )
    above = parent.tree or Tree(0, limits.tree_budget(parent))
    draft.state.tree = Tree(
        above.depth + 1,
        above.budget,
        above.active_ms + active_ms(parent, now),
        above.planning if message.planning is None else message.planning,
        () if parent.tree is None else (*above.above, parent.turn_id),
    )
    return finished_child(draft, digest_of(message.agent_id, message.input))


def finished_child(draft: Draft, digest: str) -> ChildTurn:
    """Return a draft of a new turn as a child to be stored."""
    draft.state.message_count = len(draft.messages)
    draft.state.event_count = len(draft.events)
    return ChildTurn(draft.state, tuple(draft.messages), tuple(draft.events), digest)
