"""Plans beside other calls, and plans below plans."""

from __future__ import annotations

import json
from typing import Any

import pytest

from turnhold import (
    EventType,
    ExecutionPolicy,
    InvalidDefinition,
    PlanningPolicy,
    PlanStatus,
    ResumeCommand,
    Status,
    SuspensionType,
    TaskStatus,
    Tool,
    ToolCall,
    TurnView,
)
from turnhold.testing import call

from .lab import Desk, Gate, Lab, agent, approved, model_of, open_calls, result_of, types
from .planners import lead, offered, outcome, plans, statuses, task, titled, worker


async def test_beside_an_approval(lab: Lab, desk: Desk) -> None:
    """R04 (W-4): a plan and a gated call of one reply: neither is lost, and the approval runs its tool once."""
    boss = lead([plans(task("a")), call("refund")], "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(boss, worker())
    turn = await runtime.start("lead", "hi")
    view = await turn.settle()
    (wait,) = view.open_waits
    assert (view.status, statuses(view)) == (Status.WAITING_FOR_APPROVAL, {"a": "COMPLETED"})

    view = await approved(turn, wait)
    assert (view.final_output, desk.starts) == ("done", ["refund"])
    assert open_calls(await turn.history()) == []
    assert outcome(await turn.history())["tasks"][0]["result"] == "a done"


async def test_nobody_is_asked(lab: Lab, desk: Desk) -> None:
    """The agent's approval policy is asked about calls of its tools, not about the plan beside them."""
    asked: list[str] = []

    def policy(turn: TurnView, call: ToolCall, tool: Tool) -> bool:
        asked.append(call.name)
        return False

    boss = lead([plans(task("a")), call("refund")], "done", tools=[desk.tool()]).replace(approval=policy)
    runtime = await lab.runtime(boss, worker())

    assert (await runtime.run("lead", "hi")).final_output == "done"
    assert asked == ["refund"]


async def test_one_at_a_time(lab: Lab, desk: Desk) -> None:
    """With `sequential` a plan is in its place among the calls: what stands behind it waits for all of its tasks."""
    gate, seen = Gate(), list[str]()
    policy = ExecutionPolicy(sequential=True)
    calls = [call("first"), plans(task("a")), call("bogus"), plans(task("b")), call("last")]
    boss = lead(calls, "done", tools=[desk.tool("first"), desk.tool("last")], policy=policy)
    runtime = await lab.runtime(boss, worker(gates={"a": gate}, seen=seen))
    turn = await runtime.start("lead", "hi")
    await lab.idle()

    assert (desk.starts, seen) == (["first"], ["a"])
    gate.open()
    assert (await turn.settle()).final_output == "done"
    assert desk.starts == ["first", "last"]


async def test_users_request_stays(lab: Lab) -> None:
    """R18 (W-28): behind a plan of ten tasks the summary request still has the user's words, and no message of a child's."""
    boss = lead(plans(*[task(f"t{n}") for n in range(10)]), "done")
    runtime = await lab.runtime(boss, worker())
    await runtime.run("lead", "my own request")
    messages = model_of(boss).requests[-1].messages

    assert [type(message).__name__ for message in messages] == ["UserMessage", "AiMessage", "ToolMessage"]
    assert messages[0].content == "my own request"


async def test_inherits(lab: Lab, desk: Desk) -> None:
    """W-21: a task's child has the root's conversation, tenant, metadata and streaming; its waits are in the tenant's inbox."""
    hand = worker(replies=[call("refund"), "ok"], tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(lead(plans(task("a")), "done"), hand)
    turn = await runtime.start("lead", "hi", conversation="c-1", tenant="acme", metadata={"order": 7}, streaming=True)
    (wait,) = (await turn.settle()).open_waits
    view = await runtime.turn(wait.turn_id).view()

    assert (view.conversation_id, view.tenant, view.metadata, view.streaming) == ("c-1", "acme", {"order": 7}, True)
    assert [item.id for item in (await runtime.inbox(tenant="acme")).items] == [wait.id]


async def test_nested(lab: Lab, desk: Desk) -> None:
    """R24 (W-14): a plan below a plan: an answer at the root reaches the grandchild, every plan above it shows that it waits."""
    leaf = worker(replies=[call("refund"), "leaf done"], id="leaf", tools=[desk.tool(approval=True)])
    inner = PlanningPolicy(allowed_agent_ids=("leaf",), child_planning_allowed=True)
    hand = worker(replies=[plans(task("x", agent="leaf")), "b done"], planning=inner)
    top: dict[str, Any] = {"child_planning_allowed": True, "max_depth": 2, "allowed_agent_ids": ("worker", "leaf")}
    boss = lead(plans(task("a"), task("b", agent="leaf")), "done", **top)
    runtime = await lab.runtime(boss, hand, leaf)
    turn = await runtime.start("lead", "hi")
    view = await turn.settle()
    assert view.plan is not None

    assert (statuses(view), view.plan.status) == ({"a": "WAITING", "b": "WAITING"}, PlanStatus.WAITING)
    for wait in view.open_waits:
        await turn.submit(ResumeCommand.approve_tool(wait))
    assert (await turn.settle()).final_output == "done"
    assert len((await runtime.turns(root=turn.id)).items) == 4


async def test_levels(lab: Lab) -> None:
    """Contract 1.3: a child plans only as deep as every policy above it allows, else it has no such tool."""
    top: dict[str, Any] = {"child_planning_allowed": True, "allowed_agent_ids": ("worker",)}

    def reply(request: Any) -> Any:
        return plans(task("deeper")) if offered(request) else f"{titled(request)} done"

    for depth, turns in ((1, 2), (2, 3), (3, 4)):
        hand = worker(replies=[reply, "worker done"], planning=PlanningPolicy(max_depth=9, **top))
        runtime = await lab.runtime(lead(plans(task("a")), "done", max_depth=depth, **top), hand, store="memory://")
        turn = await runtime.start("lead", "hi")
        assert (await turn.settle()).final_output == "done"
        assert len((await runtime.turns(root=turn.id)).items) == turns


async def test_too_deep(lab: Lab) -> None:
    """However deep policies allow: below eight turns no plan starts, the model is told so."""
    policy = PlanningPolicy(max_depth=50, child_planning_allowed=True)
    shop = agent(plans(task("a", agent="shop")), "done", planning=policy)
    runtime = await lab.runtime(shop)
    turn = await runtime.start("shop", "hi")
    view = await turn.settle()
    every = (await runtime.turns(root=turn.id)).items

    assert (view.final_output, len(every), {each.status for each in every}) == ("done", 9, {Status.COMPLETED})
    (last,) = [each for each in every if each.plan is None]
    assert outcome(await runtime.turn(last.id).history())["type"] == "child_too_deep"


async def test_planner_as_a_tool(lab: Lab) -> None:
    """An agent that plans can be a tool: its plans are its own, under its own policy."""
    boss = lead(plans(task("a")), "lead done")
    shop = agent(call("lead", input="go"), "done", tools=[boss.as_tool()])
    with pytest.raises(InvalidDefinition, match="'worker'"):
        await lab.runtime(shop)
    runtime = await lab.runtime(shop, worker())
    turn = await runtime.start("shop", "hi")

    assert (await turn.settle()).final_output == "done"
    assert [kind for kind in await types((await turn.children())[0]) if kind.value.startswith("PLAN")] == [EventType.PLAN_CREATED]


async def test_wait_is_no_answer(lab: Lab) -> None:
    """The waits of a plan cannot be answered; there is one for each task that runs."""
    gates = {"a": Gate(), "b": Gate()}
    runtime = await lab.runtime(lead(plans(task("a"), task("b")), "done"), worker(gates=gates))
    turn = await runtime.start("lead", "hi")
    await lab.idle()
    view = await turn.view()

    assert [wait.type for wait in view.suspensions] == [SuspensionType.CHILD_AGENT] * 2
    assert sorted(str(wait.metadata["taskId"]) for wait in view.suspensions) == ["a", "b"]
    assert view.plan is not None
    assert (view.open_waits, {each.status for each in view.plan.tasks}) == ((), {TaskStatus.RUNNING})
    for gate in gates.values():
        gate.open()
    assert json.loads(result_of(await turn.history()) if (await turn.settle()).status.terminal else "")["accepted"]
