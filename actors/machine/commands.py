"""Commands from outside: one command, one answer, in one order of checks. A refused command changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from .. import schema
from ..carried import Marks
from ..chat import CallEdited, UserMessage
from ..events import TURN_RESUMED, EventType
from ..record import JsonObject, JsonValue
from ..results import result_text
from ..turn import PENDING, CallRecord, CallStatus, Decline, OpenWait
from ..waits import CommandType, Effect, Receipt, ResumeCommand
from . import calls, planning, texts
from .draft import Accepted, Draft, Outcome, Refusal
from .messages import Received
from .replies import digest_of
from .waiting import accepts

EFFECTS = {
    CommandType.APPROVE_TOOL: Effect.APPROVED,
    CommandType.REJECT_TOOL: Effect.REJECTED,
    CommandType.USER_INPUT: Effect.ANSWERED,
    CommandType.SUBMIT_FORM: Effect.SUBMITTED,
    CommandType.DECLINE: Effect.DECLINED,
    CommandType.RETRY: Effect.RETRIED,
    CommandType.RERUN: Effect.RERUN,
    CommandType.GIVE_RESULT: Effect.RESULT_GIVEN,
    CommandType.FAIL_CALL: Effect.CALL_FAILED,
}
REASONED = frozenset({CommandType.REJECT_TOOL, CommandType.DECLINE, CommandType.FAIL_CALL, CommandType.RETRY})


def command(draft: Draft, message: Received, asked: ResumeCommand, marks: Marks = ()) -> Outcome:
    """Decide about one command and, where it is accepted, do what it asks."""
    known = _known(draft, message, asked)
    if known is not None:
        return known
    state = draft.state
    if state.status.terminal:
        return Refusal("TurnClosed", f"turn {state.turn_id} is {state.status.value}", status=state.status.value)
    if not state.waits:
        return Refusal("NotSuspended", f"turn {state.turn_id} waits for nothing")
    found = _find(draft, asked)
    if not isinstance(found, OpenWait):
        return found
    refusal = _check(draft, found, asked)
    if refusal is not None:
        return refusal
    receipt = draft.close(found, EFFECTS[asked.type], asked)
    data: JsonObject = {"commandType": str(asked.type)}
    if found.correlation:
        data["correlationId"] = found.correlation
    if asked.by is not None:
        data["by"] = asked.by
    draft.emit(TURN_RESUMED, data)
    apply = _APPLY.get(asked.type)
    if apply is None:  # a form
        submit(draft, found, asked.value, marks)
    else:
        apply(draft, found, asked)
    return Accepted(receipt)


def agrees(receipt: Receipt, asked: ResumeCommand) -> bool:
    """Tell whether a command wanted what the receipt says has been decided; reasons are not compared."""
    if receipt.type is not asked.type:
        return False
    return asked.type in REASONED or receipt.digest == asked.digest


def from_receipt(receipt: Receipt, asked: ResumeCommand, by: str, turn_id: str) -> Outcome:
    """Answer a command from a receipt: that of its own id, or that of the wait it wanted to answer."""
    if by == "command":
        if receipt.digest == asked.digest and (asked.wait is None or same_wait(receipt.suspension_id, asked.wait)):
            return Accepted(msgspec.structs.replace(receipt, replayed=True))
        return Refusal("CommandIdReused", f"command id {asked.command_id!r} was accepted with other content", receipt=receipt)
    who = f" by {receipt.by}" if receipt.by else ""
    text = f"wait {receipt.suspension_id} of turn {turn_id} was {receipt.effect.value}{who} at {receipt.at.isoformat()}"
    return Refusal("AlreadyAnswered", text, receipt=receipt, agrees=agrees(receipt, asked))


def same_wait(wait: str, named: str) -> bool:
    """Tell whether a wait is meant by its id or by the id of its call."""
    return wait == named or wait.split("/")[1:2] == [named]


def _known(draft: Draft, message: Received, asked: ResumeCommand) -> Outcome | None:
    """Answer from a receipt: one given with the message, or one of this very batch (two commands may be read together)."""
    turn_id = draft.state.turn_id
    for receipt in draft.receipts:
        if asked.command_id is not None and receipt.command_id == asked.command_id:
            return from_receipt(receipt, asked, "command", turn_id)
    if message.known is not None and message.known_by == "command":
        return from_receipt(message.known, asked, "command", turn_id)
    if asked.wait is None or any(same_wait(wait.id, asked.wait) for wait in draft.state.waits):
        return None
    for receipt in reversed(draft.receipts):
        if same_wait(receipt.suspension_id, asked.wait):
            return from_receipt(receipt, asked, "wait", turn_id)
    if message.known is not None:
        return from_receipt(message.known, asked, "wait", turn_id)
    return None


def _find(draft: Draft, asked: ResumeCommand) -> OpenWait | Refusal:
    """Find the one open wait that is meant."""
    waits = draft.state.waits
    if asked.wait is not None:
        found = [wait for wait in waits if wait.id == asked.wait] or [wait for wait in waits if wait.correlation == asked.wait]
    else:
        found = [wait for wait in waits if accepts(wait, asked.type)]
        if not found and len(waits) == 1:
            found = waits
    if len(found) != 1:
        text = f"no open wait {asked.wait!r} in turn {draft.state.turn_id}"
        if asked.wait is None:
            text = f"{len(found) or 'no'} open waits of turn {draft.state.turn_id} fit {asked.type.value}; name one"
        return Refusal("SuspensionMismatch", text, open_waits=tuple(wait.id for wait in waits))
    return found[0]


def _check(draft: Draft, wait: OpenWait, asked: ResumeCommand) -> Refusal | None:
    """Refuse the wrong kind of command, a retry that is not due, and data that does not fit."""
    if not accepts(wait, asked.type):
        kind = wait.type.value + (" with a form" if wait.form_key is not None else "")
        right = " or ".join(each.value for each in CommandType if accepts(wait, each)) or "no command"
        return Refusal("WrongCommand", f"{asked.type.value} does not answer {kind} ({wait.id}); {right} does")
    if wait.expires is not None and asked.type is CommandType.RETRY and not asked.force and wait.expires > draft.context.now:
        return Refusal("RetryNotDue", f"the retry of {wait.id} is not due yet; force tries it now", due=wait.expires)
    faults: list[tuple[str, str]] = []
    if wait.schema is not None and asked.type is CommandType.SUBMIT_FORM:
        faults = schema.faults(wait.schema, asked.value)
    elif asked.arguments is not None and asked.type is CommandType.APPROVE_TOOL:
        call = _of(draft, wait)
        faults = schema.faults(call.parameters or {}, call.unmasked(asked.arguments))
    if faults:
        text = "; ".join(f"{path}: {fault}" for path, fault in faults)
        return Refusal("InvalidFormData", f"the data does not fit {wait.id}: {text}"[:2000], faults=tuple(faults))
    return None


def _of(draft: Draft, wait: OpenWait) -> CallRecord:
    call = draft.state.call(wait.correlation)
    assert call is not None, "a wait of a call outlives it"
    return call


def _approve(draft: Draft, wait: OpenWait, asked: ResumeCommand) -> None:
    """The approval is bound to this record. Edited arguments replace all; the policy is asked once more about them."""
    call = _of(draft, wait)
    arguments = None if asked.arguments is None else call.unmasked(asked.arguments)
    if arguments is None or arguments == call.arguments:
        draft.put(msgspec.structs.replace(call, approved=True, status=PENDING, allowed=True, parameters=None))
        return
    draft.put(
        msgspec.structs.replace(
            call,
            approved=True,
            status=CallStatus.UNDECIDED,
            edited=arguments,
            edited_by=asked.by,
            digest=digest_of(call.name, arguments),
            parameters=None,
        )
    )
    draft.append(CallEdited(call.id, arguments, asked.by))
    _show_edits(draft)


def _show_edits(draft: Draft) -> None:
    """Tell the conversation which calls of the reply at hand were edited, and where that reply is in the history.

    Behind it there are only results and edits of its calls.
    """
    state = draft.state
    if state.conversation_id is not None and state.parent_turn_id is None:
        edits = [CallEdited(call.id, call.edited, call.edited_by) for call in state.calls if call.edited is not None]
        place = state.message_count + len(draft.messages) - state.flushed - len(edits) - 1
        draft.edited = (place, tuple(edits))


def _reject(draft: Draft, wait: OpenWait, asked: ResumeCommand) -> None:
    call, stored = _of(draft, wait), wait.metadata or {}
    more: JsonObject = {"by": "human"}
    for key, name in (("approvalCode", "code"), ("approvalMetadata", "metadata")):
        if key in stored:
            more[name] = stored[key]
    reason = asked.text or stored.get("approvalReason")
    message = reason if isinstance(reason, str) and reason else "The call was rejected by a person."
    draft.put(
        msgspec.structs.replace(
            call, status=CallStatus.REJECTED, result=texts.rejected("tool_rejected", message, more), parameters=None
        )
    )
    data: JsonObject = {"toolCallId": call.id, "toolName": call.name, "reason": message}
    if asked.by is not None:
        data["by"] = asked.by
    draft.emit(EventType.TOOL_REJECTED, data)


def _answer(draft: Draft, wait: OpenWait, asked: ResumeCommand) -> None:
    draft.append(UserMessage(asked.text, kind="answer"))
    planning.spoken(draft)


def submit(draft: Draft, wait: OpenWait, value: JsonValue, marks: Marks = ()) -> None:
    """Hand form data over: to the model as its call's result, or to the function that asked, which is started again."""
    call, key = _of(draft, wait), wait.form_key or ""
    if call.attempt == 0:
        calls.finish(draft, call, texts.submitted(key, value))
        return
    forms: JsonObject = {**(call.forms or {}), key: value}
    form_marks = {**(call.form_marks or {}), key: marks} if marks else call.form_marks
    draft.put(msgspec.structs.replace(call, status=CallStatus.PENDING, forms=forms, form_marks=form_marks))


