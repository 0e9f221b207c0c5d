"""Checks of what comes in at the face; every input has a bound, every mistake a typed error that names it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

import msgspec

from ..actors.carried import Marks, StructTypes
from ..actors.chat import AiMessage, CallEdited, ChatMessage, SystemMessage, ToolMessage, UserMessage
from ..actors.checks import LONGEST, MAX_ID, MAX_NAME, check_object, check_span, check_text, check_whole, shown
from ..actors.errors import InvalidDefinition, SnapshotTooLarge
from ..actors.history import unanswered
from ..actors.memory import ChatMemory
from ..actors.parts import check_parts
from ..actors.record import JsonObject, Metadata, Seconds
from ..actors.waits import ResumeCommand
from ..store.base import read_cursor
from .hooks import Listener
from .settings import Settings

M = TypeVar("M", bound=ChatMessage)
MAX_HISTORY = 10_000
MAX_TOKENS = 1 << 40
CENTURY = LONGEST.total_seconds()
MESSAGES = (SystemMessage, UserMessage, AiMessage, ToolMessage)


def seconds(name: str, value: Seconds) -> float:
    """Return a duration in seconds. :raises InvalidDefinition: if it is none, negative, or longer than a century."""
    if (type(value) is int or type(value) is float) and 0 <= value <= CENTURY:
        return float(value)
    return check_span(name, value).total_seconds()


def optional_seconds(name: str, value: Seconds | None) -> float | None:
    """Return a duration in seconds, or `None` for no limit. :raises InvalidDefinition: as `seconds`."""
    return None if value is None else seconds(name, value)


def resume_command(value: object) -> None:
    """Check a command. :raises InvalidDefinition: if it is none."""
    if not isinstance(value, ResumeCommand):
        raise InvalidDefinition(f"command must be a ResumeCommand, not {type(value).__name__}")


def user_message(value: object, settings: Settings, name: str = "input") -> UserMessage:
    """Return an input as a message.

    :raises InvalidDefinition: if it is neither text nor a UserMessage, or not valid Unicode.
    :raises SnapshotTooLarge: if it is over the message limit.
    """
    if isinstance(value, str):
        message = UserMessage(value)
        _encoded(name, message, settings)
        return message
    if not isinstance(value, UserMessage):
        raise InvalidDefinition(f"{name} must be text or a UserMessage, not {type(value).__name__}")
    message = checked_message(name, value, settings)
    if message.kind != "input":
        raise InvalidDefinition(f"{name}.kind must be 'input', not {message.kind!r}")
    return message


def checked_message(name: str, message: M, settings: Settings) -> M:
    """Return a copy of a message whose fields, encoding and size are right.

    :raises InvalidDefinition: if a field is of a wrong type or not valid Unicode, or a part is none.
    :raises SnapshotTooLarge: if it is over the message limit.
    """
    if not isinstance(message.content, str):
        raise InvalidDefinition(f"{name}.content must be text, not {type(message.content).__name__}")
    body = _encoded(name, message, settings)
    try:
        same = msgspec.msgpack.decode(body, type=type(message))
    except (ValueError, RecursionError) as error:
        raise InvalidDefinition(f"{name} cannot be stored: {error}") from None
    if isinstance(same, AiMessage):
        for index, call in enumerate(same.tool_calls):
            check_object(f"{name}.tool_calls[{index}].arguments", call.arguments, settings.max_message, 64)
        if same.opaque is not None:
            check_object(f"{name}.opaque", same.opaque, settings.max_message, 64)
        if same.usage is not None:
            for field in ("input_tokens", "output_tokens", "total_tokens"):
                check_whole(f"{name}.usage.{field}", getattr(same.usage, field), 0, MAX_TOKENS)
    elif isinstance(same, UserMessage):
        check_parts(name, same.parts)
    return same


def _encoded(name: str, message: ChatMessage, settings: Settings) -> bytes:
    try:
        body = msgspec.msgpack.encode(message)
    except (UnicodeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidDefinition(f"{name} cannot be stored: {error}") from None
    if len(body) > settings.max_message:
        raise SnapshotTooLarge(name, len(body), settings.max_message)
    return body


def history(value: object, settings: Settings) -> tuple[ChatMessage, ...]:
    """Return earlier messages.

    :raises InvalidDefinition: if it is not a list of chat messages, or a call in it has no result.
    :raises SnapshotTooLarge: if one of them is over the message limit.
    """
    if value is None:
        return ()
    kind = type(value).__name__
    if isinstance(value, str | bytes | dict) or not isinstance(value, Iterable):
        raise InvalidDefinition(f"history must be a list of chat messages, not {kind}")
    found: list[ChatMessage] = []
    for index, item in enumerate(cast("Iterable[object]", value)):
        if index == MAX_HISTORY:
            raise InvalidDefinition(f"history has more than {MAX_HISTORY} messages, which is the limit")
        if not isinstance(item, MESSAGES) or isinstance(item, CallEdited):
            raise InvalidDefinition(f"history[{index}] must be a chat message, not {type(item).__name__}")
        found.append(checked_message(f"history[{index}]", item, settings))
    if left := unanswered(found):
        raise InvalidDefinition(f"history has a call without a result: {left[0]!r}")
    return tuple(found)


def when_busy(value: object, conversation: str | None) -> None:
    """Check what is to happen in a busy conversation. :raises InvalidDefinition: if it is none of the three, or there is none."""
    if value not in ("refuse", "queue", "supersede"):
        raise InvalidDefinition(f'when_busy must be "refuse", "queue" or "supersede", not {shown(value)}')
    if value != "refuse" and conversation is None:
        raise InvalidDefinition(f'when_busy="{value}" needs a conversation')


def chat_memory(value: object) -> ChatMemory | None:
    """Return a memory of the user's own. :raises InvalidDefinition: if it lacks something that a `ChatMemory` has."""
    if value is not None and any(not callable(getattr(value, name, None)) for name in ("append", "page", "get", "replace")):
        raise InvalidDefinition(f"chat_memory must be a ChatMemory (append, page, get, replace), not {shown(value)}")
    return cast("ChatMemory | None", value)


