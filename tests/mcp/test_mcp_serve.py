"""turnhold as an MCP server: turns are started, seen, answered and cancelled by a client of the SDK."""

from __future__ import annotations

import json
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client

from turnhold import Agent, InvalidDefinition, Runtime, tool
from turnhold.console.cli import main
from turnhold.models import ScriptedModel
from turnhold.protocols.mcp import McpServer, mcp_server, serve_mcp
from turnhold.testing import call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@tool(approval=True)
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


SHOP = Agent("shop", model=ScriptedModel([call("refund", order="O-1"), call("refund", order="O-2")], "All done."), tools=[refund])


class Desk:
    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool that succeeds."""
        result = await self.client.call_tool(name, arguments)
        assert not result.is_error, result
        assert json.loads(result.content[0].text) == result.structured_content  # pyright: ignore[reportAttributeAccessIssue]
        return result.structured_content

    async def fault(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool that fails."""
        result = await self.client.call_tool(name, arguments)
        assert result.is_error
        return result.structured_content


@asynccontextmanager
async def desk(mode: str = "auto", **options: Any) -> AsyncIterator[Desk]:
    async with Runtime(agents=[SHOP]) as runtime, Client(mcp_server(runtime, **options), mode=mode) as client:
        yield Desk(client)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_turn_from_start_to_end(mode: str) -> None:
    """T29: a turn is started, its waits are listed, each is answered by its own id, and the output is read."""
    async with desk(mode, by="ann") as ask:
        view = await ask("start_turn", agent="shop", input="hi", wait_seconds=30)
        assert view["status"] == "WAITING_FOR_APPROVAL"
        waits = (await ask("inbox", agent="shop"))["items"]
        assert [wait["id"] for wait in waits] == [wait["id"] for wait in view["open_waits"]]
        first = await ask("answer", turn_id=view["id"], verb="approve", wait=waits[1]["id"], command_id="c1")
        again = await ask("answer", turn_id=view["id"], verb="approve", wait=waits[1]["id"], command_id="c1")
        await ask("answer", turn_id=view["id"], verb="reject", wait=waits[0]["id"], text="no")
        end = await ask("turn", turn_id=view["id"], wait_seconds=30)

    assert (first["by"], first["effect"], first.get("replayed", False)) == ("ann", "APPROVED", False)
    assert again == {**first, "replayed": True}
    assert (end["status"], end["final_output"]) == ("COMPLETED", "All done.")


async def test_errors_are_structured() -> None:
    """An error has the name of our class and its attributes, so that a client can act on it."""
    async with desk(by="ann") as ask:
        view = await ask("start_turn", agent="shop", input="hi", wait_seconds=30)
        (first, second) = [wait["id"] for wait in view["open_waits"]]
        turn: dict[str, Any] = {"turn_id": view["id"]}
        which = await ask.fault("answer", **turn, verb="approve")
        wrong = await ask.fault("answer", **turn, verb="submit", wait=first, data={})
        await ask("answer", **turn, verb="approve", wait=first)
        late = await ask.fault("answer", **turn, verb="reject", wait=first)
        nobody = await ask.fault("turn", turn_id="00-nobody")
        agent = await ask.fault("start_turn", agent="nobody", input="hi")
        bad = await ask.fault("answer", **turn, verb="bribe")
        long = await ask.fault("turn", **turn, wait_seconds=3600)
        none = await ask.fault("drop_tables")

    assert (which["error"], [wait["id"] for wait in which["open_waits"]]) == ("SuspensionMismatch", [first, second])
    assert (wrong["error"], wrong["turn_id"]) == ("WrongCommand", view["id"])
    assert (late["error"], late["agrees"], late["receipt"]["by"]) == ("AlreadyAnswered", False, "ann")
    assert (nobody["error"], agent["error"], agent["agent_id"]) == ("TurnNotFound", "AgentNotFound", "nobody")
    assert (bad["error"], bad["faults"][0][0]) == ("ArgumentsInvalid", "$.verb")
    assert (long["error"], none["error"]) == ("InvalidDefinition", "InvalidDefinition")


async def test_a_model_does_not_answer_unless_it_may() -> None:
    """Without a name to answer under there is no tool to answer with; with one, the model cannot choose another."""
    async with desk() as ask:
        names = [each.name for each in (await ask.client.list_tools()).tools]
        view = await ask("start_turn", agent="shop", input="hi", wait_seconds=30)
        assert (await ask.fault("answer", turn_id=view["id"], verb="approve"))["error"] == "InvalidDefinition"
    async with desk(by="ann") as ask:
        view = await ask("start_turn", agent="shop", input="hi", wait_seconds=30)
        wait = view["open_waits"][0]["id"]
        forged = await ask.fault("answer", turn_id=view["id"], verb="approve", wait=wait, by="boss")

    assert names == ["start_turn", "turn", "inbox", "cancel"]
    assert forged["error"] == "ArgumentsInvalid"


async def test_what_is_not_theirs() -> None:
    """A client of one tenant neither sees nor cancels turns of another; one that may start some agents starts no others."""
    async with Runtime(agents=[SHOP, SHOP.replace(id="bank")]) as runtime:
        other = await (await runtime.start("shop", "hi", tenant="b")).settle()
        async with Client(mcp_server(runtime, by="ann", tenant="a", agents=["shop"])) as client:
            ask = Desk(client)
            own = await ask("start_turn", agent="shop", input="hi", wait_seconds=30)
            seen = {wait["turn_id"] for wait in (await ask("inbox"))["items"]}
            found = [await ask.fault(name, turn_id=other.id) for name in ("turn", "cancel")]
            found.append(await ask.fault("answer", turn_id=other.id, verb="approve"))
            bank = await ask.fault("start_turn", agent="bank", input="hi")
        assert (await runtime.turn(other.id).view()) == other

    assert seen == {own["id"]}
    assert {fault["error"] for fault in found} == {"TurnNotFound"}
    assert bank["error"] == "AgentNotFound"


