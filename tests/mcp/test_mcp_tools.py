"""Tools of MCP servers: what becomes of them, their results, their questions and their ends. The servers are in this process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.types import ToolAnnotations

from turnhold import Agent, AiMessage, EventType, InvalidDefinition, Runtime, Status, SuspensionType, ToolCall
from turnhold.models import ScriptedModel
from turnhold.protocols.mcp import McpServer, McpUnreachable
from turnhold.protocols.mcp import calls as calls_module
from turnhold.protocols.mcp import connection as connection_module
from turnhold.testing import call

from . import shop
from .wire import Odd, agent, result_of, run

if TYPE_CHECKING:
    from turnhold import Tool, TurnView

FREE: dict[str, Any] = {"approval": False, "effect": "repeatable"}
ONCE: dict[str, Any] = {"approval": False, "effect": "once"}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (calls_module, connection_module):
        monkeypatch.setattr(module, "FIRST_PAUSE", 0.0)


def names(tools: list[Tool]) -> list[str]:
    return [tool.name for tool in tools]


async def test_what_tools_become() -> None:
    """Names, descriptions and schemas are the server's; by default a person approves each call, and it runs at most once."""
    async with McpServer.of(shop.server, name="shop") as server:
        tools = {tool.name: tool for tool in await server.tools(prefix="shop_")}
        hinted = {tool.name: tool for tool in await server.tools(trust_hints=True)}

    price = tools["shop_price"]
    assert (price.description, price.parameters["required"]) == ("Return the price of an item.", ["item"])
    assert {(tool.approval, tool.effect) for tool in tools.values()} == {(True, "once")}
    assert price.metadata == {"mcpServer": "shop", "mcpTool": "price"}
    assert (hinted["price"].approval, hinted["price"].effect) == (False, "repeatable")
    assert (hinted["order"].approval, hinted["order"].effect) == (True, "repeatable")
    assert (hinted["book"].approval, hinted["book"].effect) == (True, "once")


async def test_any_names_of_parameters() -> None:
    """Parameters may have names that mean something to us, or that no Python name may be."""
    schema = {"type": "object", "properties": {"arguments": {}, "self": {}, "spec": {}, "a-b": {}, "class": {}}}
    odd = Odd(
        lambda params: {"content": [{"type": "text", "text": json.dumps(params["arguments"])}]},
        [{"name": "odd", "inputSchema": schema}],
    )
    given: dict[str, Any] = {"arguments": 1, "self": 2, "spec": 3, "a-b": 4, "class": 5}
    async with McpServer.of(odd, name="odd", protocol="legacy") as server:
        tools = await server.tools(**FREE)
        asks = AiMessage("", (ToolCall("c1", "odd", given),))
        async with Runtime(agents=[Agent("guest", model=ScriptedModel(asks, "done"), tools=tools)]) as runtime:
            view = await runtime.run("guest", "hi")
            text = await result_of(runtime.turn(view.id))

    assert json.loads(text) == given


async def test_which_tools() -> None:
    """Some are taken, some left out; a name that the server does not have, and two of one name, are mistakes."""
    twins = MCPServer("twins")
    twins.add_tool(lambda: "a", name="a.b", description="x")
    twins.add_tool(lambda: "b", name="a/b", description="x")
    async with McpServer.of(shop.server) as server, McpServer.of(twins, name="twins") as other:
        assert names(await server.tools(only=["price", "book"], skip=["book"])) == ["price"]
        with pytest.raises(InvalidDefinition, match="no tool 'prize'"):
            await server.tools(only=["prize"])
        with pytest.raises(InvalidDefinition, match="lists of names"):
            await server.tools(only="price")
        with pytest.raises(InvalidDefinition, match="two tools would have the name 'a_b'"):
            await other.tools()
        assert names(await other.tools(skip=["a/b"])) == ["a_b"]


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": "object", "$ref": "https://example.com/x"}, {"type": 1}])
async def test_a_schema_that_cannot_be(schema: dict[str, Any]) -> None:
    """A schema that is none of an object, refers outside or is wrong is an error that names the tool."""
    odd = Odd(lambda _: {}, [{"name": "odd", "inputSchema": schema}])
    with pytest.raises((InvalidDefinition, McpUnreachable), match=r"odd|ValidationError"):
        async with McpServer.of(odd, name="odd", protocol="legacy") as server:
            await server.tools()


