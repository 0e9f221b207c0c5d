"""Requests and replies of chat completions, mapped without a network."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnhold.actors.chat import AiMessage, Part, SystemMessage, ToolCall, ToolMessage, Usage, UserMessage
from turnhold.actors.errors import ContextTooLong, ModelError, ModelOverloaded, ModelRateLimited, ModelRefused
from turnhold.actors.model import Delta, ModelOptions, ModelRequest, ToolCallDelta, ToolDefinition
from turnhold.actors.stream import Accumulator
from turnhold.models.openai_wire import Reader, request_body, whole_reply

from .provider import chunk, reply

SCHEMA = {"type": "object", "properties": {"order": {"type": "string"}}}
REFUND = ToolDefinition("refund", "Refund an order.", SCHEMA)


def body(*messages: Any, own: bool = False, **settings: Any) -> dict[str, Any]:
    return request_body(ModelRequest(messages=messages, **settings), "m", own_endpoint=own)


def sent(message: Any, **settings: Any) -> dict[str, Any]:
    return body(message, **settings)["messages"][0]


def read(*chunks: dict[str, Any]) -> AiMessage:
    reader, accumulator = Reader(), Accumulator()
    for one in chunks:
        accumulator.add(reader.read(one))
    accumulator.add(reader.end())
    return accumulator.message()


def part_of(*pieces: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return chunk({"tool_calls": list(pieces)}, finish)


def piece(index: int | None = None, id: str | None = None, name: str | None = None, arguments: Any = None) -> dict:
    return {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}


class TestRequests:
    def test_the_least(self) -> None:
        """What is not set is not sent: the provider's default holds."""
        assert body(UserMessage("Hi")) == {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}

    def test_everything(self) -> None:
        options = ModelOptions(
            temperature=0.0, max_output_tokens=9, top_p=0.5, stop=("a", "b"), tool_choice="required", extra={"seed": 1}
        )
        said = body(SystemMessage("Be kind."), options=options, tools=(REFUND,), output_schema=SCHEMA)

        assert said == {
            "model": "m",
            "messages": [{"role": "system", "content": "Be kind."}],
            "temperature": 0.0,
            "max_tokens": 9,
            "top_p": 0.5,
            "stop": ["a", "b"],
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "refund", "description": "Refund an order.", "parameters": SCHEMA},
                }
            ],
            "tool_choice": "required",
            "response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": SCHEMA}},
            "extra_body": {"seed": 1},
        }

    def test_the_token_limit_of_openais_own_endpoint(self) -> None:
        said = body(own=True, options=ModelOptions(max_output_tokens=9))

        assert (said["max_completion_tokens"], "max_tokens" in said) == (9, False)

    @pytest.mark.parametrize("choice", ["auto", "none", "required"])
    def test_tool_choice_words(self, choice: str) -> None:
        assert body(options=ModelOptions(tool_choice=choice), tools=(REFUND,))["tool_choice"] == choice

    def test_tool_choice_names_a_tool_or_is_left_out_without_tools(self) -> None:
        options = ModelOptions(tool_choice="refund")

        assert body(options=options, tools=(REFUND,))["tool_choice"] == {
            "type": "function",
            "function": {"name": "refund"},
        }
        assert "tool_choice" not in body(options=options)

    def test_the_schemas_title_names_the_output(self) -> None:
        said = body(output_schema={"title": "My Output!"})

        assert said["response_format"]["json_schema"]["name"] == "My_Output_"

    def test_a_round_of_calls(self) -> None:
        """Our ids go out again; what the model got wrong goes out as something every server can read."""
        call = ToolCall("id-1", "refund", {"order": "O-1"})
        assert sent(AiMessage("", (call,)), tools=(REFUND,)) == {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "id-1", "type": "function", "function": {"name": "refund", "arguments": '{"order":"O-1"}'}}],
        }
        assert sent(AiMessage("", reasoning="secret")) == {"role": "assistant", "content": ""}
        assert sent(ToolMessage("id-1", "done")) == {"role": "tool", "tool_call_id": "id-1", "content": "done"}

    @pytest.mark.parametrize(
        ("call", "function"),
        [
            (ToolCall("i", "f", {}, '{"a'), {"name": "f", "arguments": '{"INVALID_JSON":"{\\"a"}'}),
            (ToolCall("i", "my tool.v1"), {"name": "my_tool_v1", "arguments": "{}"}),
            (ToolCall("i", ""), {"name": "unknown", "arguments": "{}"}),
            (ToolCall("i", "x" * 99), {"name": "x" * 64, "arguments": "{}"}),
            (ToolCall("i", "dotted.tool"), {"name": "dotted.tool", "arguments": "{}"}),
        ],
    )
    def test_calls_that_no_provider_would_take_back(self, call: ToolCall, function: dict[str, str]) -> None:
        tools = (ToolDefinition("dotted.tool", "", {}),)

        assert sent(AiMessage(tool_calls=(call,)), tools=tools)["tool_calls"][0]["function"] == function

    @pytest.mark.parametrize(
        ("part", "expected"),
        [
            (Part("image", "https://x/a.png"), {"type": "image_url", "image_url": {"url": "https://x/a.png"}}),
            (Part("video", "https://x/a.mp4"), {"type": "video_url", "video_url": {"url": "https://x/a.mp4"}}),
            (
                Part("audio", "data:audio/mpeg;base64,QUJD"),
                {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "mp3"}},
            ),
            (
                Part("audio", "data:;base64,QUJD", media_type="audio/x-wav"),
                {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}},
            ),
            (
                Part("file", "data:application/pdf;base64,QUJD", name="a.pdf"),
                {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,QUJD"}},
            ),
        ],
    )
    def test_parts(self, part: Part, expected: dict[str, Any]) -> None:
        text = {"type": "text", "text": "Look:"}

        assert sent(UserMessage("Look:", (part,)))["content"] == [text, expected]
        assert sent(UserMessage("", (part,)))["content"] == [expected]

    def test_audio_elsewhere_is_refused(self) -> None:
        with pytest.raises(ModelRefused, match="only as a data URL"):
            body(UserMessage("Listen", (Part("audio", "https://x/a.mp3"),)))


