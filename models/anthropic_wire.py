"""Anthropic's messages on the wire: a request as the provider's JSON, its replies, whole or as events, as ours. No I/O."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from ..actors.chat import AiMessage, ChatMessage, Part, SystemMessage, ToolCall, ToolMessage, Usage, UserMessage
from ..actors.errors import ModelError, ModelRefused
from ..actors.model import Delta, ModelRequest, ToolCallDelta
from ..actors.stream import Accumulator, mended
from .anthropic_schema import expressible
from .provider_errors import body_error
from .wire import CUT_OFF, Halves, base64_of, count, media_type, old_arguments, old_name, text_of

if TYPE_CHECKING:
    from collections.abc import Collection

DEFAULT_MAX_TOKENS: Final = 8192
"""What is sent where `max_output_tokens` is not set: the provider wants a number, and all its models take this one."""

BEGUN: Final = "(The conversation began earlier.)"
"""Opens a conversation whose first message at hand is a reply: the provider wants a user's message there."""

EMPTY: Final = "(empty)"

_CUT = {"max_tokens", "model_context_window_exceeded"}
_COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")


# ---- requests


def request_body(request: ModelRequest, model: str, *, own_endpoint: bool) -> dict[str, Any]:
    """Return the arguments of `messages.create`, without those of streaming.

    `own_endpoint` tells Anthropic's own endpoint, which can promise the shape of an output; elsewhere it is asked for in words.

    :raises ModelRefused: if a part of a message cannot be expressed.
    """
    options = request.options
    turns = _Turns(model, {tool.name for tool in request.tools})
    for message in request.messages:
        turns.add(message)
    system = [mended(message.content) for message in request.messages if isinstance(message, SystemMessage)]
    extra: dict[str, Any] = {
        key: value for key, value in (("temperature", options.temperature), ("top_p", options.top_p)) if value is not None
    }
    if request.output_schema is not None:
        schema = expressible(request.output_schema) if own_endpoint else None
        if schema is None:
            system.append(_in_words(request.output_schema))
        else:
            extra["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    tools, choice = _tools(request, turns.called)
    optional = {
        "system": "\n\n".join(text for text in system if text.strip()) or None,
        "stop_sequences": list(options.stop) or None,
        "tools": tools or None,
        "tool_choice": choice,
        "extra_body": _merged(extra, options.extra) or None,
    }
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": options.max_output_tokens or DEFAULT_MAX_TOKENS,
        "messages": turns.sent(),
    }
    return body | {key: value for key, value in optional.items() if value is not None}