@pytest.mark.parametrize("protocol", ["auto", "legacy"])
async def test_a_call(protocol: str) -> None:
    """A call goes to the server under its idempotency key and attempt; its result is what the model reads."""
    async with McpServer.of(shop.server, protocol=protocol) as server:
        view, text = await run(await server.tools(**FREE), "key")

    assert json.loads(text) == {"result": f"{view.id}:call_1_0 1"}


@pytest.mark.parametrize("protocol", ["auto", "legacy"])
async def test_an_error_of_a_tool(protocol: str) -> None:
    """A tool that fails over there is a tool error here: the model reads it, the turn goes on, also where it may run only once."""
    async with McpServer.of(shop.server, name="shop", protocol=protocol) as server:
        view, text = await run(await server.tools(**ONCE), "fail", text="oh")

    assert view.status is Status.COMPLETED
    assert json.loads(text) == {
        "error": True,
        "type": "tool_error",
        "message": "Error executing tool fail",
        "kind": "mcp_tool_error",
        "server": "shop",
    }


async def test_results() -> None:
    """Texts come as text, structured content as itself, pictures by type and size; what is too long is cut and says so."""
    server = MCPServer("results")

    @server.tool(structured_output=False)
    def texts() -> list[str]:
        """Return texts."""
        return ["a", "b"]

    @server.tool()
    def numbers() -> dict[str, int]:
        """Return numbers."""
        return {"n": 3}

    @server.tool(structured_output=False)
    def picture() -> list[Any]:
        """Return a picture."""
        return ["see", Image(data=b"x" * 300, format="png")]

    @server.tool(structured_output=False)
    def long() -> str:
        """Return much."""
        return "ä" * 100_000

    async with McpServer.of(server) as remote:
        tools = await remote.tools(**FREE, max_result=1000)
        assert (await run(tools, "texts"))[1] == "a\nb"
        assert json.loads((await run(tools, "numbers"))[1]) == {"n": 3}
        picture_ = {"type": "image", "mimeType": "image/png", "bytes": 300}
        assert json.loads((await run(tools, "picture"))[1]) == {"content": [{"type": "text", "text": "see"}, picture_]}
        cut = json.loads((await run(tools, "long"))[1])

    assert (cut["truncated"], cut["bytes"], cut["beginning"]) == (True, 200_000, "ä" * 500)


@pytest.mark.parametrize("effect", ["once", "repeatable"])
async def test_wrong_replies(effect: Any) -> None:
    """A reply that cannot be read leaves a `once` call in doubt; a repeatable one is an error for the model."""
    odd = Odd(lambda _: {"content": [{"type": "nonsense"}]})
    async with McpServer.of(odd, name="odd", protocol="legacy") as server:
        tools = await server.tools(approval=False, effect=effect)
        view, _ = (await started(tools)) if effect == "once" else await run(tools, "odd")

    assert view.status is (Status.IN_DOUBT if effect == "once" else Status.COMPLETED)


async def started(tools: list[Tool]) -> tuple[TurnView, str]:
    async with Runtime(agents=[agent(tools, "odd")]) as runtime:
        turn = await runtime.start("guest", "hi")
        view = await turn.settle()
        return view, view.open_waits[0].message or ""


