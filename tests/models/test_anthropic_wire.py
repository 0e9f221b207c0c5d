"""Requests and replies of Anthropic's messages, mapped without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnhold.actors.chat import AiMessage, Part, SystemMessage, ToolCall, ToolMessage, Usage, UserMessage
from turnhold.actors.errors import ModelError, ModelOverloaded, ModelRateLimited, ModelRefused
from turnhold.actors.model import Delta, ModelOptions, ModelRequest, ToolDefinition
from turnhold.actors.stream import Accumulator
from turnhold.models import AnthropicChatModel
from turnhold.models.anthropic import _is_own
from turnhold.models.anthropic_schema import expressible
from turnhold.models.anthropic_wire import Reader, request_body, whole_reply

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}
REFUND = ToolDefinition("refund", "Refund an order.", SCHEMA)
CALL = ToolCall("id-1", "refund", {"order": "O-1"})


def body(*messages: Any, own: bool = True, **settings: Any) -> dict[str, Any]:
    return request_body(ModelRequest(messages=messages, **settings), "m", own_endpoint=own)


def sent(*messages: Any, **settings: Any) -> list[dict[str, Any]]:
    return body(*messages, **settings)["messages"]


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


def message(*blocks: dict[str, Any], stop: str | None = "end_turn", **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": list(blocks), "stop_reason": stop, **more}


def read(*events: dict[str, Any]) -> AiMessage:
    reader, accumulator = Reader("m"), Accumulator()
    for one in events:
        accumulator.add(reader.read(one))
    accumulator.add(reader.end())
    return accumulator.message()


def start(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def change(index: int, type: str, **delta: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": type, **delta}}


def stop(reason: str, **usage: int) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


class TestRequests:
    def test_the_least(self) -> None:
        """What is not set is not sent, but for the number of tokens, which the provider wants."""
        assert body(UserMessage("Hi")) == {
            "model": "m",
            "max_tokens": 8192,
            "messages": [{"role": "user", "content": [text("Hi")]}],
        }

    def test_everything(self) -> None:
        """Each option under the provider's name; what not every version of the package knows goes into the body as it is."""
        options = ModelOptions(
            temperature=0.0,
            max_output_tokens=9,
            top_p=0.5,
            stop=("a", "b"),
            tool_choice="required",
            extra={"metadata": {"user_id": "u"}},
        )
        assert body(SystemMessage("Be kind."), UserMessage("Hi"), options=options, tools=(REFUND,), output_schema=SCHEMA) == {
            "model": "m",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": [text("Hi")]}],
            "system": "Be kind.",
            "stop_sequences": ["a", "b"],
            "tools": [{"name": "refund", "description": "Refund an order.", "input_schema": SCHEMA}],
            "tool_choice": {"type": "any"},
            "extra_body": {
                "temperature": 0.0,
                "top_p": 0.5,
                "output_config": {"format": {"type": "json_schema", "schema": SCHEMA | {"additionalProperties": False}}},
                "metadata": {"user_id": "u"},
            },
        }

    @pytest.mark.parametrize(
        ("choice", "said"),
        [
            ("auto", {"type": "auto"}),
            ("none", {"type": "none"}),
            ("required", {"type": "any"}),
            ("refund", {"type": "tool", "name": "refund"}),
        ],
    )
    def test_tool_choice(self, choice: str, said: dict[str, str]) -> None:
        """A word or a tool's name; without tools there is nothing to choose."""
        assert body(options=ModelOptions(tool_choice=choice), tools=(REFUND,))["tool_choice"] == said
        assert "tool_choice" not in body(options=ModelOptions(tool_choice=choice))

    def test_system_messages_are_joined(self) -> None:
        """The provider has one place for them, whichever place they have in the history."""
        said = body(SystemMessage("One."), UserMessage("Hi"), SystemMessage(" "), SystemMessage("Two."))

        assert (said["system"], len(said["messages"])) == ("One.\n\nTwo.", 1)

    def test_user_and_assistant_in_turn(self) -> None:
        """Messages of one side in a row are one; results come first, as the answer to the calls before them."""
        other = ToolCall("id-2", "refund")
        said = sent(
            UserMessage("A"),
            UserMessage("B"),
            AiMessage("Well", (CALL, other)),
            UserMessage("quick!"),
            ToolMessage("id-1", "done"),
            ToolMessage("id-2", ""),
            AiMessage("So."),
            AiMessage("There."),
            tools=(REFUND,),
        )

        assert said == [
            {"role": "user", "content": [text("A"), text("B")]},
            {
                "role": "assistant",
                "content": [
                    text("Well"),
                    {"type": "tool_use", "id": "id-1", "name": "refund", "input": {"order": "O-1"}},
                    {"type": "tool_use", "id": "id-2", "name": "refund", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "id-1", "content": "done"},
                    {"type": "tool_result", "tool_use_id": "id-2"},
                    text("quick!"),
                ],
            },
            {"role": "assistant", "content": [text("So."), text("There.")]},
        ]

    def test_texts_that_the_provider_refuses(self) -> None:
        """Empty ones are left out, an empty input is called so, and a conversation begins with its user."""
        assert sent(AiMessage(""), UserMessage(" ")) == [{"role": "user", "content": [text("(empty)")]}]
        assert sent(AiMessage("Hi")) == [
            {"role": "user", "content": [text("(The conversation began earlier.)")]},
            {"role": "assistant", "content": [text("Hi")]},
        ]

    def test_ids_that_the_provider_refuses(self) -> None:
        """It takes some characters only, and no id twice; each result stays with its call."""
        round_ = (AiMessage("", (ToolCall("f.x:0", "refund"),)), ToolMessage("f.x:0", "done"))
        said = sent(UserMessage("A"), *round_, UserMessage("B"), *round_, tools=(REFUND,))

        calls = [block["id"] for turn in said for block in turn["content"] if block["type"] == "tool_use"]
        results = [block["tool_use_id"] for turn in said for block in turn["content"] if block["type"] == "tool_result"]
        assert calls == results == ["f_x_0", "f_x_0_2"]

    @pytest.mark.parametrize(
        ("call", "name", "arguments"),
        [
            (ToolCall("i", "refund", {}, '{"a'), "refund", {"INVALID_JSON": '{"a'}),
            (ToolCall("i", "my tool.v1"), "my_tool_v1", {}),
            (ToolCall("i", ""), "unknown", {}),
        ],
    )
    def test_calls_that_no_provider_would_take_back(self, call: ToolCall, name: str, arguments: dict[str, str]) -> None:
        """What the model got wrong goes out as something that it can read."""
        (_, said) = sent(AiMessage("", (call,)), tools=(REFUND,))

        assert said["content"] == [{"type": "tool_use", "id": "i", "name": name, "input": arguments}]

    def test_calls_of_tools_that_are_gone(self) -> None:
        """The provider refuses calls in a history without tools, so their names are told, and that none can be used."""
        said = body(UserMessage("A"), AiMessage("", (CALL,)), ToolMessage("id-1", "done"))

        assert [tool["name"] for tool in said["tools"]] == ["refund"]
        assert said["tool_choice"] == {"type": "none"}

    @pytest.mark.parametrize(
        ("part", "block"),
        [
            (Part("image", "https://x/a.png"), {"type": "image", "source": {"type": "url", "url": "https://x/a.png"}}),
            (
                Part("image", "data:image/jpeg;base64,QUJD"),
                {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "QUJD"}},
            ),
            (
                Part("file", "data:;base64,QUJD", media_type="image/webp"),
                {"type": "image", "source": {"type": "base64", "media_type": "image/webp", "data": "QUJD"}},
            ),
            (Part("file", "https://x/a.pdf"), {"type": "document", "source": {"type": "url", "url": "https://x/a.pdf"}}),
            (
                Part("file", "data:application/pdf;base64,QUJD", name="a.pdf"),
                {
                    "type": "document",
                    "source": {"type": "base64", "media_type": "application/pdf", "data": "QUJD"},
                    "title": "a.pdf",
                },
            ),
            (
                Part("file", "data:text/csv;charset=utf-8,a%2Cb"),
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a,b"}},
            ),
        ],
    )
    def test_parts(self, part: Part, block: dict[str, Any]) -> None:
        """Images, PDF and text, by URL or as data, before the words about them."""
        assert sent(UserMessage("Look:", (part,))) == [{"role": "user", "content": [block, text("Look:")]}]

    @pytest.mark.parametrize(
        ("part", "says"),
        [
            (Part("audio", "data:audio/wav;base64,QUJD"), "no audio parts"),
            (Part("video", "https://x/a.mp4"), "no video parts"),
            (Part("file", "data:application/zip;base64,QUJD"), "not application/zip"),
            (Part("file", "https://x/a.txt", media_type="text/plain"), "only as a data URL"),
            (Part("file", "data:text/plain;base64,/w=="), "UTF-8"),
        ],
    )
    def test_parts_that_it_cannot_take(self, part: Part, says: str) -> None:
        """They are refused before anything is sent; no retry would mend it."""
        with pytest.raises(ModelRefused, match=says):
            body(UserMessage("x", (part,)))


