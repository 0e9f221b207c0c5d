"""What runs when in a plan: dependencies, how many at once, failures, and changes of what is left."""

from __future__ import annotations

from typing import Any

import pytest

from turnhold import EventType, ExecutionPolicy, ModelRefused, PlanStatus, Status
from turnhold.testing import call

from .lab import Desk, Gate, Lab, model_of, stored_events, talk, told
from .planners import lead, offered, outcome, plans, revises, statuses, task, worker

CONTINUE: dict[str, Any] = {"failure_strategy": "continue"}
REVISE: dict[str, Any] = {**CONTINUE, "max_replans": 1, "task_revision_allowed": True}
APPEND: dict[str, Any] = {**CONTINUE, "max_replans": 1, "task_append_allowed": True}


async def planned(lab: Lab, boss, hand=None):
    runtime = await lab.runtime(boss, hand or worker())
    turn = await runtime.start("lead", "hi")
    return turn, await turn.settle()


# -------------------------------------------------------------------------------------------------------------- order


async def test_several_at_once(lab: Lab) -> None:
    """W-48: independent tasks run at once, as many as the policy allows; the next one starts when one of them has ended."""
    gates = {f"t{n}": Gate() for n in range(4)}
    seen: list[str] = []
    boss = lead(plans(*[task(name) for name in gates]), "done", max_parallel=2)
    runtime = await lab.runtime(boss, worker(gates=gates, seen=seen))
    turn = await runtime.start("lead", "hi")
    await lab.idle()
    assert (sorted(seen), statuses(await turn.view())) == (
        ["t0", "t1"],
        {"t0": "RUNNING", "t1": "RUNNING", "t2": "READY", "t3": "READY"},
    )

    gates["t1"].open()
    await lab.idle()
    assert seen[2:] == ["t2"]
    for gate in gates.values():
        gate.open()
    view = await turn.settle()
    assert (view.final_output, set(statuses(view).values())) == ("done", {"COMPLETED"})


async def test_dependencies(lab: Lab) -> None:
    """W-48: a task starts when all it depends on has completed, and not before; the order of the list does not matter."""
    gates = {name: Gate() for name in "abc"}
    seen: list[str] = []
    boss = lead(plans(task("d", "c", "a"), task("c", "a", "b"), task("a"), task("b")), "done", max_parallel=9)
    runtime = await lab.runtime(boss, worker(gates=gates, seen=seen))
    turn = await runtime.start("lead", "hi")
    await lab.idle()
    assert sorted(seen) == ["a", "b"]
    assert statuses(await turn.view()) == {"d": "PENDING", "c": "PENDING", "a": "RUNNING", "b": "RUNNING"}

    gates["a"].open()
    await lab.idle()
    assert len(seen) == 2
    gates["b"].open()
    await lab.idle()
    assert seen[2:] == ["c"]
    gates["c"].open()
    assert (await turn.settle()).final_output == "done"
    assert seen[3:] == ["d"]


# ----------------------------------------------------------------------------------------------------------- failures


async def test_stop(lab: Lab) -> None:
    """Contract 8.6: under `stop` nothing starts behind a failure, what runs may finish, the rest is skipped; the turn goes on."""
    gate = Gate()
    boss = lead(plans(task("a"), task("b"), task("c"), task("d", "b")), "done", max_parallel=2)
    runtime = await lab.runtime(boss, worker(gates={"b": gate}, failing=["a"]))
    turn = await runtime.start("lead", "hi")
    await lab.idle()

    assert statuses(await turn.view()) == {"a": "FAILED", "b": "RUNNING", "c": "SKIPPED", "d": "SKIPPED"}
    gate.open()
    view = await turn.settle()
    assert view.plan is not None
    assert (view.final_output, view.plan.status, view.plan.completed, view.plan.failed) == ("done", PlanStatus.COMPLETED, 1, 1)
    assert [each.get("error") for each in outcome(await turn.history())["tasks"]] == ["a broke", None, None, None]
    assert offered(model_of(boss).requests[-1]) == []