class TestWholeReplies:
    def test_text_with_usage_and_reasoning(self) -> None:
        usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 9, "details": {"x": 1}}
        message = {"content": "Hi", "reasoning_content": "hm"}

        assert whole_reply(reply(message, usage=usage)) == AiMessage("Hi", (), "hm", Usage(3, 4, 9))

    @pytest.mark.parametrize(
        ("message", "expected"),
        [
            ({"content": None, "refusal": "I will not."}, AiMessage("I will not.")),
            ({"content": None, "reasoning": "hm"}, AiMessage("", (), "hm")),
            ({"content": "x", "reasoning": {"weird": 1}}, AiMessage("x")),
            ({"content": [{"type": "text", "text": "a"}, "b", {"type": "thinking"}, 3]}, AiMessage("ab")),
            ({}, AiMessage()),
            ({"content": "\ud83d\ude00 \ud83d"}, AiMessage("\U0001f600 ")),
            ({"tool_calls": [piece(name="f")]}, AiMessage("", (ToolCall("", "f"),))),
            ({"tool_calls": [piece(0, "a", "f", {"x": 1})]}, AiMessage("", (ToolCall("a", "f", {"x": 1}),))),
            ({"tool_calls": [{}, {"id": "a", "function": None}]}, AiMessage("", (ToolCall("a", ""),))),
            (
                {"tool_calls": [piece(0, "a", "f"), piece(0, "a", "f")]},
                AiMessage("", (ToolCall("a", "f"), ToolCall("a", "f"))),
            ),
        ],
    )
    def test_careless_providers(self, message: dict[str, Any], expected: AiMessage) -> None:
        assert whole_reply(reply(message)) == expected

    @pytest.mark.parametrize("usage", [None, 3, [], {}, {"prompt_tokens": "many", "completion_tokens": -1}])
    def test_strange_usage_does_no_harm(self, usage: object) -> None:
        assert whole_reply(reply({"content": "x"}, usage=usage)).usage in {None, Usage()}

    @pytest.mark.parametrize(
        ("arguments", "call"),
        [
            ('{"order": "O-', ToolCall("a", "f", {}, '{"order": "O-')),
            ("", ToolCall("a", "f", {}, "(cut off at the token limit)")),
            ("{}", ToolCall("a", "f")),
        ],
    )
    def test_calls_cut_off_by_the_token_limit(self, arguments: str, call: ToolCall) -> None:
        """No tool runs with half its arguments, nor with none because they were cut off."""
        calls = {"tool_calls": [piece(0, "a", "f", arguments)]}

        assert whole_reply(reply(calls, "length")).tool_calls == (call,)
        assert read(part_of(piece(0, "a", "f")), part_of(piece(0, None, None, arguments), finish="length")) == AiMessage(
            tool_calls=(call,)
        )

    def test_the_content_filter_is_a_refusal(self) -> None:
        with pytest.raises(ModelRefused, match="content filter"):
            whole_reply(reply({"content": "half a"}, "content_filter"))

    @pytest.mark.parametrize(
        ("answer", "error", "says"),
        [
            ({}, ModelError, "no choices"),
            ({"choices": None}, ModelError, "no choices"),
            ({"choices": []}, ModelOverloaded, "empty list"),
            ({"choices": [{"index": 0, "message": None}]}, ModelOverloaded, "empty list"),
            ([], ModelError, "no JSON object but list"),
            (None, ModelError, "NoneType"),
            ({"choices": 5}, ModelError, "no chat completion"),
            ({"choices": [{"message": {"content": {"a": 1}}}]}, ModelError, "no chat completion"),
            ({"error": {"code": 429, "message": "busy"}}, ModelRateLimited, "busy"),
            ({"error": {"code": "context_length_exceeded", "message": "long"}}, ContextTooLong, "long"),
            ({"error": {"type": "server_error"}}, ModelOverloaded, "server_error"),
            ({"error": "out of memory"}, ModelOverloaded, "out of memory"),
        ],
    )
    def test_what_is_no_reply(self, answer: object, error: type[ModelError], says: str) -> None:
        with pytest.raises(ModelError, match=says) as raised:
            whole_reply(answer)
        assert type(raised.value) is error


