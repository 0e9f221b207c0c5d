"""What an actor does outside: model requests, tool attempts, questions to policies; each reports to the mailbox."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import msgspec

from ..actors import errors
from ..actors.agent import Agent
from ..actors.chat import AiMessage, ToolCall, Usage
from ..actors.checks import check_span
from ..actors.context import ToolContext
from ..actors.events import EventType
from ..actors.forms import FormDefinition, find_form_required, form_loop
from ..actors.ids import root_of
from ..actors.machine import messages as m
from ..actors.machine import texts
from ..actors.model import Delta, ModelRequest, StreamingChatModel
from ..actors.policies import ApprovalDecision, strictest
from ..actors.record import JsonObject, duration, milliseconds
from ..actors.results import result_text
from ..actors.stream import Accumulator
from ..actors.tokens import usage_of
from ..actors.tools import Tool, decision_of
from ..actors.turn import CallRecord, Failure
from ..actors.view import view_of
from . import inputs
from .log import log
from .settings import Settings
from .world import World

if TYPE_CHECKING:
    from .actor import Actor

MAX_ERROR = 4000


def failure_of(error: BaseException) -> Failure:
    """Return an exception as it is stored: its class and its (bounded) text."""
    try:
        text = str(error) or type(error).__name__
    except Exception:
        text = f"{type(error).__name__}, which has no text"
    return Failure(type(error).__name__, text.encode(errors="replace")[:MAX_ERROR].decode(errors="replace"))


class TimeLimit:
    """Cancels the current task after some seconds; `hit` tells whether it was this that cancelled."""

    __slots__ = ("_task", "_timer", "hit")

    def __init__(self, world: World, seconds: float | None) -> None:
        self.hit = False
        self._task = asyncio.current_task()
        self._timer = None if seconds is None else world.timer(seconds, self._fire)

    def _fire(self) -> None:
        if self._task is not None:
            self.hit = True
            self._task.cancel()

    def stop(self) -> None:
        """Do not fire any more."""
        if self._timer is not None:
            self._timer.cancel()

    def caught(self) -> bool:
        """Tell whether a CancelledError just caught is ours alone; if so, the task counts as not cancelled."""
        return self.hit and self._task is not None and self._task.uncancel() == 0


def stray() -> bool:
    """Tell whether a CancelledError just caught cancels nobody here: user code let it out, so it is an error like others."""
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


async def ask_model(actor: Actor, iteration: int, failures: int) -> m.Message:
    """Send a model request and report what came of it.

    :raises StoreUnavailable: if the history could not be read; that is no answer of the model, the activation is lost.
    """
    message = await _asked(actor, iteration, failures)
    spent = actor.recall.spent
    if isinstance(message, m.ModelReplied) and message.reply.usage is None:
        spent = spent + usage_of(actor.recall.tokens, message.reply)
    return message if spent == Usage() else msgspec.structs.replace(message, spent=spent)


async def _asked(actor: Actor, iteration: int, failures: int) -> m.ModelReplied | m.ModelFailed:
    agent = actor.executor
    try:
        request = await actor.request(iteration, failures)
    except errors.SnapshotCorrupt as error:
        return m.ModelFailed(iteration, failures, failure_of(error))
    limit = TimeLimit(actor.host.world, duration(agent.options.timeout).total_seconds())
    try:
        reply = _checked(await _answer(actor, agent, request), actor.host.settings)
        return m.ModelReplied(iteration, failures, reply)
    except asyncio.CancelledError as error:
        if limit.caught():
            late = errors.ModelTimeout(f"the model did not answer within {agent.options.timeout}")
            return m.ModelFailed(iteration, failures, failure_of(late), retryable=True)
        if not stray():
            raise
        return m.ModelFailed(iteration, failures, failure_of(error))
    except errors.RetryableModelError as error:
        return m.ModelFailed(iteration, failures, failure_of(error), retryable=True, retry_after=_wish(error.retry_after))
    except errors.ModelError as error:
        return m.ModelFailed(iteration, failures, failure_of(error))
    except Exception as error:
        retryable = isinstance(error, TimeoutError | ConnectionError)
        return m.ModelFailed(iteration, failures, failure_of(error), retryable=retryable)
    finally:
        limit.stop()


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


async def _answer(actor: Actor, agent: Agent, request: ModelRequest) -> AiMessage:
    model = agent.model
    if not actor.state.streaming or not isinstance(model, StreamingChatModel):
        return await model.complete(request)
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
    """Ask tool and agent whether a call may run; the strictest wins."""
    agent = actor.executor
    tool = agent.tool(call.name)
    asked = ToolCall(call.id, call.name, call.effective, edited_by=call.edited_by)
    try:
        if tool is None:
            raise errors.ToolError(f"agent {agent.key} has no tool {call.name!r}")
        view = view_of(actor.state, version=actor.version)
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


def context_of(
    actor: Actor, call: CallRecord, tool: Tool[..., object], report: Callable[[str, JsonObject], None]
) -> ToolContext[object]:
    """Return what a tool may know and ask."""
    state = actor.state
    forms = call.forms or {}
    return ToolContext(
        turn_id=state.turn_id,
        root_turn_id=root_of(state.turn_id),
        parent_turn_id=state.parent_turn_id,
        conversation_id=state.conversation_id,
        tenant=state.tenant,
        agent_id=state.agent_id,
        agent_version=state.agent_version,
        tool=tool,
        call=ToolCall(call.id, call.name, call.effective, edited_by=call.edited_by),
        attempt=call.attempt,
        epoch=actor.token.epoch,
        form_data=next(reversed(forms.values()), None),
        forms=forms,
        metadata=state.metadata or {},
        services=actor.host.services,
        report=report,
        cancelled=actor.cancelled,
    )


async def run_tool(actor: Actor, call: CallRecord) -> m.Message:
    """Run one attempt of a call and report what came of it."""
    tool = actor.executor.tool(call.name)
    attempt = call.attempt
    try:
        if tool is None:
            raise errors.ToolError(f"agent {actor.executor.key} has no tool {call.name!r}")
        bound = tool.bind(call.effective)
        context = context_of(actor, call, tool, _reporter(actor, call))
        value = await _invoke(actor, tool, bound, context, call)
        text = result_text(value)
        size, limit = len(text.encode()), actor.host.settings.max_message // 2
        if size > limit:
            raise errors.SnapshotTooLarge(f"the result of {call.name}", size, limit)
        return m.ToolReturned(call.id, attempt, text)
    except errors.ArgumentsInvalid as error:
        return m.ToolFailed(call.id, attempt, "told", failure_of(error), texts.failed("invalid_arguments", str(error)))
    except _NotBegun:
        if not actor.cancelled():
            actor.lose()
        text = texts.failed("cancelled", "The call was not started.")
        return m.ToolFailed(call.id, attempt, "interrupted", Failure("Cancelled", "not started"), text)
    except _Timeout as error:
        found = Failure("TimeoutError", f"{call.name} did not return within {error.seconds} s")
        return m.ToolFailed(call.id, attempt, "timeout", found, _told(actor, call, found, TimeoutError(found.message)))
    except asyncio.CancelledError as error:
        if stray():
            return _raised(actor, call, error)
        if call.id not in actor.stopping:
            raise
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        text = texts.failed("cancelled", "The call was interrupted; its outcome is unknown.")
        return m.ToolFailed(call.id, attempt, "interrupted", Failure("Cancelled", "interrupted"), text)
    except BaseException as error:
        return _raised(actor, call, error)


def _raised(actor: Actor, call: CallRecord, error: BaseException) -> m.Message:
    """Say what an exception that left a tool means."""
    required = find_form_required(error)
    if required is not None:
        loop = form_loop(required, call.forms)
        if loop is None:
            return m.FormAsked(call.id, call.attempt, cast("FormDefinition[object]", required.form))
        found = failure_of(loop)
        return m.ToolFailed(call.id, call.attempt, "loop", found, _told(actor, call, found, loop))
    found = failure_of(error)
    if isinstance(error, errors.ToolError):
        data = {key: value for key, value in error.data.items() if key not in ("error", "type", "message")}
        try:
            text = result_text({"error": True, "type": "tool_error", "message": found.message, **data})
        except errors.ToolResultInvalid:
            text = texts.failed("tool_error", found.message)
        return m.ToolFailed(call.id, call.attempt, "told", found, text)
    return m.ToolFailed(call.id, call.attempt, "error", found, _told(actor, call, found, error))


def _told(actor: Actor, call: CallRecord, found: Failure, error: BaseException) -> str:
    """Return what the model would read of a failed tool: the agent's own words, if it has any that are usable."""
    factory = actor.executor.tool_error_message
    if factory is not None:
        try:
            text = factory(ToolCall(call.id, call.name, call.effective), error)
            if isinstance(cast("object", text), str):
                return text[:MAX_ERROR].encode(errors="replace").decode()
        except Exception:
            log.exception("tool_error_message_failed", turn=actor.turn_id, call=call.id)
    return texts.execution_error(found)