async def test_continue(lab: Lab) -> None:
    """L229: under `continue` a failed task does not hold up the others; those that depend on it are skipped."""
    boss = lead(plans(task("a"), task("b"), task("c", "a"), task("d", "c"), task("e", "b")), "done", **CONTINUE)
    _, view = await planned(lab, boss, worker(failing=["a"]))

    assert view.final_output == "done"
    assert statuses(view) == {"a": "FAILED", "b": "COMPLETED", "c": "SKIPPED", "d": "SKIPPED", "e": "COMPLETED"}


async def test_cancelled_task(lab: Lab) -> None:
    """A task whose child is cancelled alone is CANCELLED, and counts as one that did not complete."""
    gate = Gate()
    runtime = await lab.runtime(lead(plans(task("a"), task("b", "a")), "done"), worker(gates={"a": gate}))
    turn = await runtime.start("lead", "hi")
    await lab.idle()
    (child,) = await turn.children()
    await child.cancel("not needed")
    view = await turn.settle()
    assert view.plan is not None

    assert (view.final_output, statuses(view)) == ("done", {"a": "CANCELLED", "b": "SKIPPED"})
    assert view.plan.tasks[0].error == "not needed"


# --------------------------------------------------------------------------------------------------------------- changes


async def test_revise(lab: Lab) -> None:
    """L238, L239: behind a failure the model is offered a change, revises what is left, and the revised task completes."""
    boss = lead(plans(task("a"), task("b", "a")), revises(task("b", title="Do c", dependsOn=[])), "done", **REVISE)
    turn, view = await planned(lab, boss, worker(failing=["a"]))
    plan = view.plan
    assert plan is not None

    assert [offered(request) for request in model_of(boss).requests] == [["create_task_plan"], ["update_task_plan"], []]
    assert (view.final_output, plan.revision_count, plan.revision_reason) == ("done", 1, "it failed")
    assert [(each.id, each.title, each.status.value, each.result) for each in plan.tasks] == [
        ("a", "Do a", "FAILED", None),
        ("b", "Do c", "COMPLETED", "c done"),
    ]
    first, second = outcome(await turn.history()), outcome(await turn.history(), "call_2_0")
    assert (first["status"], second["status"]) == ("REPLANNING", "FINALIZING")
    assert "Not started: b." in first["message"]
    (event,) = [event for event in await stored_events(turn) if event.type is EventType.PLAN_UPDATED]
    assert told(event) == {"planId": plan.id, "goal": plan.goal, "taskCount": 2, "revisionCount": 1, "reason": "it failed"}


async def test_replans_are_counted(lab: Lab) -> None:
    """L240: when the one change is used and the revised task fails, too, no other is possible; the turn completes."""
    boss = lead(plans(task("a"), task("b")), revises(task("b")), "done", max_parallel=1, **REVISE)
    _, view = await planned(lab, boss, worker(failing=["a", "b"]))
    assert view.plan is not None

    assert (view.status, view.plan.revision_count, statuses(view)) == (Status.COMPLETED, 1, {"a": "FAILED", "b": "FAILED"})
    assert len(model_of(boss).requests) == 3
    assert offered(model_of(boss).requests[-1]) == []


