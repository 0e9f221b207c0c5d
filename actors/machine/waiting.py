"""How waits are opened, and what each kind of wait accepts."""

from __future__ import annotations

from typing import Any

import msgspec

from .. import ids
from ..events import TOOL_APPROVAL_REQUESTED, EventType
from ..forms import FormDefinition
from ..policies import ApprovalDecision, OnExpiry
from ..record import JsonObject, JsonValue, Seconds, milliseconds, utc
from ..turn import AWAITING, CallRecord, OpenWait
from ..waits import TOOL_APPROVAL, CommandType, Phase, Suspension, SuspensionType
from .draft import Draft

FIRST_BACK_OFF, MOST_BACK_OFF = 1000, 60_000
ACCEPTS: dict[SuspensionType, frozenset[CommandType]] = {
    SuspensionType.TOOL_APPROVAL: frozenset({CommandType.APPROVE_TOOL, CommandType.REJECT_TOOL}),
    SuspensionType.USER_INPUT: frozenset({CommandType.USER_INPUT, CommandType.SUBMIT_FORM, CommandType.DECLINE}),
    SuspensionType.RETRY: frozenset({CommandType.RETRY}),
    SuspensionType.IN_DOUBT: frozenset({CommandType.RERUN, CommandType.GIVE_RESULT, CommandType.FAIL_CALL}),
    SuspensionType.CHILD_AGENT: frozenset(),
}


def accepts(wait: OpenWait | Suspension, type: CommandType) -> bool:
    """Tell whether a kind of command answers a wait: text answers a plain question, data a form."""
    if type not in ACCEPTS[wait.type]:
        return False
    if wait.type is SuspensionType.USER_INPUT:
        return (type is CommandType.USER_INPUT) == (wait.form_key is None)
    return True


def _expiry(draft: Draft, after: Seconds | None) -> int | None:
    return None if after is None else draft.context.now + milliseconds(after)


def _numbered(draft: Draft, call: CallRecord) -> tuple[CallRecord, str]:
    """Number the next wait of a call."""
    call = msgspec.structs.replace(call, status=AWAITING, waits=call.waits + 1)
    draft.put(call)
    return call, ids.wait_id(draft.state.turn_id, call.id, call.waits)


def open_approval(draft: Draft, call: CallRecord, decision: ApprovalDecision, assignee: str | None) -> None:
    """Let a call wait for a person."""
    call, name = _numbered(draft, call)
    metadata: JsonObject = {}
    if decision.code is not None:
        metadata["approvalCode"] = decision.code
    if decision.reason is not None:
        metadata["approvalReason"] = decision.reason
    if decision.metadata:
        metadata["approvalMetadata"] = decision.metadata
    on_expiry: OnExpiry | None = decision.on_expiry or ("reject" if decision.expires_in is not None else None)
    draft.open(
        OpenWait(
            id=name,
            type=TOOL_APPROVAL,
            correlation=call.id,
            created=draft.context.now,
            expires=_expiry(draft, decision.expires_in),
            on_expiry=on_expiry,
            message=decision.message or f"May {call.name} run?",
            assignee=decision.assignee or assignee,
            metadata=metadata or None,
        )
    )
    data: JsonObject = {"suspensionId": name, "toolCallId": call.id, "toolName": call.name}
    if decision.code is not None:
        data["approvalCode"] = decision.code
    if decision.message is not None:
        data["approvalMessage"] = decision.message
    if decision.reason is not None:
        data["approvalReason"] = decision.reason
    if decision.metadata:
        data["approvalMetadata"] = decision.metadata
    draft.emit(TOOL_APPROVAL_REQUESTED, data)