class _NotBegun(Exception):
    """A function was not begun: its turn ends, or is not ours any more."""


class _Timeout(Exception):
    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


async def _invoke(
    actor: Actor, tool: Tool[..., object], bound: JsonObject, context: ToolContext[object], call: CallRecord
) -> object:
    seconds = None if tool.timeout is None else tool.timeout.total_seconds()
    if not tool.is_async:
        return await _in_thread(actor, tool, bound, context, call, seconds)
    if not actor.owns():  # the process may have stood still since the start was decided
        raise _NotBegun
    limit = TimeLimit(actor.host.world, seconds)
    try:
        return await cast("Awaitable[object]", tool.invoke(bound, context))
    except asyncio.CancelledError:
        if limit.caught():
            raise _Timeout(seconds or 0) from None
        raise
    finally:
        limit.stop()


async def _in_thread(
    actor: Actor, tool: Tool[..., object], bound: JsonObject, context: ToolContext[object], call: CallRecord, seconds: float | None
) -> object:
    """Run a plain function in a worker thread, which is never killed: a limit ends only the waiting.

    Where all threads are busy it waits for one, and much may happen meanwhile. It begins only while it is still wanted here.
    """
    first = threading.Lock()  # taken by the thread, and the function begins, or by who waits, and it never does

    def begin() -> object:
        if actor.cancelled() or not actor.owns() or not first.acquire(blocking=False):
            raise _NotBegun
        return tool.invoke(bound, context)

    async def thread() -> tuple[object, BaseException | None]:
        try:
            return await actor.host.world.thread(begin), None
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            return None, error  # SystemExit and KeyboardInterrupt of a task would also be raised into the loop

    work = actor.host.world.spawn(thread(), f"thread of {call.id} in {actor.turn_id}")
    actor.threads[work] = call.id
    work.add_done_callback(actor.thread_ended)
    withdrawn = False
    try:
        ended = await actor.host.world.wait(work, seconds)
    finally:
        if not work.done() and first.acquire(blocking=False):
            withdrawn = work.cancel()
            await asyncio.wait([work])
    if not ended:
        if withdrawn:
            raise TimeoutError(f"{call.name} did not begin within {seconds} s: all worker threads are busy")
        raise _Timeout(seconds or 0)
    value, error = work.result()
    if error is not None:
        raise error
    return await cast("Awaitable[object]", value) if inspect.isawaitable(value) else value


def _reporter(actor: Actor, call: CallRecord) -> Callable[[str, JsonObject], None]:
    """Return a function, usable from any thread, that shows progress to those who watch."""
    loop = asyncio.get_running_loop()

    def show(message: str, data: JsonObject) -> None:
        if actor.watched:
            tag: JsonObject = {"toolCallId": call.id, "toolName": call.name, "attempt": call.attempt, "message": message}
            actor.publish(EventType.TOOL_PROGRESS, {**data, **tag})

    def report(message: str, data: JsonObject) -> None:
        loop.call_soon_threadsafe(show, message, data)

    return report
