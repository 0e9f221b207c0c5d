"""Whatever a provider does: a typed error or a whole reply; never half a reply, another exception, or a wait without end."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from turnhold.actors.chat import AiMessage, UserMessage
from turnhold.actors.errors import (
    ContextTooLong,
    ModelError,
    ModelOverloaded,
    ModelRateLimited,
    ModelRefused,
    ModelTimeout,
    QuotaExhausted,
)
from turnhold.actors.model import ModelOptions, ModelRequest

from .dialects import ALL, DIALECTS, MESSAGE, REQUEST, Dialect, completed, streamed
from .provider import Answer, Provider, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

Ask: TypeAlias = "Callable[..., Coroutine[Any, Any, AiMessage]]"
pytestmark = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
BOTH = pytest.mark.parametrize("ask", [completed, streamed])
PATIENCE = ModelRequest(messages=(UserMessage("Hi"),), options=ModelOptions(timeout=0.05))
DATE = "Wed, 21 Oct 2015 07:28:00 GMT"
LATER = "Wed, 21 Oct 2015 07:28:30 GMT"


def fits(message: AiMessage) -> bool:
    """Tell whether a reply has all that was sent, apart from the usage, which comes last."""
    return (message.content, message.tool_calls) == (MESSAGE.content, MESSAGE.tool_calls)


class TestStatuses:
    @BOTH
    @pytest.mark.parametrize(
        ("status", "code", "says", "kind"),
        [
            (400, "invalid_request_error", "no such parameter", ModelRefused),
            (400, "invalid_request_error", "prompt is too long: 300000 tokens > 200000 maximum", ContextTooLong),
            (400, "invalid_request_error", "input length and `max_tokens` exceed context limit: 9 + 9 > 10", ContextTooLong),
            (400, "context_length_exceeded", "too many", ContextTooLong),
            (400, "invalid_request_error", "Your credit balance is too low", QuotaExhausted),
            (401, "authentication_error", "no key", ModelRefused),
            (402, "billing_error", "pay", QuotaExhausted),
            (403, "permission_error", "no", ModelRefused),
            (404, "not_found_error", "no such model", ModelRefused),
            (408, "timeout_error", "slow", ModelTimeout),
            (413, "request_too_large", "large", ModelRefused),
            (422, "", "no", ModelRefused),
            (429, "rate_limit_error", "slow down", ModelRateLimited),
            (429, "insufficient_quota", "pay", QuotaExhausted),
            (500, "api_error", "oops", ModelOverloaded),
            (503, "", "busy", ModelOverloaded),
            (529, "overloaded_error", "overloaded", ModelOverloaded),
        ],
    )
    async def test_statuses(self, dialect: Dialect, ask: Ask, status: int, code: str, says: str, kind: type[ModelError]) -> None:
        """One request, one typed error with the provider's own words: the package does not retry on its own."""
        answer = whole(dialect.error(says, code), status=status, headers={"retry-after": "7"})
        async with dialect.asking(answer) as (model, provider):
            with pytest.raises(ModelError) as raised:
                await ask(model)

        assert type(raised.value) is kind
        assert f"status {status}: {says}" in str(raised.value)
        assert getattr(raised.value, "retry_after", 7.0) == 7.0
        assert len(provider.requests) == 1

    @BOTH
    @pytest.mark.parametrize(
        ("headers", "seconds"),
        [
            ({"retry-after": "0.25"}, 0.25),
            ({"retry-after": LATER, "date": DATE}, 30.0),
            ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
            ({"retry-after": "soon"}, None),
            ({}, None),
        ],
    )
    async def test_retry_after(self, dialect: Dialect, ask: Ask, headers: dict[str, str], seconds: float | None) -> None:
        """The provider's wish in seconds, also where it is a date; a date counts from the answer's own."""
        answer = whole(dialect.error("slow down", "rate_limit_error"), status=429, headers=headers)
        async with dialect.asking(answer) as (model, _):
            with pytest.raises(ModelRateLimited) as raised:
                await ask(model)
        assert raised.value.retry_after == seconds

    @BOTH
    @pytest.mark.parametrize("status", [429, 500, 503])
    @pytest.mark.parametrize(
        ("body", "kind"),
        [(b"", None), (b"<html>Bad gateway</html>", "text/html"), (b'{"error"', "application/json"), (b"[1]", "application/json")],
    )
    async def test_bodies_of_errors(self, dialect: Dialect, ask: Ask, status: int, body: bytes, kind: str | None) -> None:
        """The status counts, whatever stands in the body."""
        async with dialect.asking(whole(body, status=status, kind=kind)) as (model, _):
            with pytest.raises(ModelRateLimited if status == 429 else ModelOverloaded, match=f"status {status}"):
                await ask(model)

    @BOTH
    async def test_a_redirect_is_no_reply(self, dialect: Dialect, ask: Ask) -> None:
        """One that leads nowhere is an error like others."""
        async with dialect.asking(whole(b"", status=302, kind=None)) as (model, _):
            with pytest.raises(ModelError):
                await ask(model)


