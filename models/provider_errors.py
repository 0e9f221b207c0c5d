"""What a provider's failures mean to us: status codes, error bodies and retry-after headers as typed errors. No I/O."""

from __future__ import annotations

import math
import re
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, cast

from ..actors.errors import (
    ContextTooLong,
    ModelError,
    ModelOverloaded,
    ModelRateLimited,
    ModelRefused,
    ModelTimeout,
    QuotaExhausted,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_RETRY_AFTER: Final = 24 * 3600.0
"""Seconds; a wish for more is cut to this."""

_MESSAGE_LENGTH = 500
_TOO_LONG = re.compile(
    r"maximum context length|context (window|size|length)|exceeds? context limit|exceed_context_size|prompt is too long",
    re.IGNORECASE,
)
_NO_QUOTA = re.compile(r"credit balance is too low", re.IGNORECASE)
_STATUS_OF = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "insufficient_quota": 429,
    "context_length_exceeded": 400,
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "timeout": 408,
    "timeout_error": 408,
    "request_too_large": 413,
    "api_error": 500,
    "overloaded_error": 529,
}


def status_error(status: int, message: str, *, codes: tuple[str, ...] = (), headers: Mapping[str, str] | None = None) -> ModelError:
    """Return the error that an HTTP status stands for; `codes` are the provider's `code` and `type`."""
    wait = retry_after(headers or {})
    said = f"status {status}: {message}"[:_MESSAGE_LENGTH]
    if status == 402 or (status == 429 and "insufficient_quota" in codes) or (status == 400 and _NO_QUOTA.search(message)):
        return QuotaExhausted(said)
    if status == 429:
        return ModelRateLimited(said, retry_after=wait)
    if status == 408:
        return ModelTimeout(said, retry_after=wait)
    if status in {409, 425} or status >= 500:
        return ModelOverloaded(said, retry_after=wait)
    if status == 400 and ("context_length_exceeded" in codes or _TOO_LONG.search(" ".join((message, *codes)))):
        return ContextTooLong(said)
    if status >= 400:
        return ModelRefused(said)
    return ModelError(said)


def body_error(error: Any) -> ModelError:
    """Return the error that a reply with status 200, or a stream, carries in place of content.

    Its code is a status or a word; one that says nothing is taken as the provider's own fault, which passes.
    """
    fields = cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": error}
    message = str(fields.get("message") or "the provider sent an error without a message")
    codes = tuple(str(fields[key]) for key in ("code", "type", "status") if fields.get(key))
    for code in codes:
        if re.fullmatch(r"[45]\d\d", code):
            return status_error(int(code), message, codes=codes)
    for code in codes:
        if code in _STATUS_OF:
            return status_error(_STATUS_OF[code], message, codes=codes)
    return ModelOverloaded(f"{' '.join((*codes, message))}"[:_MESSAGE_LENGTH])


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a provider asks us to wait, or None.

    It says so in ``retry-after-ms``, or in ``retry-after`` as seconds or as a date. A date counts from the answer's own
    ``date``, so that no clock of ours is compared with one of theirs.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return min(milliseconds / 1000, MAX_RETRY_AFTER)
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is None and text:
        try:
            until, now = parsedate_to_datetime(text), parsedate_to_datetime(headers.get("date") or "")
            seconds = max(0.0, (until - now).total_seconds())
        except (ValueError, TypeError, OverflowError):
            return None
    return None if seconds is None else min(seconds, MAX_RETRY_AFTER)


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
