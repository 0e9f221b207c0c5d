"""Agents as tools on several nodes: who knows which agent, and what is left when a node dies."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from turnhold import EventType, InvalidDefinition, ResumeCommand, Status, SuspensionType
from turnhold.testing import call, crash

from .lab import Desk, Gate, Lab, agent, asks, held, result_of, stored_events, talk


class OneLoader:
    """Knows these agents, and not those that they have as tools."""

    def __init__(self, *agents) -> None:
        self._agents = {each.id: each for each in agents}

    def load(self, id: str, version: str):
        return self._agents.get(id)

    def load_active(self, id: str):
        return self._agents.get(id)

    def known(self):
        return [each.key for each in self._agents.values()]


async def test_known_through_the_parent(lab: Lab) -> None:
    """`agents=[parent]` makes the agents of its tools known, too, at any depth; one given by itself stays the active version."""
    leaf = agent("leaf done", id="leaf")
    child = agent(asks("leaf"), "old done", id="child", tools=[leaf.as_tool()])
    newer = agent("new done", id="child", version="2")
    shop = agent(asks("child"), "done", tools=[child.as_tool()])
    runtime = await lab.runtime(newer, shop)

    assert (await runtime.run("leaf", "hi")).final_output == "leaf done"
    assert (await runtime.run("child", "hi")).final_output == "new done"
    turn = await runtime.start(shop, "hi")
    await turn.settle()
    assert result_of(await turn.history()) == "old done"


async def test_two_of_one_name(lab: Lab) -> None:
    """Two different agents of one id and version are a wrong definition, also where one of them is somebody's tool."""
    child = agent("child done", id="child")
    shop = agent(asks("child"), "done", tools=[child.as_tool()])

    with pytest.raises(InvalidDefinition, match="child@1"):
        await lab.runtime(shop, child.replace(description="another"))
    await lab.runtime(shop, child)


async def test_unknown_here(lab: Lab) -> None:
    """DESIGN 6: on nodes that do not know the child's agent the child waits for one that does, which need not know the parent."""
    child = agent("child done", id="child")
    shop = agent(asks("child"), "done", tools=[child.as_tool()])
    first = await lab.runtime(loader=OneLoader(shop))
    turn = await first.start("shop", "hi")
    await lab.idle()
    await lab.clock.advance(30)
    (below,) = await turn.children()
    assert ((await turn.view()).status, (await below.view()).status) == (Status.WAITING_FOR_CHILD, Status.READY)

    await lab.runtime(loader=OneLoader(child))
    assert (await lab.during(turn.settle())).final_output == "done"


async def test_endless_chain(lab: Lab) -> None:
    """An agent that calls itself by its id ends: below eight turns no further child starts, and the model is told so."""
    inner = agent(id="shop")
    shop = agent(asks("shop"), "done", tools=[inner.as_tool()])
    runtime = await lab.runtime(loader=OneLoader(shop))
    turn = await runtime.start("shop", "hi")
    view = await lab.during(turn.settle())

    every = (await runtime.turns(root=turn.id)).items
    assert (view.final_output, len(every), {each.status for each in every}) == ("done", 9, {Status.COMPLETED})
    (last,) = [each for each in every if await runtime.turn(each.id).children() == []]
    assert json.loads(result_of(await runtime.turn(last.id).history()))["type"] == "child_too_deep"


# -------------------------------------------------------------------------------------------------------------- crashes


