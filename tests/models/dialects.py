"""One reply in the words of two providers, so that one suite can ask both model classes the same."""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from turnhold.actors.chat import AiMessage, ToolCall, Usage, UserMessage
from turnhold.actors.model import ModelRequest, ToolDefinition
from turnhold.actors.stream import Accumulator
from turnhold.models import AnthropicChatModel, OpenAIChatModel

from .provider import Answer, Provider

if TYPE_CHECKING:  # imported where they are used: that takes seconds, and not every process of the tests needs them
    from collections.abc import AsyncIterator

    import anthropic
    import openai

Stop = Literal["text", "calls", "length", "refused"]
REQUEST = ModelRequest(messages=(UserMessage("Refund O-1"),), tools=(ToolDefinition("refund", "", {"type": "object"}),))
CALL = ToolCall("call_9", "refund", {"order": "O-1"})
MESSAGE = AiMessage("Sofort, gern… 😀.", (CALL,), "Let me see… ", Usage(5, 7))


@dataclass(frozen=True)
class Said:
    """What a provider says: text and reasoning in pieces, one call (id, name and arguments as text) and how it ends."""

    content: tuple[str, ...] = ("Sofort, ", "gern… 😀.")
    reasoning: tuple[str, ...] = ("Let me ", "see… ")
    call: tuple[str | None, str, tuple[str, ...]] | None = ("call_9", "refund", ('{"order": ', '"O-1"}'))
    usage: tuple[int, int] | None = (5, 7)
    stop: Stop = "calls"


ALL = Said()
TEXT = Said(reasoning=(), call=None, stop="text")


class Dialect(ABC):
    """A provider's way to say things, and the model class that understands it."""

    name: str
    package: str
    model: type[AnthropicChatModel | OpenAIChatModel]

    @abstractmethod
    def body(self, said: Said) -> dict[str, Any]:
        """Return a whole reply."""

    @abstractmethod
    def events(self, said: Said) -> list[dict[str, Any]]:
        """Return the same as the events of a stream."""

    @abstractmethod
    def error(self, message: str, code: str = "") -> dict[str, Any]:
        """Return the body of an error."""

    @abstractmethod
    def client(self, url: str, **settings: Any) -> Any:
        """Return a client of the package that loads no certificates: that takes longer than everything else here."""

    def piece(self, event: object) -> bytes:
        return b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"

    def last_of(self, said: Said) -> bytes:
        """Return the piece with which all of the reply is there."""
        return self.pieces(said)[-2]

    def pieces(self, said: Said) -> list[bytes]:
        return [self.piece(event) for event in self.events(said)]

    def whole(self, said: Said = ALL) -> Answer:
        return Answer([json.dumps(self.body(said), ensure_ascii=False).encode()])

    def stream(self, said: Said = ALL, **settings: Any) -> Answer:
        return self.streamed(*self.pieces(said), **settings)

    def streamed(self, *pieces: bytes, framing: str = "chunked", **settings: Any) -> Answer:
        return Answer(pieces, kind="text/event-stream", framing=framing, **settings)

    @contextlib.asynccontextmanager
    async def asking(self, *answers: Answer) -> AsyncIterator[tuple[Any, Provider]]:
        async with Provider(*answers).serving() as provider, self.client(provider.url) as client:
            yield self.model("m", client=client), provider