class TestBodies:
    @BOTH
    @pytest.mark.parametrize(
        ("body", "kind", "error", "says"),
        [
            (b'{"x": [', "application/json", ModelOverloaded, "garbled"),
            (b"[" * 100_000, "application/json", ModelOverloaded, "garbled"),
            (b"\xff\xfe", "application/json", ModelOverloaded, "garbled"),
            (b"<html>Hello</html>", "text/html", ModelError, "not JSON: is the base_url right"),
            (b"[]", "application/json", ModelError, "no JSON object"),
            (b"null", "application/json", ModelError, "no JSON object"),
            (b"7", "application/json", ModelError, "no JSON object"),
            (b'"hello"', "application/json", ModelError, "not JSON"),
            (b'{"hello": 1}', "application/json", ModelError, "is it a"),
            (b'{"choices": 3, "content": 3}', "application/json", ModelError, "answer is no"),
            (
                b'{"error": {"code": 429, "type": "rate_limit_error", "message": "busy"}}',
                "application/json",
                ModelRateLimited,
                "busy",
            ),
        ],
    )
    async def test_bodies_that_are_no_reply(
        self, dialect: Dialect, ask: Ask, body: bytes, kind: str, error: type[ModelError], says: str
    ) -> None:
        """Status 200 alone makes no reply."""
        async with dialect.asking(whole(body, kind=kind)) as (model, _):
            with pytest.raises(ModelError, match=says) as raised:
                await ask(model)
        assert type(raised.value) is error

    @BOTH
    @pytest.mark.parametrize("kind", [None, "text/plain", "application/json", "text/html", "text/event-stream", "image/png"])
    async def test_an_empty_answer_passes(self, dialect: Dialect, ask: Ask, kind: str | None) -> None:
        """It is the provider's fault, and worth another attempt."""
        async with dialect.asking(whole(b"", kind=kind)) as (model, _):
            with pytest.raises(ModelOverloaded):
                await ask(model)

    @BOTH
    @pytest.mark.parametrize("kind", [None, "text/plain", "text/html", "text/event-stream", "image/png", "nonsense"])
    async def test_a_reply_under_a_wrong_name(self, dialect: Dialect, ask: Ask, kind: str | None) -> None:
        """Either it is read for what it is, or it is a typed error."""
        for answer in (dialect.whole(), dialect.stream()):
            answer.kind = kind
            async with dialect.asking(answer) as (model, _):
                try:
                    message = await ask(model)
                except ModelError:
                    continue
                assert message == MESSAGE

    @BOTH
    async def test_a_whole_reply_cut_short(self, dialect: Dialect, ask: Ask) -> None:
        """The connection breaks in the middle of a body."""
        body = dialect.whole().pieces[0]
        for framing in ("length", "chunked", "close"):
            answer = Answer([body[:40], body[40:]], cut=1, framing=framing)
            async with dialect.asking(answer) as (model, _):
                with pytest.raises(ModelOverloaded):
                    await ask(model)