class TestOutputSchemas:
    def test_elsewhere_it_is_asked_for_in_words(self) -> None:
        """Only the provider's own endpoint is known to promise a shape."""
        said = body(SystemMessage("Be kind."), output_schema=SCHEMA, own=False)

        assert said["system"].startswith("Be kind.\n\nYour final reply must be JSON")
        assert '"required":["order"]' in said["system"]
        assert "extra_body" not in said

    def test_what_it_cannot_promise_is_asked_for_in_words(self) -> None:
        """An object with keys of any name is such a thing."""
        said = body(output_schema={"type": "object", "additionalProperties": {"type": "integer"}})

        assert '"additionalProperties":{"type":"integer"}' in said["system"]

    def test_other_settings_of_the_output_stay(self) -> None:
        """`extra` may say more about the output."""
        said = body(output_schema=SCHEMA, options=ModelOptions(extra={"output_config": {"effort": "low"}}))

        assert set(said["extra_body"]["output_config"]) == {"format", "effort"}

    @pytest.mark.parametrize(
        ("schema", "expected"),
        [
            (
                {"type": "integer", "minimum": 1, "description": "A count"},
                {"type": "integer", "description": 'A count {"minimum": 1}'},
            ),
            ({"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
            ({"oneOf": [{"const": 1}, {"enum": ["a"]}]}, {"anyOf": [{"const": 1}, {"enum": ["a"]}]}),
            ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
            (
                {"type": "array", "items": {"type": "null"}, "minItems": 1},
                {"type": "array", "items": {"type": "null"}, "minItems": 1},
            ),
            (
                {"$ref": "#/$defs/A", "$defs": {"A": {"title": "A", "type": "object", "properties": {"x": {"type": "boolean"}}}}},
                {
                    "$ref": "#/$defs/A",
                    "$defs": {"A": {"type": "object", "properties": {"x": {"type": "boolean"}}, "additionalProperties": False}},
                },
            ),
        ],
    )
    def test_what_is_expressible(self, schema: dict[str, Any], expected: dict[str, Any]) -> None:
        """Shapes are promised, bounds are told in words."""
        assert expressible(schema) == expected

    @pytest.mark.parametrize(
        "schema",
        [
            {},
            {"type": "object"},
            {"type": "object", "properties": {"x": {}}},
            {"type": "array"},
            {"type": "array", "items": {"type": "string"}, "prefixItems": [{"type": "string"}]},
            {"enum": [{"a": 1}]},
            {"$ref": "#/$defs/T", "$defs": {"T": {"type": "object", "properties": {"t": {"$ref": "#/$defs/T"}}}}},
            {"$ref": "https://elsewhere"},
            {"type": "object", "properties": 3},
        ],
    )
    def test_what_is_not(self, schema: dict[str, Any]) -> None:
        """Anything goes, or contains itself."""
        assert expressible(schema) is None


class TestReplies:
    def test_cached_tokens_are_input(self) -> None:
        """A budget counts what was read, wherever the provider had it from; later counts take the place of earlier ones."""
        usage = {"input_tokens": 3, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 100, "output_tokens": 7}
        begin = {"type": "message_start", "message": message(stop=None, usage=usage | {"output_tokens": 1})}

        assert whole_reply(message(text("Hi"), usage=usage), "m").usage == Usage(113, 7)
        assert read(begin, start(0, **text("Hi")), stop("end_turn", output_tokens=7)).usage == Usage(113, 7)

    @pytest.mark.parametrize("usage", [None, 3, [], {}, {"input_tokens": "many"}])
    def test_strange_usage_does_no_harm(self, usage: object) -> None:
        """What is no count is not counted."""
        assert whole_reply(message(text("x"), usage=usage), "m").usage is None

    @pytest.mark.parametrize(
        ("given", "invalid"),
        [
            ({}, "(cut off at the token limit)"),
            ({"order": {"id": "O-"}}, '{"order": {"id": "O-"} (cut off at the token limit)'),
        ],
    )
    def test_arguments_that_were_cut_and_closed(self, given: dict[str, Any], invalid: str) -> None:
        """In a whole reply the provider closes what the token limit cut off; it is invalid all the same."""
        block = {"type": "tool_use", "id": "a", "name": "refund", "input": given}
        for reason in ("max_tokens", "model_context_window_exceeded"):
            (call,) = whole_reply(message(block, stop=reason), "m").tool_calls

            assert call == ToolCall("a", "refund", {}, invalid)

    def test_only_the_last_call_is_cut(self) -> None:
        """Those before it are whole."""
        blocks = [{"type": "tool_use", "id": id_, "name": "refund", "input": {"order": id_}} for id_ in ("a", "b")]
        first, second = whole_reply(message(*blocks, stop="max_tokens"), "m").tool_calls

        assert (first.invalid, first.arguments) == (None, {"order": "a"})
        assert second.invalid

    def test_arguments_that_come_with_the_beginning_of_a_call(self) -> None:
        """Some endpoints send them there and nothing later."""
        events = (start(0, type="tool_use", id="a", name="f", input={"x": 1}), {"type": "content_block_stop", "index": 0})

        assert read(*events, stop("tool_use")).tool_calls == (ToolCall("a", "f", {"x": 1}),)
        assert read(events[0], stop("tool_use")).tool_calls == (ToolCall("a", "f", {"x": 1}),)

    def test_signed_reasoning_goes_back_to_the_model_that_wrote_it(self) -> None:
        """Its signatures are kept beside the reasoning, for replies with calls; nobody else is sent any of it."""
        events = (
            start(0, type="thinking", thinking="", signature=""),
            change(0, "thinking_delta", thinking="Let me "),
            change(0, "thinking_delta", thinking="see."),
            change(0, "signature_delta", signature="c2ln"),
            start(1, type="redacted_thinking", data="hidden"),
            start(2, type="thinking", thinking="Yes.", signature="bW9yZQ"),
            start(3, type="tool_use", id="a", name="refund", input={}),
        )
        reply = read(*events, stop("tool_use"))
        blocks = [
            {"type": "thinking", "thinking": "Let me see.", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "hidden"},
            {"type": "thinking", "thinking": "Yes.", "signature": "bW9yZQ"},
            {"type": "tool_use", "id": "a", "name": "refund", "input": {}},
        ]

        assert reply.reasoning == "Let me see.Yes."
        assert whole_reply(message(*blocks, stop="tool_use"), "m") == reply
        assert sent(UserMessage("x"), reply, tools=(REFUND,))[1]["content"] == blocks
        other = request_body(ModelRequest(messages=(UserMessage("x"), reply), tools=(REFUND,)), "other", own_endpoint=True)
        assert [block["type"] for block in other["messages"][1]["content"]] == ["tool_use"]
        assert read(*events[:-1], stop("end_turn")).opaque is None

    @pytest.mark.parametrize(
        ("answer", "error", "says"),
        [
            ({}, ModelError, "no content"),
            ([], ModelError, "no JSON object but list"),
            (message(text("x"), stop="pause_turn"), ModelError, "a tool of its own"),
            (message(stop="refusal", stop_details={"explanation": "too risky"}), ModelRefused, "held the reply back: too risky"),
            ({"type": "error", "error": {"type": "rate_limit_error", "message": "busy"}}, ModelRateLimited, "busy"),
            ({"type": "error"}, ModelOverloaded, "without a message"),
        ],
    )
    def test_what_is_no_reply(self, answer: object, error: type[ModelError], says: str) -> None:
        """The class says whether another attempt makes sense."""
        with pytest.raises(ModelError, match=says) as raised:
            whole_reply(answer, "m")
        assert type(raised.value) is error

    def test_an_empty_reply_is_one(self) -> None:
        """The model may have nothing to say."""
        assert whole_reply(message(), "m") == AiMessage()
        assert Reader("m").read({"type": "ping"}) == Delta()


class TestClient:
    @pytest.fixture
    def keyless(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AnthropicChatModel:
        for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "ANTHROPIC_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        return AnthropicChatModel("claude")

    async def test_anthropic_without_a_key_is_refused(self, keyless: AnthropicChatModel) -> None:
        """The message names what is missing."""
        with pytest.raises(ModelRefused, match="api_key"):
            await keyless.complete(ModelRequest(messages=(UserMessage("Hi"),)))
        await keyless.close()

    @pytest.mark.parametrize(
        ("url", "own"),
        [
            ("https://api.anthropic.com", True),
            ("https://anthropic.com.example", False),
            ("http://localhost:8000", False),
        ],
    )
    def test_own_endpoint_is_told_by_its_host(self, url: str, own: bool) -> None:
        """Only there the provider's promises hold."""
        import anthropic  # takes seconds, and not every process of the tests needs it

        assert _is_own(anthropic.AsyncAnthropic(base_url=url, api_key="x")) is own


WILD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "index", "message", "content", "content_block", "delta", "usage", "error", "text", "stop_reason"]
            ),
            inner
            | st.sampled_from(["message_start", "content_block_start", "content_block_delta", "message_delta", "text", "tool_use"]),
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(st.lists(WILD, max_size=4))
def test_whatever_comes_is_read_or_a_model_error(bodies: list[Any]) -> None:
    """No body makes the reader fail in another way, or give what cannot be stored."""
    reader = Reader("m")
    for one in bodies:
        try:
            assert reader.read(one).to_json()
            assert whole_reply(one, "m").to_json()
        except ModelError:
            pass