class OpenAI(Dialect):
    name = "openai"
    package = "openai"
    model = OpenAIChatModel
    _STOPS = {"text": "stop", "calls": "tool_calls", "length": "length", "refused": "content_filter"}

    def body(self, said: Said) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(said.content)}
        message |= {"reasoning_content": "".join(said.reasoning)} if said.reasoning else {}
        if said.call is not None:
            id_, name, arguments = said.call
            call = {"id": id_, "type": "function", "function": {"name": name, "arguments": "".join(arguments)}}
            message["tool_calls"] = [{key: value for key, value in call.items() if value is not None}]
        choice = {"index": 0, "message": message, "finish_reason": self._STOPS[said.stop]}
        usage = {} if said.usage is None else {"usage": self._usage(said.usage)}
        return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], **usage}

    def events(self, said: Said) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning_content": text} for text in said.reasoning]
        deltas += [{"content": text} for text in said.content]
        if said.call is not None:
            id_, name, arguments = said.call
            deltas.append({"tool_calls": [{"index": 0, "id": id_, "function": {"name": name, "arguments": ""}}]})
            deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": text}}]} for text in arguments]
        found = [self._chunk([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas]
        found.append(self._chunk([{"index": 0, "delta": {}, "finish_reason": self._STOPS[said.stop]}]))
        usage = {} if said.usage is None else {"usage": self._usage(said.usage)}
        return [*found, self._chunk([]) | usage]

    def error(self, message: str, code: str = "") -> dict[str, Any]:
        return {"error": {"message": message, "type": code or None, "code": code or None}}

    def client(self, url: str, **settings: Any) -> openai.AsyncOpenAI:
        import openai

        http = openai.DefaultAsyncHttpxClient(verify=False)
        return openai.AsyncOpenAI(base_url=url, api_key="secret", http_client=http, **settings)

    def pieces(self, said: Said) -> list[bytes]:
        return [*super().pieces(said), b"data: [DONE]\n\n"]

    def last_of(self, said: Said) -> bytes:
        return self.pieces(said)[-3]

    def _chunk(self, choices: list[Any]) -> dict[str, Any]:
        return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}

    def _usage(self, usage: tuple[int, int]) -> dict[str, int]:
        return {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}


class Anthropic(Dialect):
    name = "anthropic"
    package = "anthropic"
    model = AnthropicChatModel
    _STOPS = {"text": "end_turn", "calls": "tool_use", "length": "max_tokens", "refused": "refusal"}

    def body(self, said: Said) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = []
        if said.reasoning:
            blocks.append({"type": "thinking", "thinking": "".join(said.reasoning)})
        if said.content:
            blocks.append({"type": "text", "text": "".join(said.content)})
        if said.call is not None:
            id_, name, arguments = said.call
            try:
                given = json.loads("".join(arguments) or "{}")
            except ValueError:  # the provider closes what was cut off
                given = json.loads("".join(arguments) + '"}')
            call = {"type": "tool_use", "id": id_, "name": name, "input": given}
            blocks.append({key: value for key, value in call.items() if value is not None})
        usage = {} if said.usage is None else {"usage": {"input_tokens": said.usage[0], "output_tokens": said.usage[1]}}
        return self._message(blocks, self._STOPS[said.stop]) | usage

    def events(self, said: Said) -> list[dict[str, Any]]:
        message = self._message([], None)
        if said.usage is not None:
            message["usage"] = {"input_tokens": said.usage[0], "output_tokens": 1}
        found: list[dict[str, Any]] = [{"type": "message_start", "message": message}, {"type": "ping"}]
        blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        if said.reasoning:
            pieces = [{"type": "thinking_delta", "thinking": text} for text in said.reasoning]
            blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, pieces))
        if said.content:
            blocks.append(({"type": "text", "text": ""}, [{"type": "text_delta", "text": text} for text in said.content]))
        if said.call is not None:
            id_, name, arguments = said.call
            start = {"type": "tool_use", "id": id_, "name": name, "input": {}}
            pieces = [{"type": "input_json_delta", "partial_json": text} for text in ("", *arguments)]
            blocks.append(({key: value for key, value in start.items() if value is not None}, pieces))
        for index, (block, deltas) in enumerate(blocks):
            found.append({"type": "content_block_start", "index": index, "content_block": block})
            found += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            found.append({"type": "content_block_stop", "index": index})
        delta = {"stop_reason": self._STOPS[said.stop], "stop_sequence": None}
        usage = {} if said.usage is None else {"usage": {"output_tokens": said.usage[1]}}
        return [*found, {"type": "message_delta", "delta": delta, **usage}, {"type": "message_stop"}]

    def error(self, message: str, code: str = "") -> dict[str, Any]:
        return {"type": "error", "error": {"type": code or "api_error", "message": message}}

    def client(self, url: str, **settings: Any) -> anthropic.AsyncAnthropic:
        import anthropic

        http = anthropic.DefaultAsyncHttpxClient(verify=False)
        return anthropic.AsyncAnthropic(base_url=url.removesuffix("/v1"), api_key="secret", http_client=http, **settings)

    def piece(self, event: object) -> bytes:
        kind = event.get("type", "strange") if isinstance(event, dict) else "strange"
        return f"event: {kind}\n".encode() + super().piece(event)

    def _message(self, blocks: list[Any], stop: str | None) -> dict[str, Any]:
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
        return {**head, "content": blocks, "stop_reason": stop, "stop_sequence": None}


DIALECTS = (OpenAI(), Anthropic())


async def completed(model: Any, request: ModelRequest = REQUEST) -> AiMessage:
    return await model.complete(request)


async def streamed(model: Any, request: ModelRequest = REQUEST) -> AiMessage:
    accumulator = Accumulator()
    async with contextlib.aclosing(model.stream(request)) as deltas:
        async for delta in deltas:
            accumulator.add(delta)
    return accumulator.message()
