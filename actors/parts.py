"""What stands beside the text of a user message: what may stand there, and which messages have it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from .chat import UserMessage
from .checks import MAX_NAME, check_text, shown
from .errors import InvalidDefinition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .chat import ChatMessage, Part

_TYPE: Final = re.compile(r"([A-Za-z0-9][\w.+-]*)/[A-Za-z0-9][\w.+-]*(?:\s*;.*)?")
_DATA: Final = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),", re.IGNORECASE)
_HTTPS: Final = re.compile(r"https://[^\s/?#]+\S*", re.IGNORECASE)
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_KINDS: Final = {"audio", "image", "video"}


def check_parts(what: str, parts: Sequence[Part]) -> None:
    """Check parts as far as that can be told without the network.

    :raises InvalidDefinition: if a URL is neither https nor data, or a media type is none, or one of another kind.
    """
    for index, part in enumerate(parts):
        _check_part(f"{what}.parts[{index}]", part)


def carry_parts(messages: Iterable[ChatMessage]) -> bool:
    """Tell whether a user message among these has a part."""
    return any(isinstance(message, UserMessage) and message.parts for message in messages)


def _check_part(what: str, part: Part) -> None:
    check_text(f"{what}.name", part.name, MAX_NAME, optional=True, empty=False)
    check_text(f"{what}.media_type", part.media_type, MAX_NAME, optional=True, empty=False)
    data = _DATA.match(part.url)
    if data is None and not _HTTPS.fullmatch(part.url):
        raise InvalidDefinition(f"{what}.url must be an https or a data URL, not {shown(part.url)}")
    if data is not None and data[2].lower().endswith(";base64") and not _is_base64(part.url, data.end()):
        raise InvalidDefinition(f"{what}.url says that its data is base64, which it is not")
    for type_ in (part.media_type, data[1] if data is not None else None):
        if not type_:
            continue
        found = _TYPE.fullmatch(type_)
        if found is None:
            raise InvalidDefinition(f"{what}: a media type is like image/png, not {shown(type_)}")
        if part.kind in _KINDS and found[1].lower() in _KINDS | {"text"} and found[1].lower() != part.kind:
            raise InvalidDefinition(f"{what} is of the kind {part.kind}, but its media type is {shown(type_)}")


def _is_base64(url: str, start: int) -> bool:
    return (len(url) - start) % 4 == 0 and _BASE64.fullmatch(url, start) is not None
