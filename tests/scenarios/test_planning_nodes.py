"""Plans over several nodes: crashes, cancels, budgets, deadlines, and nodes that know other agents."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from turnhold import (
    AiMessage,
    ApprovalDecision,
    Budget,
    EventType,
    ExecutionPolicy,
    ModelRefused,
    PlanStatus,
    ResumeCommand,
    Status,
    SuspensionType,
    ToolCall,
    Usage,
)
from turnhold.testing import call, crash

from .lab import Desk, Gate, Lab, agent, approved, model_of, open_calls, stored_events
from .planners import lead, outcome, plans, statuses, task, titled, worker
from .test_child_nodes import OneLoader

# -------------------------------------------------------------------------------------------------------------- crashes


@pytest.mark.parametrize("nth", range(1, 13))
@pytest.mark.parametrize("point", ["before_apply", "after_apply", "lost_reply"])
async def test_crash_at_every_save(lab: Lab, desk: Desk, point: Any, nth: int) -> None:
    """DESIGN 8: a node that dies at any save of a plan with two parallel tasks and a third: each child and result comes once."""

    def family():
        def reply(request: Any) -> Any:
            return call(f"do_{titled(request)}")

        tools = [desk.tool(f"do_{name}", effect="once") for name in "abc"]
        hand = worker(replies=[reply, lambda request: f"{request.messages[1].tool_calls[0].name} done"], tools=tools)
        return lead(plans(task("a"), task("b"), task("c", "a", "b")), "done"), hand

    first, second = await lab.runtime(*family()), await lab.runtime(*family())
    with crash(first, "save", point, nth=nth) as crashed:
        turn = await first.start("lead", "hi", idempotency_key="k")
        await lab.idle()
    assert crashed.happened or nth > 10
    if crashed.happened and point != "lost_reply":
        await lab.kill(first)
    there = second.turn(turn.id)
    await lab.clock.advance(60)
    for _ in range(4):
        view = await lab.during(there.settle())
        for wait in view.open_waits:  # a `once` call whose owner died is for a person to decide
            assert wait.type is SuspensionType.IN_DOUBT
            await lab.during(there.resume(ResumeCommand.give_result(wait, "given")))

    view = await there.view()
    assert view.plan is not None
    assert (view.final_output, view.plan.status) == ("done", PlanStatus.COMPLETED)
    assert [(each.id, each.status.value, each.result) for each in view.plan.tasks] == [
        (name, "COMPLETED", f"do_{name} done") for name in "abc"
    ]
    assert {child.id for child in await there.children()} == {each.child_turn_id for each in view.plan.tasks}
    assert len(set(desk.keys)) == len(desk.keys) <= 3
    kinds = [event.type for event in await stored_events(there)]
    assert [kinds.count(kind) for kind in (EventType.CHILD_STARTED, EventType.TASK_STARTED, EventType.TASK_COMPLETED)] == [3, 3, 3]
    assert [each["result"] for each in outcome(await there.history())["tasks"]] == [f"do_{name} done" for name in "abc"]


@pytest.mark.parametrize("nth", range(1, 6))
@pytest.mark.parametrize("point", ["before_apply", "after_apply", "lost_reply"])
async def test_crash_and_cancel(lab: Lab, point: Any, nth: int) -> None:
    """R24 (W-14): a cancel over a node that dies while its plan starts children: nothing of the tree is left alive."""
    gate = Gate()

    def family():
        return lead(plans(task("a"), task("b")), "done"), worker(gates={"a": gate, "b": gate})

    first, second = await lab.runtime(*family()), await lab.runtime(*family())
    with crash(first, "save", point, nth=nth) as crashed:
        turn = await first.start("lead", "hi")
        cancelling = asyncio.ensure_future(second.turn(turn.id).cancel("enough"))
        await lab.idle()
    if crashed.happened and point != "lost_reply":
        await lab.kill(first)
    view = await lab.during(cancelling)
    assert view.status is Status.CANCELLED
    assert all(each.status.terminal for each in (await second.turns(root=turn.id)).items)
    if view.plan is not None:
        assert view.plan.status is PlanStatus.CANCELLED
        assert set(statuses(view).values()) == {"CANCELLED"}
    assert open_calls(await second.turn(turn.id).history()) == []


@pytest.mark.parametrize("moments", range(0, 60, 4))
async def test_cancel_at_each_moment(lab: Lab, desk: Desk, moments: int) -> None:
    """R24 (W-14): wherever a cancel meets a plan below a plan: all is over, no tool starts behind it, no task is left open."""
    leaf = worker(replies=[call("refund"), "leaf done"], id="leaf", tools=[desk.tool()])
    inner = lead(plans(task("x", agent="leaf"), task("y", "x", agent="leaf")), "hand done", allowed_agent_ids=("leaf",))
    hand = inner.replace(id="worker")
    boss = lead(plans(task("a"), task("b"), task("c", "a")), "done", child_planning_allowed=True, max_depth=2)
    runtime = await lab.runtime(boss, hand, leaf)
    turn = await runtime.start("lead", "hi")
    for _ in range(moments):
        await asyncio.sleep(0)
    view = await lab.during(turn.cancel("enough"))

    every = (await runtime.turns(root=turn.id)).items
    assert all(each.status.terminal for each in every)
    assert all(each.plan is None or not {"PENDING", "RUNNING"} & set(statuses(each).values()) for each in every)
    assert view.status in (Status.CANCELLED, Status.COMPLETED)
    started = len(desk.starts)
    await lab.clock.advance(60)
    assert len(desk.starts) == started
    assert open_calls(await turn.history()) == []


async def test_cancel_tells_what_was_done(lab: Lab) -> None:
    """A cancelled plan's call says which tasks had completed, so that the next turn of the conversation knows."""
    gate = Gate()
    runtime = await lab.runtime(lead(plans(task("a"), task("b", "a")), "done"), worker(gates={"b": gate}))
    turn = await runtime.start("lead", "hi")
    await lab.idle()
    view = await turn.cancel("enough")
    told = outcome(await turn.history())

    assert (view.status, statuses(view)) == (Status.CANCELLED, {"a": "COMPLETED", "b": "CANCELLED"})
    assert (told["status"], told["tasks"][0]["result"], told["tasks"][1]["error"]) == ("CANCELLED", "a done", "enough")
    assert "enough" in told["message"]