async def test_a_result_that_breaks_its_schema() -> None:
    """Structured content that is not what the server declares is an error that says that the call has run."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tool = {"name": "odd", "inputSchema": {"type": "object"}, "outputSchema": schema}
    odd = Odd(lambda _: {"content": [], "structuredContent": {"n": "x"}}, [tool])
    async with McpServer.of(odd, name="odd", protocol="legacy") as server:
        _, text = await run(await server.tools(**ONCE), "odd")

    assert json.loads(text)["kind"] == "mcp_bad_result"
    assert "has run" in json.loads(text)["message"]


@pytest.mark.parametrize("effect", ["once", "repeatable"])
async def test_lost_in_the_middle(effect: Any) -> None:
    """A server lost while it runs a call: in doubt if the call may run only once; else it is sent again, then told to the model."""
    odd = Odd(lambda _: None)
    async with McpServer.of(odd, name="odd", protocol="legacy") as server:
        tools = await server.tools(approval=False, effect=effect)
        if effect == "once":
            view, message = await started(tools)
            assert (view.status, len(odd.calls)) == (Status.IN_DOUBT, 1)
            assert "connection was lost" in message
        else:
            view, text = await run(tools, "odd")
            assert (view.status, len(odd.calls)) == (Status.COMPLETED, 3)
            assert json.loads(text)["kind"] == "mcp_no_answer"


async def test_back_again() -> None:
    """The next call after a loss finds the server again, on a new connection."""
    odd = Odd(lambda params: None if len(odd.calls) == 1 else {"content": [{"type": "text", "text": "here"}]})
    async with McpServer.of(odd, name="odd", protocol="legacy") as server:
        tools = await server.tools(**FREE)
        _, text = await run(tools, "odd")

    assert (text, odd.opened, len(odd.calls)) == ("here", 2, 2)


async def test_gone() -> None:
    """A server that cannot be reached is an error for the model, whatever the effect: nothing was sent."""
    odd = Odd(lambda _: None)
    server = McpServer.of(odd, name="odd", protocol="legacy")
    tools = await server.tools(**ONCE)
    await server.close()
    server._connection._target = nobody
    view, text = await run(tools, "odd")

    assert view.status is Status.COMPLETED
    assert json.loads(text)["kind"] == "mcp_unreachable"
    with pytest.raises(McpUnreachable, match="nobody is there"):
        await server.tools()


async def nobody() -> Any:
    raise ConnectionRefusedError("nobody is there")


async def test_a_program_that_is_none() -> None:
    """A program that cannot be started is a server that cannot be reached."""
    with pytest.raises(McpUnreachable, match="nowhere"):
        async with McpServer.stdio("/nowhere/at-all", name="nowhere"):
            raise AssertionError


async def test_too_slow() -> None:
    """A call that takes too long is cancelled over there; a `once` call is in doubt then."""
    began, stopped = anyio.Event(), anyio.Event()
    server = slow_server(began, stopped)
    async with McpServer.of(server, name="odd") as remote:
        view, message = await started([*await remote.tools(**ONCE, timeout=0.05)])
        await stopped.wait()

    assert view.open_waits[0].type is SuspensionType.IN_DOUBT
    assert "no result within 0.05 s" in message


def slow_server(began: anyio.Event, stopped: anyio.Event) -> MCPServer:
    server = MCPServer("slow")

    @server.tool()
    async def odd(ctx: Context) -> str:
        """Never return."""
        await ctx.report_progress(1, 2, "half way")
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        return ""

    return server


@pytest.mark.parametrize("protocol", ["auto", "legacy"])
async def test_cancel_and_progress(protocol: str) -> None:
    """G, L: progress of the server is shown to watchers; a cancel of the turn reaches the server at once."""
    began, stopped = anyio.Event(), anyio.Event()
    async with (
        McpServer.of(slow_server(began, stopped), protocol=protocol) as remote,
        Runtime(agents=[agent(await remote.tools(**FREE), "odd")]) as runtime,
    ):
        turn = await runtime.start("guest", "hi")
        progress = await anext(event.data async for event in turn.events() if event.type is EventType.TOOL_PROGRESS)
        await began.wait()
        view = await turn.cancel("enough")
        await stopped.wait()

    assert (progress["message"], progress["progress"], progress["total"]) == ("half way", 1.0, 2.0)
    assert view.status is Status.CANCELLED


async def test_calls_at_once() -> None:
    """Calls of one reply share the connection and run beside each other."""
    server = MCPServer("pair")
    both = anyio.Event()
    inside: list[str] = []

    @server.tool()
    async def meet(who: str) -> str:
        """Wait for the other one."""
        inside.append(who)
        if len(inside) == 2:
            both.set()
        await both.wait()
        return who

    async with McpServer.of(server) as remote:
        tools = await remote.tools(**FREE)
        model = ScriptedModel([call("meet", who="a"), call("meet", who="b")], "done")
        async with Runtime(agents=[Agent("guest", model=model, tools=tools)]) as runtime:
            view = await runtime.run("guest", "hi")

    assert (view.status, sorted(inside)) == (Status.COMPLETED, ["a", "b"])


def test_annotations_are_only_hints() -> None:
    """An annotation alone changes nothing: what is not said by us is the careful choice."""
    assert ToolAnnotations(read_only_hint=True).destructive_hint is None
    with pytest.raises(InvalidDefinition, match="url must begin"):
        McpServer.http("ftp://example.com")
    with pytest.raises(InvalidDefinition, match="connect_timeout"):
        McpServer.stdio("x", connect_timeout=0)
    assert repr(McpServer.stdio("x", name="n")) == "<McpServer n>"