async def test_agents_narrow_what_is_seen() -> None:
    """A client that may start some agents sees, answers and cancels no turn of another, but what is below a turn of its own."""
    lead = Agent("lead", model=ScriptedModel(call("bank", input="hi"), "ok"), tools=[SHOP.replace(id="bank").as_tool("bank")])
    async with Runtime(agents=[lead]) as runtime:
        for _ in range(3):
            other = await (await runtime.start("bank", "hi")).settle()
        async with Client(mcp_server(runtime, by="ann", agents=["lead"])) as client:
            ask = Desk(client)
            own = await ask("start_turn", agent="lead", input="hi", wait_seconds=30)
            seen = await ask("inbox", agent="bank", limit=2)
            (child, _) = seen["items"]
            found = [await ask.fault(name, turn_id=other.id) for name in ("turn", "cancel")]
            wait = {"verb": "reject", "wait": other.open_waits[0].id}
            found.append(await ask.fault("answer", turn_id=other.id, **wait))
            mixed = await ask.fault("answer", turn_id=own["id"], **wait)
            below = await ask("turn", turn_id=child["turn_id"])
            receipt = await ask("answer", turn_id=child["turn_id"], verb="approve", wait=child["id"])
        assert (await runtime.turn(other.id).view()) == other

    assert {wait["root_turn_id"] for wait in seen["items"]} == {own["id"]}
    assert {fault["error"] for fault in found} == {"TurnNotFound"}
    assert (mixed["error"], below["agent_id"], receipt["effect"]) == ("SuspensionMismatch", "bank", "APPROVED")


async def test_a_tenant_has_its_own_conversations_and_keys() -> None:
    """A client of one tenant that names a conversation, or a key, of another gets neither its turn nor what was said in it."""
    model = ScriptedModel("noted")
    async with Runtime(agents=[Agent("chat", model=model)]) as runtime:
        other = await runtime.run("chat", "my secret is 42", conversation="c", tenant="b", idempotency_key="k")
        for tenant in ("a", "b"):
            async with Client(mcp_server(runtime, tenant=tenant)) as client:
                start = {"agent": "chat", "input": "my secret is 42", "conversation": "c", "idempotency_key": "k"}
                (first, again) = [await Desk(client)("start_turn", **start, wait_seconds=30) for _ in range(2)]
                assert (first["tenant"], first["conversation_id"]) == (tenant, f"{tenant}/c")
                assert first["id"] == again["id"] != other.id
                await Desk(client)("start_turn", agent="chat", input="go on", conversation=f"{tenant}/c", wait_seconds=30)

    assert [len(request.messages) for request in model.requests] == [1, 1, 3, 1, 3]


async def test_start_again_and_cancel() -> None:
    """G, K: a start repeated under its key is the same turn; a cancel ends it, and a second one changes nothing."""
    async with desk() as ask:
        first = await ask("start_turn", agent="shop", input="hi", idempotency_key="k")
        again = await ask("start_turn", agent="shop", input="hi", idempotency_key="k")
        other = await ask.fault("start_turn", agent="shop", input="ho", idempotency_key="k")
        ends = [await ask("cancel", turn_id=first["id"], reason="enough") for _ in range(2)]

    assert again["id"] == first["id"]
    assert (other["error"], other["turn_id"]) == ("IdempotencyKeyReused", first["id"])
    assert [view["status"] for view in ends] == ["CANCELLED", "CANCELLED"]


async def test_wrong_options() -> None:
    """Wrong options are refused before anything is served."""
    async with Runtime() as runtime:
        for options in ({"by": ""}, {"tenant": 3}, {"agents": "shop"}):
            with pytest.raises(InvalidDefinition):
                mcp_server(runtime, **options)  # pyright: ignore[reportArgumentType] - the subject
        with pytest.raises(InvalidDefinition, match="transport"):
            await serve_mcp(runtime, "carrier pigeon")  # pyright: ignore[reportArgumentType] - the subject


@pytest.mark.process
@pytest.mark.timeout(120)
@pytest.mark.blocking("the SDK starts a program")
async def test_the_command(tmp_path: Path) -> None:
    """`turnhold mcp` serves a store over stdin and stdout; what it starts is run by who runs the agent."""
    url = f"sqlite:///{tmp_path}/turns.db"
    async with Runtime(url, agents=[SHOP]) as runtime:
        command = ["-m", "turnhold.console.cli", "mcp", url, "--answer-as", "ann", "--agent", "shop"]
        async with McpServer.stdio(sys.executable, command, name="turnhold", cwd=str(tmp_path)) as server:
            tools = {each.name: each for each in await server.tools(approval=False, effect="repeatable")}
            model = ScriptedModel(call("start_turn", agent="shop", input="hi", wait_seconds=30), "done")
            guest = Agent("guest", model=model, tools=list(tools.values()))
            async with Runtime(agents=[guest]) as outside:
                view = await outside.run("guest", "go")
                (result,) = [m.content for m in await outside.turn(view.id).history() if m.to_dict()["role"] == "tool"]
        started = json.loads(result)
        assert (await runtime.turn(started["id"]).view()).status.value == "WAITING_FOR_APPROVAL"

    assert sorted(tools) == ["answer", "cancel", "inbox", "start_turn", "turn"]


def test_the_command_without_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A store that is not there is one line on stderr."""
    assert main(["mcp", f"sqlite:///{tmp_path}/none.db"]) == 1
    assert "there is no store" in capsys.readouterr().err
