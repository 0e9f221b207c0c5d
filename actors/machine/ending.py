"""How a turn ends: nothing new starts, what runs is stopped or awaited, the history is closed, the terminal event is last."""

from __future__ import annotations

import msgspec

from ..chat import AiMessage, ToolMessage
from ..events import STEP_COMPLETED, EventType
from ..record import JsonObject, JsonValue
from ..turn import COMPLETED, CallRecord, CallStatus, Failure, Status, TurnState
from ..used import rest
from ..waits import AT_END, Effect, SuspensionType
from . import plans, texts
from .draft import Draft, Park, StopModel, StopTool

EVENTS = {
    Status.COMPLETED: EventType.TURN_COMPLETED,
    Status.FAILED: EventType.TURN_FAILED,
    Status.CANCELLED: EventType.TURN_CANCELLED,
    Status.MAX_ITERATIONS_REACHED: EventType.MAX_ITERATIONS_REACHED,
    Status.MAX_STEPS_REACHED: EventType.MAX_STEPS_REACHED,
    Status.BUDGET_EXCEEDED: EventType.BUDGET_EXCEEDED,
}
FAULTY = frozenset({Status.FAILED, Status.MAX_ITERATIONS_REACHED})


SUPERSEDED = "superseded by turn "


def superseded_by(turn_id: str) -> str:
    """Return the cause under which a turn is cancelled whose conversation moves on with another one."""
    return SUPERSEDED + turn_id


def _superseded(state: TurnState) -> bool:
    return state.ending is Status.CANCELLED and (state.cancel_reason or "").startswith(SUPERSEDED)


def fail(draft: Draft, type: str, message: str) -> None:
    """End the turn as FAILED."""
    if draft.state.ending is None:
        draft.state.failing = Failure(type, message)
        begin(draft, Status.FAILED)


def begin(draft: Draft, status: Status) -> None:
    """Start the end: close what waits, stop what may be stopped. The first cause decides, but a cancel overrules other ends.

    A turn that ends is not parked: nothing that has cost its owners happens again.
    """
    state = draft.state
    if state.status.terminal or (state.ending is not None and status is not Status.CANCELLED):
        return
    draft.actions = [action for action in draft.actions if not isinstance(action, Park)]
    state.ending = status
    state.ending_at = state.ending_at or draft.context.now
    effect = Effect.CANCELLED if status is Status.CANCELLED and not _superseded(state) else Effect.SUPERSEDED
    for wait in state.waits:
        draft.close(wait, effect)
        call = draft.state.call(wait.correlation) if wait.type is SuspensionType.IN_DOUBT else None
        if call is not None:  # "not finished" would be a guess, and an invitation to call it again
            text = texts.failed("outcome_unknown", "The call was in doubt when the turn ended; its outcome is unknown.")
            draft.put(msgspec.structs.replace(call, status=CallStatus.DONE, result=text))
    state.question, state.questions = None, ()
    stop_model(draft)
    if state.children:
        _cancel_children(draft, status)
    for call in state.calls:
        if call.status is CallStatus.RUNNING:
            if call.cancellable and call.activation == draft.context.activation:
                draft.actions.append(StopTool(call.id))
        elif not call.finished:
            draft.put(msgspec.structs.replace(call, status=CallStatus.PENDING))


def stop_model(draft: Draft) -> bool:
    """Take back the model request under way, if there is one; the tokens it has reported so far are counted."""
    state, context = draft.state, draft.context
    request, state.request = state.request, None
    if request is not None and request.activation == context.activation:
        draft.actions.append(StopModel())
        if context.seen is not None:
            state.usage = state.usage + context.seen
    return request is not None


