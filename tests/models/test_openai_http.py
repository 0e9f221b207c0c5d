"""OpenAIChatModel against a real socket: what it has for itself; what it shares with others is in the conformance suite."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from turnhold.actors.chat import AiMessage, ToolCall, Usage, UserMessage
from turnhold.actors.errors import (
    ModelError,
    ModelOverloaded,
    ModelRateLimited,
    ModelRefused,
)
from turnhold.actors.model import Delta, ModelRequest, ToolDefinition
from turnhold.actors.stream import Accumulator
from turnhold.models import OpenAIChatModel
from turnhold.models.openai import _is_own

from .provider import Answer, Provider, chunk, events, reply, whole

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    import openai

REQUEST = ModelRequest(
    messages=(UserMessage("Refund O-1"),), tools=(ToolDefinition("refund", "", {"type": "object"}),), iteration=1
)
USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
CALL = {"id": "call_9", "type": "function", "function": {"name": "refund", "arguments": '{"order": "O-1"}'}}
WHOLE = whole(reply({"content": "Right away.", "tool_calls": [CALL]}, "tool_calls", usage=USAGE))
CHUNKS = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "Right "}),
    chunk({"content": "away."}),
    chunk({"tool_calls": [{"index": 0, "id": "call_9", "function": {"name": "refund", "arguments": ""}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"order": '}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '"O-1"}'}}]}),
    chunk({}, "tool_calls"),
    chunk(usage=USAGE),
]
STREAM = events(*CHUNKS)
MESSAGE = AiMessage("Right away.", (ToolCall("call_9", "refund", {"order": "O-1"}),), None, Usage(5, 7, 12))


@contextlib.asynccontextmanager
async def asking(*answers: Answer) -> AsyncIterator[tuple[OpenAIChatModel, Provider]]:
    async with Provider(*answers).serving() as provider, quick_client(provider) as client:
        yield OpenAIChatModel("m", client=client), provider


def quick_client(provider: Provider, **settings: Any) -> openai.AsyncOpenAI:
    """A client that does not load certificates: that takes longer than everything else here."""
    import openai

    http = openai.DefaultAsyncHttpxClient(verify=False)
    return openai.AsyncOpenAI(base_url=provider.url, api_key="secret", http_client=http, **settings)


async def streamed(model: OpenAIChatModel, request: ModelRequest = REQUEST) -> AiMessage:
    accumulator = Accumulator()
    async with contextlib.aclosing(model.stream(request)) as deltas:  # type: ignore[type-var]
        async for delta in deltas:
            accumulator.add(delta)
    return accumulator.message()


async def completed(model: OpenAIChatModel, request: ModelRequest = REQUEST) -> AiMessage:
    return await model.complete(request)


BOTH = pytest.mark.parametrize("ask", [completed, streamed])
Ask: TypeAlias = "Callable[..., Coroutine[Any, Any, AiMessage]]"


class TestReplies:
    async def test_complete(self) -> None:
        async with asking(WHOLE) as (model, provider):
            assert await model.complete(REQUEST) == MESSAGE
        assert provider.requests[0]["messages"] == [{"role": "user", "content": "Refund O-1"}]
        assert "stream" not in provider.requests[0]
        assert "authorization: bearer secret" in provider.heads[0]

    async def test_stream(self) -> None:
        """Deltas come as they are sent; the usage comes in a chunk without choices."""
        async with asking(STREAM) as (model, provider):
            deltas = [delta async for delta in model.stream(REQUEST)]

            assert await streamed(model) == MESSAGE
        assert [delta.content for delta in deltas if delta.content] == ["Right ", "away."]
        assert deltas[-1] == Delta(usage=Usage(5, 7, 12))
        assert Delta() not in deltas
        assert (provider.requests[0]["stream"], provider.requests[0]["stream_options"]) == (
            True,
            {"include_usage": True},
        )

    async def test_json_under_a_wrong_name_is_still_json(self) -> None:
        plain = whole(reply({"content": "x"}), kind="text/plain")
        async with asking(plain) as (model, _):
            assert (await model.complete(REQUEST)).content == "x"


class TestFailures:
    @BOTH
    @pytest.mark.parametrize(
        ("answer", "kind", "says"),
        [
            (whole(b'{"choices": [', kind="application/json"), ModelOverloaded, "garbled"),
            (whole(b"[" * 100_000), ModelOverloaded, "garbled"),
            (whole(b"\xff\xfe", kind="application/json"), ModelOverloaded, "garbled"),
            (whole(b"<html>Hello</html>", kind="text/html"), ModelError, "not JSON: is the base_url right"),
            (whole([]), ModelError, "no JSON object"),
            (whole({"hello": 1}), ModelError, "no choices"),
            (whole({"choices": []}), ModelOverloaded, "empty list"),
            (whole({"error": {"code": 429, "message": "busy"}}), ModelRateLimited, "busy"),
            (whole(reply({"content": {"a": 1}})), ModelError, "no chat completion"),
            (whole(reply({"content": "half"}, "content_filter")), ModelRefused, "content filter"),
        ],
    )
    async def test_bodies_that_are_no_reply(self, ask: Ask, answer: Answer, kind: type[ModelError], says: str) -> None:
        async with asking(answer) as (model, _):
            with pytest.raises(ModelError, match=says) as raised:
                await ask(model)
        assert type(raised.value) is kind

    @pytest.mark.parametrize(
        ("bad", "kind"),
        [
            ({"error": {"code": 502, "message": "upstream broke"}}, ModelOverloaded),
            ({"error": {"type": "invalid_request_error", "message": "no"}}, ModelRefused),
            ({"error": "just words"}, ModelOverloaded),
            ({"choices": 3}, ModelError),
            ([1], ModelError),
            (chunk({"content": ["x", {"text": 3}], "tool_calls": [{"index": "one"}]}), ModelError),
        ],
    )
    async def test_a_stream_that_goes_wrong(self, bad: object, kind: type[ModelError]) -> None:
        async with asking(events(*CHUNKS[:3], bad)) as (model, _):
            with pytest.raises(ModelError) as raised:
                await streamed(model)
        assert type(raised.value) is kind


class TestClient:
    @BOTH
    async def test_openai_without_a_key_is_refused(self, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_BASE_URL"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(ModelRefused, match="OPENAI_API_KEY"):
            await ask(OpenAIChatModel("gpt"))

    @pytest.mark.parametrize(
        ("url", "own"),
        [
            ("https://api.openai.com/v1", True),
            ("https://eu.api.openai.com/v1", True),
            ("https://me.openai.azure.com/openai", True),
            ("https://openai.com.example/v1", False),
            ("http://localhost:8000/v1", False),
        ],
    )
    def test_own_endpoint_is_told_by_its_host(self, url: str, own: bool) -> None:
        import openai

        assert _is_own(openai.AsyncOpenAI(base_url=url, api_key="x")) is own