@pytest.mark.parametrize(
    ("options", "change", "fault"),
    [
        (REVISE, [task("b"), task("n")], "adding tasks is not allowed"),
        (APPEND, [task("b", title="Other"), task("n")], "changing tasks is not allowed"),
        (APPEND, [task("n")], "task 'b' must be kept"),
        (APPEND, [task("b"), task("a")], "another task"),
        (APPEND, [task("b"), *[task(f"n{n}") for n in range(9)]], "at most 10"),
        (APPEND, [task("b"), task("n", "a")], "'a' did not complete"),
        (REVISE, [task("b", "a")], "'a' did not complete"),
        (REVISE, [], "at least one"),
        (REVISE, [task("b", agent="stranger")], "'stranger'"),
    ],
)
async def test_bad_change(lab: Lab, options: Any, change: Any, fault: str) -> None:
    """L241: a change that is not allowed goes back to the model, which may make another; the plan is as it was."""
    boss = lead(plans(task("a"), task("b")), revises(*change), revises(task("b")), "done", max_parallel=1, **options)
    turn, view = await planned(lab, boss, worker(failing=["a"]))
    told = outcome(await turn.history(), "call_2_0")

    assert told["type"] == "invalid_plan"
    assert any(fault in each["message"] for each in told["faults"]), told
    assert (view.final_output, statuses(view)) == ("done", {"a": "FAILED", "b": "COMPLETED"})


async def test_blank_reason(lab: Lab) -> None:
    """A change needs a reason."""
    boss = lead(plans(task("a"), task("b")), revises(task("b"), reason=" "), "done", max_parallel=1, **REVISE)
    turn, view = await planned(lab, boss, worker(failing=["a"]))

    assert outcome(await turn.history(), "call_2_0")["faults"] == [{"path": "$.reason", "message": "must not be blank"}]
    assert statuses(view) == {"a": "FAILED", "b": "SKIPPED"}


async def test_append(lab: Lab) -> None:
    """L242: with append allowed the model keeps what is left and adds to it; what it leaves out of a kept task stays as it was."""
    kept = {"id": "b", "title": "Do b", "description": "The work of b."}
    boss = lead(plans(task("a"), task("b", expectedOutput="x")), revises(kept, task("c", "b")), "done", max_parallel=1, **APPEND)
    _, view = await planned(lab, boss, worker(failing=["a"]))
    assert view.plan is not None

    assert list(statuses(view).items()) == [("a", "FAILED"), ("b", "COMPLETED"), ("c", "COMPLETED")]
    assert (view.plan.tasks[1].expected_output, view.plan.tasks[1].agent_id) == ("x", "worker")


async def test_last_task_fails(lab: Lab) -> None:
    """R26 (W-48): a last task that fails can be replaced where append is allowed."""
    boss = lead(plans(task("a")), revises(task("b")), "done", **APPEND)
    _, view = await planned(lab, boss, worker(failing=["a"]))

    assert statuses(view) == {"a": "FAILED", "b": "COMPLETED"}


async def test_no_room_to_append(lab: Lab) -> None:
    """Where a plan is full, and nothing is left to revise, there is no change to offer."""
    boss = lead(plans(task("a")), "done", max_tasks=1, **APPEND)
    _, view = await planned(lab, boss, worker(failing=["a"]))

    assert (view.final_output, len(model_of(boss).requests)) == ("done", 2)
    assert offered(model_of(boss).requests[-1]) == []


async def test_kept_orphan(lab: Lab) -> None:
    """A task that must be kept as it is, and depends on one that failed, is skipped; the call ends though nothing has started."""
    boss = lead(plans(task("a"), task("b", "a")), revises(task("b", "a")), "done", **APPEND)
    turn, view = await planned(lab, boss, worker(failing=["a"]))

    assert (view.final_output, statuses(view)) == ("done", {"a": "FAILED", "b": "SKIPPED"})
    assert outcome(await turn.history(), "call_2_0")["status"] == "FINALIZING"


async def test_ended_at_once(lab: Lab, desk: Desk) -> None:
    """With `sequential` what stands behind a call that ends without having started anything is started, too."""
    calls = [revises(task("b", "a")), call("refund")]
    policy = ExecutionPolicy(sequential=True)
    boss = lead(plans(task("a"), task("b", "a")), calls, "done", tools=[desk.tool()], policy=policy, **APPEND)
    _, view = await planned(lab, boss, worker(failing=["a"]))

    assert (view.final_output, desk.starts) == ("done", ["refund"])


