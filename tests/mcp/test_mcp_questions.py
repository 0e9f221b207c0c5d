"""Questions of MCP servers to people: forms of the turn, answered when and where it suits, whose answers reach the server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from mcp import UrlElicitationRequiredError
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.types import ElicitRequestFormParams, ElicitRequestURLParams
from pydantic import BaseModel

from turnhold import InvalidFormData, ResumeCommand, Runtime, Status, SuspensionType, ToolError
from turnhold.protocols.mcp import McpServer
from turnhold.protocols.mcp.questions import Questions
from turnhold.testing import tool_context

from . import shop
from .wire import agent, result_of, run

if TYPE_CHECKING:
    from pathlib import Path

    from turnhold import Tool, TurnView


class Answer(BaseModel):
    """What a person says."""

    text: str


async def waiting(url: str, tools: list[Tool], name: str, **arguments: Any) -> TurnView:
    """Run a turn until it waits, and leave the process, so to speak."""
    async with Runtime(url, agents=[agent(tools, name, **arguments)]) as runtime:
        turn = await runtime.start("guest", "hi")
        return await turn.settle()


async def answered(url: str, tools: list[Tool], view: TurnView, command: ResumeCommand, name: str, **arguments: Any):
    """Answer in another runtime; return how it goes on and what the model has read."""
    async with Runtime(url, agents=[agent(tools, name, **arguments)]) as runtime:
        turn = runtime.turn(view.id)
        after = await turn.resume(command)
        return after, await result_of(turn) if after.status.terminal else ""


@pytest.mark.parametrize("effect", ["once", "repeatable"])
async def test_asked_and_answered(tmp_path: Path, effect: Any) -> None:
    """A question is a wait with the server's schema; wrong data is refused with its path; the right one reaches the server.

    The server has returned its question, so nothing is held meanwhile, and the call may be one that runs only once.
    """
    url = f"sqlite:///{tmp_path}/turns.db"
    async with McpServer.of(shop.server) as server:
        tools = await server.tools(approval=False, effect=effect)
        view = await waiting(url, tools, "book", day="Monday")
        (wait,) = view.open_waits
        assert (wait.type, wait.message) == (SuspensionType.USER_INPUT, "How many seats?")
        assert wait.schema is not None
        assert '"maximum":8' in wait.to_json().decode()

        with pytest.raises(InvalidFormData) as refused:
            await answered(url, tools, view, ResumeCommand.submit_form(wait, {"seats": "many"}), "book", day="Monday")
        assert refused.value.faults[0][0] == "$.seats"
        after, text = await answered(url, tools, view, ResumeCommand.submit_form(wait, {"seats": 3}), "book", day="Monday")

    assert after.status is Status.COMPLETED
    assert json.loads(text) == {"result": "3 seats on Monday"}


@pytest.mark.parametrize("protocol", ["auto", "legacy"])
async def test_declined(tmp_path: Path, protocol: str) -> None:
    """A decline is passed on: the server says what becomes of the call."""
    url = f"sqlite:///{tmp_path}/turns.db"
    name, arguments = ("book", {"day": "Monday"}) if protocol == "auto" else ("order", {"dish": "soup"})
    async with McpServer.of(shop.server, protocol=protocol) as server:
        tools = await server.tools(approval=False, effect="repeatable")
        view = await waiting(url, tools, name, **arguments)
        after, text = await answered(url, tools, view, ResumeCommand.decline(view.open_waits[0], "no"), name, **arguments)

    assert after.status is Status.COMPLETED
    assert "declin" in text


@pytest.mark.parametrize("effect", ["once", "repeatable"])
async def test_a_server_that_has_forgotten(tmp_path: Path, effect: Any) -> None:
    """The server does not take its own state back: started again with the answer, or, where that may not be, a clear error."""
    url = f"sqlite:///{tmp_path}/turns.db"
    views = []
    for _ in range(2):
        async with McpServer.of(forgetful(), name="forgetful") as server:
            tools = await server.tools(approval=False, effect=effect)
            if not views:
                views.append(await waiting(url, tools, "ask"))
                continue
            command = ResumeCommand.submit_form(views[0].open_waits[0], {"text": "blue"})
            after, text = await answered(url, tools, views[0], command, "ask")

    assert after.status is Status.COMPLETED
    if effect == "once":
        assert json.loads(text)["kind"] == "mcp_state_lost"
    else:
        assert json.loads(text) == {"result": "blue, blue"}


def colour() -> Elicit[Answer]:
    return Elicit("Which colour?", Answer)


def forgetful() -> MCPServer:
    """Return a server with a key of its own."""
    server = MCPServer("forgetful")

    @server.tool()
    def ask(first: Annotated[Answer, Resolve(colour)]) -> str:
        """Ask for a colour."""
        return f"{first.text}, {first.text}"

    return server


async def test_in_the_middle_of_a_call(tmp_path: Path) -> None:
    """Before 2026-07-28 the request is given up, the server hears of it, and the call is started again with the answer."""
    url = f"sqlite:///{tmp_path}/turns.db"
    server = MCPServer("classic")
    heard: list[str] = []

    @server.tool()
    async def ask(ctx: Context) -> str:
        """Ask twice, once the same thing."""
        heard.append("begun")
        answers = [await ctx.elicit("Which colour?", Answer), await ctx.elicit("Which colour?", Answer)]
        texts = [answer.data.text if answer.action == "accept" else answer.action for answer in answers]
        heard.append(" ".join(texts))
        return heard[-1]

    async with McpServer.of(server, protocol="legacy") as remote:
        tools = await remote.tools(approval=False, effect="repeatable")
        view = await waiting(url, tools, "ask")
        view, _ = await answered(url, tools, view, ResumeCommand.submit_form(view.open_waits[0], {"text": "blue"}), "ask")
        (second,) = view.open_waits
        after, text = await answered(url, tools, view, ResumeCommand.submit_form(second, {"text": "red"}), "ask")

    assert second.form_key is not None
    assert second.form_key.endswith(":2")
    assert (after.status, json.loads(text)) == (Status.COMPLETED, {"result": "blue red"})
    assert heard == ["begun", "begun", "begun", "blue red"]


async def test_another_question_each_time() -> None:
    """A server that asks something else whenever the call is started again comes to an end, too."""
    server = MCPServer("curious")
    heard: list[str] = []

    @server.tool()
    async def ask(ctx: Context) -> str:
        """Ask what was never asked before."""
        heard.append("begun")
        return (await ctx.elicit(f"Question {len(heard)}?", Answer)).action

    async with McpServer.of(server, protocol="legacy") as remote:
        tools = await remote.tools(approval=False, effect="repeatable")
        async with Runtime(agents=[agent(tools, "ask")]) as runtime:
            turn = await runtime.start("guest", "hi")
            view = await turn.settle()
            while view.open_waits and len(heard) < 40:
                view = await turn.resume(ResumeCommand.submit_form(view.open_waits[0], {"text": "blue"}))
            text = await result_of(turn)

    assert (view.status, len(heard)) == (Status.COMPLETED, 33)
    assert "more than 32 questions" in text


async def test_in_the_middle_of_a_call_that_runs_once() -> None:
    """There a call that may run only once is not started again: the server is refused, the model reads why, nobody is asked."""
    async with McpServer.of(shop.server, protocol="legacy") as server:
        tools = await server.tools(approval=False, effect="once")
        view, text = await run(tools, "order", dish="soup")
        text = json.loads(text)

    assert (view.status, text["kind"]) == (Status.COMPLETED, "mcp_question_refused")
    assert "older revision of MCP" in text["message"]


async def test_a_page_to_open(tmp_path: Path) -> None:
    """A page that somebody has to open first is a wait that shows it; an empty form says that it is done, and the call goes on."""
    url = f"sqlite:///{tmp_path}/turns.db"
    server = MCPServer("login")
    seen: list[int] = []

    @server.tool()
    async def mail() -> str:
        """Read the mail."""
        seen.append(1)
        if len(seen) < 3:
            page = ElicitRequestURLParams(message="Log in", url="https://login.example/x", elicitation_id="e")
            raise UrlElicitationRequiredError([page])
        return "three letters"

    async with McpServer.of(server, protocol="legacy") as remote:
        tools = await remote.tools(approval=False, effect="once")
        view = await waiting(url, tools, "mail")
        (wait,) = view.open_waits
        assert wait.schema is not None
        assert (wait.message, wait.schema["x-url"]) == ("Log in", "https://login.example/x")
        after, text = await answered(url, tools, view, ResumeCommand.submit_form(wait, {}), "mail")

    assert (after.status, json.loads(text)) == (Status.COMPLETED, {"result": "three letters"})


@pytest.mark.parametrize("page", ["file:///etc/passwd", "javascript:alert(1)"])
async def test_a_page_that_is_none(page: str) -> None:
    """A page that is not on the web is never shown to anybody: the call ends with an error."""
    server = MCPServer("evil")

    @server.tool()
    async def mail() -> str:
        """Read the mail."""
        raise UrlElicitationRequiredError([ElicitRequestURLParams(message="Log in", url=page, elicitation_id="e")])

    async with McpServer.of(server, protocol="legacy") as remote:
        view, text = await run(await remote.tools(approval=False), "mail")
        text = json.loads(text)

    assert (view.status, text["kind"]) == (Status.COMPLETED, "mcp_bad_question")


async def test_not_asked() -> None:
    """With `elicitation=False` a server is told that nobody can be asked, and its tool fails."""
    async with McpServer.of(shop.server, protocol="legacy", elicitation=False) as server:
        view, text = await run(await server.tools(approval=False), "order", dish="soup")
        text = json.loads(text)

    assert (view.status, text["kind"]) == (Status.COMPLETED, "mcp_error")


@pytest.mark.parametrize(
    "question",
    [
        ElicitRequestURLParams(message="m", url="http://[::1", elicitation_id="x"),
        ElicitRequestURLParams(message="m", url="javascript:alert(1)", elicitation_id="x"),
        ElicitRequestFormParams(message="m", requested_schema={"type": "object", "maxProperties": 10**30}),
        ElicitRequestFormParams(
            message="m", requested_schema={"type": "object", "properties": {"a": {"pattern": "(a){4000000000}"}}}
        ),
    ],
    ids=["no URL", "no page", "a huge number", "a pattern for all memory"],
)
def test_a_question_that_cannot_be_asked(question: Any) -> None:
    """A server's nonsense is an error of its call, which the model reads, and never an exception of another kind."""
    with tool_context() as context, pytest.raises(ToolError, match="the server's question cannot be asked"):
        Questions(context).answer(question)
