"""Chat completions on the wire: a request as the provider's JSON, its replies, whole or in chunks, as ours. No I/O."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ..actors.chat import AiMessage, ChatMessage, Part, SystemMessage, ToolCall, ToolMessage, Usage, UserMessage
from ..actors.errors import ModelError, ModelOverloaded, ModelRefused
from ..actors.model import Delta, ModelRequest, ToolCallDelta
from ..actors.stream import Accumulator, mended
from .provider_errors import body_error
from .wire import CUT_OFF, Halves, base64_of, count, media_type, old_arguments, old_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_AUDIO_FORMATS = {"mpeg": "mp3", "mp3": "mp3", "wav": "wav", "wave": "wav", "x-wav": "wav", "vnd.wave": "wav"}


# ---- requests


def request_body(request: ModelRequest, model: str, *, own_endpoint: bool) -> dict[str, Any]:
    """Return the arguments of `chat.completions.create`, without those of streaming.

    `own_endpoint` tells OpenAI's own endpoint, which calls the token limit otherwise than all compatible ones.

    :raises ModelRefused: if a part of a message cannot be expressed.
    """
    options = request.options
    names = {tool.name for tool in request.tools}
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(message, names, own=own_endpoint) for message in request.messages],
    }
    optional = {
        "temperature": options.temperature,
        "max_completion_tokens" if own_endpoint else "max_tokens": options.max_output_tokens,
        "top_p": options.top_p,
        "stop": list(options.stop) or None,
        "tools": [_tool(tool.name, tool.description, tool.parameters) for tool in request.tools] or None,
        "tool_choice": _tool_choice(options.tool_choice) if names else None,
        "response_format": _response_format(request.output_schema),
        "extra_body": options.extra or None,
    }
    return body | {key: value for key, value in optional.items() if value is not None}


def _tool(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _tool_choice(choice: str | None) -> object:
    if choice in {None, "auto", "none", "required"}:
        return choice
    return {"type": "function", "function": {"name": choice}}


def _response_format(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    if schema is None:
        return None
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", str(schema.get("title") or "output"))[:64]
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}


def _message(message: ChatMessage, tools: Collection[str], *, own: bool) -> dict[str, Any]:
    match message:
        case SystemMessage():
            return {"role": "system", "content": mended(message.content)}
        case UserMessage():
            return {"role": "user", "content": _content(message, own=own)}
        case ToolMessage():
            return {"role": "tool", "tool_call_id": message.call_id, "content": mended(message.content)}
        case AiMessage():
            said: dict[str, Any] = {"role": "assistant", "content": mended(message.content)}
            if message.tool_calls:
                said["content"] = said["content"] or None
                said["tool_calls"] = [_old_call(call, tools) for call in message.tool_calls]
            return said


def _old_call(call: ToolCall, tools: Collection[str]) -> dict[str, Any]:
    text = msgspec.json.encode(old_arguments(call)).decode()
    return {"id": call.id, "type": "function", "function": {"name": old_name(call, tools), "arguments": text}}


def _content(message: UserMessage, *, own: bool) -> str | list[dict[str, Any]]:
    if not message.parts:
        return mended(message.content)
    text = [{"type": "text", "text": mended(message.content)}] if message.content else []
    return [*text, *(_part(part, own=own) for part in message.parts)]


def _part(part: Part, *, own: bool) -> dict[str, Any]:
    """Return a part as the provider reads it; what OpenAI itself is known not to take, other endpoints may."""
    data = base64_of(part)
    kind = media_type(part)
    url = part.url if data is None or not kind else f"data:{kind};base64,{data}"
    match part.kind:
        case "image":
            return {"type": "image_url", "image_url": {"url": url}}
        case "video":
            if own:
                raise ModelRefused("OpenAI takes no video parts")
            return {"type": "video_url", "video_url": {"url": url}}
        case "file":
            if own and data is None:
                raise ModelRefused("a file part goes to OpenAI only as a data URL")
            return {"type": "file", "file": {"filename": part.name or "file", "file_data": url}}
        case "audio":
            if data is None:
                raise ModelRefused("an audio part goes to this provider only as a data URL")
            kind = kind.removeprefix("audio/")
            return {"type": "input_audio", "input_audio": {"data": data, "format": _AUDIO_FORMATS.get(kind, kind)}}


# ---- replies


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Said(msgspec.Struct):
    content: str | list[Any] | None = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int | None = None
    finish_reason: str | None = None
    delta: _Said | None = None
    message: _Said | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None


class Reader:
    """Reads the bodies of one reply, one whole or many chunks, in the order they came."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self._halves = Halves()
        self._last: tuple[int, str | None] | None = None
        self._empty: dict[int, bool] = {}

    def read(self, body: object) -> Delta:
        """Return what a body adds to the reply.

        :raises ModelError: if it is an error of the provider, or no chat completion at all.
        """
        parsed = _parsed(body)
        delta = Delta(usage=_usage(parsed.usage))
        for choice in parsed.choices or ():
            if choice.index:
                continue
            self.finish_reason = choice.finish_reason or self.finish_reason
            said = choice.message or choice.delta
            if said is not None:
                delta = self._said(said, delta.usage, whole=choice.message is not None)
        return delta

    def end(self) -> Delta:
        """Return what the end of the reply adds to it: arguments for a call that lost them all to the token limit.

        :raises ModelRefused: if the provider held the reply back.
        """
        if self.finish_reason == "content_filter":
            raise ModelRefused("the provider's content filter held the reply back")
        if self.finish_reason != "length" or self._last is None or not self._empty[self._last[0]]:
            return Delta()
        return Delta(tool_calls=(ToolCallDelta(self._last[0], arguments=CUT_OFF),))

    def _said(self, said: _Said, usage: Usage | None, *, whole: bool) -> Delta:
        calls = said.tool_calls or ()
        reasoning = said.reasoning_content if isinstance(said.reasoning_content, str) else said.reasoning
        return Delta(
            content=self._halves.text("content", _plain(said.content) or said.refusal or ""),
            reasoning=self._halves.text("reasoning", reasoning if isinstance(reasoning, str) else ""),
            tool_calls=tuple(self._call(call, place if whole else None) for place, call in enumerate(calls)),
            usage=usage,
        )

    def _call(self, call: _Call, place: int | None) -> ToolCallDelta:
        function = call.function or _Function()
        arguments = function.arguments or ""
        if isinstance(arguments, dict):
            arguments = msgspec.json.encode(arguments).decode()
        index = self._index(call, function) if place is None else place
        self._last = (index, call.id or (self._last[1] if self._last and self._last[0] == index else None))
        self._empty[index] = self._empty.get(index, True) and not arguments.strip()
        return ToolCallDelta(index, call.id, function.name, self._halves.text(index, arguments))

    def _index(self, call: _Call, function: _Function) -> int:
        """Return a call's index. Some providers send none: then a name with a new id starts the next call."""
        if call.index is not None:
            return call.index
        if self._last is None:
            return 0
        index, known = self._last
        return index + 1 if function.name and (call.id is None or call.id != known) else index


