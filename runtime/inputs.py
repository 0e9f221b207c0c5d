"""Checks of what comes in at the face; every input has a bound, every mistake a typed error that names it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import cast

import msgspec

from ..actors.chat import AiMessage, CallEdited, ChatMessage, Part, SystemMessage, ToolMessage, UserMessage
from ..actors.errors import InvalidDefinition, SnapshotTooLarge
from ..actors.history import unanswered
from ..actors.record import JsonObject, Seconds, duration
from ..actors.waits import check_json, check_text
from .settings import Settings

MESSAGES = (SystemMessage, UserMessage, AiMessage, ToolMessage)


def seconds(name: str, value: Seconds) -> float:
    """Return a duration in seconds. :raises InvalidDefinition: if it is none, or negative."""
    if isinstance(value, bool) or not isinstance(value, timedelta | int | float):
        raise InvalidDefinition(f"{name} must be a timedelta or seconds, not {value!r}")
    try:
        found = duration(value).total_seconds()
    except (OverflowError, ValueError):
        raise InvalidDefinition(f"{name} is not a possible duration: {value!r}") from None
    if found < 0:
        raise InvalidDefinition(f"{name} must not be negative, not {value!r}")
    return found


def optional_seconds(name: str, value: Seconds | None) -> float | None:
    """Return a duration in seconds, or `None` for no limit. :raises InvalidDefinition: as `seconds`."""
    return None if value is None else seconds(name, value)


def user_message(value: object, settings: Settings, name: str = "input") -> UserMessage:
    """Return an input as a message.

    :raises InvalidDefinition: if it is neither text nor a UserMessage, or not valid Unicode.
    :raises SnapshotTooLarge: if it is over the message limit.
    """
    message = UserMessage(value) if isinstance(value, str) else value
    if not isinstance(message, UserMessage):
        raise InvalidDefinition(f"{name} must be text or a UserMessage, not {type(value).__name__}")
    check_message(name, message, settings)
    return message


def check_message(name: str, message: ChatMessage, settings: Settings) -> None:
    """Check one message: the types of its fields, its encoding and its size.

    :raises InvalidDefinition: if a field is of a wrong type or not valid Unicode.
    :raises SnapshotTooLarge: if it is over the message limit.
    """
    text = cast("object", message.content)
    if not isinstance(text, str):
        raise InvalidDefinition(f"{name}.content must be text, not {type(text).__name__}")
    if isinstance(message, UserMessage):
        for part in cast("Sequence[object]", message.parts):
            if not isinstance(part, Part):
                raise InvalidDefinition(f"{name}.parts must hold Parts, not a {type(part).__name__}")
    try:
        body = msgspec.msgpack.encode(message)
        msgspec.msgpack.decode(body, type=type(message))
    except (UnicodeError, TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidDefinition(f"{name} cannot be stored: {error}") from None
    if len(body) > settings.max_message:
        raise SnapshotTooLarge(name, len(body), settings.max_message)


def history(value: object, settings: Settings) -> tuple[ChatMessage, ...]:
    """Return earlier messages.

    :raises InvalidDefinition: if it is not a list of chat messages, or a call in it has no result.
    :raises SnapshotTooLarge: if one of them is over the message limit.
    """
    if value is None:
        return ()
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidDefinition(f"history must be a list of chat messages, not {type(value).__name__}")
    items = cast("Sequence[object]", value)
    if len(items) > 10_000:
        raise InvalidDefinition(f"history has {len(items)} messages, the limit is 10000")
    found: list[ChatMessage] = []
    for index, item in enumerate(items):
        if not isinstance(item, MESSAGES) or isinstance(item, CallEdited):
            raise InvalidDefinition(f"history[{index}] must be a chat message, not {type(item).__name__}")
        check_message(f"history[{index}]", item, settings)
        found.append(item)
    if left := unanswered(found):
        raise InvalidDefinition(f"history has a call without a result: {left[0]!r}")
    return tuple(found)


def metadata(value: object) -> JsonObject:
    """Return metadata, copied. :raises InvalidDefinition: if it is not a JSON-like dict within bounds."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidDefinition(f"metadata must be a dict, not {type(value).__name__}")
    found = cast("JsonObject", value)
    check_json("metadata", found)
    return msgspec.json.decode(msgspec.json.encode(found))


def name(what: str, value: object, *, limit: int = 128) -> None:
    """Check an optional name. :raises InvalidDefinition: if it is blank, too long or not text."""
    check_text(what, value, limit, optional=True, empty=False)


def page_limit(value: object) -> int:
    """Return a page size. :raises InvalidDefinition: if it is not a whole number from 1 to 1000."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1000:
        raise InvalidDefinition(f"limit must be a whole number from 1 to 1000, not {value!r}")
    return value


def cursor(value: object) -> str | None:
    """Return a page cursor. :raises InvalidDefinition: if it is not text that a page has given."""
    check_text("after", value, 512, optional=True, empty=False)
    return cast("str | None", value)
