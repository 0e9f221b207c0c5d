"""What a server asks a person while a call runs (elicitation), as forms of the turn.

A question is known by what it says: the digest of its text and its schema. A call that is started again meets the same questions
in the same order, so the n-th one of a digest is answered by the n-th answer to it, and nobody is asked twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import msgspec

from ...actors.context import ToolContext
from ...actors.errors import FormDeclined, FormRequired, InvalidDefinition, ToolError
from ...actors.forms import FormDefinition
from ...actors.record import JsonObject
from .content import short

if TYPE_CHECKING:
    from mcp.types import ElicitRequestFormParams, ElicitRequestURLParams, ElicitResult

    Params = ElicitRequestURLParams | ElicitRequestFormParams

MAX_QUESTIONS: Final = 32


class Questions:
    """The questions of one call so far, and the answers that the call has."""

    def __init__(self, context: ToolContext[Any], counts: Mapping[str, int] | None = None) -> None:
        self._context = context
        self.counts: dict[str, int] = dict(counts or {})

    def answer(self, params: Params) -> tuple[FormDefinition[Any], ElicitResult | None]:
        """Return the form that a question is, and its answer if the call has one.

        :raises ToolError: if the question cannot be asked, or is one too many.
        """
        from mcp.types import ElicitResult

        form = self._form(params)
        try:
            data = self._context.form(form)
        except FormRequired:
            if len(self._context.forms) + len(self._context.declined) >= MAX_QUESTIONS:  # those of earlier attempts, too
                raise _too_many() from None
            return form, None
        except FormDeclined as declined:
            return form, ElicitResult(action="cancel" if declined.expired else "decline")
        if params.mode == "url":
            return form, ElicitResult(action="accept")
        return form, ElicitResult(action="accept", content=data)

    def _form(self, params: Params) -> FormDefinition[Any]:
        try:
            digest = _digest(params)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise ToolError(f"the server's question cannot be asked: {short(str(error))}", kind="mcp_bad_question") from None
        number = self.counts.get(digest, 0) + 1
        if sum(self.counts.values()) >= MAX_QUESTIONS:
            raise _too_many()
        self.counts[digest] = number
        key = f"mcp:{self._context.tool.name}:{digest}" + ("" if number == 1 else f":{number}")
        try:
            return FormDefinition(key, description="a question of an MCP server", schema=_schema(params), tell_decline=True)
        except InvalidDefinition as error:
            raise ToolError(f"the server's question cannot be asked: {error}", kind="mcp_bad_question") from None


def _too_many() -> ToolError:
    return ToolError(f"the server has asked more than {MAX_QUESTIONS} questions", kind="mcp_too_many_questions")


def _schema(params: Params) -> JsonObject:
    title = short(params.message).strip() or "A question"
    if params.mode == "url":
        url = short(params.url)
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidDefinition(f"the page is not on the web: {url[:200]}")
        return {
            "title": title,
            "description": f"Open the page {url} (host {parts.hostname}), finish there, then submit an empty form.",
            "type": "object",
            "additionalProperties": False,
            "x-url": url,
        }
    given = cast("JsonObject", params.requested_schema)
    if given.get("type") != "object":
        raise InvalidDefinition("its schema is not one of an object")
    return {**given, "title": title}


def _digest(params: Params) -> str:
    content = (params.mode, params.message, params.url if params.mode == "url" else params.requested_schema)
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()[:16]
