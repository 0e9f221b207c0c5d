"""What a chat model is to a turn: the request, the streamed pieces and the protocol. Implementations live in `models/`."""

from __future__ import annotations

import copy
import math
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Protocol, runtime_checkable

import msgspec

from .chat import AiMessage, ChatMessage, Usage
from .checks import MAX_ID, MAX_TEXT, check_span, check_text, check_whole, shown
from .errors import InvalidDefinition
from .record import JsonObject, Record, Seconds


class ToolDefinition(Record, frozen=True):
    """A tool as a model sees it; `parameters` is a JSON Schema object."""

    name: str
    description: str
    parameters: JsonObject


class ModelOptions(Record, frozen=True, omit_defaults=True):
    """Settings of a model request; `None` leaves the provider's default.

    `timeout` bounds one request (a timedelta, or seconds). `extra` is copied, and handed to the provider as it is.

    :raises InvalidDefinition: if a value is of a wrong type or out of bounds.
    """

    temperature: float | None = None
    max_output_tokens: int | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    tool_choice: str | None = None
    timeout: Seconds = timedelta(minutes=5)
    extra: JsonObject = {}

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)):
                raise InvalidDefinition(f"ModelOptions.{name} must be None or a number, not {shown(value)}")
        if self.max_output_tokens is not None:
            check_whole("ModelOptions.max_output_tokens", self.max_output_tokens, 1)
        if isinstance(self.stop, str) or not isinstance(self.stop, Sequence):
            raise InvalidDefinition(f"ModelOptions.stop must be a list of texts, not {shown(self.stop)}")
        for word in self.stop:
            check_text("ModelOptions.stop", word, MAX_TEXT, empty=False)
        msgspec.structs.force_setattr(self, "stop", tuple(self.stop))
        check_text("ModelOptions.tool_choice", self.tool_choice, MAX_ID, optional=True, empty=False)
        msgspec.structs.force_setattr(self, "timeout", check_span("ModelOptions.timeout", self.timeout, positive=True))
        if not isinstance(self.extra, dict):
            raise InvalidDefinition(f"ModelOptions.extra must be a dict, not {shown(self.extra)}")
        try:
            msgspec.structs.force_setattr(self, "extra", copy.deepcopy(self.extra))
        except Exception as error:
            raise InvalidDefinition(f"ModelOptions.extra cannot be copied: {shown(error)}") from None


class ModelRequest(Record, frozen=True, kw_only=True):
    """One request to a model.

    `iteration` counts the replies of this turn so far, plus one. `attempt` counts the failures of this request so far, plus one;
    both are durable and mean the same in every process. `output_schema` is the JSON Schema (of an object) that a reply without
    calls must fit, `None` for any text; a model that cannot promise that may ignore it, its replies are checked anyway.
    """

    messages: tuple[ChatMessage, ...]
    tools: tuple[ToolDefinition, ...] = ()
    options: ModelOptions = ModelOptions()
    output_schema: JsonObject | None = None
    turn_id: str = ""
    conversation_id: str | None = None
    agent_id: str = ""
    iteration: int = 1
    attempt: int = 1


class ToolCallDelta(Record, frozen=True, omit_defaults=True):
    """A piece of a call; pieces with one `index` belong to one call, `arguments` are concatenated."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class Delta(Record, frozen=True, omit_defaults=True):
    """A piece of a streamed reply; of several `usage` and `opaque` the last counts."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    usage: Usage | None = None
    opaque: JsonObject | None = None


@runtime_checkable
class ChatModel(Protocol):
    """Anything that answers a `ModelRequest`.

    A model that can stream also has ``stream(request) -> AsyncIterator[Delta]``; one that holds resources may have an async
    ``close()``, which the Runtime that opened it calls at its end.
    """

    async def complete(self, request: ModelRequest) -> AiMessage:
        """Answer a request.

        :raises ModelError: if the provider refused, failed or timed out; the class says whether a retry makes sense.
        """
        ...


@runtime_checkable
class StreamingChatModel(ChatModel, Protocol):
    """A `ChatModel` that can also stream."""

    def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Answer a request piece by piece."""
        ...
