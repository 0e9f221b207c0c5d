"""What a turn waits for, what answers it, and the stored outcome of an answer."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from .carried import carried, holds_struct, plain_of
from .chat import ToolCall
from .checks import MAX_DATA, MAX_ID, MAX_KEY, MAX_TEXT, check_flag, check_json, check_object, check_text, shown
from .errors import InvalidDefinition
from .record import JsonObject, JsonValue, Record, Time

__all__ = [
    "MAX_DATA",
    "MAX_ID",
    "MAX_TEXT",
    "CommandType",
    "Effect",
    "Phase",
    "Receipt",
    "ResumeCommand",
    "Suspension",
    "SuspensionType",
    "Wait",
    "check_json",
    "check_text",
]


class SuspensionType(enum.StrEnum):
    """The kinds of waits."""

    USER_INPUT = "USER_INPUT"
    TOOL_APPROVAL = "TOOL_APPROVAL"
    CHILD_AGENT = "CHILD_AGENT"
    RETRY = "RETRY"
    IN_DOUBT = "IN_DOUBT"


class Phase(enum.StrEnum):
    """Where a turn goes on when nothing holds it."""

    MODEL = "MODEL"
    TOOLS = "TOOLS"
    FINISHED = "FINISHED"


# What every approval passes through, by names of their own: before Python 3.12 `Phase.MODEL` is a slow look-up.
TOOL_APPROVAL, CHILD_AGENT = SuspensionType.TOOL_APPROVAL, SuspensionType.CHILD_AGENT
AT_MODEL, AT_TOOLS, AT_END = Phase


class Suspension(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a turn waits for.

    `correlation_id` is the call's id (for CHILD_AGENT the child's, for a plain question and a model retry `None`). `resume_phase`
    is where the turn goes on. `expires_at` is when it ends by itself, or, for RETRY, when it is due. `ancestors` are the turns
    above its own, the root first.
    """

    id: str
    type: SuspensionType
    turn_id: str
    root_turn_id: str
    agent_id: str
    conversation_id: str | None = None
    tenant: str | None = None
    correlation_id: str | None = None
    call: ToolCall | None = None
    message: str | None = None
    form_key: str | None = None
    schema: JsonObject | None = None
    resume_phase: Phase = Phase.TOOLS
    assignee: str | None = None
    metadata: JsonObject = {}
    created_at: Time
    expires_at: Time | None = None
    ancestors: tuple[str, ...] = ()


class CommandType(enum.StrEnum):
    """The kinds of answers."""

    APPROVE_TOOL = "APPROVE_TOOL"
    REJECT_TOOL = "REJECT_TOOL"
    USER_INPUT = "USER_INPUT"
    SUBMIT_FORM = "SUBMIT_FORM"
    DECLINE = "DECLINE"
    RETRY = "RETRY"
    RERUN = "RERUN"
    GIVE_RESULT = "GIVE_RESULT"
    FAIL_CALL = "FAIL_CALL"


class Effect(enum.StrEnum):
    """What the end of a wait meant."""

    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    ANSWERED = "ANSWERED"
    SUBMITTED = "SUBMITTED"
    DECLINED = "DECLINED"
    RETRIED = "RETRIED"
    RERUN = "RERUN"
    RESULT_GIVEN = "RESULT_GIVEN"
    CALL_FAILED = "CALL_FAILED"
    EXPIRED = "EXPIRED"
    CANCELLED = "CANCELLED"
    SUPERSEDED = "SUPERSEDED"
    CHILD_ENDED = "CHILD_ENDED"


