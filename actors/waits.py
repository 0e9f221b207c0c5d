"""What a turn waits for, what answers it, and the stored outcome of an answer."""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Iterator
from datetime import datetime
from typing import Any, TypeAlias, cast

import msgspec

from .chat import ToolCall
from .errors import InvalidDefinition
from .record import JsonObject, JsonValue, Record

MAX_ID = 128
MAX_TEXT = 65_536
MAX_DATA = 65_536


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


class Suspension(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a turn waits for.

    `correlation_id` is the call's id (for CHILD_AGENT the child's, for a plain question and a model retry `None`). `resume_phase`
    is where the turn goes on. `expires_at` is when it ends by itself, or, for RETRY, when it is due.
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
    created_at: datetime
    expires_at: datetime | None = None


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
    at: datetime
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

    @property
    def digest(self) -> str:
        """Return a digest of what is asked (not of who asks, nor of the command id)."""
        content = (self.type.value, self.arguments, self.value, self.text, self.force)
        return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()[:32]

    @classmethod
    def approve_tool(
        cls,
        wait: Wait = None,
        *,
        arguments: JsonObject | None = None,
        command_id: str | None = None,
        by: str | None = None,
        metadata: JsonObject | None = None,
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
        metadata: JsonObject | None = None,
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
        metadata: JsonObject | None = None,
    ) -> ResumeCommand:
        """Answer a plain question."""
        return _command(CommandType.USER_INPUT, wait, command_id, by, metadata, text=text)

    @classmethod
    def submit_form(
        cls,
        wait: Wait,
        data: JsonValue,
        *,
        command_id: str | None = None,
        by: str | None = None,
        metadata: JsonObject | None = None,
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
        metadata: JsonObject | None = None,
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
        metadata: JsonObject | None = None,
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
        metadata: JsonObject | None = None,
    ) -> ResumeCommand:
        """Start a call in doubt once more, under the same idempotency key."""
        return _command(CommandType.RERUN, wait, command_id, by, metadata)

    @classmethod
    def give_result(
        cls,
        wait: Wait,
        value: JsonValue,
        *,
        command_id: str | None = None,
        by: str | None = None,
        metadata: JsonObject | None = None,
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
        metadata: JsonObject | None = None,
    ) -> ResumeCommand:
        """Say that a call in doubt has failed; the model reads the reason."""
        return _command(CommandType.FAIL_CALL, wait, command_id, by, metadata, text=reason)


def check_text(name: str, value: object, limit: int, *, optional: bool = False, empty: bool = True) -> None:
    """Check one text argument of the face.

    :raises InvalidDefinition: if it is not text, is empty where it must not be, has lone surrogates or is over the limit (bytes).
    """
    if value is None and optional:
        return
    if not isinstance(value, str):
        raise InvalidDefinition(f"{name} must be text, not {type(value).__name__}")
    if not empty and not value.strip():
        raise InvalidDefinition(f"{name} must not be blank")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidDefinition(f"{name} is not valid Unicode: {error.reason}") from None
    if size > limit:
        raise InvalidDefinition(f"{name} has {size} bytes, the limit is {limit}")
    if limit <= MAX_ID and "\0" in value:
        raise InvalidDefinition(f"{name} must not contain a NUL")


def check_json(name: str, value: object, limit: int = MAX_DATA, levels: int = 32) -> None:
    """Check that a value is JSON-like (None, bool, numbers, text, lists, dicts with text keys) and within bounds.

    :raises InvalidDefinition: if it is not, naming the place.
    """
    _walk(name, value, levels, iter(range(limit)))
    size = len(msgspec.json.encode(value))
    if size > limit:
        raise InvalidDefinition(f"{name} has {size} bytes as JSON, the limit is {limit}")


def _walk(path: str, value: object, levels: int, left: Iterator[int]) -> None:
    """Check one value and what is in it; each takes one of what is `left` (at least one byte), so shared parts cost no eternity."""
    if next(left, None) is None:
        raise InvalidDefinition(f"{path} is over the limit")
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        check_text(path, value, 1 << 30)
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise InvalidDefinition(f"{path} is a whole number outside 64 bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidDefinition(f"{path} is {value}, which JSON does not have")
    elif isinstance(value, dict):
        _deeper(path, levels)
        for key, item in cast("dict[Any, Any]", value).items():
            if not isinstance(key, str):
                raise InvalidDefinition(f"{path} has a key that is not text: {key!r}")
            check_text(f"{path} key", key, 1 << 30)
            _walk(f"{path}.{key}", item, levels - 1, left)
    elif isinstance(value, list):
        _deeper(path, levels)
        for index, item in enumerate(cast("list[Any]", value)):
            _walk(f"{path}[{index}]", item, levels - 1, left)
    else:
        raise InvalidDefinition(f"{path} is a {type(value).__name__}, which is not JSON-like")


def _deeper(path: str, levels: int) -> None:
    if levels <= 0:
        raise InvalidDefinition(f"{path} is nested too deep")


def _command(
    type: CommandType,
    wait: Wait,
    command_id: str | None,
    by: str | None,
    metadata: JsonObject | None,
    *,
    arguments: JsonObject | None = None,
    value: JsonValue = None,
    text: str = "",
    force: bool = False,
) -> ResumeCommand:
    """Check the arguments that all constructors share."""
    turn_id = None
    if isinstance(wait, Suspension):
        turn_id, wait = wait.turn_id, wait.id
    check_text("wait", wait, 256, optional=True, empty=False)
    check_text("command_id", command_id, MAX_ID, optional=True, empty=False)
    check_text("by", by, MAX_ID, optional=True)
    check_text("text", text, MAX_TEXT)
    metadata = {} if metadata is None else metadata
    if not isinstance(metadata, dict):
        raise InvalidDefinition(f"metadata must be a dict, not {type(metadata).__name__}")
    check_json("metadata", metadata)
    if arguments is not None:
        if not isinstance(arguments, dict):
            raise InvalidDefinition(f"arguments must be a dict, not {type(arguments).__name__}")
        check_json("arguments", arguments)
    check_json("data", value)
    return ResumeCommand(
        type=type,
        wait=wait,
        turn_id=turn_id,
        arguments=_copied(arguments),
        value=_copied(value),
        text=text,
        force=force,
        command_id=command_id,
        by=by,
        metadata=_copied(metadata),
    )


def _copied(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))
