"""Section P: a search for tools: first only the search tool is seen, then what it has found, for the rest of the turn."""

from __future__ import annotations

import json
from typing import Any

import pytest

from turnhold import InvalidDefinition, Middleware, Status, Tool, ToolContext, ToolSearch, TurnContext, tool
from turnhold.actors.tool_search import ranked
from turnhold.testing import call

from .lab import Desk, Gate, Lab, agent, approved, model_of, result_of, waiting
from .test_dynamic_tools import names


@tool
async def refund_order(order_id: str) -> str:
    """Give the money for an order back."""
    return f"refunded {order_id}"


@tool
async def track_parcel(order_id: str) -> str:
    """Say where the parcel of an order is."""
    return "in Berlin"


@tool(approval=True)
async def sendNewsletter(text: str) -> str:
    """Write to all customers."""
    return "sent"


TOOLS: tuple[Tool[..., Any], ...] = (refund_order, track_parcel, sendNewsletter)


async def test_found(lab: Lab) -> None:
    """P325: the first request offers only the search tool; after a search the hit is offered, too, and runs when it is called."""
    shop = agent(
        call("search_tools", query="refund an order"),
        call("refund_order", order_id="O-1"),
        "done",
        middleware=[ToolSearch(TOOLS, limit=1)],
    )
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await turn.settle()

    assert view.status is Status.COMPLETED
    assert names(shop) == [["search_tools"], ["search_tools", "refund_order"], ["search_tools", "refund_order"]]
    history = await turn.history()
    assert json.loads(result_of(history)) == {
        "tools": [{"name": "refund_order", "description": "Give the money for an order back."}]
    }
    assert result_of(history, "call_2_0") == "refunded O-1"


async def test_hidden(lab: Lab) -> None:
    """P328: before any search the search tool can be called, a hidden one cannot; nor can one that another search found."""
    shop = agent(
        [call("refund_order", order_id="O-1"), call("search_tools", query="parcel")],
        call("refund_order", order_id="O-1"),
        "done",
        middleware=[ToolSearch(TOOLS, limit=1)],
    )
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await turn.settle()

    history = await turn.history()
    assert view.status is Status.COMPLETED
    assert [json.loads(result_of(history, name))["type"] for name in ("call_1_0", "call_2_0")] == ["unknown_tool"] * 2
    assert names(shop)[1] == ["search_tools", "track_parcel"]


async def test_after_a_wait(lab: Lab, desk: Desk) -> None:
    """P326, P327: what was found is found in another process, too: the hit runs once, and completes the turn in three requests."""
    hidden = desk.tool("refund", approval=True)
    shop = agent(call("search_tools", query="refund"), call("refund", amount=3), "done", middleware=[ToolSearch([hidden])])
    first = await lab.runtime(shop)
    turn, wait = await waiting(first, shop)
    await lab.close(first)
    second = await lab.runtime(shop.replace(middleware=[ToolSearch([hidden])]))

    view = await approved(second.turn(turn.id), wait)

    assert (view.status, desk.starts, view.iteration_count) == (Status.COMPLETED, ["refund"], 3)
    assert [sorted(each) for each in names(shop)] == [["search_tools"], ["refund", "search_tools"], ["refund", "search_tools"]]


async def test_after_a_crash(lab: Lab, desk: Desk) -> None:
    """A search whose result was saved holds over the death of its process; one whose was not is made again."""
    gate = Gate()
    searches: list[str] = []

    async def search(query: str, tools: Any) -> list[str]:
        searches.append(query)
        if len(searches) == 1:
            await gate.passing()
        return ["refund"]

    shop = agent(call("search_tools", query="x"), call("refund"), "done", middleware=[ToolSearch([desk.tool()], search=search)])
    first = await lab.runtime(shop)
    second = await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    await lab.idle()
    await lab.kill(first)
    await lab.take_over()

    view = await second.turn(turn.id).settle()

    assert (view.status, searches, desk.starts) == (Status.COMPLETED, ["x", "x"], ["refund"])


async def test_turns_are_apart(lab: Lab) -> None:
    """What one turn has found another one of the same agent has not."""
    shop = agent(call("search_tools", query="refund"), "done", middleware=[ToolSearch(TOOLS)])
    runtime = await lab.runtime(shop)

    await runtime.run(shop, "hi")
    await runtime.run(shop, "hi")

    assert names(shop)[2] == ["search_tools"]


async def test_a_search_of_ones_own(lab: Lab) -> None:
    """A search function gives names or tools; what is none of them is an error of the search, and nothing is found."""

    def search(query: str, tools: Any) -> list[Any]:
        return [track_parcel, "sendNewsletter"] if query == "all" else ["ghost"]

    shop = agent(
        call("find", query="all"),
        "done",
        middleware=[ToolSearch(TOOLS, name="find", description="Find one.", search=search)],
    )
    runtime = await lab.runtime(shop)
    await runtime.run(shop, "hi")
    assert names(shop)[1] == ["find", "track_parcel", "sendNewsletter"]
    assert model_of(shop).requests[0].tools[0].description == "Find one."

    lost = agent(call("find", query="x"), "done", id="lost", middleware=[ToolSearch(TOOLS, name="find", search=search)])
    runtime = await lab.runtime(lost)
    view = await runtime.run(lost, "hi")
    assert (view.status, view.error and view.error.type) == (Status.FAILED, "MiddlewareError")


async def test_activated_by_any_tool(lab: Lab) -> None:
    """A tool of yours may activate names; they are saved with its result, in order, each once, and not if it fails."""
    seen: list[tuple[str, ...]] = []

    @tool(effect="once")
    async def activates(fails: bool = False) -> str:
        """Activate two names."""
        ToolContext.current().activate("b", "a", "b")
        if fails:
            ToolContext.current().activate("c")
            raise ValueError("no")
        return "done"

    class Looks(Middleware):
        async def around_step(self, turn: TurnContext[Any], proceed: Any) -> None:
            seen.append(turn.active_tools)
            await proceed()

    shop = agent(call("activates"), call("activates", fails=True), "done", tools=[activates], middleware=[Looks()])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    await turn.settle()

    assert seen == [(), ("b", "a")]
    with pytest.raises(InvalidDefinition):
        ToolContext.activate(None, "")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("refund", ["refund_order"]),
        ("newsletter", ["sendNewsletter"]),
        ("Where is my order?", ["track_parcel", "refund_order"]),
        ("order parcels", ["track_parcel", "refund_order"]),
        ("customer", ["sendNewsletter"]),
        ("quantum", []),
        ("", []),
    ],
)
def test_ranking(query: str, expected: list[str]) -> None:
    """Words of names count more than words of descriptions, whole ones more than parts; ties keep the order of the tools."""
    assert [each.name for each in ranked(query, TOOLS)] == expected


def test_definitions(desk: Desk) -> None:
    """Wrong arguments are refused when the search is made, or the agent built."""
    for wrong in (
        lambda: ToolSearch(TOOLS, limit=0),
        lambda: ToolSearch(TOOLS, search="x"),  # pyright: ignore[reportArgumentType]
        lambda: ToolSearch(TOOLS, name="not a name"),
        lambda: ToolSearch(TOOLS, name="refund_order"),
        lambda: ToolSearch([agent("x", id="other").as_tool()]),
        lambda: ToolSearch([desk.tool(), desk.tool()]),
        lambda: agent("x", tools=[desk.tool("search_tools")], middleware=[ToolSearch(TOOLS)]),
    ):
        with pytest.raises(InvalidDefinition):
            wrong()
