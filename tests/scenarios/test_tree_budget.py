"""One budget for a whole tree: what is left of the root's bounds its children, wherever and whenever they run."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from turnhold import AiMessage, Budget, CommandRefused, ExecutionPolicy, ResumeCommand, Status, ToolCall, Usage
from turnhold.actors.turn import TurnState
from turnhold.actors.used import MAX_SPANS, active_ms, rest, take_spans
from turnhold.testing import call

from .lab import Desk, Gate, Lab, agent, approved, model_of, result_of, talk


def limits(**budget: Any) -> ExecutionPolicy:
    return ExecutionPolicy(budget=Budget(**budget))


def says(text: str = "", *names: str, used: int = 6) -> AiMessage:
    """A reply that costs tokens: a text, or one call of each of these tools."""
    calls = tuple(ToolCall(f"{name}-{at}", name, {} if name == "do" else {"input": "x"}) for at, name in enumerate(names))
    return AiMessage(text, calls, usage=Usage(used))


def lasting(lab: Lab, seconds: float, text: str = "child done"):
    """A reply that takes some time."""

    async def reply(request):
        over = asyncio.get_running_loop().create_future()
        lab.clock.call_later(seconds, lambda: over.set_result(None))
        await over
        return text

    return reply


async def test_children_count(lab: Lab) -> None:
    """G130: a root budget of 10, a child that uses 6 and a summary that uses 6: BUDGET_EXCEEDED with 12 tokens."""
    child = agent(says("child done"), id="child")
    shop = agent(says("", "child", used=0), says("done"), tools=[child.as_tool()], policy=limits(max_total_tokens=10))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    view = await turn.settle()

    assert (view.status, view.usage.total_tokens) == (Status.BUDGET_EXCEEDED, 12)
    assert view.budget_exceeded_reason == "max_total_tokens (12/10)"
    assert result_of(await turn.history(), "child-0") == "child done"


async def test_what_is_left(lab: Lab) -> None:
    """A child may use what its root has left: it ends behind the reply that used it up, a structured result; then its root ends."""
    leaf = agent(says("leaf done"), id="leaf")
    child = agent(says("", "leaf"), says("child done"), id="child", tools=[leaf.as_tool()])
    shop = agent(says("", "child"), says("done"), tools=[child.as_tool()], policy=limits(max_total_tokens=15))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    view = await turn.settle()
    (middle,) = await turn.children()
    (last,) = await middle.children()

    assert [(await each.view()).status for each in (turn, middle, last)] == [Status.BUDGET_EXCEEDED] * 3
    assert (await last.view()).budget_exceeded_reason == "max_total_tokens of the tree (18/15)"
    assert (view.usage.total_tokens, len(model_of(shop).requests)) == (18, 1)
    told = json.loads(result_of(await middle.history(), "leaf-0"))
    assert (told["type"], told["status"]) == ("child_budget_exceeded", "BUDGET_EXCEEDED")


async def test_own_limits(lab: Lab) -> None:
    """A child's own budget ends the child alone; its parent reads that and goes on."""
    child = agent(says("child done"), id="child", policy=limits(max_total_tokens=5))
    shop = agent(says("", "child"), says("done"), tools=[child.as_tool()], policy=limits(max_total_tokens=50))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    view = await turn.settle()

    assert (view.final_output, view.usage.total_tokens) == ("done", 18)
    assert json.loads(result_of(await turn.history(), "child-0"))["message"].endswith("max_total_tokens (6/5)")


@pytest.mark.parametrize("nodes", [1, 3])
async def test_overshoot(lab: Lab, desk: Desk, nodes: int) -> None:
    """Contract: several children at once overshoot their root's tokens by at most one reply each, on one node or on several."""
    kids = [agent(*[says("", "do") for _ in range(20)], id=f"c{n}", tools=[desk.tool("do")]) for n in range(3)]
    shop = agent(says("", *(f"c{n}" for n in range(3))), "done", tools=[each.as_tool() for each in kids])
    shop = shop.replace(policy=limits(max_total_tokens=60))
    runtimes = [await lab.runtime(shop, max_active=2 if nodes > 1 else 10) for _ in range(nodes)]
    turn = await runtimes[0].start(shop, "hi")
    view = await lab.during(turn.settle())

    assert view.status is Status.BUDGET_EXCEEDED
    assert 60 < view.usage.total_tokens <= 60 + 3 * 6
    assert {(await each.view()).status for each in await turn.children()} == {Status.BUDGET_EXCEEDED}