@pytest.mark.parametrize("nth", range(1, 13))
@pytest.mark.parametrize("point", ["before_apply", "after_apply", "lost_reply"])
async def test_crash_at_every_save(lab: Lab, desk: Desk, point: Any, nth: int) -> None:
    """DESIGN 8: a node that dies at any save of a parent with three children: each child and each result comes once."""

    def family():
        kids = [agent(call(f"do{n}"), f"{n} done", id=f"c{n}", tools=[desk.tool(f"do{n}", effect="once")]) for n in range(3)]
        return agent(asks("c0", "c1", "c2"), "done", tools=[each.as_tool() for each in kids])

    first, second = await lab.runtime(family()), await lab.runtime(family())
    with crash(first, "save", point, nth=nth) as crashed:
        turn = await first.start("shop", "hi", idempotency_key="k")
        await lab.idle()
    assert crashed.happened or nth > 9
    if crashed.happened and point != "lost_reply":
        await lab.kill(first)
    there = second.turn(turn.id)
    await lab.clock.advance(60)
    view = await lab.during(there.settle())
    for wait in view.open_waits:  # a `once` call whose owner died is for a person to decide
        assert wait.type is SuspensionType.IN_DOUBT
        view = await lab.during(there.resume(ResumeCommand.give_result(wait, "given")))

    assert view.final_output == "done"
    assert len(await there.children()) == 3
    assert talk(await there.history())[2:5] == [f"call_1_{n} = {n} done" for n in range(3)]
    assert len(set(desk.keys)) == len(desk.keys) <= 3
    assert [event.type for event in await stored_events(there)].count(EventType.CHILD_STARTED) == 3


@pytest.mark.parametrize("nth", range(1, 5))
@pytest.mark.parametrize("point", ["before_apply", "after_apply", "lost_reply"])
async def test_crash_and_cancel(lab: Lab, point: Any, nth: int) -> None:
    """R07 (W-2): a cancel over a node that dies while it creates children: nothing of the tree is left alive."""
    gate = Gate()

    def family():
        kids = [agent(held(gate), id=f"c{n}") for n in range(2)]
        return agent(asks("c0", "c1"), "done", tools=[each.as_tool() for each in kids])

    first, second = await lab.runtime(family()), await lab.runtime(family())
    with crash(first, "save", point, nth=nth) as crashed:
        turn = await first.start("shop", "hi")
        cancelling = asyncio.ensure_future(second.turn(turn.id).cancel("enough"))
        await lab.idle()
    if crashed.happened and point != "lost_reply":
        await lab.kill(first)
    assert (await lab.during(cancelling)).status is Status.CANCELLED
    assert all(each.status.terminal for each in (await second.turns(root=turn.id)).items)


async def test_answers_outlive_the_node(lab: Lab, desk: Desk) -> None:
    """T111, T107: what was answered in a child is not asked again on another node, nor done again; what was not is still open."""

    def family():
        tools = [desk.tool("a", approval=True), desk.tool("b", approval=True)]
        child = agent([call("a"), call("b")], "child done", id="child", tools=tools)
        return agent(asks("child"), "done", tools=[child.as_tool()])

    first, second = await lab.runtime(family()), await lab.runtime(family())
    turn = await first.start("shop", "hi")
    one, two = (await turn.settle()).open_waits
    command = ResumeCommand.approve_tool(one, command_id="c1", by="ann")
    view = await turn.resume(command)
    assert (view.open_waits, desk.starts) == ((two,), ["a"])
    await lab.kill(first)
    await lab.take_over()
    there = second.turn(turn.id)

    assert (await there.view()).open_waits == (two,)
    again = await there.submit(command)
    view = await lab.during(there.resume(ResumeCommand.approve_tool(two)))

    assert (again.replayed, again.by) == (True, "ann")
    assert (view.final_output, desk.starts, desk.attempts) == ("done", ["a", "b"], [1, 1])


async def test_on_several_nodes(lab: Lab) -> None:
    """Children of one reply run at once on different nodes, each where its agent is; their results come together."""
    gates = [Gate() for _ in range(2)]
    kids = [agent(held(gate, f"{n} done"), id=f"c{n}") for n, gate in enumerate(gates)]
    shop = agent(asks("c0", "c1"), "done", tools=[each.as_tool() for each in kids])
    runtime = await lab.runtime(loader=OneLoader(shop))
    for n, kid in enumerate(kids):
        await lab.runtime(loader=OneLoader(kid), node=f"n{n}")
    turn = await runtime.start("shop", "hi")
    await lab.clock.advance(5)
    views = [await each.view() for each in await turn.children()]

    assert {view.agent_id: view.owner and view.owner.node for view in views} == {"c0": "n0", "c1": "n1"}
    for gate in gates:
        gate.open()
    assert (await lab.during(turn.settle())).final_output == "done"
    assert talk(await turn.history())[2:4] == ["call_1_0 = 0 done", "call_1_1 = 1 done"]
