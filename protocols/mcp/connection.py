"""One connection to a server: a task of its own enters and leaves the SDK's client, everybody's calls share its session."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Self, cast

from ...actors.errors import TurnholdError

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client import Transport
    from mcp.client.session import ClientRequestContext, ElicitationFnT
    from mcp.types import ElicitRequestParams, ElicitResult, ErrorData, Tool

OPENINGS: Final = 3
FIRST_PAUSE: Final = 0.2
MAX_PAGES: Final = 100
_NOBODY: Final = -32600

Target = Callable[[], Awaitable[Any]]
Asked = Callable[["ElicitRequestParams"], Awaitable["ElicitResult | ErrorData"]]


class McpUnreachable(TurnholdError):
    """A server could not be started, reached or understood. No request was sent."""


class Link:
    """An open connection; `lost` once its stream has ended or it was given up."""

    def __init__(self, client: Client, tools: list[Tool]) -> None:
        self.client = client
        self.tools = tools
        self.lost = asyncio.Event()

    @property
    def modern(self) -> bool:
        """Tell whether the server returns its questions, so that nothing is held while they are answered."""
        from mcp.types.version import MODERN_PROTOCOL_VERSIONS

        return self.client.protocol_version in MODERN_PROTOCOL_VERSIONS


class Watched:
    """A stream of messages from a server that tells when it has ended."""

    def __init__(self, stream: Any, ended: asyncio.Event) -> None:
        self._stream, self._ended = stream, ended

    @property
    def last_context(self) -> contextvars.Context | None:
        """Return the context in which the last message was sent, where the transport knows it."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        """Return the next message."""
        try:
            return await self._stream.receive()
        except BaseException:
            self._ended.set()
            raise

    async def aclose(self) -> None:
        """Close the stream."""
        self._ended.set()
        await self._stream.aclose()

    def __aiter__(self) -> Watched:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._ended.set()
            raise

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._stream.__aexit__(*error)


class Connection:
    """Opens a connection when one is needed, opens it again when it was lost, and knows whose question a server asks."""

    def __init__(self, name: str, target: Target, *, mode: str, elicitation: bool, related: bool, patience: float) -> None:
        self.name = name
        self.elicitation = elicitation
        self.current: contextvars.ContextVar[Asked | None] = contextvars.ContextVar("turnhold_mcp_call", default=None)
        self._target, self._mode, self._related, self._patience = target, mode, related, patience
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reset()

    def _reset(self) -> None:
        """Forget everything: what was open belonged to a loop that is gone."""
        self._link: Link | None = None
        self._owner: asyncio.Task[None] | None = None
        self._end = asyncio.Event()
        self._opening = asyncio.Lock()
        self._turns = asyncio.Lock()
        self._asking: list[Asked] = []

    async def link(self) -> Link:
        """Return the open connection; open one, with some patience, where there is none.

        :raises McpUnreachable: if that does not succeed.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._reset()
        async with self._opening:
            if self._link is not None and not self._link.lost.is_set():
                return self._link
            await self._leave()
            pause = FIRST_PAUSE
            for left in reversed(range(OPENINGS)):
                try:
                    return await self._open()
                except McpUnreachable:
                    if not left:
                        raise
                await asyncio.sleep(pause)
                pause *= 2
        raise AssertionError("the last opening returns or raises")

    async def close(self) -> None:
        """Leave the server; a call under way loses it."""
        async with self._opening:
            await self._leave()

    @asynccontextmanager
    async def asking(self, link: Link, asked: Asked) -> AsyncGenerator[None]:
        """Let a call be asked by the server while its request runs.

        Where a protocol revision does not say which request a question belongs to, requests run one at a time.
        """
        if link.modern or not self.elicitation or self._related:
            async with self._named(asked):
                yield
            return
        async with self._turns, self._named(asked):
            yield

    @asynccontextmanager
    async def _named(self, asked: Asked) -> AsyncGenerator[None]:
        self._asking.append(asked)
        token = self.current.set(asked)
        try:
            yield
        finally:
            self.current.reset(token)
            self._asking.remove(asked)

    async def _elicit(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        from mcp.types import ErrorData

        asked = self.current.get()
        if asked is None and len(self._asking) == 1:
            asked = self._asking[0]
        if asked is None:
            return ErrorData(code=_NOBODY, message="nobody here knows which call this question belongs to")
        return await asked(params)

    # ---------------------------------------------------------------------------------------------------- the owner task

    async def _open(self) -> Link:
        opened: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        self._end = asyncio.Event()
        # an empty context: the task outlives the call that opened the connection, and is not that call's
        self._owner = asyncio.get_running_loop().create_task(
            self._own(opened, self._end), name=f"connection to {self.name}", context=contextvars.Context()
        )
        try:
            async with asyncio.timeout(self._patience):
                await asyncio.wait([opened, self._owner], return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            self._owner.cancel()
            await self._leave()
            raise McpUnreachable(f"MCP server {self.name} did not answer within {self._patience:g} s") from None
        except asyncio.CancelledError:
            self._end.set()
            self._owner.cancel()
            raise
        if not opened.done():
            await self._leave()
            raise McpUnreachable(f"MCP server {self.name} cannot be reached")
        self._link = opened.result()
        return self._link

    async def _own(self, opened: asyncio.Future[Link], end: asyncio.Event) -> None:
        """Enter and leave the client: both must happen in one task."""
        link: Link | None = None
        try:
            async with self._client(await self._target(), end) as client:
                link = Link(client, await _listing(client))
                link.lost = end
                if not opened.done():
                    opened.set_result(link)
                await end.wait()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if not opened.done():
                opened.set_exception(McpUnreachable(f"MCP server {self.name} cannot be reached: {_told(error)}"))
        finally:
            end.set()

    def _client(self, target: Any, end: asyncio.Event) -> Client:
        from mcp import Client
        from mcp.types import Implementation

        @asynccontextmanager
        async def watched() -> AsyncGenerator[Any]:
            async with cast("AbstractAsyncContextManager[Any]", target) as (reads, writes):
                yield Watched(reads, end), writes

        plain = hasattr(target, "__aenter__")
        return Client(
            cast("Transport", watched()) if plain else target,
            mode=self._mode,
            elicitation_callback=cast("ElicitationFnT", self._elicit) if self.elicitation else None,
            client_info=Implementation(name="turnhold", version="1"),
            cache=None,
        )

    async def _leave(self) -> None:
        """End the owner task and wait for it: a server process must be gone before the next one starts."""
        owner, self._owner, self._link = self._owner, None, None
        if owner is None:
            return
        self._end.set()
        await asyncio.wait([owner])
        if not owner.cancelled():
            owner.exception()


async def _listing(client: Client) -> list[Tool]:
    """Read all pages: the SDK needs them to check results, and to send arguments as headers where a schema says so."""
    found: list[Tool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return found
    raise McpUnreachable(f"the server lists more than {MAX_PAGES} pages of tools")


def _told(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return f"{type(error).__name__}: {error}"[:500]
