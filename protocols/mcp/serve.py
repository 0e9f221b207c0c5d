"""turnhold as a server of the Model Context Protocol."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from ...actors.errors import InvalidDefinition
from ...actors.record import JsonObject
from ...runtime.runtime import Runtime
from . import sdk
from .desk import Desk

if TYPE_CHECKING:
    from mcp.server import Server, ServerRequestContext
    from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams

READS: Final = frozenset({"turn", "inbox"})
INSTRUCTIONS: Final = (
    "Turns of agents. A turn that waits for a person is answered by a person: show what it waits for, and do not decide yourself."
)


def mcp_server(
    runtime: Runtime,
    *,
    by: str | None = None,
    agents: Iterable[str] | None = None,
    tenant: str | None = None,
    name: str = "turnhold",
) -> Server[Any]:
    """Return a server of the SDK with the tools start_turn, turn, inbox and cancel; with `by` also answer.

    Who calls `answer` is a model, not a person: give `by` only where each of its calls is confirmed by somebody, or where it may
    decide. `by` is what receipts show; the model cannot choose it.

    :param by: under whose name answers are stored; without it nothing can be answered.
    :param agents: the agents that may be started, and whose turns are seen, with all below them; by default all.
    :param tenant: the only tenant whose turns are seen; what is started belongs to it. Conversations and idempotency keys that a
        client names are the tenant's own: ``c`` is stored as ``tenant/c``.
    :raises InvalidDefinition: if an argument is wrong, or the `mcp` package is missing.
    """
    sdk.warm_up()
    from mcp.server import Server
    from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool, ToolAnnotations

    desk = Desk(runtime, by=by, agents=agents, tenant=tenant)
    listed = [
        Tool(
            name=each.name,
            description=each.description,
            input_schema=cast("dict[str, Any]", each.parameters),
            annotations=ToolAnnotations(read_only_hint=each.name in READS, open_world_hint=each.name not in READS),
        )
        for each in desk.tools.values()
    ]

    async def list_tools(context: ServerRequestContext[Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=listed)

    async def call_tool(context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        value, wrong = await desk.call(params.name, cast("JsonObject", params.arguments or {}))
        text = msgspec.json.encode(value).decode()
        return CallToolResult(content=[TextContent(text=text)], structured_content=value, is_error=wrong)

    return Server(name, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool)


async def serve_mcp(
    runtime: Runtime,
    transport: Literal["stdio", "http"] = "stdio",
    *,
    by: str | None = None,
    agents: Iterable[str] | None = None,
    tenant: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
) -> None:
    """Serve a runtime to MCP clients: over this process's pipes until the client closes them, or over HTTP until it is stopped.

    The HTTP server is at ``/mcp`` and asks nobody who they are: keep it on this machine, or mount
    ``mcp_server(runtime).streamable_http_app()`` behind your own authentication.

    :raises InvalidDefinition: if an argument is wrong, or the `mcp` package is missing.
    """
    server = mcp_server(runtime, by=by, agents=agents, tenant=tenant)
    if transport == "stdio":
        from mcp.server.stdio import stdio_server

        async with stdio_server() as (reads, writes):
            await server.run(reads, writes, server.create_initialization_options())
        return
    if transport != "http":
        raise InvalidDefinition(f"transport must be 'stdio' or 'http', not {transport!r}")
    import uvicorn

    config = uvicorn.Config(server.streamable_http_app(host=host), host=host, port=port, log_level="warning")
    await uvicorn.Server(config).serve()