def conclude(draft: Draft) -> None:
    """Go on with the end: finish when no call runs here any more, or when the grace is over."""
    state = draft.state
    assert state.ending is not None
    running = [call for call in state.calls if call.status is CallStatus.RUNNING]
    if draft.too_large:
        plans.shorten(draft)
    ours = [call for call in running if call.activation == draft.context.activation]
    if ours and draft.context.now < state.ending_at + draft.context.cancel_grace:
        state.status = Status.RUNNING
        return
    finish(draft, state.ending)


def finish(draft: Draft, status: Status, output: JsonValue = None) -> None:
    """Make the turn terminal."""
    state = draft.state
    reason = "" if status is COMPLETED else _reason(draft, status)
    plans.close(draft, status, reason)
    if status is not COMPLETED:
        _close_history(draft, reason)
    if state.opening is not None:  # no executor ever came: the history is what was said, and no conversation hears of it
        draft.messages += state.opening
        draft.known = len(draft.messages)
        state.opening, state.recollection = None, None
    for wait in state.waits:
        draft.close(wait, Effect.SUPERSEDED)
    if state.children:
        _cancel_children(draft, status)
    results, state.calls, state.flushed, state.call_marks = len(state.calls), (), 0, b""
    state.question, state.questions, state.request, state.ending = None, (), None, None
    rest(state, draft.context.now)
    state.children, state.arrived = (), ()
    state.status, state.phase, state.final_output = status, AT_END, output
    if status in FAULTY:
        state.error = state.failing
    state.completed_at = draft.context.now
    end_step(draft, results)
    draft.emit(EVENTS[status], {} if status is COMPLETED else {"reason": reason})


def end_step(draft: Draft, results: int = 0) -> None:
    """Close the open step, in which so many calls of the reply have got their results by now."""
    if draft.state.step_open:
        draft.state.step_open = False
        draft.emit(STEP_COMPLETED, {"toolMessageCount": results} if results else None)


def _cancel_children(draft: Draft, status: Status) -> None:
    """Flag the open children in this very save, those that it creates, too; each does the same with its own."""
    told = {turn_id for turn_id, _ in draft.cancels}
    reason = draft.state.cancel_reason if _superseded(draft.state) else None
    new = [(child, reason or f"parent {status.value.lower()}") for child in draft.state.children if child not in told]
    draft.cancels = (*draft.cancels, *new)


def _reason(draft: Draft, status: Status) -> str:
    state = draft.state
    if status is Status.CANCELLED:
        return state.cancel_reason or draft.policy.cancellation_reason
    if status is Status.FAILED:
        return state.failing.message if state.failing is not None else "failed"
    if status is Status.BUDGET_EXCEEDED:
        return state.budget_exceeded_reason or "budget exceeded"
    if status is Status.MAX_ITERATIONS_REACHED:
        return f"max_iterations reached ({draft.policy.max_iterations})"
    return f"max_steps reached ({draft.policy.max_steps})"


def _close_history(draft: Draft, reason: str) -> None:
    """Answer every call that the history leaves open, in order, then say that the turn was not finished."""
    state = draft.state
    for call in state.calls[state.flushed :]:
        draft.append(ToolMessage(call.id, _closing(draft, call, reason)))
    draft.append(AiMessage(texts.fill(draft.policy.interrupted_turn_message_template, reason, state.turn_id)))


def _closing(draft: Draft, call: CallRecord, reason: str) -> str:
    if call.result is not None:
        return call.result
    plan = draft.state.plan
    if plan is not None and plan.call == call.id and not draft.too_large:  # what its tasks have done is done
        return plans.outcome(plan, texts.fill(draft.policy.interrupted_turn_message_template, reason, draft.state.turn_id))
    if call.status is CallStatus.RUNNING:
        data: JsonObject = {"toolCallId": call.id, "toolName": call.name, "outcome": "unknown"}
        draft.emit(EventType.TOOL_FAILED, data)
        return texts.failed("outcome_unknown", "The call was still running when the turn ended; its outcome is unknown.")
    return texts.fill(draft.policy.interrupted_tool_message_template, reason, draft.state.turn_id, call)
