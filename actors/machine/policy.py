"""What happens to a new call before it may start: whether it is a call at all, and whether it may run without a person."""

from __future__ import annotations

from typing import Any

import msgspec

from ..agent import Agent
from ..errors import ArgumentsInvalid
from ..events import EventType
from ..forms import FormDefinition
from ..policies import ApprovalDecision
from ..record import JsonObject, JsonValue
from ..tools import Tool, decision_of
from ..turn import PENDING, CallRecord, CallStatus, Failure
from . import ending, plans, texts
from .draft import AskPolicy, Draft
from .messages import RESOLVER, PolicyDecided, PolicyFailed
from .waiting import back_off, open_approval, open_form, open_retry


def asks(agent: Agent, tool: Tool[..., Any]) -> bool:
    """Tell whether code of the user has to be asked about calls of a tool."""
    return agent.approval is not None or callable(tool.approval)


def consider(draft: Draft, call: CallRecord) -> None:
    """Decide about a call, ask about it, or answer the model that it is no proper call."""
    agent = draft.context.agent
    assert agent is not None, "only an executor considers calls"
    tool = draft.tool(call)
    if tool is None and agent.hooks.resolvers and call.id not in draft.context.resolved:
        # which arguments are sensitive is not known yet
        draft.put(msgspec.structs.replace(call, sensitive=tuple(call.arguments)))
        draft.actions.append(AskPolicy(call.id))
        return None
    if tool is None:
        offered = (*plans.definitions(draft.state, agent, draft.context.delegates), *agent.definitions)
        known = ", ".join(sorted(definition.name for definition in offered))
        return refuse(draft, call, "unknown_tool", f"There is no tool {call.name!r}. Tools: {known or 'none'}.")
    if call.invalid is not None:
        return refuse(draft, call, "invalid_arguments", texts.NO_ARGUMENTS)
    try:
        tool.bind(call.effective)
    except ArgumentsInvalid as error:
        faults: list[JsonValue] = [{"path": path, "message": text} for path, text in error.faults]
        return refuse(draft, call, "invalid_arguments", "The arguments do not fit the tool's parameters.", faults=faults)
    call = frozen(draft, call, tool)
    if tool.forms:
        return _ask_form(draft, call, tool.forms)
    if asks(agent, tool):
        draft.put(call)
        draft.actions.append(AskPolicy(call.id))
        return None
    return decide(draft, call, tool, decision_of(tool.approval))


def frozen(draft: Draft, call: CallRecord, tool: Tool[..., Any]) -> CallRecord:
    """Return a call's record with what of its tool holds for as long as the call lives."""
    sequential = tool.sequential or draft.policy.sequential
    if (call.sequential, call.cancellable, call.sensitive) == (sequential, tool.cancellable, tool.sensitive):
        return call
    return msgspec.structs.replace(call, sequential=sequential, cancellable=tool.cancellable, sensitive=tool.sensitive)


def refuse(draft: Draft, call: CallRecord, type: str, message: str, **more: JsonValue) -> None:
    """Answer a call with a structured failure; the turn goes on."""
    draft.put(msgspec.structs.replace(call, status=CallStatus.DONE, result=texts.failed(type, message, **more)))
    draft.emit(EventType.TOOL_FAILED, {"toolCallId": call.id, "toolName": call.name, "error": message})


def decide(draft: Draft, call: CallRecord, tool: Tool[..., Any], decision: ApprovalDecision) -> None:
    """Apply a decision. A call that a person has just approved (with edited arguments) is only held by a refusal."""
    effect = tool.effect or ("once" if decision.outcome == "require" or call.approved else "repeatable")
    if decision.outcome == "deny":
        result = texts.denied(decision)
        draft.put(msgspec.structs.replace(call, effect=effect, policy_failures=0, status=CallStatus.REJECTED, result=result))
        data: JsonObject = {"toolCallId": call.id, "toolName": call.name, "by": "policy"}
        if decision.code is not None:
            data["code"] = decision.code
        if decision.reason is not None:
            data["reason"] = decision.reason
        draft.emit(EventType.TOOL_REJECTED, data)
    elif decision.outcome == "require" and not call.approved:
        call = msgspec.structs.replace(call, effect=effect, policy_failures=0, parameters=tool.parameters)
        open_approval(draft, call, decision, tool.assignee)
    else:
        draft.put(msgspec.structs.replace(call, effect=effect, policy_failures=0, status=PENDING, allowed=True))


def decided(draft: Draft, message: PolicyDecided) -> None:
    """A policy has spoken."""
    call, agent = draft.state.call(message.call_id), draft.context.agent
    if call is None or call.status is not CallStatus.UNDECIDED or draft.state.ending is not None or agent is None:
        return
    tool = draft.tool(call)
    if tool is not None:
        decide(draft, call, tool, message.decision)


def failed(draft: Draft, message: PolicyFailed) -> None:
    """A policy, or a resolver, raised: recorded, counted, backed off; the turn fails when it keeps on raising."""
    call = draft.state.call(message.call_id)
    if call is None or call.status is not CallStatus.UNDECIDED or draft.state.ending is not None:
        return
    call = draft.put(msgspec.structs.replace(call, policy_failures=call.policy_failures + 1))
    error: Failure = message.error
    waits = call.approved and message.what == RESOLVER  # what a person has approved is not thrown away while nobody finds its tool
    if call.policy_failures >= draft.policy.max_crashes and not waits:
        ending.fail(draft, error.type, f"{message.what} failed for {call.name}: {error.message}")
        return
    delay = back_off(call.policy_failures)
    open_retry(draft, call, delay, f"{message.what} failed: {error.message}", call.policy_failures)


def _ask_form(draft: Draft, call: CallRecord, forms: tuple[FormDefinition[Any], ...]) -> None:
    key = call.effective.get("form_key")
    for form in forms:
        if form.form_key == key:
            open_form(draft, draft.put(msgspec.structs.replace(call, allowed=True)), form)
            return
    refuse(draft, call, "unknown_form", f"There is no form {key!r}.", forms=[form.form_key for form in forms])