def _decline(draft: Draft, wait: OpenWait, asked: ResumeCommand) -> None:
    decline(draft, wait, _of(draft, wait), asked.text)


def decline(draft: Draft, wait: OpenWait, call: CallRecord, reason: str, *, expired: bool = False) -> None:
    """End a call whose form is not answered; where its function wants to be told of that, start it again."""
    if wait.tell_decline and call.attempt > 0:
        declined = {**(call.declined or {}), wait.form_key or "": Decline(reason, expired)}
        draft.put(msgspec.structs.replace(call, status=CallStatus.PENDING, declined=declined))
        return
    result = texts.declined(reason, expired=expired)
    draft.put(
        msgspec.structs.replace(
            call, status=CallStatus.REJECTED, result=result, forms=None, form_marks=None, declined=None, kept=None, parameters=None
        )
    )


def _retry(draft: Draft, wait: OpenWait, asked: ResumeCommand) -> None:
    retry(draft, wait)


def retry(draft: Draft, wait: OpenWait) -> None:
    """Let what waited for a retry go on."""
    call = draft.state.call(wait.correlation) if wait.correlation else None
    if call is not None:
        draft.put(msgspec.structs.replace(call, status=CallStatus.PENDING if call.allowed else CallStatus.UNDECIDED))


def _rerun(draft: Draft, wait: OpenWait, asked: ResumeCommand) -> None:
    draft.put(msgspec.structs.replace(_of(draft, wait), status=CallStatus.PENDING, crashes=0, failures=0))


def _give_result(draft: Draft, wait: OpenWait, asked: ResumeCommand) -> None:
    calls.finish(draft, _of(draft, wait), result_text(asked.value))


def _fail_call(draft: Draft, wait: OpenWait, asked: ResumeCommand) -> None:
    calls.finish(draft, _of(draft, wait), texts.failed("tool_failed", asked.text or "The call has failed."))


_APPLY: dict[CommandType, Callable[[Draft, OpenWait, ResumeCommand], None]] = {
    CommandType.APPROVE_TOOL: _approve,
    CommandType.REJECT_TOOL: _reject,
    CommandType.USER_INPUT: _answer,
    CommandType.DECLINE: _decline,
    CommandType.RETRY: _retry,
    CommandType.RERUN: _rerun,
    CommandType.GIVE_RESULT: _give_result,
    CommandType.FAIL_CALL: _fail_call,
}
