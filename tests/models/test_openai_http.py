"""OpenAIChatModel against a real socket: what providers send, and everything they should not."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeAlias

import openai
import pytest

from turnhold.actors.chat import AiMessage, ToolCall, Usage, UserMessage
from turnhold.actors.errors import (
    ContextTooLong,
    InvalidDefinition,
    ModelError,
    ModelOverloaded,
    ModelRateLimited,
    ModelRefused,
    ModelTimeout,
    QuotaExhausted,
)
from turnhold.actors.model import ChatModel, Delta, ModelOptions, ModelRequest, StreamingChatModel, ToolDefinition
from turnhold.actors.stream import Accumulator
from turnhold.models import OpenAIChatModel
from turnhold.models.openai import _is_own, _warm_up

from .provider import Answer, Provider, chunk, events, reply, whole

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

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

    @BOTH
    async def test_extra_is_merged_into_the_body(self, ask: Ask) -> None:
        options = ModelOptions(max_output_tokens=5, extra={"seed": 1, "max_tokens": 6, "unheard": {"of": True}})
        async with asking(STREAM if ask is streamed else WHOLE) as (model, provider):
            await ask(model, ModelRequest(messages=(UserMessage("Hi"),), options=options))

        sent = provider.requests[0]
        assert (sent["seed"], sent["max_tokens"], sent["unheard"]) == (1, 6, {"of": True})

    async def test_a_stream_without_usage(self) -> None:
        async with asking(events(*CHUNKS[:-1])) as (model, _):
            assert (await streamed(model)).usage is None

    async def test_a_stream_that_comes_in_the_smallest_pieces(self) -> None:
        raw = b": keep-alive\n\n" + b"".join(STREAM.pieces)
        crumbs = [raw[at : at + 1] for at in range(len(raw))]
        async with asking(Answer(crumbs, kind="text/event-stream", framing="chunked")) as (model, _):
            assert await streamed(model) == MESSAGE

    async def test_an_endpoint_that_never_streams(self) -> None:
        async with asking(WHOLE) as (model, _):
            assert await streamed(model) == MESSAGE

    async def test_json_under_a_wrong_name_is_still_json(self) -> None:
        plain = whole(reply({"content": "x"}), kind="text/plain")
        async with asking(plain) as (model, _):
            assert (await model.complete(REQUEST)).content == "x"

    async def test_a_huge_reply_is_read_and_an_endless_one_refused(self) -> None:
        big = "x" * 3_000_000
        answers = whole(reply({"content": big})), events(chunk({"content": big * 3}), chunk({}, "stop"))
        async with asking(*answers) as (model, _):
            assert len((await model.complete(REQUEST)).content) == len(big)
            with pytest.raises(ModelError, match="longer than"):
                await streamed(model)

    async def test_a_missing_id_is_left_to_the_turn(self) -> None:
        call = {"type": "function", "function": {"name": "refund", "arguments": "{}"}}
        async with asking(whole(reply({"content": None, "tool_calls": [call]}))) as (model, _):
            assert (await model.complete(REQUEST)).tool_calls == (ToolCall("", "refund"),)


class TestFailures:
    @BOTH
    @pytest.mark.parametrize(
        ("status", "error", "kind"),
        [
            (429, {"message": "slow down", "type": "tokens", "code": "rate_limit_exceeded"}, ModelRateLimited),
            (429, {"message": "pay", "type": "insufficient_quota", "code": "insufficient_quota"}, QuotaExhausted),
            (400, {"message": "long", "type": "x", "code": "context_length_exceeded"}, ContextTooLong),
            (400, {"message": "bad", "type": "invalid_request_error"}, ModelRefused),
            (401, {"message": "no key"}, ModelRefused),
            (403, {"message": "no"}, ModelRefused),
            (404, {"message": "no such model"}, ModelRefused),
            (422, {"message": "no"}, ModelRefused),
            (408, {"message": "slow"}, ModelTimeout),
            (409, {"message": "conflict"}, ModelOverloaded),
            (500, {"message": "oops"}, ModelOverloaded),
            (529, {"message": "overloaded"}, ModelOverloaded),
        ],
    )
    async def test_statuses(self, ask: Ask, status: int, error: dict[str, Any], kind: type[ModelError]) -> None:
        """One request, one typed error with the provider's own words: the package does not retry on its own."""
        answer = whole({"error": error}, status=status, headers={"retry-after": "7"})
        async with asking(answer) as (model, provider):
            with pytest.raises(ModelError, match=f"status {status}: {error['message']}") as raised:
                await ask(model)

        assert type(raised.value) is kind
        assert getattr(raised.value, "retry_after", 7.0) == 7.0
        assert len(provider.requests) == 1

    @BOTH
    async def test_a_page_as_an_error_body(self, ask: Ask) -> None:
        async with asking(whole(b"<html>Bad gateway</html>", status=502, kind="text/html")) as (model, _):
            with pytest.raises(ModelOverloaded, match="status 502"):
                await ask(model)

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

    @pytest.mark.parametrize("kind", [None, "text/plain", "application/json", "text/html"])
    async def test_an_empty_answer_passes(self, kind: str | None) -> None:
        async with asking(whole(b"", kind=kind)) as (model, _):
            with pytest.raises(ModelOverloaded):
                await model.complete(REQUEST)
            with pytest.raises(ModelOverloaded):
                await streamed(model)

    @BOTH
    async def test_a_slow_provider(self, ask: Ask) -> None:
        patient = ModelRequest(messages=(), options=ModelOptions(timeout=0.05))
        async with asking(Answer([b"x"], cut=0, hang=True)) as (model, provider):
            with pytest.raises(ModelTimeout):
                await ask(model, patient)
        assert len(provider.requests) == 1

    async def test_a_stream_that_falls_silent(self) -> None:
        patient = ModelRequest(messages=(), options=ModelOptions(timeout=0.05))
        silent = Answer(STREAM.pieces, kind="text/event-stream", framing="chunked", cut=3, hang=True)
        async with asking(silent) as (model, _):
            with pytest.raises(ModelTimeout):
                await streamed(model, patient)

    @BOTH
    async def test_nobody_listens(self, ask: Ask) -> None:
        async with Provider(WHOLE).serving() as provider:
            url = provider.url
        model = OpenAIChatModel("m", base_url=url, api_key="x")
        with pytest.raises(ModelOverloaded, match="out of reach"):
            await ask(model)
        await model.close()

    @pytest.mark.parametrize("framing", ["length", "chunked", "close"])
    @pytest.mark.parametrize("cut", range(len(STREAM.pieces) - 2))
    async def test_a_stream_cut_at_a_chunk_is_never_a_reply(self, framing: str, cut: int) -> None:
        async with asking(Answer(STREAM.pieces, kind="text/event-stream", framing=framing, cut=cut)) as (model, _):
            with pytest.raises(ModelOverloaded):
                await streamed(model)

    async def test_a_stream_cut_at_any_byte_is_never_half_a_reply(self) -> None:
        """Whatever the cut, an error, or, once the last piece of the reply has come, all of it."""
        raw = b"".join(STREAM.pieces)
        finished = raw.index(b'"finish_reason": "tool_calls"')
        cuts = range(0, len(raw), 7)
        answers = [Answer([raw[:at]], kind="text/event-stream", framing="close") for at in cuts]
        async with asking(*answers) as (model, _):
            for at in cuts:
                with contextlib.suppress(ModelOverloaded):
                    message = await streamed(model)
                    assert at > finished
                    assert (message.content, message.tool_calls) == (MESSAGE.content, MESSAGE.tool_calls)

    async def test_a_whole_reply_cut_short(self) -> None:
        body = WHOLE.pieces[0]
        async with asking(Answer([body[:40], body[40:]], cut=1)) as (model, _):
            with pytest.raises(ModelOverloaded):
                await model.complete(REQUEST)

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

    async def test_a_stream_of_broken_json(self) -> None:
        broken = Answer([*STREAM.pieces[:2], b'data: {"choices": [}\n\n'], kind="text/event-stream", framing="close")
        async with asking(broken) as (model, _):
            with pytest.raises(ModelOverloaded, match="garbled"):
                await streamed(model)

    @BOTH
    async def test_a_request_that_is_no_text(self, ask: Ask) -> None:
        async with asking(STREAM if ask is streamed else WHOLE) as (model, provider):
            await ask(model, ModelRequest(messages=(UserMessage("\ud800"),)))
            with pytest.raises(ModelRefused, match="Unicode"):
                await ask(model, ModelRequest(messages=(), options=ModelOptions(extra={"x": "\ud800"})))
        assert provider.requests[0]["messages"] == [{"role": "user", "content": "\ufffd"}]

    @BOTH
    async def test_cancellation_passes_through_and_ends_the_request(self, ask: Ask) -> None:
        async with asking(Answer([b"x"], cut=0, hang=True), STREAM if ask is streamed else WHOLE) as (model, provider):
            asking_now = asyncio.create_task(ask(model))
            await provider.asked.wait()
            asking_now.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking_now

            assert await ask(model) == MESSAGE

    async def test_a_reader_may_leave_a_stream(self) -> None:
        async with asking(Answer(STREAM.pieces, kind="text/event-stream", framing="chunked", cut=3, hang=True)) as (m, _):
            stream = m.stream(REQUEST)
            assert (await anext(stream)).content == "Right "
            await stream.aclose()  # type: ignore[attr-defined]


