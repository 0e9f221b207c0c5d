"""Folds the pieces of a streamed reply into the message they make, whatever way a provider cuts it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from .chat import AiMessage, ToolCall, Usage
from .checks import check_object
from .errors import InvalidDefinition, ModelError

if TYPE_CHECKING:
    from .model import Delta, ToolCallDelta
    from .record import JsonObject

MAX_ARGUMENTS: Final = 1024 * 1024
"""Characters of one call's arguments that are read as JSON; longer ones are invalid."""

MAX_LEVELS: Final = 64
"""Levels of one call's arguments; deeper ones are invalid."""

MAX_REPLY: Final = 8 * 1024 * 1024
"""Characters of text, reasoning and arguments that one reply may have."""

_KEPT_OF_TOO_LONG = 1024


class _Call:
    """One call while its pieces arrive."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []

    def add(self, piece: ToolCallDelta) -> None:
        self.id = self.id or piece.id or ""
        self.name = self.name or piece.name or ""
        if piece.arguments:
            self.arguments.append(piece.arguments)

    def is_followed_by(self, piece: ToolCallDelta) -> bool:
        """Tell whether `piece` starts another call: some providers number every call 0.

        A new id alone proves nothing, others make one up for every piece; a new id with a name does.
        """
        return bool(self.id and self.name and piece.id and piece.name) and piece.id != self.id

    def finished(self) -> ToolCall | None:
        text = mended("".join(self.arguments))
        if not (self.id or self.name or text):
            return None
        arguments, invalid = parse_arguments(text)
        return ToolCall(mended(self.id), mended(self.name), arguments, invalid)


class Accumulator:
    """Collects `Delta`s; `message()` is the reply they make so far.

    Calls are ordered by index, whatever numbers a provider uses. An id or name may come with any piece, the first one
    counts; a call that never got one has ``""``. Of several usage records, and of several `opaque`, the last counts.
    """

    def __init__(self, *, limit: int = MAX_REPLY) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, list[_Call]] = {}
        self._usage: Usage | None = None
        self._opaque: JsonObject | None = None
        self._left = limit
        self._limit = limit

    @property
    def usage(self) -> Usage | None:
        """What the provider has counted so far."""
        return self._usage

    def add(self, delta: Delta) -> None:
        """Take in one piece.

        :raises ModelError: if the reply has grown over the limit.
        """
        self._left -= len(delta.content) + len(delta.reasoning)
        self._left -= sum(len(piece.arguments) for piece in delta.tool_calls)
        if self._left < 0:
            raise ModelError(f"the reply is longer than {self._limit} characters")
        if delta.content:
            self._content.append(delta.content)
        if delta.reasoning:
            self._reasoning.append(delta.reasoning)
        for piece in delta.tool_calls:
            calls = self._calls.setdefault(piece.index, [_Call()])
            if calls[-1].is_followed_by(piece):
                calls.append(_Call())
            calls[-1].add(piece)
        if delta.usage is not None:
            self._usage = delta.usage
        if delta.opaque is not None:
            self._opaque = delta.opaque

    def message(self) -> AiMessage:
        """Return the reply so far; a call whose arguments are no JSON object has them in `invalid`."""
        calls = (call.finished() for index in sorted(self._calls) for call in self._calls[index])
        return AiMessage(
            content=mended("".join(self._content)),
            tool_calls=tuple(call for call in calls if call is not None),
            reasoning=mended("".join(self._reasoning)) or None,
            usage=self._usage,
            opaque=self._opaque,
        )


def parse_arguments(text: str) -> tuple[JsonObject, str | None]:
    """Read a call's arguments: the object and None, or an empty object and the text that is none.

    Empty text means no arguments. Words or a code fence around one object are forgiven. Text over `MAX_ARGUMENTS`
    characters is not read, and only its beginning is returned.
    """
    if len(text) > MAX_ARGUMENTS:
        return {}, f"{text[:_KEPT_OF_TOO_LONG]}… ({len(text)} characters, the limit is {MAX_ARGUMENTS})"
    stripped = text.strip()
    if not stripped:
        return {}, None
    found = _object(stripped)
    if found is None and stripped[0] not in '["':
        found = _object(stripped[stripped.find("{") : stripped.rfind("}") + 1])
    return ({}, text) if found is None else (found, None)


def mended(text: str) -> str:
    """Return text that UTF-8 can carry: halves of a split surrogate pair are joined, lone ones become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _object(text: str) -> JsonObject | None:
    """Return the JSON object that `text` is and that can be stored again (64 bits, `MAX_LEVELS`), or None."""
    try:
        value = msgspec.json.decode(text, type=dict[str, Any])
        check_object("arguments", value, 2 * MAX_ARGUMENTS, MAX_LEVELS)
    except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError, InvalidDefinition):
        return None
    return value