def whole_reply(body: object) -> AiMessage:
    """Return the message of a reply that came in one piece.

    :raises ModelError: if it holds none; the class says whether a retry makes sense.
    """
    parsed = _parsed(body)
    if parsed.choices is None:
        raise ModelError("the endpoint's answer has no choices: is it a chat completions endpoint?")
    if not any(choice.message for choice in parsed.choices):
        raise ModelOverloaded("the provider sent an empty list of choices")
    reader, accumulator = Reader(), Accumulator()
    accumulator.add(reader.read(body))
    accumulator.add(reader.end())
    return accumulator.message()


def _parsed(body: object) -> _Body:
    if not isinstance(body, dict):
        raise ModelError(f"the endpoint's answer is no JSON object but {type(body).__name__}")
    try:
        parsed = msgspec.convert(body, _Body, strict=False)
    except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
        raise ModelError(f"the endpoint's answer is no chat completion: {error}") from error
    if parsed.error:
        raise body_error(parsed.error)
    return parsed


def _plain(content: str | list[Any] | None) -> str:
    return content if isinstance(content, str) else "".join(_texts(content or []))


def _texts(parts: list[Any]) -> Iterator[str]:
    """Yield the text of a content that some providers send as a list of parts."""
    for part in parts:
        text = cast("dict[str, Any]", part).get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            yield text


def _usage(sent: Any) -> Usage | None:
    if not isinstance(sent, dict):
        return None
    fields = cast("dict[str, Any]", sent)
    asked, said, total = (count(fields.get(key)) for key in ("prompt_tokens", "completion_tokens", "total_tokens"))
    return Usage(asked, said, total)