class TestChunks:
    def test_a_stream(self) -> None:
        usage = {"prompt_tokens": 1, "completion_tokens": 2}
        chunks = [
            chunk({"role": "assistant", "content": ""}),
            chunk({"reasoning": "hm"}),
            chunk({"content": "Hel"}),
            chunk({"content": "lo", "tool_calls": [piece(0, "a", "f", "")]}),
            part_of(piece(0, None, None, '{"x":')),
            part_of(piece(1, "b", "g", "{}"), piece(0, None, None, "1}")),
            chunk({}, "tool_calls"),
            chunk(usage=usage),
        ]
        calls = (ToolCall("a", "f", {"x": 1}), ToolCall("b", "g"))

        assert read(*chunks) == AiMessage("Hello", calls, "hm", Usage(1, 2))

    def test_indexes_that_are_missing(self) -> None:
        chunks = [
            part_of(piece(None, "a", "f", '{"x":')),
            part_of(piece(None, None, None, "1")),
            part_of(piece(None, "a", "f", "}")),
            part_of(piece(None, "b", "f", '{"x":2}'), piece(None, None, "g")),
        ]

        assert read(*chunks).tool_calls == (
            ToolCall("a", "f", {"x": 1}),
            ToolCall("b", "f", {"x": 2}),
            ToolCall("", "g"),
        )

    def test_other_choices_are_not_mixed_in(self) -> None:
        other = {"choices": [{"index": 1, "delta": {"content": "B"}, "finish_reason": "stop"}]}

        assert read(chunk({"content": "A"}), other, chunk({"content": "C"})).content == "AC"

    def test_a_character_split_between_chunks(self) -> None:
        """Every delta can be stored, and the halves meet."""
        reader = Reader()
        texts = [reader.read(chunk({"content": text})).content for text in ("a\ud83d", "\ude00b", "\ude00", "c\ud83d")]

        assert texts == ["a", "\U0001f600b", "\ufffd", "c"]

    @pytest.mark.parametrize("empty", [{}, {"choices": []}, chunk({}), chunk(usage=None), {"choices": None}])
    def test_chunks_that_say_nothing(self, empty: dict[str, Any]) -> None:
        assert Reader().read(empty) == Delta()

    def test_a_delta_is_what_the_chunk_adds(self) -> None:
        assert Reader().read(part_of(piece(4, "a", "f", '{"'))) == Delta(tool_calls=(ToolCallDelta(4, "a", "f", '{"'),))


WILD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "message", "content", "tool_calls", "index", "function", "arguments", "usage", "error"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(st.lists(WILD, max_size=4))
def test_whatever_comes_is_read_or_a_model_error(bodies: list[Any]) -> None:
    reader = Reader()
    for one in bodies:
        try:
            assert reader.read(one).to_json()
            whole_reply(one)
        except ModelError:
            pass
