"""Streamed pieces become one message, however they are cut."""

from __future__ import annotations

import itertools
from functools import reduce
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnhold.actors.chat import AiMessage, ToolCall, Usage
from turnhold.actors.errors import ModelError
from turnhold.actors.model import Delta, ToolCallDelta
from turnhold.actors.stream import MAX_ARGUMENTS, Accumulator, mended, parse_arguments

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text(st.characters(codec="utf-8"), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


def folded(*deltas: Delta) -> AiMessage:
    accumulator = Accumulator()
    for delta in deltas:
        accumulator.add(delta)
    return accumulator.message()


def piece(index: int, id: str | None = None, name: str | None = None, arguments: str = "") -> Delta:
    return Delta(tool_calls=(ToolCallDelta(index, id, name, arguments),))


def cut(draw: st.DrawFn, text: str) -> list[str]:
    """Cut a text anywhere, also within a character's two halves in UTF-16, as some providers do."""
    units = text.encode("utf-16-le")
    places = sorted(draw(st.lists(st.integers(0, len(units) // 2), max_size=4)))
    ends = [0, *(place * 2 for place in places), len(units)]
    return [units[a:b].decode("utf-16-le", "surrogatepass") for a, b in itertools.pairwise(ends)]


def interleaved(draw: st.DrawFn, queues: list[list[Delta]]) -> list[Delta]:
    """Mix queues into one, each in its own order."""
    mixed: list[Delta] = []
    while queues := [queue for queue in queues if queue]:
        mixed.append(draw(st.sampled_from(queues)).pop(0))
    return mixed


@st.composite
def messages(draw: st.DrawFn) -> AiMessage:
    calls = draw(st.lists(st.tuples(NAMES, st.dictionaries(NAMES, JSON, max_size=3)), max_size=3))
    return AiMessage(
        content=draw(st.text(st.characters(codec="utf-8"))),
        tool_calls=tuple(ToolCall(f"id-{at}", name, dict[str, Any](arguments)) for at, (name, arguments) in enumerate(calls)),
        reasoning=draw(st.text(st.characters(codec="utf-8"))) or None,
        usage=draw(st.none() | st.builds(Usage, st.integers(0, 9), st.integers(0, 9))),
    )


@st.composite
def cut_messages(draw: st.DrawFn) -> tuple[AiMessage, list[Delta]]:
    message = draw(messages())
    indexes = sorted(draw(st.sets(st.integers(-9, 10**9), min_size=3, max_size=3)))
    queues = [
        [Delta(content=text) for text in cut(draw, message.content)],
        [Delta(reasoning=text) for text in cut(draw, message.reasoning or "")],
        [Delta(usage=Usage(1, 1)), Delta(usage=message.usage)] if message.usage else [],
    ]
    for index, call in zip(indexes, message.tool_calls, strict=False):
        queue = [piece(index, arguments=text) for text in cut(draw, msgspec.json.encode(call.arguments).decode())]
        for late in (piece(index, id=call.id), piece(index, name=call.name)):
            queue.insert(draw(st.integers(0, len(queue))), late)
        queues.append(queue)
    return message, interleaved(draw, queues)


@given(cut_messages())
def test_any_cutting_of_a_reply_gives_the_same_message(case: tuple[AiMessage, list[Delta]]) -> None:
    """Text, reasoning and arguments cut anywhere, ids and names at any time, calls mixed, indexes that jump."""
    message, deltas = case

    assert folded(*deltas) == message


@given(cut_messages())
def test_an_unfinished_reply_can_be_read_and_stored_at_any_time(case: tuple[AiMessage, list[Delta]]) -> None:
    accumulator = Accumulator()
    for delta in case[1]:
        accumulator.add(delta)
        message = accumulator.message()
        assert AiMessage.from_dict(message.to_dict()) == message
        assert message.to_json()


@pytest.mark.parametrize(
    ("deltas", "calls"),
    [
        pytest.param([piece(0, arguments="{}"), piece(0, "a", "f")], [ToolCall("a", "f")], id="id and name at the end"),
        pytest.param([piece(0, None, "f", "{}")], [ToolCall("", "f")], id="no id"),
        pytest.param([piece(0, "a", None, "{}")], [ToolCall("a", "")], id="no name"),
        pytest.param([piece(7, "b", "g"), piece(3, "a", "f")], [ToolCall("a", "f"), ToolCall("b", "g")], id="by index"),
        pytest.param([piece(0, "a", "f"), piece(0, "a", "f", "{}")], [ToolCall("a", "f")], id="id and name repeated"),
        pytest.param([piece(0, "a", "f"), piece(0, "x", None, "{}")], [ToolCall("a", "f")], id="an id for every piece"),
        pytest.param([piece(0, "a", "f"), piece(0, "", "", "{}")], [ToolCall("a", "f")], id="empty id and name"),
        pytest.param(
            [piece(0, "a", "f", '{"x":1}'), piece(0, "b", "f", '{"x":2}')],
            [ToolCall("a", "f", {"x": 1}), ToolCall("b", "f", {"x": 2})],
            id="every call has index 0",
        ),
        pytest.param([piece(0), piece(1, "a", "f")], [ToolCall("a", "f")], id="an empty call is none"),
        pytest.param([piece(0, "a", "f", '{"x":')], [ToolCall("a", "f", {}, '{"x":')], id="arguments cut off"),
    ],
)
def test_calls_of_careless_providers(deltas: list[Delta], calls: list[ToolCall]) -> None:
    assert list(folded(*deltas).tool_calls) == calls


def test_nothing_is_an_empty_message() -> None:
    assert folded() == folded(Delta(), Delta()) == AiMessage()


def test_the_last_usage_counts() -> None:
    assert folded(Delta(usage=Usage(1, 1)), Delta(content="x"), Delta(usage=Usage(5, 7))).usage == Usage(5, 7)


@pytest.mark.parametrize("delta", [Delta(content="x" * 11), Delta(reasoning="x" * 11), piece(0, arguments="x" * 11)])
def test_an_endless_reply_is_an_error(delta: Delta) -> None:
    """The limit counts all that a reply holds, over all its pieces."""
    accumulator = Accumulator(limit=10)
    accumulator.add(Delta(content="1234"))

    with pytest.raises(ModelError, match="10 characters"):
        accumulator.add(delta)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("", {}),
        (" \n", {}),
        ("{}", {}),
        (' {"a": [1, null]} ', {"a": [1, None]}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('Here you are: {"a": {"b": 1}}. Good luck!', {"a": {"b": 1}}),
        ('{"a": 1} (that is all)', {"a": 1}),
        ('{"a": "} {"}', {"a": "} {"}),
        ('{"a": 9223372036854775807}', {"a": 9223372036854775807}),
        ('{"a":' + "[" * 63 + "]" * 63 + "}", {"a": reduce(lambda inner, _: [inner], range(62), list[object]())}),
    ],
)
def test_arguments_that_can_be_read(text: str, arguments: dict[str, object]) -> None:
    assert parse_arguments(text) == (arguments, None)


@pytest.mark.parametrize(
    "text",
    [
        *("null", "0", "[]", '"{}"', "true", '[{"a": 1}]', '[{"a": 1}', '"{"a": 1}"', "words", "}{", "{"),
        *('{"a": 1', '{"a": {"b": 1}, "c', '{"a": 1}{"b": 2}', '{"a": NaN}', '{"a": 1e999}', "{'a': 1}", "{a: 1}"),
        *('{"a": 9223372036854775808}', '{"a": 123456789012345678901234567890}', '{"a":' + "[" * 64 + "]" * 64 + "}"),
        *('{"a": "\\ud800"}', '{"a": "\ud800"}', '{"a":' * 5000 + "1" + "}" * 5000, "[" * 100_000),
    ],
)
def test_arguments_that_are_no_object_keep_the_models_text(text: str) -> None:
    assert parse_arguments(text) == ({}, text)


def test_arguments_over_the_limit_are_not_read() -> None:
    fits = '{"a": "%s"}' % ("x" * (MAX_ARGUMENTS - 9))

    assert parse_arguments(fits)[1] is None
    arguments, invalid = parse_arguments(fits + " ")
    assert arguments == {}
    assert invalid is not None
    assert len(invalid) < 2000
    assert f"{MAX_ARGUMENTS + 1} characters" in invalid


@given(st.text())
def test_reading_arguments_never_fails(text: str) -> None:
    arguments, invalid = parse_arguments(text)

    assert invalid in {None, text}
    assert not (arguments and invalid)


@given(st.text(st.characters(categories=["Cs", "Lu", "So"])))
def test_mended_text_can_be_stored_and_right_text_is_left_alone(text: str) -> None:
    mended(text).encode()
    assert mended(mended(text)) == mended(text)


def test_split_characters_are_joined_and_lone_halves_replaced() -> None:
    assert mended("a\ud83d" + "\ude00b") == "a\U0001f600b"
    assert mended("a\ud83d b\ude00") == "a\ufffd b\ufffd"