def _merged(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Return both; where both say something of the output's configuration, it is merged as well."""
    config = theirs.get("output_config")
    if "output_config" in ours and isinstance(config, dict):
        theirs = {**theirs, "output_config": ours["output_config"] | config}
    return ours | theirs


def _in_words(schema: dict[str, Any]) -> str:
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    return f"Your final reply must be JSON that fits this JSON Schema, with no other text and no code fence around it:\n{text}"


def _tools(request: ModelRequest, called: Collection[str]) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Return the tools and which of them to use. A history with calls is refused without any: then the names it has, for no use."""
    if not request.tools:
        gone = [
            {"name": name, "description": "No longer available.", "input_schema": {"type": "object"}} for name in sorted(called)
        ]
        return gone, {"type": "none"} if gone else None
    tools = [
        {"name": tool.name, "description": tool.description, "input_schema": {"type": "object"} | tool.parameters}
        for tool in request.tools
    ]
    match request.options.tool_choice:
        case None:
            return tools, None
        case "auto" | "none" as word:
            return tools, {"type": word}
        case "required":
            return tools, {"type": "any"}
        case name:
            return tools, {"type": "tool", "name": name}


class _Turns:
    """The messages of a request, user and assistant in turn, each call and its result under one id that the provider takes."""

    def __init__(self, model: str, tools: Collection[str]) -> None:
        self.called: set[str] = set()
        self._model = model
        self._tools = tools
        self._turns: list[dict[str, Any]] = []
        self._ids: dict[str, str] = {}
        self._taken: set[str] = set()

    def add(self, message: ChatMessage) -> None:
        match message:
            case SystemMessage():
                pass
            case UserMessage():
                self._say("user", [*(_part(part) for part in message.parts), *_text(message.content)])
            case ToolMessage():
                self._say("user", [self._result(message)])
            case AiMessage():
                blocks = [*_thinking(message, self._model), *_text(message.content)]
                self._say("assistant", [*blocks, *(self._call(call) for call in message.tool_calls)])

    def sent(self) -> list[dict[str, Any]]:
        """Return the messages; in each the results come first, as the provider wants it."""
        for turn in self._turns:
            if turn["role"] == "user":
                turn["content"].sort(key=_is_no_result)
        if self._turns and self._turns[0]["role"] == "assistant":
            return [{"role": "user", "content": _text(BEGUN)}, *self._turns]
        return self._turns

    def _say(self, role: str, blocks: list[dict[str, Any]]) -> None:
        if not blocks and role == "assistant":
            return
        if self._turns and self._turns[-1]["role"] == role:
            self._turns[-1]["content"] += blocks
        else:
            self._turns.append({"role": role, "content": blocks or _text(EMPTY)})

    def _call(self, call: ToolCall) -> dict[str, Any]:
        wanted = re.sub(r"[^a-zA-Z0-9_-]", "_", call.id) or "call"
        id_, number = wanted, 1
        while id_ in self._taken:
            number += 1
            id_ = f"{wanted}_{number}"
        self._taken.add(id_)
        self._ids[call.id] = id_
        name = old_name(call, self._tools)
        self.called.add(name)
        return {"type": "tool_use", "id": id_, "name": name, "input": old_arguments(call)}

    def _result(self, message: ToolMessage) -> dict[str, Any]:
        id_ = self._ids.get(message.call_id) or re.sub(r"[^a-zA-Z0-9_-]", "_", message.call_id)
        found: dict[str, Any] = {"type": "tool_result", "tool_use_id": id_}
        return found | ({"content": mended(message.content)} if message.content.strip() else {})


def _is_no_result(block: dict[str, Any]) -> bool:
    return block["type"] != "tool_result"


def _text(text: str) -> list[dict[str, Any]]:
    """Return a block of text; one without any letter is refused by the provider."""
    return [{"type": "text", "text": mended(text)}] if text.strip() else []


def _part(part: Part) -> dict[str, Any]:
    kind, data = media_type(part), base64_of(part)
    if part.kind == "image" or (part.kind == "file" and kind.startswith("image/")):
        return {"type": "image", "source": _source(part, kind or "image/png", data)}
    if part.kind != "file":
        raise ModelRefused(f"Anthropic's models take no {part.kind} parts")
    title: dict[str, Any] = {"title": part.name} if part.name else {}
    if kind.startswith("text/"):
        text = text_of(part)
        if text is None:
            raise ModelRefused("a text file goes to Anthropic only as a data URL with text in UTF-8")
        return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}, **title}
    if kind not in {"", "application/pdf"}:
        raise ModelRefused(f"Anthropic's models take PDF, text and image files, not {kind}")
    return {"type": "document", "source": _source(part, "application/pdf", data), **title}


def _source(part: Part, kind: str, data: str | None) -> dict[str, Any]:
    return {"type": "url", "url": part.url} if data is None else {"type": "base64", "media_type": kind, "data": data}


def _thinking(message: AiMessage, model: str) -> list[dict[str, Any]]:
    """Return the signed reasoning of a reply with calls, which the same model wants back as it was."""
    kept = message.opaque or {}
    blocks: Any = kept.get("thinking")
    if kept.get("model") != model or not isinstance(blocks, list) or not message.tool_calls:
        return []
    rest, found = message.reasoning or "", list[dict[str, Any]]()
    for block in cast("list[dict[str, Any]]", blocks):
        if "data" in block:
            found.append({"type": "redacted_thinking", "data": block["data"]})
        else:
            length = count(block.get("length"))
            found.append({"type": "thinking", "thinking": rest[:length], "signature": block.get("signature")})
            rest = rest[length:]
    return [] if rest else found


# ---- replies


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None


class _Change(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_details: Any = None


class _Message(msgspec.Struct):
    type: str = ""
    content: list[_Block] | None = None
    stop_reason: str | None = None
    stop_details: Any = None
    usage: Any = None
    error: Any = None


class _Event(msgspec.Struct):
    type: str = ""
    index: int | None = None
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Change | None = None
    usage: Any = None
    error: Any = None


_B = TypeVar("_B", _Message, _Event)


class Reader:
    """Reads the events of one reply in the order they came, or all of it from one message."""

    def __init__(self, model: str) -> None:
        self.stop_reason: str | None = None
        self._details: Any = None
        self._model = model
        self._halves = Halves()
        self._counted: dict[str, int] = {}
        self._index = -1
        self._inputs: dict[int, Any] = {}
        self._last_call: int | None = None
        self._wrote = False
        self._thinking: dict[int, dict[str, Any]] = {}

    def read(self, body: object) -> Delta:
        """Return what an event adds to the reply; of an unknown one nothing.

        :raises ModelError: if it is an error of the provider, or no event at all.
        """
        event = _parsed(body, _Event)
        match event.type:
            case "message_start" if event.message is not None:
                return Delta(usage=self._usage(event.message.usage))
            case "content_block_start" if event.content_block is not None:
                self._index = self._index + 1 if event.index is None else event.index
                return self._block(self._index, event.content_block)
            case "content_block_delta" if event.delta is not None:
                return self._change(self._index if event.index is None else event.index, event.delta)
            case "content_block_stop":
                return self._input(self._index if event.index is None else event.index)
            case "message_delta":
                if event.delta is not None:
                    self._stop(event.delta.stop_reason, event.delta.stop_details)
                return Delta(usage=self._usage(event.usage))
            case _:
                return Delta()

    def end(self) -> Delta:
        """Return what the end of the reply adds to it: arguments that a call lost to the token limit, and signatures.

        :raises ModelRefused: if the provider held the reply back.
        :raises ModelError: if it paused for a tool of its own, which is not supported.
        """
        if self.stop_reason == "refusal":
            raise ModelRefused(f"the provider held the reply back{_explained(self._details)}")
        if self.stop_reason == "pause_turn":
            raise ModelError("the provider paused for a tool of its own, which is not supported")
        calls: tuple[ToolCallDelta, ...] = ()
        if self._last_call is not None:
            calls = self._input(self._last_call).tool_calls
            if self.stop_reason in _CUT and not self._wrote and not calls:
                calls = (ToolCallDelta(self._last_call, arguments=CUT_OFF),)
        kept = [self._thinking[index] for index in sorted(self._thinking)]
        opaque: dict[str, Any] = {"model": self._model, "thinking": kept}
        signed = bool(kept) and self._last_call is not None and all("data" in each or "signature" in each for each in kept)
        return Delta(tool_calls=calls, opaque=opaque if signed else None)

    def whole(self, message: _Message) -> AiMessage:
        """Return a reply that came in one message."""
        accumulator = Accumulator()
        self._stop(message.stop_reason, message.stop_details)
        blocks = message.content or []
        for index, block in enumerate(blocks):
            if index == len(blocks) - 1 and block.type == "tool_use" and self.stop_reason in _CUT:
                block.input = _cut_off(block.input)
            accumulator.add(self._block(index, block))
            accumulator.add(self._input(index))
        accumulator.add(Delta(usage=self._usage(message.usage)))
        accumulator.add(self.end())
        return accumulator.message()

    def _stop(self, reason: str | None, details: Any) -> None:
        self.stop_reason = reason or self.stop_reason
        self._details = details or self._details

    def _block(self, index: int, block: _Block) -> Delta:
        match block.type:
            case "text":
                return Delta(content=self._halves.text("content", block.text or ""))
            case "thinking":
                return self._reasoned(index, block.thinking or "", block.signature)
            case "redacted_thinking":
                if block.data:
                    self._thinking[index] = {"data": block.data}
                return Delta()
            case "tool_use":
                self._last_call, self._wrote = index, False
                self._inputs[index] = block.input
                return Delta(tool_calls=(ToolCallDelta(index, block.id, block.name),))
            case _:
                return Delta()

    def _change(self, index: int, change: _Change) -> Delta:
        match change.type:
            case "text_delta":
                return Delta(content=self._halves.text("content", change.text or ""))
            case "thinking_delta":
                return self._reasoned(index, change.thinking or "", None)
            case "signature_delta":
                return self._reasoned(index, "", change.signature)
            case "input_json_delta":
                text = self._halves.text(index, change.partial_json or "")
                if text.strip():
                    self._inputs.pop(index, None)
                    self._wrote = self._wrote or index == self._last_call
                return Delta(tool_calls=(ToolCallDelta(index, arguments=text),) if text else ())
            case _:
                return Delta()

    def _reasoned(self, index: int, text: str, signature: str | None) -> Delta:
        text = self._halves.text("reasoning", text)
        kept = self._thinking.setdefault(index, {"length": 0})
        kept["length"] = kept.get("length", 0) + len(text)
        if signature:
            kept["signature"] = kept.get("signature", "") + signature
        return Delta(reasoning=text)

    def _input(self, index: int) -> Delta:
        """Return the arguments of a call that came with its beginning, and not in pieces."""
        given = self._inputs.pop(index, None)
        if not given:
            return Delta()
        self._wrote = self._wrote or index == self._last_call
        text = given if isinstance(given, str) else json.dumps(given)
        return Delta(tool_calls=(ToolCallDelta(index, arguments=text),))

    def _usage(self, sent: Any) -> Usage | None:
        """Return all that was counted so far; what was read from or written to a cache is input as well."""
        if isinstance(sent, dict):
            fields = cast("dict[str, Any]", sent)
            self._counted |= {key: count(fields[key]) for key in _COUNTS if isinstance(fields.get(key), int)}
        if not self._counted:
            return None
        *asked, said = (self._counted.get(key, 0) for key in _COUNTS)
        return Usage(sum(asked), said)


def whole_reply(body: object, model: str) -> AiMessage:
    """Return the message of a reply that came in one piece.

    :raises ModelError: if it holds none; the class says whether a retry makes sense.
    """
    message = _parsed(body, _Message)
    if message.content is None:
        raise ModelError("the endpoint's answer has no content: is it an endpoint for Anthropic's messages?")
    return Reader(model).whole(message)


def _cut_off(arguments: Any) -> str:
    """Return cut arguments, which the provider has closed to an object, as they were: no object."""
    return f"{json.dumps(arguments).rstrip()[:-1]} {CUT_OFF}" if arguments and isinstance(arguments, dict) else CUT_OFF


def _explained(details: Any) -> str:
    said = cast("dict[str, Any]", details).get("explanation") if isinstance(details, dict) else None
    return f": {said[:300]}" if isinstance(said, str) else ""


def _parsed(body: object, kind: type[_B]) -> _B:
    if not isinstance(body, dict):
        raise ModelError(f"the endpoint's answer is no JSON object but {type(body).__name__}")
    try:
        parsed = msgspec.convert(body, kind, strict=False)
    except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
        raise ModelError(f"the endpoint's answer is none of Anthropic's messages: {error}") from error
    if parsed.error or parsed.type == "error":
        raise body_error(parsed.error)
    return parsed
