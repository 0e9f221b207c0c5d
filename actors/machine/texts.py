"""The words that the machine puts into a history: results of calls that did not run to their end, of children, of wrong replies."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..policies import ApprovalDecision
from ..record import JsonObject, JsonValue
from ..schema import Fault
from ..turn import CallRecord, Failure
from .messages import ChildEnded

CHILD_PREFIX = "Result of a child turn: "
MAX_SHOWN = 4096
NO_ARGUMENTS = "The arguments are not a JSON object of at most 64 levels with whole numbers of at most 64 bits."


def dump(value: JsonValue) -> str:
    """Return a value as JSON text."""
    return msgspec.json.encode(value).decode()


def failed(type: str, message: str, **more: JsonValue) -> str:
    """Return a structured failure for the model."""
    return dump({"error": True, "type": type, "message": message, **more})


def execution_error(error: Failure) -> str:
    """Return what the model reads of a tool that raised."""
    return failed("tool_execution_error", error.message, errorType=error.type)


def rejected(type: str, message: str, decision: JsonObject) -> str:
    """Return what the model reads of a call that was refused."""
    data: JsonObject = {"error": True, "type": type, "message": message}
    data.update(decision)
    return dump(data)


def denied(decision: ApprovalDecision) -> str:
    """Return what the model reads of a call that a policy refused."""
    message = decision.message or decision.reason or "The call was refused by policy."
    more: JsonObject = {"by": "policy"}
    if decision.code is not None:
        more["code"] = decision.code
    if decision.metadata:
        more["metadata"] = decision.metadata
    return rejected("tool_rejected", message, more)


def submitted(form_key: str, data: JsonValue) -> str:
    """Return the result of a `request_user_input` call."""
    return dump({"status": "submitted", "formKey": form_key, "data": data})


def declined(reason: str, *, expired: bool = False) -> str:
    """Return the result of a call whose form was not answered."""
    return dump({"status": "expired" if expired else "declined", "reason": reason})


def child_result(message: ChildEnded) -> str:
    """Return how a child's outcome enters its parent's history."""
    data: JsonObject = {"childTurnId": message.child_id, "agentId": message.agent_id, "status": message.status.value}
    if message.output is not None:
        data["output"] = message.output
    if message.error is not None:
        data["error"] = message.error.message
    elif message.reason is not None:
        data["error"] = message.reason
    return CHILD_PREFIX + dump(data)


def output_invalid(faults: Sequence[Fault], schema: JsonObject | None) -> str:
    """Return what the model reads of a final reply that is not of the output type; a schema of up to 4 KiB stands with it."""
    message = "Your reply is not what was asked for. Reply again with nothing but JSON that fits the schema."
    listed: list[JsonValue] = [{"path": path, "message": text} for path, text in faults]
    if schema is None or len(dump(schema)) > MAX_SHOWN:
        return failed("output_invalid", message, faults=listed)
    return failed("output_invalid", message, faults=listed, schema=schema)


def child_failed(message: ChildEnded) -> str:
    """Return what the model reads of a call whose child did not complete."""
    status = message.status.value
    why = message.error.message if message.error is not None else message.reason
    more: JsonObject = {} if message.error is None else {"errorType": message.error.type}
    return failed(
        f"child_{status.lower()}",
        f"{message.agent_id} did not complete: {why or status}",
        status=status,
        childTurnId=message.child_id,
        agentId=message.agent_id,
        **more,
    )


def fill(template: str, reason: str, turn_id: str, call: CallRecord | None = None) -> str:
    """Fill the placeholders of a closing text; unknown ones stay as they are."""
    for name, value in (
        ("{turnId}", turn_id),
        ("{toolCallId}", "" if call is None else call.id),
        ("{toolName}", "" if call is None else call.name),
        ("{reason}", reason),
    ):
        template = template.replace(name, value)
    return template