# --------------------------------------------------------------------------------------------------------- other nodes


async def test_tasks_spread(lab: Lab) -> None:
    """Tasks run where their agents are; the node of the plan need not run them, nor know that they are finished by others."""
    gates = {name: Gate() for name in "ab"}
    boss, hand = lead(plans(task("a"), task("b")), "done"), worker(gates=gates)

    class Both(OneLoader):
        def known(self):
            return ["lead@1"]

    runtime = await lab.runtime(loader=Both(boss, hand))
    await lab.runtime(hand, node="n1")
    turn = await runtime.start("lead", "hi")
    await lab.clock.advance(5)
    views = [await child.view() for child in await turn.children()]
    assert [view.owner and view.owner.node for view in views] == ["n1", "n1"]
    for gate in gates.values():
        gate.open()
    assert (await lab.during(turn.settle())).final_output == "done"


async def test_api_node_takes_ends_in(lab: Lab) -> None:
    """A node that runs nothing starts a turn that plans, applies its mail in the middle, and an executor goes on with the plan."""
    gates = {name: Gate() for name in "ab"}
    api = await lab.runtime(execute=False)
    boss = lead(plans(task("a"), task("b", "a")), "done")
    await lab.runtime(boss, worker(gates=gates))
    turn = await api.start("lead", "hi")
    await lab.clock.advance(5)
    await api.turn(turn.id).suspend("still there?")
    for gate in gates.values():
        gate.open()
    view = await lab.during(turn.settle())
    (wait,) = view.open_waits

    assert (wait.message, statuses(view)) == ("still there?", {"a": "COMPLETED", "b": "COMPLETED"})
    view = await lab.during(turn.resume(ResumeCommand.user_input("yes")))
    assert view.final_output == "done"


async def test_versions_are_frozen(lab: Lab) -> None:
    """A task keeps the version its agent had when the plan was accepted; a node that knows only a newer one leaves it to others."""
    gate = Gate()
    boss = lead(plans(task("a"), task("b", "a")), "done")
    old = await lab.runtime(boss, worker(gates={"a": gate}))
    turn = await old.start("lead", "hi")
    await lab.idle()
    await lab.kill(old)
    new = await lab.runtime(boss, agent("newer", id="worker", version="2"))
    gate.open()
    await lab.clock.advance(60)
    assert statuses(await new.turn(turn.id).view()) == {"a": "RUNNING", "b": "PENDING"}

    await lab.runtime(loader=OneLoader(worker(instructions="Old.")))
    view = await lab.during(new.turn(turn.id).settle())
    assert view.plan is not None
    assert (view.final_output, view.plan.tasks[1].result) == ("done", "b done")
    history = await new.turn(view.plan.tasks[1].child_turn_id or "").history()
    assert history[0].content == "Old."


async def test_delegate_gone_from_a_loader(lab: Lab) -> None:
    """A node whose loader has lost a delegate does not offer it; a plan that names it goes back to the model."""
    gate = Gate()

    async def reply(request: Any) -> Any:
        await gate.passing()
        return plans(task("a"))

    boss = lead(reply, "done")
    first = await lab.runtime(loader=OneLoader(boss, worker()))
    turn = await first.start("lead", "hi")
    await lab.idle()
    await lab.kill(first)
    gate.open()
    second = await lab.runtime(loader=OneLoader(boss))
    await lab.clock.advance(60)
    assert (await lab.during(second.turn(turn.id).settle())).final_output == "done"
    assert "'worker'" in outcome(await second.turn(turn.id).history())["faults"][0]["message"]


