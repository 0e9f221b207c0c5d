"""Cards: what a page shows of a wait, in the place of the conversation where it opened. For people only; no model ever sees one.

A card shows what was asked and how that ended. It is no authorization: what may run is decided by the turn's record of the call.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

from .chat import ToolCall
from .record import JsonObject, JsonValue, Record, Time
from .waits import CommandType


class CardStatus(enum.StrEnum):
    """Where a card stands: PENDING while its wait is open, then how that ended."""

    PENDING = "PENDING"
    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    SUBMITTED = "SUBMITTED"
    DECLINED = "DECLINED"
    EXPIRED = "EXPIRED"
    CANCELLED = "CANCELLED"
    SUPERSEDED = "SUPERSEDED"


class ActionMessage(Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="role", tag="action"):
    """The card of a call that needs an approval.

    `action_id` is the id of the wait, which an answer names; `actions` are the answers it takes, none once it has ended. `call` is
    masked as in views, and shows edited arguments with who edited them. `operator` is who answered, `reason` what they, or who
    cancelled the turn, gave as one. `metadata` is the wait's, and under ``answer`` that of the answer, if it had any.
    """

    message_id: str
    turn_id: str
    action_id: str
    status: CardStatus = CardStatus.PENDING
    actions: tuple[CommandType, ...] = ()
    content: str = ""
    call: ToolCall | None = None
    assignee: str | None = None
    expires_at: Time | None = None
    operator: str | None = None
    reason: str | None = None
    ended_at: Time | None = None
    version: int = 0
    metadata: JsonObject = {}


class FormMessage(Record, frozen=True, kw_only=True, omit_defaults=True, tag_field="role", tag="form"):
    """The card of a form; as `ActionMessage`, with the form's key and schema, and the data it ended with."""

    message_id: str
    turn_id: str
    action_id: str
    form_key: str
    schema: JsonObject = {}
    status: CardStatus = CardStatus.PENDING
    actions: tuple[CommandType, ...] = ()
    content: str = ""
    call: ToolCall | None = None
    assignee: str | None = None
    expires_at: Time | None = None
    operator: str | None = None
    reason: str | None = None
    data: JsonValue = None
    ended_at: Time | None = None
    version: int = 0
    metadata: JsonObject = {}


Card: TypeAlias = ActionMessage | FormMessage
