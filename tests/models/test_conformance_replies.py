"""Both model classes read the same reply out of what their providers send, whole or in whatever pieces."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import pytest

from turnhold.actors.chat import AiMessage, ToolCall, Usage, UserMessage
from turnhold.actors.errors import ModelError, ModelRefused
from turnhold.actors.model import ChatModel, Delta, ModelOptions, ModelRequest, StreamingChatModel

from .dialects import ALL, DIALECTS, MESSAGE, REQUEST, TEXT, Dialect, completed, streamed
from .provider import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from .dialects import Said

Ask: TypeAlias = "Callable[..., Coroutine[Any, Any, AiMessage]]"
pytestmark = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
BOTH = pytest.mark.parametrize("ask", [completed, streamed])


def answer(dialect: Dialect, ask: Ask, said: Said) -> Answer:
    return dialect.stream(said) if ask is streamed else dialect.whole(said)


def without(value: object, keys: set[str]) -> Any:
    if isinstance(value, list):
        return [without(each, keys) for each in value]
    if isinstance(value, dict):
        return {key: without(each, keys) for key, each in value.items() if key not in keys}
    return value


def with_more(value: object) -> Any:
    """A later version of the provider: each object says something more."""
    if isinstance(value, list):
        return [with_more(each) for each in value]
    if isinstance(value, dict):
        return {key: with_more(each) for key, each in value.items()} | {"unheard_of": {"x": [1]}}
    return value


@BOTH
async def test_text_reasoning_a_call_and_usage(dialect: Dialect, ask: Ask) -> None:
    """One reply, the same message whichever way it comes."""
    async with dialect.asking(answer(dialect, ask, ALL)) as (model, _):
        assert await ask(model) == MESSAGE


async def test_deltas_come_as_they_are_sent(dialect: Dialect) -> None:
    """Each piece is one delta, none is empty, and the last one has the usage."""
    async with dialect.asking(dialect.stream()) as (model, _):
        deltas = [delta async for delta in model.stream(REQUEST)]

    assert [delta.content for delta in deltas if delta.content] == list(ALL.content)
    assert [delta.reasoning for delta in deltas if delta.reasoning] == list(ALL.reasoning)
    assert Delta() not in deltas
    assert deltas[-1].usage == Usage(5, 7)


@BOTH
async def test_usage_that_is_absent(dialect: Dialect, ask: Ask) -> None:
    """Then there is none; the runtime estimates it."""
    async with dialect.asking(answer(dialect, ask, replace(ALL, usage=None))) as (model, _):
        assert await ask(model) == msgspec.structs.replace(MESSAGE, usage=None)


@BOTH
async def test_an_id_that_is_missing(dialect: Dialect, ask: Ask) -> None:
    """A call without one is a call; the turn gives it its id."""
    said = replace(ALL, call=(None, "refund", ('{"order": "O-1"}',)))
    async with dialect.asking(answer(dialect, ask, said)) as (model, _):
        assert (await ask(model)).tool_calls == (ToolCall("", "refund", {"order": "O-1"}),)


async def test_indexes_and_heads_that_are_missing(dialect: Dialect) -> None:
    """A stream whose pieces are not numbered is put together by their order."""
    pieces = [dialect.piece(without(event, {"index", "created", "object", "role"})) for event in dialect.events(ALL)]
    async with dialect.asking(dialect.streamed(*pieces)) as (model, _):
        assert await streamed(model) == MESSAGE


@BOTH
@pytest.mark.parametrize("arguments", [(), ("{}",)])
async def test_a_call_without_arguments(dialect: Dialect, ask: Ask, arguments: tuple[str, ...]) -> None:
    """No arguments are an empty object."""
    async with dialect.asking(answer(dialect, ask, replace(ALL, call=("a", "now", arguments)))) as (model, _):
        assert (await ask(model)).tool_calls == (ToolCall("a", "now"),)


@BOTH
@pytest.mark.parametrize("arguments", [('{"order": "O-',), ()])
async def test_a_call_that_the_token_limit_cut_off_is_invalid(dialect: Dialect, ask: Ask, arguments: tuple[str, ...]) -> None:
    """No tool runs with half its arguments, nor with none because they were cut off."""
    said = replace(ALL, call=("a", "refund", arguments), stop="length")
    async with dialect.asking(answer(dialect, ask, said)) as (model, _):
        (call,) = (await ask(model)).tool_calls

    assert (call.name, call.arguments) == ("refund", {})
    assert call.invalid


@BOTH
async def test_text_that_the_token_limit_cut_off_is_a_reply(dialect: Dialect, ask: Ask) -> None:
    """What was said was said."""
    async with dialect.asking(answer(dialect, ask, replace(TEXT, stop="length"))) as (model, _):
        assert (await ask(model)).content == MESSAGE.content


@BOTH
async def test_a_reply_that_was_held_back(dialect: Dialect, ask: Ask) -> None:
    """Half a reply that the provider stopped for its own reasons is a refusal."""
    async with dialect.asking(answer(dialect, ask, replace(TEXT, stop="refused"))) as (model, _):
        with pytest.raises(ModelRefused, match="held the reply back"):
            await ask(model)


async def test_the_smallest_pieces(dialect: Dialect) -> None:
    """Every byte in a packet of its own: characters, lines and events are put together."""
    raw = b": keep-alive\n\n" + b"".join(dialect.pieces(ALL))
    assert "😀".encode() in raw
    async with dialect.asking(dialect.streamed(*(raw[at : at + 1] for at in range(len(raw))))) as (model, _):
        assert await streamed(model) == MESSAGE


async def test_a_character_that_is_split_over_events(dialect: Dialect) -> None:
    """Half a character waits for its other half; every delta can be stored, and so can a half that stays alone."""
    text = json.loads('["\\ud83d", "\\ude00 ", "\\ud83d"]')
    said = replace(TEXT, content=tuple(text))
    pieces = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in dialect.events(said)]
    heads = [dialect.piece(event).partition(b"data: ")[0] for event in dialect.events(replace(TEXT, content=("a", "b", "c")))]
    pieces = [head + piece for head, piece in zip(heads, pieces, strict=True)]
    async with dialect.asking(dialect.streamed(*pieces)) as (model, _):
        deltas = [delta async for delta in model.stream(REQUEST)]

    assert all(delta.to_json() for delta in deltas)
    assert "".join(delta.content for delta in deltas).startswith("😀 ")


@BOTH
async def test_words_of_a_later_version(dialect: Dialect, ask: Ask) -> None:
    """Unknown fields and unknown events are passed over."""
    strange = dialect.piece({"type": "unheard_of", "index": 7, "what": [1, {"x": None}]})
    pieces = [strange, *(dialect.piece(with_more(event)) + strange for event in dialect.events(ALL))]
    body = Answer([json.dumps(with_more(dialect.body(ALL))).encode()])
    async with dialect.asking(dialect.streamed(*pieces) if ask is streamed else body) as (model, _):
        message = await ask(model)

    assert msgspec.structs.replace(message, tool_calls=()) == msgspec.structs.replace(MESSAGE, tool_calls=())
    assert [call.name for call in message.tool_calls] == ["refund"]


async def test_an_endpoint_that_never_streams(dialect: Dialect) -> None:
    """A whole reply to a request for a stream is a reply."""
    async with dialect.asking(dialect.whole()) as (model, _):
        assert await streamed(model) == MESSAGE


async def test_a_huge_reply_is_read_and_an_endless_one_refused(dialect: Dialect) -> None:
    """Three million characters are a reply, nine are not, whichever way they come."""
    big, endless = ("x" * 3_000_000,), ("x" * 3_000_000,) * 3
    answers = [dialect.whole(replace(TEXT, content=big)), dialect.stream(replace(TEXT, content=big))]
    answers += [dialect.whole(replace(TEXT, content=endless)), dialect.stream(replace(TEXT, content=endless))]
    async with dialect.asking(*answers) as (model, _):
        assert len((await completed(model)).content) == len((await streamed(model)).content) == 3_000_000
        for ask in (completed, streamed):
            with pytest.raises(ModelError, match="longer than"):
                await ask(model)


@BOTH
async def test_extra_is_merged_into_the_request(dialect: Dialect, ask: Ask) -> None:
    """What `extra` says wins, also over options."""
    options = ModelOptions(max_output_tokens=5, temperature=0.5, extra={"seed": 1, "max_tokens": 6, "unheard": {"of": True}})
    async with dialect.asking(answer(dialect, ask, TEXT)) as (model, provider):
        await ask(model, ModelRequest(messages=(UserMessage("Hi"),), options=options))

    sent = provider.requests[0]
    assert (sent["seed"], sent["max_tokens"], sent["unheard"], sent["temperature"]) == (1, 6, {"of": True}, 0.5)
    assert sent.get("stream", False) is (ask is streamed)


async def test_it_is_a_streaming_chat_model(dialect: Dialect) -> None:
    """It fits the protocols, and shows its name, not its key."""
    model = dialect.model("m", api_key="secret")

    assert isinstance(model, ChatModel)
    assert isinstance(model, StreamingChatModel)
    assert repr(model) == f"{dialect.model.__name__}('m')"