class TestStreams:
    @pytest.mark.parametrize("framing", ["length", "chunked", "close"])
    async def test_a_stream_cut_at_an_event_is_never_a_reply(self, dialect: Dialect, framing: str) -> None:
        """Wherever it is cut before the provider has said that this was all."""
        pieces = dialect.pieces(ALL)
        for cut in range(pieces.index(dialect.last_of(ALL))):
            async with dialect.asking(dialect.stream(framing=framing, cut=cut)) as (model, _):
                with pytest.raises(ModelOverloaded):
                    await streamed(model)

    async def test_a_stream_cut_at_any_byte_is_never_half_a_reply(self, dialect: Dialect) -> None:
        """An error, or, once the last piece of the reply has come, all of it."""
        raw = b"".join(dialect.pieces(ALL))
        last = dialect.last_of(ALL)
        finished = raw.index(last) + len(last)
        cuts = [*range(0, len(raw), 23), *range(finished - 4, finished + 3)]
        whole_ones = 0
        async with dialect.asking(*(dialect.streamed(raw[:at], framing="close") for at in cuts)) as (model, _):
            for at in cuts:
                try:
                    message = await streamed(model)
                except ModelOverloaded:
                    assert at < finished
                    continue
                assert at >= finished - 1
                assert fits(message)
                whole_ones += 1
        assert whole_ones

    async def test_a_stream_of_garbled_bytes(self, dialect: Dialect) -> None:
        """Bytes that are lost, doubled or changed: an error of the model's, or a reply that can be stored."""
        chance = random.Random(5)
        raw = b"".join(dialect.pieces(ALL))
        answers = []
        for _ in range(40):
            at, width = chance.randrange(len(raw)), chance.randrange(1, 30)
            put = chance.choice([b"", raw[at : at + width] * 2, chance.randbytes(3), b"\n\n", b'"', b"null", b"\xff", b"[]"])
            answers.append(dialect.streamed(raw[:at] + put + raw[at + width :], framing="close"))
        async with dialect.asking(*answers) as (model, _):
            for _ in answers:
                try:
                    message = await streamed(model)
                except ModelError:
                    continue
                assert message.to_json()

    @BOTH
    async def test_values_of_wrong_types(self, dialect: Dialect, ask: Ask) -> None:
        """One value at a time is something else: an error of the model's, or a reply that can be stored."""
        chance = random.Random(7)
        answers = []
        for at in range(0, _size(dialect.events(ALL)), 4) if ask is streamed else range(_size(dialect.body(ALL))):
            wrong = chance.choice([None, 7, "x", [], {}, [None], {"type": 3}])
            if ask is streamed:
                answers.append(dialect.streamed(*(dialect.piece(each) for each in _replaced(dialect.events(ALL), at, wrong))))
            else:
                answers.append(whole(_replaced(dialect.body(ALL), at, wrong)))
        async with dialect.asking(*answers) as (model, _):
            for _ in answers:
                try:
                    message = await ask(model)
                except ModelError:
                    continue
                assert message.to_json()

    @pytest.mark.parametrize(
        ("code", "kind"),
        [
            ("overloaded_error", ModelOverloaded),
            ("api_error", ModelOverloaded),
            ("rate_limit_error", ModelRateLimited),
            ("invalid_request_error", ModelRefused),
            ("authentication_error", ModelRefused),
            ("timeout_error", ModelTimeout),
            ("unheard_of", ModelOverloaded),
        ],
    )
    async def test_an_error_within_a_stream(self, dialect: Dialect, code: str, kind: type[ModelError]) -> None:
        """The head said 200, the stream says otherwise."""
        bad = dialect.piece(dialect.error("upstream broke", code))
        async with dialect.asking(dialect.streamed(*dialect.pieces(ALL)[:4], bad)) as (model, _):
            with pytest.raises(ModelError, match="upstream broke") as raised:
                await streamed(model)
        assert type(raised.value) is kind

    @pytest.mark.parametrize("bad", [b"[1]", b"3", b'"x"', b"{}}", b'{"choices": [}', b"\xff"])
    async def test_events_that_are_none(self, dialect: Dialect, bad: bytes) -> None:
        """Half a reply is behind it, so the whole is an error."""
        event = dialect.piece({}).partition(b"data: ")[0].replace(b"strange", b"message_delta") + b"data: " + bad + b"\n\n"
        async with dialect.asking(dialect.streamed(*dialect.pieces(ALL)[:4], event)) as (model, _):
            with pytest.raises(ModelError):
                await streamed(model)

    async def test_a_reader_may_leave_a_stream(self, dialect: Dialect) -> None:
        """Closing it ends the request at once."""
        async with dialect.asking(dialect.stream(cut=6, hang=True)) as (model, _):
            stream = model.stream(REQUEST)
            assert await anext(stream)
            await stream.aclose()