def metadata(types: StructTypes, value: object, under: Metadata | None = None) -> tuple[JsonObject, Marks]:
    """Return metadata, copied, over that of the options, and where Structs stand in it.

    :raises InvalidDefinition: if it is not a dict of JSON-like values and of Structs of the given types, within bounds.
    """
    if under and (value is None or isinstance(value, Mapping)):
        value = {**under, **cast("Mapping[Any, Any]", value or {})}
    return ({}, ()) if value is None else types.plain_object("metadata", value)


def clock(value: object) -> None:
    """Check a clock. :raises InvalidDefinition: if it lacks something that a `Clock` has."""
    if value is not None and any(not hasattr(value, part) for part in ("wall", "monotonic", "call_later", "virtual", "busy")):
        raise InvalidDefinition(f"clock must be a Clock, such as turnhold.testing.VirtualClock, not {shown(value)}")


def listeners(value: object) -> list[Listener]:
    """Return listeners. :raises InvalidDefinition: if it is not a list of functions."""
    if not isinstance(value, Iterable):
        raise InvalidDefinition(f"listeners must be a list of functions, not {shown(value)}")
    found = list(cast("Iterable[object]", value))
    for item in found:
        if not callable(item):
            raise InvalidDefinition(f"a listener is a function, not {shown(item)}")
    return cast("list[Listener]", found)


def name(what: str, value: object, *, limit: int = MAX_ID) -> None:
    """Check an optional name. :raises InvalidDefinition: if it is blank, too long or not text."""
    if value is not None:
        check_text(what, value, limit, empty=False)


def page_limit(value: object) -> int:
    """Return a page size. :raises InvalidDefinition: if it is not a whole number from 1 to 1000."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1000:
        raise InvalidDefinition(f"limit must be a whole number from 1 to 1000, not {shown(value)}")
    return value


def cursor(value: object) -> str | None:
    """Return a page cursor. :raises InvalidDefinition: if it is not text that a page may have given."""
    check_text("after", value, MAX_NAME, optional=True, empty=False)
    found = cast("str | None", value)
    read_cursor(found)
    return found