async def test_tool_calls_at_once(lab: Lab, desk: Desk) -> None:
    """Children that all saw the same room left for tool calls start no more of them than there is, to the call."""
    kids = [agent(says("", "do", "do", "do"), "kid done", id=f"c{n}", tools=[desk.tool("do")]) for n in range(3)]
    shop = agent(says("", *(f"c{n}" for n in range(3))), "done", tools=[each.as_tool() for each in kids])
    runtime = await lab.runtime(shop.replace(policy=limits(max_tool_calls=7)))
    turn = await runtime.start("shop", "hi")
    view = await lab.during(turn.settle())

    assert (view.status, len(desk.starts)) == (Status.COMPLETED, 7 - 3)
    assert view.tool_call_count >= 7
    assert Status.BUDGET_EXCEEDED in {(await each.view()).status for each in await turn.children()}


async def test_used_up_while_it_waited(lab: Lab, desk: Desk) -> None:
    """What a sibling used while a child waited counts before the child starts anything: the approved tool is not started."""
    waits = agent(says("", "do", used=0), "done", id="waits", tools=[desk.tool("do", approval=True)])
    spends = agent(says("spent", used=20), id="spends")
    shop = agent(says("", "waits", "spends", used=0), "done", tools=[waits.as_tool(), spends.as_tool()])
    runtime = await lab.runtime(shop.replace(policy=limits(max_total_tokens=10)))
    turn = await runtime.start("shop", "hi")
    (wait,) = (await turn.settle()).open_waits

    view = await approved(turn, wait)

    assert (view.status, desk.starts) == (Status.BUDGET_EXCEEDED, [])
    assert (await runtime.turn(wait.turn_id).view()).status is Status.BUDGET_EXCEEDED


async def test_time_counts_once(lab: Lab, desk: Desk) -> None:
    """Active time is the union over the tree: children that run at once count once, waiting for a person is free."""
    kids = [agent(lasting(lab, 6), id=f"c{n}") for n in range(2)]
    waits = agent(call("refund"), "waited", id="waits", tools=[desk.tool(approval=True)])
    shop = agent([*(call(f"c{n}", input="x") for n in range(2)), call("waits", input="x")], "done")
    shop = shop.replace(tools=[each.as_tool() for each in (*kids, waits)], policy=limits(max_duration=10))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await lab.clock.advance(3600)
    (wait,) = (await turn.settle()).open_waits

    assert (await approved(turn, wait)).status is Status.COMPLETED


async def test_time_adds_up(lab: Lab) -> None:
    """Children that run one after the other add up; what is left stops the second while it runs, then its root."""
    kids = [agent(lasting(lab, 6), id=f"c{n}") for n in range(2)]
    shop = agent([call(f"c{n}", input="x") for n in range(2)], "done", tools=[each.as_tool(sequential=True) for each in kids])
    runtime = await lab.runtime(shop.replace(policy=limits(max_duration=10)))
    turn = await runtime.start("shop", "hi")
    began = lab.clock.now()
    view = await lab.during(turn.settle())

    assert (view.status, (lab.clock.now() - began).total_seconds()) == (Status.BUDGET_EXCEEDED, 10)
    ended = {(await each.view()).agent_id: await each.view() for each in await turn.children()}
    assert [ended[f"c{n}"].status for n in range(2)] == [Status.COMPLETED, Status.BUDGET_EXCEEDED]
    assert ended["c1"].budget_exceeded_reason == "max_duration of the tree (10000 ms/10000 ms)"


async def test_wall_time_takes_the_tree_along(lab: Lab, desk: Desk) -> None:
    """A root whose wall time is over ends, though it only waits for a child; the child's waits are closed with it."""
    child = agent(call("refund"), id="child", tools=[desk.tool(approval=True)])
    shop = agent([call("child", input="x")], tools=[child.as_tool()], policy=limits(max_wall_time=60))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    (wait,) = (await turn.settle()).open_waits
    await lab.clock.advance(61)

    assert (await turn.view()).status is Status.BUDGET_EXCEEDED
    assert (await runtime.turn(wait.turn_id).view()).status is Status.CANCELLED
    assert (await runtime.inbox()).items == ()


async def test_lost_owner(lab: Lab, desk: Desk) -> None:
    """Over the death of a node nothing that was used is forgotten, and nothing counts twice."""
    gate = Gate()

    async def reply(request):
        await gate.passing()
        return says("child done")

    child = agent(says("", "do"), reply, id="child", tools=[desk.tool("do")])
    shop = agent(says("", "child"), says("done"), tools=[child.as_tool()], policy=limits(max_total_tokens=24))
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    await lab.idle()
    await lab.kill(first)
    gate.open()
    await lab.take_over()
    view = await lab.during(second.turn(turn.id).settle())

    assert (view.final_output, view.usage.total_tokens, view.tool_call_count) == ("done", 24, 2)