class TestConnections:
    @BOTH
    async def test_a_slow_provider(self, dialect: Dialect, ask: Ask) -> None:
        """Silence longer than the limit is a timeout, and there is no second request."""
        async with dialect.asking(Answer([b"x"], cut=0, hang=True)) as (model, provider):
            with pytest.raises(ModelTimeout):
                await ask(model, PATIENCE)
        assert len(provider.requests) == 1

    @BOTH
    async def test_an_answer_that_falls_silent(self, dialect: Dialect, ask: Ask) -> None:
        """So is silence in the middle of an answer."""
        body = dialect.whole().pieces[0]
        silent = dialect.stream(cut=5, hang=True) if ask is streamed else Answer([body[:40], body[40:]], cut=1, hang=True)
        async with dialect.asking(silent) as (model, _):
            with pytest.raises(ModelTimeout):
                await ask(model, PATIENCE)

    @BOTH
    async def test_an_error_that_falls_silent(self, dialect: Dialect, ask: Ask) -> None:
        """The body of an error may hang as well."""
        async with dialect.asking(Answer([b"{", b"}"], status=500, cut=1, hang=True)) as (model, _):
            with pytest.raises((ModelTimeout, ModelOverloaded)):
                await ask(model, PATIENCE)

    @BOTH
    async def test_nobody_listens(self, dialect: Dialect, ask: Ask) -> None:
        """The connection is refused."""
        async with Provider(dialect.whole()).serving() as provider:
            url = provider.url
        async with dialect.client(url) as client:
            with pytest.raises(ModelOverloaded, match="out of reach"):
                await ask(dialect.model("m", client=client))

    @BOTH
    @pytest.mark.parametrize("cut", [0, 1, 4])
    async def test_a_connection_that_is_reset(self, dialect: Dialect, ask: Ask, cut: int) -> None:
        """Before the body, or within it."""
        answer = dialect.stream(cut=cut, reset=True) if ask is streamed else Answer([b'{"a', b"1}"], cut=min(cut, 1), reset=True)
        async with dialect.asking(answer) as (model, _):
            with pytest.raises(ModelOverloaded):
                await ask(model)

    @BOTH
    async def test_what_is_no_http(self, dialect: Dialect, ask: Ask) -> None:
        """Something else listens there."""

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 mail.example.com ESMTP\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with server, dialect.client(url) as client:
            with pytest.raises(ModelOverloaded):
                await ask(dialect.model("m", client=client))

    @BOTH
    async def test_cancellation_passes_through_and_ends_the_request(self, dialect: Dialect, ask: Ask) -> None:
        """It is no error of the model's, and the next request works."""
        good = dialect.stream() if ask is streamed else dialect.whole()
        async with dialect.asking(Answer([b"x"], cut=0, hang=True), good) as (model, provider):
            asking_now = asyncio.create_task(ask(model))
            await provider.asked.wait()
            asking_now.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking_now

            assert await ask(model) == MESSAGE

    @BOTH
    async def test_a_request_that_is_no_text(self, dialect: Dialect, ask: Ask) -> None:
        """Half a character in a message is mended, elsewhere it is refused before anything is sent."""
        async with dialect.asking(dialect.stream() if ask is streamed else dialect.whole()) as (model, provider):
            await ask(model, ModelRequest(messages=(UserMessage("\ud800"),)))
            with pytest.raises(ModelRefused, match="Unicode"):
                await ask(model, ModelRequest(messages=(), options=ModelOptions(extra={"x": "\ud800"})))
        assert len(provider.requests) == 1
        assert "\ufffd" in json.dumps(provider.requests[0], ensure_ascii=False)


def _places(value: object) -> list[tuple[Any, Any]]:
    """Return each place in a JSON value, as its container and key."""
    items = list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    return [place for key, inner in items for place in [(value, key), *_places(inner)]]


def _size(value: object) -> int:
    return len(_places(value))


def _replaced(value: Any, at: int, wrong: object) -> Any:
    """Return a copy of a JSON value with another value at one place."""
    copy = json.loads(json.dumps(value))
    container, key = _places(copy)[at]
    container[key] = wrong
    return copy
