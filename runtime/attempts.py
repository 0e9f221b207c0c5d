"""Attempts of calls: a tool's function runs on the loop or in a thread, and what came of it is reported to the mailbox."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from ..actors import errors
from ..actors.chat import ToolCall
from ..actors.context import ToolContext, current_context
from ..actors.events import EventType
from ..actors.forms import FormDefinition, find_form_required, form_loop
from ..actors.ids import root_of
from ..actors.machine import messages as m
from ..actors.machine import texts
from ..actors.record import JsonObject
from ..actors.results import result_text
from ..actors.tools import Tool
from ..actors.turn import CallRecord, Failure
from .around import restored, value_of
from .guard import MAX_ERROR, TimeLimit, failure_of, stray
from .log import log
from .resolving import ResolverFailed, tool_of

if TYPE_CHECKING:
    from .actor import Actor


def context_of(
    actor: Actor,
    call: CallRecord,
    tool: Tool[..., object],
    report: Callable[[str, JsonObject], None],
    activator: Callable[[tuple[str, ...]], None],
) -> ToolContext[object]:
    """Return what a tool may know and ask."""
    state = actor.state
    context: ToolContext[object] = ToolContext(
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
        services=actor.host.services,
        report=report,
        cancelled=actor.cancelled,
        activator=activator,
    )
    if state.metadata:
        context = replace(context, metadata=restored(actor, state.metadata, state.metadata_marks))
    if call.forms or call.declined or call.kept is not None:
        context = _with_forms(context, actor, call)
    return context


def _with_forms(context: ToolContext[object], actor: Actor, call: CallRecord) -> ToolContext[object]:
    """Add what people have said to the forms of a call, and what it keeps."""
    forms, marks = call.forms or {}, call.form_marks
    if marks is not None:
        forms = {key: restored(actor, value, marks.get(key, ())) for key, value in forms.items()}
    last = next(reversed(forms.values()), None)
    return replace(context, form_data=last, forms=forms, declined=call.declined or {}, kept=call.kept)


async def run_tool(actor: Actor, call: CallRecord) -> m.Message:
    """Run one attempt of a call and report what came of it."""
    attempt = call.attempt
    active: list[str] = []
    try:
        if call.id in actor.stopping:
            raise _NotBegun
        agent = actor.executor
        tool = agent.tool(call.name) or await tool_of(actor, call)
        if tool is None:
            raise errors.ToolError(f"agent {agent.key} has no tool {call.name!r}")
        bound = tool.bind(call.effective)
        context = context_of(actor, call, tool, _reporter(actor, call), active.extend)
        if actor.steps is None and not agent.hooks.tool:
            value = await _invoke(actor, tool, bound, context, call, _seconds_of(tool), _Start())
        else:
            value = await _through(actor, tool, bound, context, call)
        text = result_text(value)
        size, limit = len(text.encode()), actor.host.settings.max_message // 2
        if size > limit:
            raise errors.SnapshotTooLarge(f"the result of {call.name}", size, limit)
        return m.ToolReturned(call.id, attempt, text, tuple(active))
    except errors.ArgumentsInvalid as error:
        return m.ToolFailed(call.id, attempt, "told", failure_of(error), texts.failed("invalid_arguments", str(error)))
    except ResolverFailed as error:
        return m.NotStarted(call.id, attempt, str(error))
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
        loop = form_loop(required, call.forms, call.declined)
        if loop is None:
            return m.FormAsked(call.id, call.attempt, cast("FormDefinition[object]", required.form), required.keep)
        found = failure_of(loop)
        return m.ToolFailed(call.id, call.attempt, "loop", found, _told(actor, call, found, loop))
    found = failure_of(error)
    if isinstance(error, errors.ProceedTwice):  # the next attempt would do the same
        return m.ToolFailed(call.id, call.attempt, "loop", found, _told(actor, call, found, error))
    if isinstance(error, errors.ToolError):
        data = {key: value for key, value in error.data.items() if key not in ("error", "type", "message")}
        try:
            text = result_text({"error": True, "type": "tool_error", "message": found.message, **data})
        except errors.ToolResultInvalid:
            text = texts.failed("tool_error", found.message)
        return m.ToolFailed(call.id, call.attempt, "told", found, text)
    if isinstance(error, errors.FormDeclined):
        return m.ToolFailed(call.id, call.attempt, "told", found, texts.declined(error.reason, expired=error.expired))
    kind = "timeout" if isinstance(error, errors.OutcomeUnknown) else "error"
    return m.ToolFailed(call.id, call.attempt, kind, found, _told(actor, call, found, error))


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


class _NotBegun(BaseException):
    """A function was not begun: its turn ends, or is not ours any more. Not an `Exception`, so that no hook swallows it."""


class _Timeout(Exception):
    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


def _seconds_of(tool: Tool[..., object]) -> float | None:
    return None if tool.timeout is None else tool.timeout.total_seconds()


class _Start:
    """Whether the function of an attempt has begun, and whether it has ended in another way than by asking for a form."""

    __slots__ = ("begun", "over")

    def __init__(self) -> None:
        self.begun = self.over = False


async def _through(
    actor: Actor, tool: Tool[..., object], bound: JsonObject, context: ToolContext[object], call: CallRecord
) -> object:
    """Run a tool within the hooks around it."""
    seconds, start = _seconds_of(tool), _Start()
    limit = TimeLimit(actor.host.world, seconds)  # it spans the hooks

    async def function() -> object:
        if limit.hit:
            raise TimeoutError(f"the time of {call.name} was over before it began")
        if actor.cancelled():
            raise _NotBegun
        try:
            value = await _invoke(actor, tool, bound, context, call, None, start)
        except BaseException as error:
            start.over = start.begun and find_form_required(error) is None
            raise
        start.over = True
        return value

    try:
        if actor.steps is not None:
            await actor.steps.entered()
        with current_context(context):
            return await value_of(actor, context, function)
    except asyncio.CancelledError:
        if not limit.caught():
            raise
        if start.begun:
            raise _Timeout(seconds or 0) from None
        raise TimeoutError(f"{call.name} did not begin within {seconds} s") from None
    except BaseException as error:
        if start.over and call.effect == "once" and find_form_required(error) is not None:
            raise errors.MiddlewareError(
                f"a hook asked for a form behind {call.name}, which had run and may run only once"
            ) from None
        raise
    finally:
        limit.stop()


async def _invoke(
    actor: Actor,
    tool: Tool[..., object],
    bound: JsonObject,
    context: ToolContext[object],
    call: CallRecord,
    seconds: float | None,
    start: _Start,
) -> object:
    if not tool.is_async:
        return await _in_thread(actor, tool, bound, context, call, seconds, start)
    if not actor.owns():  # the process may have stood still since the start was decided
        raise _NotBegun
    start.begun = True
    if seconds is None:
        return await cast("Awaitable[object]", tool.invoke(bound, context))
    limit = TimeLimit(actor.host.world, seconds)
    try:
        return await cast("Awaitable[object]", tool.invoke(bound, context))
    except asyncio.CancelledError:
        if limit.caught():
            raise _Timeout(seconds) from None
        raise
    finally:
        limit.stop()


async def _in_thread(
    actor: Actor,
    tool: Tool[..., object],
    bound: JsonObject,
    context: ToolContext[object],
    call: CallRecord,
    seconds: float | None,
    start: _Start,
) -> object:
    """Run a plain function in a worker thread, which is never killed: a limit ends only the waiting.

    Where all threads are busy it waits for one, and much may happen meanwhile. It begins only while it is still wanted here.
    """
    first = threading.Lock()  # taken by the thread, and the function begins, or by who waits, and it never does

    def begin() -> object:
        if actor.cancelled() or not actor.owns() or not first.acquire(blocking=False):
            raise _NotBegun
        start.begun = True
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
    return partial(_report, asyncio.get_running_loop(), actor, call)


def _report(loop: asyncio.AbstractEventLoop, actor: Actor, call: CallRecord, message: str, data: JsonObject) -> None:
    loop.call_soon_threadsafe(_show, actor, call, message, data)


def _show(actor: Actor, call: CallRecord, message: str, data: JsonObject) -> None:
    if actor.watched:
        tag: JsonObject = {"toolCallId": call.id, "toolName": call.name, "attempt": call.attempt, "message": message}
        actor.publish(EventType.TOOL_PROGRESS, {**data, **tag})