# ---------------------------------------------------------------------------------------------- budgets and deadlines


def costs(text: str, used: int = 6):
    return AiMessage(text, usage=Usage(used))


async def test_budget_of_the_tree(lab: Lab) -> None:
    """G130 with a plan: tasks share the root's budget; when it is used up no further task starts, and plan and turn end."""
    item = task("a"), task("b"), task("c")
    first = AiMessage("", (ToolCall("p", "create_task_plan", {"goal": "g", "tasks": list(item)}),), usage=Usage(2))
    policy = ExecutionPolicy(budget=Budget(max_total_tokens=10))
    boss = lead(first, "done", max_parallel=1, policy=policy)
    runtime = await lab.runtime(boss, worker(replies=[costs("done")]))
    turn = await runtime.start("lead", "hi")
    view = await turn.settle()
    assert view.plan is not None

    assert (view.status, view.usage.total_tokens) == (Status.BUDGET_EXCEEDED, 14)
    assert (view.plan.status, statuses(view)) == (PlanStatus.FAILED, {"a": "COMPLETED", "b": "FAILED", "c": "SKIPPED"})
    assert "of the tree" in (view.plan.tasks[1].error or "")


async def test_tasks_are_no_tool_calls(lab: Lab) -> None:
    """Contract 13.4: planning stays outside the budget of tool calls; its tasks' own calls count."""
    policy = ExecutionPolicy(budget=Budget(max_tool_calls=1))
    desk = Desk()
    boss = lead([plans(task("a")), call("refund")], "done", tools=[desk.tool()], policy=policy)
    runtime = await lab.runtime(boss, worker())
    view = await runtime.run("lead", "hi")

    assert (view.final_output, view.tool_call_count) == ("done", 1)


async def test_steps_are_counted(lab: Lab) -> None:
    """Every start of tasks is part of a step; `max_steps` ends the turn and its plan."""
    boss = lead(plans(task("a"), task("b", "a"), task("c", "b")), "done", policy=ExecutionPolicy(max_steps=2))
    runtime = await lab.runtime(boss, worker())
    view = await runtime.run("lead", "hi")

    assert (view.status, statuses(view)) == (
        Status.MAX_STEPS_REACHED,
        {"a": "COMPLETED", "b": "COMPLETED", "c": "SKIPPED"},
    )


async def test_expiry_inside(lab: Lab, desk: Desk) -> None:
    """An approval in a task that nobody gives expires there; the task goes on as its own agent does."""
    gated = desk.tool(approval=ApprovalDecision.require(expires_in=60))
    hand = worker(replies=[call("refund"), "not refunded"], tools=[gated])
    runtime = await lab.runtime(lead(plans(task("a")), "done"), hand)
    turn = await runtime.start("lead", "hi")
    await turn.settle()
    await lab.clock.advance(61)
    view = await turn.settle()
    assert view.plan is not None

    assert (view.final_output, desk.starts, view.plan.tasks[0].result) == ("done", [], "not refunded")


async def test_answers_of_two_tasks(lab: Lab, desk: Desk) -> None:
    """Approvals of parallel tasks are all open at the root, and are answered there in any order, from any node."""
    hand = worker(replies=[call("refund"), "ok"], tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(lead(plans(task("a"), task("b")), "done"), hand)
    api = await lab.runtime(execute=False)
    turn = await runtime.start("lead", "hi")
    first, second = (await turn.settle()).open_waits
    await api.turn(turn.id).submit(ResumeCommand.approve_tool(second, by="ann"))
    await lab.clock.advance(2)

    assert sorted(statuses(await turn.view()).values()) == ["COMPLETED", "WAITING"]
    assert (await lab.during(approved(turn, first))).final_output == "done"
    assert len(desk.starts) == 2


async def test_store_fault_is_no_task_fault(lab: Lab) -> None:
    """W-16: a store that is away while a plan starts its tasks costs the activation, not the turn."""
    first, second = [await lab.runtime(lead(plans(task("a")), "done"), worker()) for _ in range(2)]
    with crash(first, "save", "lost_reply", nth=2) as crashed:
        turn = await first.start("lead", "hi")
        await lab.idle()
    assert crashed.happened
    await lab.clock.advance(60)
    view = await lab.during(second.turn(turn.id).settle())

    assert (view.final_output, statuses(view)) == ("done", {"a": "COMPLETED"})


async def test_model_failure_inside(lab: Lab) -> None:
    """A task whose model fails has failed, whatever `tool_errors` says: the plan's own strategy decides what follows."""
    hand = worker(replies=[ModelRefused("no")])
    runtime = await lab.runtime(lead(plans(task("a")), "done", policy=ExecutionPolicy(tool_errors="fail")), hand)
    view = await runtime.run("lead", "hi")

    assert (view.status, statuses(view)) == (Status.COMPLETED, {"a": "FAILED"})
    assert len(model_of(hand).requests) == 1