class Receipt(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The stored outcome of one ended wait; never undecided.

    `command_id` and `type` are `None` where no command ended it (expired, cancelled, superseded). `digest` is of the command's
    content. `replayed` is true where a repeated command got the receipt of its first delivery.
    """

    command_id: str | None = None
    turn_id: str
    suspension_id: str
    type: CommandType | None = None
    by: str | None = None
    at: Time
    metadata: JsonObject = {}
    effect: Effect
    digest: str = ""
    replayed: bool = False


Wait: TypeAlias = Suspension | str | None


class ResumeCommand(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One answer from outside; use the constructors.

    *wait* is a `Suspension`, its id, or a call id; without one exactly one open wait must fit. A repeated delivery carries the
    same `command_id` (made up by `submit` where absent).
    """

    type: CommandType
    wait: str | None = None
    turn_id: str | None = None
    arguments: JsonObject | None = None
    value: JsonValue = None
    text: str = ""
    force: bool = False
    command_id: str | None = None
    by: str | None = None
    metadata: JsonObject = {}

    def __post_init__(self) -> None:
        """Check every field and copy what could be changed, however the command came into being: call, dict or stored mail."""
        if not isinstance(self.type, CommandType):
            raise InvalidDefinition(f"type must be a CommandType, not {shown(self.type)}")
        check_text("wait", self.wait, MAX_KEY, optional=True, empty=False)
        check_text("turn_id", self.turn_id, MAX_KEY, optional=True, empty=False)
        check_text("command_id", self.command_id, MAX_ID, optional=True, empty=False)
        check_text("by", self.by, MAX_ID, optional=True)
        if self.text != "":
            check_text("text", self.text, MAX_TEXT)
        check_flag("force", self.force)
        if self.arguments is not None:
            self._copy("arguments", check_object("arguments", self.arguments))
        if self.value is not None:
            msgspec.structs.force_setattr(self, "value", carried("data", self.value))
        if self.metadata or not isinstance(self.metadata, dict):
            self._copy("metadata", check_object("metadata", self.metadata))

    def _copy(self, field: str, body: bytes) -> None:
        msgspec.structs.force_setattr(self, field, msgspec.json.decode(body))

    @property
    def digest(self) -> str:
        """Return a digest of what is asked (not of who asks, nor of the command id)."""
        value = plain_of(self.value) if self.value is not None and holds_struct(self.value) else self.value
        content = (str(self.type), self.arguments, value, self.text, self.force)
        return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()[:32]

    @classmethod
    def approve_tool(
        cls,
        wait: Wait = None,
        *,
        arguments: Mapping[str, object] | None = None,
        command_id: str | None = None,
        by: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> ResumeCommand:
        """Let a call run; `arguments` replace all of the model's."""
        return _command(CommandType.APPROVE_TOOL, wait, command_id, by, metadata, arguments=arguments)

    @classmethod
    def reject_tool(
        cls,
        wait: Wait = None,
        reason: str = "",
        *,
        command_id: str | None = None,
        by: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> ResumeCommand:
        """Refuse a call; the model reads the reason."""
        return _command(CommandType.REJECT_TOOL, wait, command_id, by, metadata, text=reason)

    @classmethod
    def user_input(
        cls,
        text: str,
        *,
        wait: Wait = None,
        command_id: str | None = None,
        by: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> ResumeCommand:
        """Answer a plain question."""
        return _command(CommandType.USER_INPUT, wait, command_id, by, metadata, text=text)

    @classmethod
    def submit_form(
        cls,
        wait: Wait,
        data: object,
        *,
        command_id: str | None = None,
        by: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> ResumeCommand:
        """Submit a form; any JSON value is an answer, if the form's schema allows it."""
        return _command(CommandType.SUBMIT_FORM, wait, command_id, by, metadata, value=data)

    @classmethod
    def decline(
        cls,
        wait: Wait = None,
        reason: str = "",
        *,
        command_id: str | None = None,
        by: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> ResumeCommand:
        """Do not answer a form: its call ends with a structured `declined` result and is not run again."""
        return _command(CommandType.DECLINE, wait, command_id, by, metadata, text=reason)

    @classmethod
    def retry(
        cls,
        wait: Wait = None,
        *,
        force: bool = False,
        command_id: str | None = None,
        by: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> ResumeCommand:
        """Try again now what waits for a retry; before it is due only with `force`."""
        return _command(CommandType.RETRY, wait, command_id, by, metadata, force=force)

    @classmethod
    def rerun(
        cls,
        wait: Wait = None,
        *,
        command_id: str | None = None,
        by: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> ResumeCommand:
        """Start a call in doubt once more, under the same idempotency key."""
        return _command(CommandType.RERUN, wait, command_id, by, metadata)

    @classmethod
    def give_result(
        cls,
        wait: Wait,
        value: object,
        *,
        command_id: str | None = None,
        by: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> ResumeCommand:
        """Say what a call in doubt has returned."""
        return _command(CommandType.GIVE_RESULT, wait, command_id, by, metadata, value=value)

    @classmethod
    def fail_call(
        cls,
        wait: Wait = None,
        reason: str = "",
        *,
        command_id: str | None = None,
        by: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> ResumeCommand:
        """Say that a call in doubt has failed; the model reads the reason."""
        return _command(CommandType.FAIL_CALL, wait, command_id, by, metadata, text=reason)


def _command(
    type: CommandType,
    wait: Wait,
    command_id: str | None,
    by: str | None,
    metadata: Any,
    *,
    arguments: Any = None,
    value: Any = None,
    text: str = "",
    force: bool = False,
) -> ResumeCommand:
    """Return a command; a wait given as a record also tells its turn."""
    turn_id = None
    if isinstance(wait, Suspension):
        turn_id, wait = wait.turn_id, wait.id
    return ResumeCommand(
        type=type,
        wait=wait,
        turn_id=turn_id,
        arguments=arguments,
        value=value,
        text=text,
        force=force,
        command_id=command_id,
        by=by,
        metadata={} if metadata is None else metadata,
    )