def open_form(draft: Draft, call: CallRecord, form: FormDefinition[Any], assignee: str | None = None) -> None:
    """Let a call wait for a form; the schema is frozen into the wait."""
    call, name = _numbered(draft, call)
    title = form.json_schema.get("title")
    default: JsonValue = form.default
    draft.open(
        OpenWait(
            id=name,
            type=SuspensionType.USER_INPUT,
            correlation=call.id,
            created=draft.context.now,
            expires=_expiry(draft, form.expires_in),
            on_expiry=form.on_expiry or ("reject" if form.expires_in is not None else None),
            message=title if isinstance(title, str) else form.form_key,
            form_key=form.form_key,
            schema=form.json_schema,
            assignee=form.assignee or assignee,
            metadata={"toolName": call.name},
            default=default,
            has_default=form.on_expiry == "default",
            tell_decline=form.tell_decline,
        )
    )
    draft.emit(
        EventType.TOOL_INPUT_REQUESTED,
        {"suspensionId": name, "toolCallId": call.id, "toolName": call.name, "formKey": form.form_key},
    )


def open_doubt(draft: Draft, call: CallRecord, why: str) -> None:
    """Let a call whose outcome nobody knows wait for a person."""
    call, name = _numbered(draft, call)
    draft.open(
        OpenWait(
            id=name,
            type=SuspensionType.IN_DOUBT,
            correlation=call.id,
            created=draft.context.now,
            message=f"Nobody knows whether {call.name} took effect: {why}",
            metadata={"toolName": call.name, "attempt": call.attempt},
        )
    )
    draft.emit(
        EventType.TOOL_IN_DOUBT,
        {"suspensionId": name, "toolCallId": call.id, "toolName": call.name, "attempt": call.attempt, "reason": why},
    )


def back_off(failures: int) -> int:
    """Return the delay in ms before the next try of what failed outside model and tool: a second, doubled each time, at most 60."""
    return min(MOST_BACK_OFF, FIRST_BACK_OFF << min(failures - 1, 6))


def open_retry(draft: Draft, call: CallRecord | None, delay_ms: int, why: str, number: int) -> None:
    """Let a call, or (without one) the model request, wait for its next try."""
    if call is None:
        draft.state.wait_count += 1
        name, correlation, phase = ids.wait_id(draft.state.turn_id, "", draft.state.wait_count), "", Phase.MODEL
    else:
        call, name = _numbered(draft, call)
        correlation, phase = call.id, Phase.TOOLS
    due = draft.context.now + delay_ms
    draft.state.retry_count += 1
    draft.open(
        OpenWait(
            id=name,
            type=SuspensionType.RETRY,
            correlation=correlation,
            created=draft.context.now,
            expires=due,
            message=why,
            phase=phase,
        )
    )
    draft.emit(
        EventType.RETRY_SCHEDULED,
        {"suspensionId": name, "retryCount": number, "nextRunnableAt": utc(due).isoformat(), "error": why},
    )


def open_question(draft: Draft, message: str) -> None:
    """Ask a plain question."""
    draft.state.wait_count += 1
    draft.open(
        OpenWait(
            id=ids.wait_id(draft.state.turn_id, "", draft.state.wait_count),
            type=SuspensionType.USER_INPUT,
            correlation="",
            created=draft.context.now,
            message=message,
            phase=Phase.MODEL,
        )
    )


def open_called(draft: Draft, call: CallRecord, child_id: str, agent_id: str, more: JsonObject | None = None) -> None:
    """Let a call wait for the child turn that it has started."""
    call, name = _numbered(draft, call)
    draft.open(
        OpenWait(
            id=name,
            type=SuspensionType.CHILD_AGENT,
            correlation=call.id,
            created=draft.context.now,
            message="Waiting for a child turn",
            metadata={"toolName": call.name, "childTurnId": child_id, "childAgentId": agent_id, **(more or {})},
        )
    )


def open_child(draft: Draft, child_id: str, agent_id: str) -> None:
    """Wait for a child turn."""
    draft.state.wait_count += 1
    draft.open(
        OpenWait(
            id=ids.wait_id(draft.state.turn_id, child_id, draft.state.wait_count),
            type=SuspensionType.CHILD_AGENT,
            correlation=child_id,
            created=draft.context.now,
            message="Waiting for a child turn",
            phase=Phase.MODEL,
            metadata={"childTurnId": child_id, "childAgentId": agent_id},
        )
    )
