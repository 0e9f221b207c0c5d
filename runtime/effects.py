"""What an actor asks outside: model requests, questions to policies; each reports to the mailbox."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import msgspec

from ..actors import errors
from ..actors.agent import Agent
from ..actors.chat import NOTHING_USED, AiMessage, ToolCall
from ..actors.checks import check_span
from ..actors.events import EventType
from ..actors.machine import messages as m
from ..actors.model import Delta, ModelRequest, StreamingChatModel
from ..actors.policies import ApprovalDecision, strictest
from ..actors.record import JsonObject, duration, milliseconds
from ..actors.stream import Accumulator
from ..actors.tokens import usage_of
from ..actors.tools import decision_of
from ..actors.turn import CallRecord
from ..actors.view import view_of
from . import inputs
from .around import Tally, reply_of
from .guard import TimeLimit, failure_of, stray
from .log import log
from .resolving import ask_resolvers, shown
from .settings import Settings

if TYPE_CHECKING:
    from .actor import Actor


async def ask_model(actor: Actor, iteration: int, failures: int) -> m.Message:
    """Send a model request and report what came of it.

    :raises StoreUnavailable: if the history could not be read; that is no answer of the model, the activation is lost.
    """
    agent, recall = actor.executor, actor.recall
    tally = Tally() if agent.hooks.model else None
    outcome: AiMessage | m.ModelFailed | None
    try:
        request = actor.request(agent, await recall.view(agent), iteration, failures)
    except errors.SnapshotCorrupt as error:
        outcome = m.ModelFailed(iteration, failures, failure_of(error))
    else:
        limit = TimeLimit(actor.host.world, duration(agent.options.timeout).total_seconds())
        try:
            if actor.steps is not None:
                await actor.steps.entered()
            if agent.tool_groups:
                request = await shown(actor, request)
            answer = _answer(actor, agent, request) if tally is None else _through(actor, agent, request, tally)
            outcome = _checked(await answer, actor.host.settings)
        # all of them: a SystemExit of a task would also be raised into the loop, a FormRequired lose the activation
        except BaseException as error:
            outcome = _failed(agent, limit, iteration, failures, error)
            if outcome is None:
                raise
        finally:
            limit.stop()
    reply = outcome if isinstance(outcome, AiMessage) else None
    spent = recall.spent()
    if tally is not None:
        spent = spent + tally.beside(reply)
    elif reply is not None and reply.usage is None:
        spent = spent + usage_of(recall.tokens(), reply)
    more = None if spent == NOTHING_USED else spent
    if isinstance(outcome, AiMessage):
        return m.ModelReplied(iteration, failures, outcome, more)
    return msgspec.structs.replace(outcome, spent=more)


def _failed(agent: Agent, limit: TimeLimit, iteration: int, failures: int, error: BaseException) -> m.ModelFailed | None:
    """Say what an exception that left a model means: nothing where it cancels the request."""
    if isinstance(error, asyncio.CancelledError):
        if limit.caught():
            late = errors.ModelTimeout(f"the model did not answer within {agent.options.timeout}")
            return m.ModelFailed(iteration, failures, failure_of(late), retryable=True)
        if not stray():
            return None
    found = failure_of(error)
    if isinstance(error, errors.RetryableModelError):
        return m.ModelFailed(iteration, failures, found, retryable=True, retry_after=_wish(error.retry_after))
    retryable = isinstance(error, TimeoutError | ConnectionError) and not isinstance(error, errors.ModelError)
    return m.ModelFailed(iteration, failures, found, retryable=retryable)


def _wish(seconds: object) -> int:
    """Return a provider's wish in milliseconds; what is no duration is no wish."""
    try:
        return milliseconds(check_span("retry_after", seconds))
    except errors.InvalidDefinition:
        return 0