async def test_running_ones_finish_first(lab: Lab) -> None:
    """Behind a failure that can be mended nothing new starts; the model is asked when what runs has finished."""
    gate = Gate()
    boss = lead(plans(task("a"), task("b"), task("c")), "no more", max_parallel=2, **REVISE)
    runtime = await lab.runtime(boss, worker(gates={"b": gate}, failing=["a"]))
    turn = await runtime.start("lead", "hi")
    await lab.idle()
    view = await turn.view()
    assert view.plan is not None

    assert (view.plan.status, statuses(view)) == (PlanStatus.REPLANNING, {"a": "FAILED", "b": "RUNNING", "c": "PENDING"})
    assert len(model_of(boss).requests) == 1
    gate.open()
    assert statuses(await turn.settle()) == {"a": "FAILED", "b": "COMPLETED", "c": "SKIPPED"}


async def test_answer_instead_of_a_change(lab: Lab) -> None:
    """L243: where a change is possible and the model answers, what is left is skipped and the plan is over."""
    boss = lead(plans(task("a"), task("b")), "enough", max_parallel=1, **REVISE)
    turn, view = await planned(lab, boss, worker(failing=["a"]))
    assert view.plan is not None

    assert (view.final_output, view.plan.status, statuses(view)) == (
        "enough",
        PlanStatus.COMPLETED,
        {"a": "FAILED", "b": "SKIPPED"},
    )
    assert talk(await turn.history())[-1] == "assistant: enough"


async def test_other_work_before_a_change(lab: Lab, desk: Desk) -> None:
    """Between failure and change the model may use other tools; the plan waits."""
    boss = lead(
        plans(task("a"), task("b")), call("refund"), revises(task("b")), "done", tools=[desk.tool()], max_parallel=1, **REVISE
    )
    _, view = await planned(lab, boss, worker(failing=["a"]))

    assert (desk.starts, statuses(view)) == (["refund"], {"a": "FAILED", "b": "COMPLETED"})


# ----------------------------------------------------------------------------------------------------- how plans end


async def test_turn_fails(lab: Lab) -> None:
    """W-48: when the turn fails behind its plan, the plan has failed, too, and says why."""
    boss = lead(plans(task("a")), ModelRefused("no summary"))
    _, view = await planned(lab, boss)
    assert view.plan is not None

    assert (view.status, view.plan.status, view.plan.error) == (Status.FAILED, PlanStatus.FAILED, "no summary")
    assert statuses(view) == {"a": "COMPLETED"}


async def test_turn_fails_in_the_middle(lab: Lab, desk: Desk) -> None:
    """W-48: a tool beside the plan fails the turn: what runs is cancelled, what has not started is skipped, the history says so."""
    gate, worse = Gate(), Gate()
    broken = desk.tool(gate=worse, errors=[RuntimeError("tool broke")])
    boss = lead([plans(task("a"), task("b"), task("c", "b")), call("refund")], tools=[broken])
    runtime = await lab.runtime(boss, worker(gates={"b": gate}))
    turn = await runtime.start("lead", "hi")
    await lab.idle()
    worse.open()
    view = await turn.settle()
    assert view.plan is not None

    assert (view.status, view.plan.status) == (Status.FAILED, PlanStatus.FAILED)
    assert statuses(view) == {"a": "COMPLETED", "b": "CANCELLED", "c": "SKIPPED"}
    told = outcome(await turn.history())
    assert (told["status"], [each["status"] for each in told["tasks"]]) == ("FAILED", ["COMPLETED", "CANCELLED", "SKIPPED"])
    assert "tool broke" in told["message"]
    assert {(await child.view()).status for child in await turn.children()} == {Status.COMPLETED, Status.CANCELLED}
    kinds = [event.type for event in await stored_events(turn)]
    assert kinds.count(EventType.TASK_STARTED) == kinds.count(EventType.TASK_COMPLETED) + kinds.count(EventType.TASK_FAILED)
