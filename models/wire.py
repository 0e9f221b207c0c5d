"""What the providers' wires share: parts as data, old calls, pieces of text that can be stored. No I/O."""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from ..actors.stream import mended

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..actors.chat import Part, ToolCall
    from ..actors.record import JsonObject

CUT_OFF: Final = "(cut off at the token limit)"
"""Stands for the arguments of a call that the token limit cut off before its first argument."""

INVALID: Final = "INVALID_JSON"
"""The key under which a model sees its own arguments that were no JSON object: servers read those of old calls."""

_DATA = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),", re.IGNORECASE)


class Halves:
    """Pieces of texts, by key: half a character that a provider sends first waits for its other half."""

    def __init__(self) -> None:
        self._halves: dict[object, str] = {}

    def text(self, key: object, text: str) -> str:
        """Return the next piece of a text, such that it can be stored."""
        text = self._halves.pop(key, "") + text
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._halves[key] = text[-1]
            text = text[:-1]
        return mended(text)


def media_type(part: Part) -> str:
    """Return a part's media type in lower case, `""` where neither it nor its data URL says one."""
    found = _DATA.match(part.url)
    return (part.media_type or (found[1] if found else "")).partition(";")[0].strip().lower()


def base64_of(part: Part) -> str | None:
    """Return the bytes in a part's data URL as base64, or None if the URL leads elsewhere."""
    found = _DATA.match(part.url)
    if found is None:
        return None
    rest = part.url[found.end() :]
    return rest if found[2].lower().endswith(";base64") else base64.b64encode(unquote_to_bytes(rest)).decode()


def text_of(part: Part) -> str | None:
    """Return the text in a part's data URL, or None if it has none, or it is not UTF-8."""
    data = base64_of(part)
    try:
        return None if data is None else base64.b64decode(data).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def old_name(call: ToolCall, tools: Collection[str]) -> str:
    """Return the name of a call of an earlier reply; one that the model made up is made one that a provider accepts."""
    return call.name if call.name in tools else re.sub(r"[^a-zA-Z0-9_-]", "_", call.name)[:64] or "unknown"


def old_arguments(call: ToolCall) -> JsonObject:
    """Return the arguments of a call of an earlier reply, as an object whatever the model wrote."""
    return call.arguments if call.invalid is None else {INVALID: call.invalid}


def count(value: object) -> int:
    """Return a number of tokens; what is none is 0."""
    return value if isinstance(value, int) and value > 0 else 0
