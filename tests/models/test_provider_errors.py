"""Status codes, error bodies and headers as typed errors."""

from __future__ import annotations

import pytest

from turnhold.actors.errors import (
    ContextTooLong,
    ModelError,
    ModelOverloaded,
    ModelRateLimited,
    ModelRefused,
    ModelTimeout,
    QuotaExhausted,
    RetryableModelError,
)
from turnhold.models.provider_errors import MAX_RETRY_AFTER, body_error, retry_after, status_error

DATE = "Wed, 21 Oct 2015 07:28:00 GMT"


@pytest.mark.parametrize(
    ("status", "codes", "message", "error"),
    [
        (400, (), "no such parameter", ModelRefused),
        (400, ("context_length_exceeded",), "too long", ContextTooLong),
        (400, (), "This model's maximum context length is 8192 tokens", ContextTooLong),
        (400, ("exceed_context_size_error",), "request exceeds", ContextTooLong),
        (400, ("content_filter",), "filtered", ModelRefused),
        (401, ("invalid_api_key",), "key", ModelRefused),
        (402, (), "pay", QuotaExhausted),
        (403, (), "no", ModelRefused),
        (404, ("model_not_found",), "no", ModelRefused),
        (408, (), "slow", ModelTimeout),
        (409, (), "conflict", ModelOverloaded),
        (413, (), "large", ModelRefused),
        (422, (), "no", ModelRefused),
        (425, (), "early", ModelOverloaded),
        (429, ("rate_limit_exceeded", "tokens"), "slow down", ModelRateLimited),
        (429, ("insufficient_quota",), "pay", QuotaExhausted),
        (500, (), "oops", ModelOverloaded),
        (503, (), "busy", ModelOverloaded),
        (529, (), "overloaded", ModelOverloaded),
        (302, (), "elsewhere", ModelError),
    ],
)
def test_statuses(status: int, codes: tuple[str, ...], message: str, error: type[ModelError]) -> None:
    found = status_error(status, message, codes=codes, headers={"retry-after": "7"})

    assert type(found) is error
    assert f"status {status}: {message}" in str(found)
    if isinstance(found, RetryableModelError):
        assert found.retry_after == 7.0


def test_messages_are_bounded() -> None:
    assert len(str(status_error(500, "x" * 10_000))) <= 500
    assert len(str(body_error({"message": "x" * 10_000}))) <= 500


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT", "date": DATE}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:27:00 GMT", "date": DATE}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:30", "date": DATE}, None),
        ({"retry-after": "soon", "date": DATE}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "99999999999"}, MAX_RETRY_AFTER),
        ({"retry-after": "Wed, 21 Oct 9999 07:28:30 GMT", "date": DATE}, MAX_RETRY_AFTER),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"code": 502, "message": "upstream"}, ModelOverloaded),
        ({"code": "429", "message": "slow"}, ModelRateLimited),
        ({"type": "rate_limit_error"}, ModelRateLimited),
        ({"type": "insufficient_quota", "code": "insufficient_quota"}, QuotaExhausted),
        ({"type": "invalid_request_error", "code": "context_length_exceeded"}, ContextTooLong),
        ({"type": "invalid_request_error", "code": None}, ModelRefused),
        ({"type": "server_error", "message": None}, ModelOverloaded),
        ({"type": "timeout"}, ModelTimeout),
        ({"code": 7}, ModelOverloaded),
        ("broken", ModelOverloaded),
        (["broken"], ModelOverloaded),
    ],
)
def test_errors_in_a_body(body: object, error: type[ModelError]) -> None:
    assert type(body_error(body)) is error