def _checked(reply: object, settings: Settings) -> AiMessage:
    """Return a reply that can be stored. :raises ModelError: if it cannot be, or has too many calls."""
    if not isinstance(reply, AiMessage):
        raise errors.ModelError(f"the model's response was {'null' if reply is None else type(reply).__name__}, not an AiMessage")
    try:
        reply = inputs.checked_message("the model's response", reply, settings)
    except errors.InvalidDefinition as error:
        raise errors.ModelError(str(error)) from None
    if len(reply.tool_calls) > settings.max_calls:
        raise errors.ModelError(f"the model's response has {len(reply.tool_calls)} calls, the limit is {settings.max_calls}")
    return reply


async def _through(actor: Actor, agent: Agent, request: ModelRequest, tally: Tally) -> AiMessage:
    """Send a request through the hooks around model requests; what the model itself says is checked before they see it."""

    async def ask(sent: ModelRequest) -> AiMessage:
        return _checked(await _answer(actor, agent, sent), actor.host.settings)

    return await reply_of(actor, request, tally, ask)


def _answer(actor: Actor, agent: Agent, request: ModelRequest) -> Awaitable[AiMessage]:
    model = agent.model_for(request.messages)
    if not actor.state.streaming or not isinstance(model, StreamingChatModel):
        return model.complete(request)
    return _streamed(actor, model, request)


async def _streamed(actor: Actor, model: StreamingChatModel, request: ModelRequest) -> AiMessage:
    whole = Accumulator()
    shown = False
    tag: JsonObject = {"iteration": request.iteration, "attempt": request.attempt}
    async with _closing(model.stream(request)) as deltas:
        async for delta in deltas:
            whole.add(delta)
            actor.seen = whole.usage
            if actor.watched:
                shown = shown or bool(delta.content)
                _show(actor, delta, tag)
    message = whole.message()
    if message.content and not shown and actor.watched:
        actor.publish(EventType.MODEL_TEXT_DELTA, {**tag, "content": message.content})
    return message


@asynccontextmanager
async def _closing(deltas: AsyncIterator[Delta]) -> AsyncGenerator[AsyncIterator[Delta]]:
    """Close a stream that is left early, so that its connection ends at once."""
    try:
        yield deltas
    finally:
        close = getattr(deltas, "aclose", None)
        if close is not None:
            await close()


def _show(actor: Actor, delta: Delta, tag: JsonObject) -> None:
    if delta.content:
        actor.publish(EventType.MODEL_TEXT_DELTA, {**tag, "content": delta.content})
    if delta.reasoning:
        actor.publish(EventType.MODEL_REASONING_DELTA, {**tag, "content": delta.reasoning})
    for piece in delta.tool_calls:
        actor.publish(EventType.MODEL_TOOL_CALL_DELTA, {**tag, "toolCall": piece.to_dict()})


async def ask_policy(actor: Actor, call: CallRecord) -> m.Message:
    """Ask which tool a call names, where nobody knows that yet; else whether it may run: tool and agent, the strictest wins."""
    agent = actor.executor
    tool = agent.tool(call.name) or actor.resolved.get(call.id)
    if tool is None and agent.hooks.resolvers and call.id not in actor.resolved:
        return await ask_resolvers(actor, call)
    asked = ToolCall(call.id, call.name, call.effective, edited_by=call.edited_by)
    try:
        if tool is None:
            raise errors.ToolError(f"agent {agent.key} has no tool {call.name!r}")
        view = view_of(actor.state, version=actor.version, types=actor.host.types)
        decision = await _decision(tool.ask(call.effective, asked, turn=view))
        if agent.approval is not None:
            decision = strictest(decision, await _decision(agent.approval(view, asked, tool)))
        return m.PolicyDecided(call.id, decision)
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and not stray():
            raise
        log.exception("policy_failed", turn=actor.turn_id, call=call.id)
        return m.PolicyFailed(call.id, failure_of(error))


async def _decision(answer: object) -> ApprovalDecision:
    if inspect.isawaitable(answer):
        answer = await cast("Awaitable[object]", answer)
    return decision_of(answer)
