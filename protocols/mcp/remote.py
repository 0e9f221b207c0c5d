"""A server whose tools turns may call."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TextIO, cast, final

import anyio.to_thread

from ...actors.checks import MAX_ID, check_flag, check_span, check_text, check_whole
from ...actors.errors import InvalidDefinition
from ...actors.record import JsonObject, JsonValue, Seconds
from ...actors.tools import Approval, Tool, ToolEffect
from . import calls, sdk
from .connection import Connection, Target
from .content import short

if TYPE_CHECKING:
    import httpx2
    from mcp.server import Server
    from mcp.server.mcpserver import MCPServer
    from mcp.types import Tool as RemoteTool

MAX_TOOLS: Final = 1000
_OTHER = re.compile(r"[^A-Za-z0-9_-]")


@final
class McpServer:
    """A server of the Model Context Protocol, and the one connection to it that all calls share.

    It is connected when it is first needed, and again when it was lost; an async context manager connects at once and disconnects
    at the end. Leave it behind the Runtime that uses its tools.
    """

    def __init__(
        self,
        name: str,
        target: Target,
        *,
        protocol: str = "auto",
        elicitation: bool = True,
        related: bool = False,
        connect_timeout: Seconds = 30,
    ) -> None:
        check_text("name", name, MAX_ID, empty=False)
        check_flag("elicitation", elicitation)
        patience = check_span("connect_timeout", connect_timeout, positive=True).total_seconds()
        sdk.warm_up()
        self._name = name
        self._connection = Connection(name, target, mode=protocol, elicitation=elicitation, related=related, patience=patience)

    @property
    def name(self) -> str:
        """The server's name, for people and for prefixes."""
        return self._name

    @classmethod
    def stdio(
        cls,
        command: str,
        args: Sequence[str] = (),
        *,
        name: str = "mcp",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        errors: TextIO | None = None,
        protocol: str = "auto",
        elicitation: bool = True,
        connect_timeout: Seconds = 30,
    ) -> McpServer:
        """Return a server that is a program, started here as a child process.

        :param env: variables it gets beside the harmless ones (PATH, HOME and the like): it does not inherit your secrets.
        :param errors: where its stderr goes; ours by default.
        :param protocol: "auto", "legacy" (the handshake of the revisions up to 2025-11-25), or a revision from 2026-07-28 on.
        :param elicitation: whether it may ask people questions.
        :raises InvalidDefinition: if an argument is wrong, or the `mcp` package is missing.
        """
        check_text("command", command, 4096, empty=False)

        async def target() -> AbstractAsyncContextManager[Any]:
            from mcp.client.stdio import StdioServerParameters, stdio_client

            parameters = StdioServerParameters(command=command, args=list(args), env=dict(env or {}), cwd=cwd)
            return stdio_client(parameters) if errors is None else stdio_client(parameters, errors)

        return cls(name, target, protocol=protocol, elicitation=elicitation, related=False, connect_timeout=connect_timeout)

    @classmethod
    def http(
        cls,
        url: str,
        *,
        name: str = "mcp",
        headers: Mapping[str, str] | None = None,
        auth: httpx2.Auth | None = None,
        protocol: str = "auto",
        elicitation: bool = True,
        connect_timeout: Seconds = 30,
    ) -> McpServer:
        """Return a server at a URL, over streamable HTTP.

        :param auth: an authentication of the SDK's HTTP client, such as ``mcp.client.auth.OAuthClientProvider``.
        :raises InvalidDefinition: if an argument is wrong, or the `mcp` package is missing.
        """
        if not re.match(r"https?://[^/]", url):
            raise InvalidDefinition(f"url must begin with http:// or https://, not {url[:100]!r}")

        async def target() -> AbstractAsyncContextManager[Any]:
            client = await anyio.to_thread.run_sync(sdk.http_client, dict(headers or {}), auth)  # reads certificates
            return _http(url, client)

        return cls(name, target, protocol=protocol, elicitation=elicitation, related=True, connect_timeout=connect_timeout)

    @classmethod
    def of(
        cls,
        server: MCPServer | Server[Any] | Callable[[], AbstractAsyncContextManager[Any]],
        *,
        name: str = "mcp",
        protocol: str = "auto",
        elicitation: bool = True,
        connect_timeout: Seconds = 30,
    ) -> McpServer:
        """Return a server in this very process (of the SDK, for tests), or one behind a transport of your own.

        :param server: an SDK server, or a function that returns a new transport: an async context manager of two streams.
        :raises InvalidDefinition: if an argument is wrong, or the `mcp` package is missing.
        """

        async def target() -> Any:
            return server() if callable(server) else server

        return cls(name, target, protocol=protocol, elicitation=elicitation, related=False, connect_timeout=connect_timeout)

    async def __aenter__(self) -> McpServer:
        """Connect.

        :raises McpUnreachable: if that does not succeed.
        """
        await self._connection.link()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Disconnect; a program is stopped."""
        await self.close()

    async def close(self) -> None:
        """Disconnect; a program is stopped. The next call connects again."""
        await self._connection.close()

    async def tools(
        self,
        *,
        prefix: str = "",
        only: Sequence[str] | None = None,
        skip: Sequence[str] = (),
        approval: Approval | None = None,
        effect: ToolEffect | None = None,
        trust_hints: bool = False,
        timeout: Seconds = 60,
        sequential: bool = False,
        assignee: str | None = None,
        max_result: int = 65_536,
    ) -> list[Tool[..., Any]]:
        """Return the server's tools for ``Agent(tools=…)``, as the server lists them now.

        Without `approval` and `effect` a person must approve every call, and each runs at most once. With `trust_hints` the
        server's annotations may loosen that: read-only tools run without approval, read-only and idempotent ones are repeatable.

        :param prefix: put before each name; characters that a name may not have become ``_``.
        :param only: names of the tools to take, as the server names them. `skip`: names of tools to leave out.
        :param timeout: how long one attempt may take, in all its rounds, without the time in which people answer.
        :param max_result: bytes of a result that reach the model; what is longer is cut.
        :raises InvalidDefinition: if an argument is wrong, the server has no such tool, two would have one name, or one has a
            schema that is not accepted (`skip` it).
        :raises McpUnreachable: if the server cannot be reached.
        """
        check_text("prefix", prefix, MAX_ID)
        check_flag("trust_hints", trust_hints)
        check_whole("max_result", max_result, 256, 400_000)
        seconds = check_span("timeout", timeout, positive=True).total_seconds()
        found = _chosen(self._name, (await self._connection.link()).tools, only, skip)
        tools: dict[str, Tool[..., Any]] = {}
        for each in found:
            name = prefix + _OTHER.sub("_", each.name)
            if name in tools:
                raise InvalidDefinition(f"MCP server {self._name}: two tools would have the name {name!r}; skip one")
            asks, kind = _care(each, approval, effect, trust=trust_hints)
            spec = calls.Spec(self._connection, each.name, kind == "once", seconds, max_result)
            tools[name] = Tool.from_schema(
                name,
                short(each.description or each.title or each.name),
                _parameters(each),
                _function(spec),
                approval=asks,
                effect=kind,
                sequential=sequential,
                cancellable=True,
                assignee=assignee,
                metadata={"mcpServer": self._name, "mcpTool": each.name},
            )
        return list(tools.values())

    def __repr__(self) -> str:
        return f"<McpServer {self._name}>"


def _function(spec: calls.Spec) -> Callable[..., Any]:
    async def call(**arguments: Any) -> JsonValue:
        return await calls.call(spec, arguments)

    return call


def _http(url: str, client: httpx2.AsyncClient) -> AbstractAsyncContextManager[Any]:
    from mcp.client.streamable_http import streamable_http_client

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Any]:
        async with client, streamable_http_client(url, http_client=client) as streams:
            yield streams

    return opened()


def _chosen(server: str, tools: list[RemoteTool], only: Sequence[str] | None, skip: Sequence[str]) -> list[RemoteTool]:
    if isinstance(only, str) or isinstance(skip, str):
        raise InvalidDefinition("only and skip are lists of names")
    known = {each.name for each in tools}
    for name in (*(only or ()), *skip):
        if name not in known:
            raise InvalidDefinition(f"MCP server {server} has no tool {name!r}; it has {', '.join(sorted(known)) or 'none'}"[:1000])
    found = [each for each in tools if (only is None or each.name in only) and each.name not in skip]
    if len(found) > MAX_TOOLS:
        raise InvalidDefinition(f"MCP server {server} has {len(found)} tools; take at most {MAX_TOOLS} with only=")
    return found


def _care(tool: RemoteTool, approval: Approval | None, effect: ToolEffect | None, *, trust: bool) -> tuple[Approval, ToolEffect]:
    """Return whether a person must approve calls, and whether they may be repeated; what is not said is the careful choice."""
    hints = tool.annotations if trust else None
    reads = hints is not None and hints.read_only_hint is True
    again = reads or (hints is not None and hints.idempotent_hint is True)
    return (not reads if approval is None else approval), (("repeatable" if again else "once") if effect is None else effect)


def _parameters(tool: RemoteTool) -> JsonObject:
    given = cast("JsonObject", tool.input_schema)
    return {key: value for key, value in given.items() if key != "$schema"}
