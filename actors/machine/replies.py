"""What a model's reply, or its failure, does to a turn."""

from __future__ import annotations

import hashlib
import zlib

import msgspec

from ..chat import ToolCall, UserMessage
from ..errors import OutputInvalid
from ..events import MODEL_COMPLETED, EventType
from ..record import JsonObject
from ..turn import COMPLETED, CallRecord, Failure, Status, TurnState
from ..waits import AT_TOOLS, MAX_ID
from . import ending, limits, texts
from .draft import Draft
from .messages import ModelFailed, ModelReplied
from .waiting import open_retry

MAX_ERROR = 4000


def replied(draft: Draft, message: ModelReplied) -> None:
    """Take a reply in: count it, put it into the history, and either end the turn or open its calls.

    A reply that nobody waits for any more (the turn is ending, or asked a question) is only counted.
    """
    state, reply = draft.state, message.reply
    if reply.usage is not None:
        state.usage = state.usage + reply.usage
    if message.spent is not None:
        state.usage = state.usage + message.spent
    request = state.request
    if request is None or request.iteration != message.iteration or request.failures != message.failures:
        return
    draft.progress = True
    state.request = None
    state.iteration_count = message.iteration
    if reply.tool_calls:
        reply = msgspec.structs.replace(reply, tool_calls=_named(draft, reply.tool_calls))
    data: JsonObject = {"iteration": message.iteration, "text": reply.content, "hasToolCalls": bool(reply.tool_calls)}
    draft.emit(MODEL_COMPLETED, data)
    draft.append(reply)
    state.calls, state.flushed = tuple([_record(call) for call in reply.tool_calls]), 0
    if not limits.check(draft):
        return
    if reply.tool_calls:
        state.phase = AT_TOOLS
    else:
        conclude(draft, reply.content)


def conclude(draft: Draft, text: str) -> None:
    """End the turn with a final reply; one that is not of the output type goes back to the model, within `max_iterations`."""
    state, agent = draft.state, draft.context.agent
    try:
        output = text if agent is None else agent.output.read(text)
    except OutputInvalid as error:
        told = texts.output_invalid(error.faults, None if agent is None else agent.output.schema)
        draft.append(UserMessage(told, kind="fault"))
        if state.iteration_count >= draft.policy.max_iterations:
            state.failing = Failure("OutputInvalid", str(error)[:MAX_ERROR])
            ending.begin(draft, Status.MAX_ITERATIONS_REACHED)
        else:
            ending.end_step(draft)
    else:
        ending.finish(draft, COMPLETED, output)


def failed(draft: Draft, message: ModelFailed) -> None:
    """Try the request again later, or fail the turn."""
    state = draft.state
    if message.spent is not None:
        state.usage = state.usage + message.spent
    request = state.request
    if request is None or (request.iteration, request.failures) != (message.iteration, message.failures):
        return
    draft.progress = True
    error, failures = message.error, request.failures + 1
    draft.emit(
        EventType.MODEL_FAILED,
        {"iteration": request.iteration, "attempt": failures, "errorType": error.type, "error": error.message},
    )
    state.request = msgspec.structs.replace(request, failures=failures, activation=None)
    retry = draft.policy.retry_policy
    if message.retryable and failures <= retry.max_retries:
        delay = max(retry.delay_ms(failures, draft.context.spread), message.retry_after)
        open_retry(draft, None, delay, error.message, failures)
    else:
        state.request = None
        ending.fail(draft, error.type, error.message)


def digest_of(name: str, arguments: JsonObject) -> str:
    """Return the digest of a call's name and arguments, to which an approval is bound."""
    return hashlib.sha256(msgspec.json.encode((name, arguments), order="deterministic")).hexdigest()[:32]


def _record(call: ToolCall) -> CallRecord:
    return CallRecord(call.id, call.name, call.arguments, digest_of(call.name, call.arguments), invalid=call.invalid)


def _named(draft: Draft, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    """Give every call an id that no call of this turn had before: approvals, results and idempotency keys hang on it.

    The ids in use are remembered as four bytes each; a chance hit only costs a provider's id.
    """
    named: list[ToolCall] = []
    for index, call in enumerate(calls):
        good = _usable(call.id) and not used(draft.state, call.id)
        named.append(call if good else msgspec.structs.replace(call, id=_free(draft.state, index)))
        draft.state.call_marks += _mark(named[-1].id)
    return tuple(named)


def _free(state: TurnState, index: int) -> str:
    """Return an id for a call of the reply at hand."""
    name = stem = f"call_{state.iteration_count}_{index}"
    number = 0
    while used(state, name):
        number += 1
        name = f"{stem}_{number}"
    return name


def _usable(call_id: str) -> bool:
    return len(call_id) <= MAX_ID and call_id.isascii() and call_id.isprintable() and bool(call_id.strip()) and "/" not in call_id


def _mark(call_id: str) -> bytes:
    return zlib.crc32(call_id.encode()).to_bytes(4, "big")


def used(state: TurnState, call_id: str) -> bool:
    """Tell whether a call of the turn has, or had, this id."""
    marks, mark = state.call_marks, _mark(call_id)
    at = marks.find(mark)
    while at >= 0 and at % 4:
        at = marks.find(mark, at + 1)
    return at >= 0