class TestClient:
    async def test_a_given_client_keeps_its_settings_and_is_not_closed(self) -> None:
        answers = whole({"error": {"message": "x"}}, status=500), WHOLE
        async with (
            Provider(*answers).serving() as provider,
            quick_client(provider, max_retries=5, default_headers={"x-mine": "yes"}) as client,
        ):
            model = OpenAIChatModel("m", client=client)
            with pytest.raises(ModelOverloaded):
                await model.complete(REQUEST)
            await model.close()

            assert not client.is_closed()
            assert await model.complete(REQUEST) == MESSAGE
        assert "x-mine: yes" in provider.heads[0]
        assert client.max_retries == 5

    async def test_its_own_client_is_closed_and_opened_again(self) -> None:
        async with Provider(WHOLE).serving() as provider:
            model = OpenAIChatModel("m", base_url=provider.url, api_key="secret")
            await model.close()
            await model.complete(REQUEST)
            first = model._opened
            await model.close()
            await model.close()
            assert first is not None
            assert first.max_retries == 0
            assert first.is_closed()
            assert await model.complete(REQUEST) == MESSAGE
            assert model._opened is not first
            await model.close()

    async def test_opening_a_client_never_blocks_the_loop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It looks for the machine's certificates on disk, wherever that says they are; two first requests share it."""
        for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
            monkeypatch.delenv(name, raising=False)
        async with Provider(WHOLE, WHOLE).serving() as provider:
            model = OpenAIChatModel("m", base_url=provider.url, api_key="secret")
            assert await asyncio.gather(model.complete(REQUEST), model.complete(REQUEST)) == [MESSAGE, MESSAGE]
            await model.close()

    async def test_an_endpoint_of_ones_own_needs_no_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        async with Provider(WHOLE).serving() as provider:
            model = OpenAIChatModel("m", base_url=provider.url)
            assert await model.complete(REQUEST) == MESSAGE
            assert model._opened is not None
            assert model._opened.max_retries == 0
            await model.close()

    @BOTH
    async def test_openai_without_a_key_is_refused(self, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_BASE_URL"):
            monkeypatch.delenv(name, raising=False)
        with pytest.raises(ModelRefused, match="OPENAI_API_KEY"):
            await ask(OpenAIChatModel("gpt"))

    @pytest.mark.parametrize(
        ("name", "settings"),
        [
            ("", {}),
            (None, {}),
            ("m", {"base_url": "localhost:8000"}),
            ("m", {"base_url": "http://x", "client": object()}),
            ("m", {"api_key": "x", "client": object()}),
        ],
    )
    def test_wrong_definitions(self, name: Any, settings: dict[str, Any]) -> None:
        with pytest.raises(InvalidDefinition):
            OpenAIChatModel(name, **settings)

    def test_without_the_package_the_error_names_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(name: str) -> None:
            raise ModuleNotFoundError(f"No module named {name!r}", name="openai")

        monkeypatch.setattr("importlib.import_module", missing)
        _warm_up.cache_clear()
        with pytest.raises(ImportError, match=r"turnhold\[openai\]"):
            OpenAIChatModel("m")

    def test_it_is_a_streaming_chat_model_that_hides_its_key(self) -> None:
        model = OpenAIChatModel("m", api_key="secret")

        assert isinstance(model, ChatModel)
        assert isinstance(model, StreamingChatModel)
        assert repr(model) == "OpenAIChatModel('m')"

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
        assert _is_own(openai.AsyncOpenAI(base_url=url, api_key="x")) is own
