"""What the results of a call's attempt do to a turn."""

from __future__ import annotations

import msgspec

from ..events import TOOL_COMPLETED, EventType
from ..record import JsonObject
from ..turn import DONE, RUNNING, CallRecord, CallStatus
from . import ending, limits, texts
from .draft import Draft
from .messages import FormAsked, HandOff, NotStarted, ToolFailed, ToolReturned
from .waiting import back_off, open_doubt, open_form, open_retry

MAX_ACTIVE = 1024


def _running(draft: Draft, call_id: str, attempt: int) -> CallRecord | None:
    """Return the record of an attempt that this activation has running; a late or foreign result finds none."""
    call = draft.state.call(call_id)
    if call is None or call.status is not RUNNING or call.attempt != attempt:
        return None
    return call if call.activation == draft.context.activation else None


def returned(draft: Draft, message: ToolReturned) -> None:
    """An attempt came back with a result."""
    if (call := _running(draft, message.call_id, message.attempt)) is None:
        return
    draft.progress = True
    if message.activates:
        known = dict.fromkeys((*draft.state.active_tools, *message.activates))
        draft.state.active_tools = tuple(known)[-MAX_ACTIVE:]
    finish(draft, call, message.text)
    draft.emit(TOOL_COMPLETED, {"toolCallId": call.id, "toolName": call.name})


def finish(draft: Draft, call: CallRecord, result: str) -> None:
    """Give a call its result."""
    draft.put(finished(call, result))


def finished(call: CallRecord, result: str) -> CallRecord:
    """Return a call with its result; what only a running call needs is dropped."""
    return msgspec.structs.replace(
        call,
        status=DONE,
        result=result,
        forms=None,
        form_marks=None,
        declined=None,
        kept=None,
        parameters=None,
        failures=0,
        crashes=0,
    )


def failed(draft: Draft, message: ToolFailed) -> None:
    """An attempt failed: tell the model, try again, ask a person, or fail the turn."""
    if (call := _running(draft, message.call_id, message.attempt)) is None:
        return None
    draft.progress = True
    error = message.error
    data: JsonObject = {"toolCallId": call.id, "toolName": call.name, "errorType": error.type, "error": error.message}
    if message.kind == "timeout" and call.effect == "once" and draft.state.ending is None:
        return open_doubt(draft, call, error.message)
    draft.emit(EventType.TOOL_FAILED, data)
    if message.kind in ("told", "interrupted") or draft.state.ending is not None:
        return finish(draft, call, message.text)
    if message.kind == "spent":
        finish(draft, call, message.text)
        return limits.spend(draft, error.message)
    retry = draft.policy.retry_policy
    if message.kind != "loop" and call.effect == "repeatable" and call.failures < retry.max_retries:
        call = draft.put(msgspec.structs.replace(call, failures=call.failures + 1, crashes=0))
        return open_retry(draft, call, retry.delay_ms(call.failures, draft.context.spread), error.message, call.failures)
    finish(draft, call, message.text)
    if draft.policy.tool_errors == "fail":
        ending.fail(draft, error.type, error.message)
    return None


def form_asked(draft: Draft, message: FormAsked) -> None:
    """An attempt left, before any side effect, to ask for a form."""
    if (call := _running(draft, message.call_id, message.attempt)) is None:
        return None
    draft.progress = True
    if draft.state.ending is not None:
        return finish(draft, call, texts.failed("cancelled", "The turn ended while the call asked for a form."))
    if message.keep is not None:
        call = draft.put(msgspec.structs.replace(call, kept=message.keep))
    return open_form(draft, call, message.form)


def not_started(draft: Draft, message: NotStarted) -> None:
    """An attempt has not begun: another one, under the next number, is made later, and later each time.

    The wait is in the snapshot, so the turn needs no process for it; no effect had a result, so that is no progress.
    """
    if (call := _running(draft, message.call_id, message.attempt)) is None:
        return None
    data: JsonObject = {"toolCallId": call.id, "toolName": call.name, "errorType": "NotStarted", "error": message.why}
    draft.emit(EventType.TOOL_FAILED, data)
    if draft.state.ending is not None:
        return finish(draft, call, texts.failed("cancelled", "The call was not started."))
    call = draft.put(msgspec.structs.replace(call, failures=call.failures + 1))
    delay = back_off(call.failures)
    return open_retry(draft, call, delay - int(delay * draft.context.spread / 4), message.why, call.failures)


def lost(draft: Draft, call: CallRecord, why: str) -> None:
    """An attempt was left running by an owner that is gone."""
    if call.effect == "once":
        return open_doubt(draft, call, why)
    call = draft.put(msgspec.structs.replace(call, crashes=call.crashes + 1))
    if call.crashes >= draft.policy.max_crashes:
        return open_doubt(draft, call, f"{why}; it was started {call.attempt} times")
    draft.put(msgspec.structs.replace(call, status=CallStatus.PENDING))
    return None


def hand_off(draft: Draft, message: HandOff) -> None:
    """The node drains: repeatable attempts go back to pending, `once` attempts into doubt; threads that run on stay.

    A turn that is ending waits no longer for attempts that were interrupted: they are closed as of unknown outcome.
    """
    state = draft.state
    if state.request is not None:
        state.request = msgspec.structs.replace(state.request, activation=None)
    for call in state.calls:
        if call.status is not CallStatus.RUNNING or call.id in message.running:
            continue
        if state.ending is not None:
            draft.put(msgspec.structs.replace(call, activation=None))
        elif call.effect == "once":
            open_doubt(draft, call, "its node was shut down")
        else:
            draft.put(msgspec.structs.replace(call, status=CallStatus.PENDING))
