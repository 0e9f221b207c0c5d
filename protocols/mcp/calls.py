"""One call of a server's tool: its rounds, its questions, and what becomes of it when the server is lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import msgspec

from ...actors.context import ToolContext
from ...actors.errors import FormRequired, OutcomeUnknown, ToolError
from ...actors.record import JsonObject, JsonValue
from . import sdk
from .connection import FIRST_PAUSE, Connection, Link, McpUnreachable
from .content import short, text_of, value_of
from .questions import Questions

if TYPE_CHECKING:
    from mcp import MCPError
    from mcp.types import (
        CallToolResult,
        ElicitRequestParams,
        ElicitRequestURLParams,
        ElicitResult,
        ErrorData,
        InputRequiredResult,
        InputResponses,
        RequestParamsMeta,
    )

SENDINGS: Final = 3
MAX_ROUNDS: Final = 64
LONGEST_PAUSE: Final = 2.0
KEY_META, ATTEMPT_META = "io.turnhold/idempotency-key", "io.turnhold/attempt"


class Spec(msgspec.Struct, frozen=True):
    """How calls of one tool are made."""

    connection: Connection
    name: str
    once: bool
    timeout: float
    max_result: int


class Kept(msgspec.Struct, frozen=True):
    """What a call keeps while a person answers: what the server wants to know, its state, and what it had asked before."""

    requests: dict[str, JsonValue]
    state: str | None = None
    counts: dict[str, int] = {}


async def call(spec: Spec, arguments: JsonObject) -> JsonValue:
    """Make one attempt of a call.

    :raises ToolError: if the server says so, or cannot be reached.
    :raises OutcomeUnknown: if nobody knows whether a `once` call took effect.
    :raises FormRequired: if the server has a question to a person.
    """
    context = ToolContext.current()
    attempt = Attempt(spec, arguments, context)
    try:
        async with asyncio.timeout(spec.timeout):
            return await attempt.run()
    except TimeoutError:
        raise attempt.unknown(f"no result within {spec.timeout:g} s") from None
    except McpUnreachable as error:
        raise ToolError(str(error), kind="mcp_unreachable", server=spec.connection.name) from None


class Attempt:
    """One attempt of a call."""

    def __init__(self, spec: Spec, arguments: JsonObject, context: ToolContext[Any]) -> None:
        self._spec, self._arguments, self._context = spec, arguments, context
        self._questions = Questions(context)
        self._sent = False
        self._refused: str | None = None
        self._asks: FormRequired | None = None
        self._scope: anyio.CancelScope | None = None
        self._left = asyncio.Event()

    def unknown(self, why: str) -> Exception:
        """Return the error of a call whose answer did not come: in doubt if it is a `once` call that has left."""
        told = f"MCP server {self._spec.connection.name}, tool {self._spec.name}: {why}"
        if self._spec.once and self._sent:
            return OutcomeUnknown(told)
        return ToolError(told, kind="mcp_no_answer", server=self._spec.connection.name)

    async def run(self) -> JsonValue:
        """Send the request, as often as the server wants to know more."""
        from mcp.types import CallToolResult

        responses, state = self._resumed()
        pause = FIRST_PAUSE
        for _ in range(MAX_ROUNDS):
            try:
                reply = await self._send(responses, state)
            except StateRefused:
                responses, state = self._start_over()
                continue
            if isinstance(reply, CallToolResult):
                return self._result(reply)
            counts, state = dict(self._questions.counts), reply.request_state
            if reply.input_requests:
                raw = cast("dict[str, JsonValue]", reply.model_dump(mode="json", by_alias=True, exclude_none=True)["inputRequests"])
                responses = self._responses(Kept(raw, state, counts))
                pause = FIRST_PAUSE
            else:
                responses = None
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
        raise ToolError(f"the server has not come to an end in {MAX_ROUNDS} rounds", kind="mcp_too_many_rounds")

    def _result(self, reply: CallToolResult) -> JsonValue:
        if not reply.is_error:
            return value_of(reply, self._spec.max_result)
        raise self._failed(text_of(reply), "mcp_tool_error")

    def _failed(self, told: str, kind: str, **more: object) -> ToolError:
        """Return the error of a call that the server has answered; where we refused its question, that is why."""
        if self._refused is not None:
            kind, told = "mcp_question_refused", self._refused
        return ToolError(told, kind=kind, server=self._spec.connection.name, **more)

    # ------------------------------------------------------------------------------------------------------------ questions

    def _resumed(self) -> tuple[InputResponses | None, str | None]:
        """Return what an earlier attempt of this call has left to be sent."""
        if self._context.kept is None:
            return None, None
        kept = msgspec.convert(self._context.kept, Kept)
        self._questions = Questions(self._context, kept.counts)
        return self._responses(kept), kept.state

    def _start_over(self) -> tuple[None, None]:
        """Start again from the top: the server does not take its state back. The answers are still here.

        :raises ToolError: if that may do something a second time.
        """
        if self._spec.once:
            raise ToolError(
                "The server no longer knows the call that it had interrupted with a question (it was restarted, or waited too "
                "long), and a call of this tool may not be started a second time.",
                kind="mcp_state_lost",
                server=self._spec.connection.name,
            )
        self._questions = Questions(self._context)
        return None, None

    def _responses(self, kept: Kept) -> InputResponses:
        """Return an answer for each question of a round.

        :raises FormRequired: if one of them has none yet.
        """
        from mcp.types import ElicitRequest
        from pydantic import ValidationError

        responses: InputResponses = {}
        for key, raw in kept.requests.items():
            try:
                params = ElicitRequest.model_validate(raw).params
            except ValidationError:
                raise ToolError("the server asks for what is not offered here", kind="mcp_not_offered") from None
            form, answer = self._questions.answer(params)
            if answer is None:
                raise FormRequired(form, keep=msgspec.to_builtins(kept))
            responses[key] = answer
        return responses

    async def asked(self, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        """Answer a question that the server asks while its request is open (before 2026-07-28).

        Without an answer the request is given up, and the call is started again when there is one.
        """
        from mcp.types import ElicitResult, ErrorData

        try:
            form, answer = self._questions.answer(params)
        except ToolError as error:
            return ErrorData(code=-32602, message=str(error))
        if answer is not None:
            return answer
        if self._spec.once:
            self._refused = (
                "The server asked a person in the middle of the call. It speaks an older revision of MCP, in which the call would "
                "have to be started a second time with the answer, and a call of this tool may not be."
            )
            return ErrorData(code=-32600, message=self._refused)
        if self._asks is None and self._scope is not None:
            self._asks = FormRequired(form)
            self._scope.cancel()
        await self._left.wait()
        return ElicitResult(action="cancel")

    # -------------------------------------------------------------------------------------------------------------- sending

    async def _send(self, responses: InputResponses | None, state: str | None) -> CallToolResult | InputRequiredResult:
        """Send one request, on a new connection where one was lost, as long as that cannot do anything twice."""
        from mcp import MCPError

        connection, pause = self._spec.connection, FIRST_PAUSE
        for left in reversed(range(SENDINGS)):
            link = await connection.link()
            before = self._sent
            try:
                async with connection.asking(link, self.asked):
                    return await self._request(link, responses, state)
            except MCPError as error:
                if state is not None and sdk.state_refused(error):
                    raise StateRefused from None
                if sdk.wants_urls(error):
                    self._visit(error)
                    continue
                self._judge(error, link, before=before, left=left)
            await asyncio.sleep(pause)
            pause *= 2
        raise ToolError("the server wants the same pages opened again and again", kind="mcp_too_many_questions")

    def _judge(self, error: MCPError, link: Link, *, before: bool, left: int) -> None:
        """Return if the request may be sent again. :raises ToolError: if not. :raises OutcomeUnknown: if nobody knows."""
        name = self._spec.connection.name
        if sdk.unreached(error):
            self._sent = before
            link.lost.set()
            if not left:
                raise ToolError(f"MCP server {name} cannot be reached: {short(error.message)}", kind="mcp_unreachable", server=name)
        elif sdk.broken(error):
            link.lost.set()
            if self._spec.once or not left:
                raise self.unknown("the connection was lost before the result came")
        else:
            raise self._failed(short(error.message), "mcp_error", code=error.code)

    async def _request(
        self, link: Link, responses: InputResponses | None, state: str | None
    ) -> CallToolResult | InputRequiredResult:
        from pydantic import ValidationError

        context = self._context
        meta = {KEY_META: context.idempotency_key, ATTEMPT_META: context.attempt}
        self._sent = True
        with anyio.CancelScope() as scope:
            self._scope = scope
            try:
                return await link.client.session.call_tool(
                    self._spec.name,
                    self._arguments,
                    progress_callback=self._progress,
                    input_responses=responses,
                    request_state=state,
                    meta=cast("RequestParamsMeta", meta),
                    allow_input_required=True,
                )
            except ValidationError as error:
                raise self.unknown(f"its reply cannot be read: {short(str(error), 500)}") from None
            except RuntimeError as error:
                raise ToolError(
                    f"The call has run, but its result is not what the server declares: {short(str(error), 500)}",
                    kind="mcp_bad_result",
                    server=self._spec.connection.name,
                ) from None
            finally:
                self._scope = None
                self._left.set()
        assert self._asks is not None, "only a question cancels the request from within"
        raise self._asks

    def _visit(self, error: MCPError) -> None:
        """Ask for the pages that somebody has to open before the call can do anything.

        :raises FormRequired: for the first that nobody has opened.
        :raises ToolError: if one was declined, or they have been opened and the server asks again.
        """
        from mcp import UrlElicitationRequiredError

        pages: list[ElicitRequestURLParams] = UrlElicitationRequiredError.from_error(error.error).elicitations
        for page in pages:
            form, answer = self._questions.answer(page)
            if answer is None:
                raise FormRequired(form)
            if answer.action != "accept":
                raise ToolError("Nobody opened the page that the server asks for.", kind="mcp_declined")

    async def _progress(self, progress: float, total: float | None, message: str | None) -> None:
        told = short(message) if message else f"{progress:g}" + ("" if total is None else f" of {total:g}")
        more: dict[str, object] = {"progress": progress} if total is None else {"progress": progress, "total": total}
        await self._context.progress(told, **more)


class StateRefused(Exception):
    """The server does not take back the state that it gave."""
