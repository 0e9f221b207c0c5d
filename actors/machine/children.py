"""Children that the application or a call of an agent starts, and the plain questions that the application asks."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from .. import ids
from ..agent import Agent
from ..chat import UserMessage
from ..events import TOOL_COMPLETED, TOOL_STARTED, EventType
from ..record import JsonObject
from ..results import result_text
from ..turn import CallRecord, Failure, Status
from ..used import plus, take_spans
from ..waits import Effect, SuspensionType
from . import ending, limits, planning, texts
from .calls import finished
from .draft import Draft, Noted, Outcome, Refusal, without
from .ending import stop_model
from .messages import ChildEnded, StartChild, Suspend
from .policy import refuse
from .waiting import open_called, open_child

MAX_QUESTIONS = 16
"""How many plain questions may stand behind the next one."""


def _closed(draft: Draft) -> Refusal | None:
    state = draft.state
    if state.status.terminal or state.ending is not None:
        status = (state.ending or state.status).value
        return Refusal("TurnClosed", f"turn {state.turn_id} is {status}", status=status)
    return None


def _stop_model(draft: Draft) -> None:
    """Take back the request under way: what is about to be asked stands before the next one."""
    if stop_model(draft):
        for wait in draft.state.waits:
            if wait.type is SuspensionType.RETRY and not wait.correlation:
                draft.close(wait, Effect.SUPERSEDED)


def suspend(draft: Draft, message: Suspend) -> Outcome:
    """Ask a plain question when the calls in flight have ended, and those before it have been answered."""
    state = draft.state
    if (refusal := _closed(draft)) is not None:
        return refusal
    if message.message not in (state.question, *state.questions):  # else it was sent again
        if len(state.questions) >= MAX_QUESTIONS:
            return Refusal("CommandRefused", f"turn {state.turn_id} has {MAX_QUESTIONS} questions to ask; there may be no more")
        if state.question is None:
            state.question = message.message
        else:
            state.questions = (*state.questions, message.message)
    _stop_model(draft)
    return Noted()


def start(draft: Draft, message: StartChild) -> Outcome:
    """Create a child in the save that makes its parent wait for it; a repeated message finds it there."""
    state = draft.state
    if message.child_id in state.children or any(wait.correlation == message.child_id for wait in state.waits):
        return Noted()
    if (refusal := _closed(draft)) is not None:
        return refusal
    if limits.too_deep(state):
        return Refusal("CommandRefused", f"turn {state.turn_id} has {limits.MAX_DEPTH} turns above it; none may be below it")
    _stop_model(draft)
    open_child(draft, message.child_id, message.agent_id)
    draft.start_child(message)
    return Noted()


def call(draft: Draft, call: CallRecord, agent: Agent[Any]) -> None:
    """Let a call of an agent start a child, and wait for it.

    The child's id is made of the call's id and the number of the attempt, so whoever repeats the save finds the same child.
    """
    state = draft.state
    if limits.too_deep(state):
        return refuse(draft, call, "child_too_deep", f"{call.name} did not start: agents are {limits.MAX_DEPTH} deep already.")
    digest = hashlib.sha256(f"{ids.call_key(state.turn_id, call.id)}:{call.attempt + 1}".encode()).digest()
    message = StartChild(
        child_id=ids.child_id(ids.root_of(state.turn_id), digest),
        agent_id=agent.id,
        agent_version=agent.version,
        input=UserMessage(str(call.effective["input"])),
        policy=agent.policy,
        instructions=agent.instructions,
    )
    call = draft.put(msgspec.structs.replace(call, attempt=call.attempt + 1, counted=True, child=message.child_id))
    open_called(draft, call, message.child_id, agent.id)
    draft.emit(TOOL_STARTED, {"toolCallId": call.id, "toolName": call.name})
    draft.start_child(message, {"toolCallId": call.id})
    return None


def ended(draft: Draft, message: ChildEnded) -> Outcome:
    """Take a child's outcome in, once: as that of its task or call, else into the history at the next boundary."""
    state = draft.state
    if message.child_id not in state.children:
        return Noted()
    state.children = without(state.children, message.child_id)
    state.below = plus(state.below, message.usage)
    take_spans(state, message.spans, draft.context.now)
    call = next((call for call in state.calls if call.child == message.child_id), None)
    task = None if state.plan is None else state.plan.of_child(message.child_id)
    for wait in state.waits:
        if wait.type is SuspensionType.CHILD_AGENT and (wait.metadata or {}).get("childTurnId") == message.child_id:
            draft.close(wait, Effect.CHILD_ENDED)
            draft.progress = True
            if call is None and task is None:
                state.arrived = (*state.arrived, texts.child_result(message))
    if task is not None:
        planning.ended(draft, message)
    if call is not None and not call.finished:
        _returned(draft, call, message)
    return Noted()


def _returned(draft: Draft, call: CallRecord, message: ChildEnded) -> None:
    """End the call that started a child. One that failed is a tool that failed; any other end is a result like others."""
    data: JsonObject = {"toolCallId": call.id, "toolName": call.name, "childTurnId": message.child_id}
    if message.status is Status.COMPLETED:
        draft.put(finished(call, result_text(message.output)))
        draft.emit(TOOL_COMPLETED, data)
        return
    draft.put(finished(call, texts.child_failed(message)))
    error = message.error or Failure(message.status.value, message.reason or "it did not complete")
    draft.emit(EventType.TOOL_FAILED, {**data, "errorType": error.type, "error": error.message})
    if message.status is Status.FAILED and draft.policy.tool_errors == "fail":
        ending.fail(draft, error.type, f"{call.name}: {error.message}")
