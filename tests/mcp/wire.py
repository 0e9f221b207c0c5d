"""Servers for the tests: what a program of the SDK does, and one that answers what a test tells it to."""

from __future__ import annotations

import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCRequest, JSONRPCResponse

from turnhold import Agent, Runtime, TurnRef, TurnView
from turnhold.models import ScriptedModel
from turnhold.testing import call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from turnhold import Tool

SHOP = Path(__file__).with_name("shop.py")
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "odd", "version": "1"}}


def agent(tools: Sequence[Tool], name: str, **arguments: Any) -> Agent:
    """Return an agent that calls one tool and is done."""
    return Agent("guest", model=ScriptedModel(call(name, **arguments), "done"), tools=list(tools))


async def run(tools: Sequence[Tool], name: str, **arguments: Any) -> tuple[TurnView, str]:
    """Run a turn that calls one tool; return how it ended and what the model read."""
    async with Runtime(agents=[agent(tools, name, **arguments)]) as runtime:
        view = await runtime.run("guest", "hi")
        return view, await result_of(runtime.turn(view.id))


async def result_of(turn: TurnRef) -> str:
    """Return the last result of a tool."""
    return [message.content for message in await turn.history() if message.to_dict()["role"] == "tool"][-1]


class Odd:
    """A server of the older revisions that answers a call with what it is given: a result, or nothing but the end."""

    def __init__(self, reply: Callable[[dict[str, Any]], dict[str, Any] | None], tools: Sequence[dict[str, Any]] = ()) -> None:
        self.reply, self.calls, self.opened = reply, [], 0
        self.tools = list(tools) or [{"name": "odd", "inputSchema": {"type": "object"}}]

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Any]:
        self.opened += 1
        to_client, reads = anyio.create_memory_object_stream[Any](10)
        writes, to_server = anyio.create_memory_object_stream[Any](10)
        async with anyio.create_task_group() as group, to_client, reads, writes, to_server:
            group.start_soon(self._serve, to_server, to_client)
            yield reads, writes
            group.cancel_scope.cancel()

    async def _serve(self, requests: Any, answers: Any) -> None:
        async for item in requests:
            request = item.message
            if not isinstance(request, JSONRPCRequest):
                continue
            params = request.params or {}
            match request.method:
                case "initialize":
                    result = HELLO
                case "tools/list":
                    result = {"tools": self.tools}
                case _:
                    self.calls.append(params)
                    result = self.reply(params)
            if result is None:
                await answers.aclose()
                return
            await answers.send(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=request.id, result=result)))


@contextmanager
def http_shop(port: int, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the shop as a program that serves HTTP; it is up when the block begins."""
    process = subprocess.Popen([sys.executable, str(SHOP), "http", str(port)], stderr=subprocess.PIPE, env=env)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if b"Uvicorn running" in line:
                break
        yield process
    finally:
        process.kill()
        process.communicate()
