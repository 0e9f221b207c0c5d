"""What a model reads and writes: chat messages, their parts, tool calls and usage."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, final

import msgspec

from .record import JsonObject, Record

PartKind: TypeAlias = Literal["image", "audio", "video", "file"]
UserKind: TypeAlias = Literal["input", "answer", "child", "fault"]


class Part(Record, frozen=True, omit_defaults=True):
    """Something beside the text of a user message, named by a URL (https or data).

    Data is part of the message, and counts for its size; what an https URL leads to is fetched by the provider.
    """

    kind: PartKind
    url: str
    media_type: str | None = None
    name: str | None = None


class ToolCall(Record, frozen=True, omit_defaults=True):
    """One call that a model asked for.

    `invalid` holds the argument text as the model wrote it, where it was not a JSON object. `edited_by` names the person who
    replaced the arguments while the call waited for approval (the stored reply is never changed; this is how readers see it).
    """

    id: str
    name: str
    arguments: JsonObject = {}
    invalid: str | None = None
    edited_by: str | None = None


class Usage(Record, frozen=True, omit_defaults=True):
    """Tokens as the provider counted them; a missing total is input plus output.

    `estimated` says that some of them are an estimate, because a provider did not count.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    estimated: bool = False

    def __post_init__(self) -> None:
        if not self.total_tokens and (self.input_tokens or self.output_tokens):
            msgspec.structs.force_setattr(self, "total_tokens", self.input_tokens + self.output_tokens)

    def __add__(self, other: Usage) -> Usage:
        if self == NOTHING_USED:
            return other
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.total_tokens + other.total_tokens,
            self.estimated or other.estimated,
        )


NOTHING_USED = Usage()


class SystemMessage(Record, frozen=True, omit_defaults=True, tag_field="role", tag="system"):
    """Instructions to the model."""

    content: str


class UserMessage(Record, frozen=True, omit_defaults=True, tag_field="role", tag="user"):
    """What a person (or the application in their name) said.

    `kind` says what for: an ``input`` opens a turn. The others belong to the turn they stand in: an ``answer`` to its question, the
    outcome of a ``child``, a ``fault`` that a reply had.
    """

    content: str
    parts: tuple[Part, ...] = ()
    kind: UserKind = "input"


class AiMessage(Record, frozen=True, omit_defaults=True, tag_field="role", tag="assistant"):
    """A model's reply: text, calls, or both.

    `opaque` is for the model class that made the reply, which may have to send it back (signatures of reasoning); nobody else
    reads it.
    """

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    usage: Usage | None = None
    opaque: JsonObject | None = None


class ToolMessage(Record, frozen=True, omit_defaults=True, tag_field="role", tag="tool"):
    """The result of one call, as the model reads it."""

    call_id: str
    content: str


@final
class CallEdited(Record, frozen=True, omit_defaults=True, tag_field="role", tag="edit"):
    """A history entry that replaces the arguments of an earlier call for all readers; never sent to a model as such."""

    call_id: str
    arguments: JsonObject
    by: str | None = None


ChatMessage: TypeAlias = SystemMessage | UserMessage | AiMessage | ToolMessage
HistoryEntry: TypeAlias = SystemMessage | UserMessage | AiMessage | ToolMessage | CallEdited
Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
