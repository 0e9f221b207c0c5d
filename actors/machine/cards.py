"""The cards of a turn's waits: made when a wait opens, made anew when it ends, in the very draft that does it."""

from __future__ import annotations

import msgspec

from ..cards import ActionMessage, Card, CardStatus, FormMessage
from ..record import JsonObject, JsonValue, utc
from ..turn import CallRecord, OpenWait, Status, TurnState
from ..view import metadata_of, pending_call
from ..waits import CommandType, Effect, Receipt, ResumeCommand, SuspensionType

APPROVAL = (CommandType.APPROVE_TOOL, CommandType.REJECT_TOOL)
FORM = (CommandType.SUBMIT_FORM, CommandType.DECLINE)


def shows(state: TurnState, wait: OpenWait) -> bool:
    """Tell whether a wait has a card: approvals and forms have one, where the turn belongs to a conversation."""
    if state.conversation_id is None:
        return False
    return wait.type is SuspensionType.TOOL_APPROVAL or wait.form_key is not None


def opened(state: TurnState, wait: OpenWait, call: CallRecord) -> Card:
    """Return the card of an open wait.

    Its id is made of the call's; a second form of one call, and so on, is numbered. A wait that is opened anew for the same thing
    (the store had gone back, or the call was in doubt) shows on the same card.
    """
    metadata = metadata_of(wait, call)
    expires = None if wait.expires is None else utc(wait.expires)
    if wait.form_key is None:
        return ActionMessage(
            message_id=f"{state.turn_id}:approval:{call.id}",
            turn_id=state.turn_id,
            action_id=wait.id,
            actions=APPROVAL,
            content=wait.message or "",
            call=pending_call(call),
            assignee=wait.assignee,
            expires_at=expires,
            metadata=metadata,
        )
    number = len(call.forms or {}) + len(call.declined or {})
    return FormMessage(
        message_id=f"{state.turn_id}:input:{call.id}" + (f":{number + 1}" if number else ""),
        turn_id=state.turn_id,
        action_id=wait.id,
        form_key=wait.form_key,
        schema=wait.schema or {},
        actions=FORM,
        content=wait.message or "",
        call=pending_call(call),
        assignee=wait.assignee,
        expires_at=expires,
        metadata=metadata,
    )


def ended(state: TurnState, wait: OpenWait, call: CallRecord, receipt: Receipt, command: ResumeCommand | None) -> Card:
    """Return the card of a wait that has ended; `call` is its record as it was while it waited."""
    if command is not None and command.arguments is not None:
        arguments = call.unmasked(command.arguments)
        if arguments != call.arguments:
            call = msgspec.structs.replace(call, edited=arguments, edited_by=command.by)
    card = opened(state, wait, call)
    metadata: JsonObject = {**card.metadata, "answer": receipt.metadata} if receipt.metadata else card.metadata
    card = msgspec.structs.replace(
        card,
        status=CardStatus(receipt.effect.value),
        actions=(),
        operator=receipt.by,
        reason=_reason(state, receipt.effect) if command is None else command.text or None,
        ended_at=receipt.at,
        metadata=metadata,
    )
    return msgspec.structs.replace(card, data=_data(wait, receipt, command)) if isinstance(card, FormMessage) else card


def _reason(state: TurnState, effect: Effect) -> str | None:
    """Return why a wait ended that nobody answered."""
    if effect is Effect.EXPIRED or state.ending is None:
        return None
    if state.ending is Status.CANCELLED:
        return state.cancel_reason
    return state.failing.message if state.failing is not None else state.budget_exceeded_reason


def _data(wait: OpenWait, receipt: Receipt, command: ResumeCommand | None) -> JsonValue:
    """Return what a form ended with: the data submitted, or the default that was taken when it expired."""
    if command is not None:
        return command.value
    return wait.default if receipt.effect is Effect.EXPIRED and wait.has_default else None