# ------------------------------------------------------------------------------------------------------- started by hand


def mother(gate: Gate, **options: Any):
    async def first(request):
        if talk(request.messages)[-1] == "user: hi":
            await gate.passing()
        return says("mother done")

    return agent(first, id="mother", **options)


async def test_by_hand(lab: Lab) -> None:
    """A child that the application starts is bounded by the same budget; its parent reads the reason."""
    child = agent(says("child done", used=20), id="child")
    top = mother(Gate(), policy=limits(max_total_tokens=10))
    runtime = await lab.runtime(top, child)
    turn = await runtime.start(top, "hi")
    await lab.idle()
    below = await turn.start_child(child, "do it")
    view = await lab.during(turn.settle())

    assert [each.status for each in (view, await below.view())] == [Status.BUDGET_EXCEEDED] * 2
    assert "max_total_tokens of the tree (20/10)" in talk(await turn.history())[1]


async def test_too_deep_by_hand(lab: Lab) -> None:
    """Nine turns in a chain is what a tree may have: no child is started below the ninth."""
    gate = Gate()
    top = mother(gate)
    runtime = await lab.runtime(top)
    turn = await runtime.start(top, "hi")
    for _ in range(8):
        await lab.idle()
        turn = await turn.start_child(top, "hi")
    await lab.idle()

    with pytest.raises(CommandRefused, match="8 turns above"):
        await turn.start_child(top, "hi")
    gate.open()
    assert (await lab.during(runtime.turn(turn.id[:29]).settle())).status is Status.COMPLETED


async def test_started_where_nothing_runs(lab: Lab) -> None:
    """A node without agents starts a child by the id that an executor announces; instructions and policy come with that."""
    child = agent(says("", "nothing"), id="child", instructions="Be kind.", policy=ExecutionPolicy(max_iterations=1))
    top = mother(Gate())
    runtime, api = await lab.runtime(top, child), await lab.runtime(execute=False)
    turn = await runtime.start(top, "hi")
    await lab.idle()
    below = await lab.during(api.turn(turn.id).start_child("child", "do it"))
    view = await lab.during(turn.settle())

    assert (view.final_output, (await below.view()).status) == ("mother done", Status.MAX_ITERATIONS_REACHED)
    assert talk(await below.history())[:2] == ["system: Be kind.", "user: do it"]


async def test_cancel_while_it_is_asked_for(lab: Lab) -> None:
    """R07 (W-2): a cancel between the reply and the save that would create the child: no child is left alive."""
    gate = Gate()

    async def reply(request):
        await gate.passing()
        return [call("child", input="x")]

    child = agent("child done", id="child")
    shop = agent(reply, tools=[child.as_tool()])
    runtime, other = await lab.runtime(shop), await lab.runtime(execute=False)
    turn = await runtime.start(shop, "hi")
    await lab.idle()
    gate.open()
    cancelling = asyncio.ensure_future(other.turn(turn.id).cancel())
    view = await lab.during(cancelling)

    assert view.status is Status.CANCELLED
    assert all(each.status is Status.CANCELLED for each in (await runtime.turns(root=turn.id)).items)
    with pytest.raises(Exception, match="CANCELLED"):
        await turn.submit(ResumeCommand.approve_tool("call_1_0"))


# ---------------------------------------------------------------------------------------------------------------- spans


def test_spans() -> None:
    """Overlapping times count once, gaps not at all; behind a root's last child all that is left is one number."""
    state = TurnState("t", "a", "1", children=("c1", "c2"))
    state.active_since = 100
    rest(state, 200)
    take_spans(state, ((150, 250), (400, 500)), 500)
    assert (state.spans, active_ms(state, 900)) == (((100, 250), (400, 500)), 250)

    state.active_since = 450
    state.children = ()
    take_spans(state, ((520, 540),), 600)
    assert (state.spans, state.active_ms, state.active_since) == ((), 350, 600)
    rest(state, 610)
    assert active_ms(state, 900) == 360


def test_many_spans() -> None:
    """The number of spans is bounded: of too many the two that are nearest to each other become one."""
    state = TurnState("t", "a", "1", children=("c",))
    take_spans(state, tuple((at * 100, at * 100 + 10) for at in range(MAX_SPANS)), 9_999)
    take_spans(state, ((9_950, 9_960), (9_970, 9_980)), 9_999)

    assert len(state.spans) == MAX_SPANS
    assert state.spans[-1] == (9_950, 9_980)
