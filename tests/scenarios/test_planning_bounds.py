"""Plans against their bounds: what a model may be told of a bad plan, how much a plan may hold, and what is said behind it."""

from __future__ import annotations

from typing import Any

import pytest

from turnhold import ModelRefused, PlanStatus, ResumeCommand, Status
from turnhold.testing import call

from .lab import Desk, Gate, Lab, agent, open_calls, result_of, talk
from .planners import lead, outcome, plans, revises, statuses, task, worker

BARE = {"title": "x", "description": "y"}


@pytest.mark.parametrize(
    "tasks",
    [
        [{"id": f"t{n}", **BARE, "assignedAgentId": "stranger"} for n in range(700)],
        [{"id": "a", **BARE, "dependsOn": [f"z{n}" for n in range(7000)]}],
        [{"id": "x" * 25_000, **BARE}] * 2 + [{"id": "", "title": "", "description": ""}] * 30,
        [{"id": "a", **BARE, "x" * 60_000: 1}],
        [{"id": f"{n}" + "c" * 100, **BARE, "dependsOn": [f"{(n + 1) % 100}" + "c" * 100]} for n in range(100)],
    ],
    ids=["strangers", "dependencies", "ids", "field", "circle"],
)
async def test_faults_are_bounded(lab: Lab, tasks: Any) -> None:
    """DESIGN 5.10: however much is wrong with a plan, the model is told 20 faults at most, each short; the turn goes on."""
    others = [agent("hm", id=f"{n}-" + "w" * 100) for n in range(40)]
    boss = lead(plans(*tasks), "done", max_tasks=100, allowed_agent_ids=tuple(each.id for each in others))
    runtime = await lab.runtime(boss, *others)
    turn = await runtime.start("lead", "hi")
    view = await turn.settle()
    said = outcome(await turn.history())

    assert (view.final_output, view.plan, said["type"]) == ("done", None, "invalid_plan")
    assert 1 <= len(said["faults"]) <= 20
    assert max(len(fault["message"]) for fault in said["faults"]) <= 300


async def test_second_plan_is_told_in_short(lab: Lab) -> None:
    """Each of many plans that come too late is refused in a few words, whatever the first one's goal."""
    late = [plans(task("b"))] * 100
    runtime = await lab.runtime(lead([plans(task("a"), goal="g" * 60_000), *late], "done"), worker())
    turn = await runtime.start("lead", "hi")

    assert (await turn.settle()).final_output == "done"
    assert len(result_of(await turn.history(), "call_1_100")) < 500


async def test_changes_count(lab: Lab) -> None:
    """What a model writes into a plan is bounded over all its changes, so that the snapshot is."""
    large = "d" * 30_000
    boss = lead(
        plans(task("a", description=large)),
        revises(task("b", description=large)),
        revises(task("c", description=large)),
        revises(task("c")),
        "done",
        failure_strategy="continue",
        max_replans=5,
        task_append_allowed=True,
    )

    def broken(request: Any) -> Any:
        raise ModelRefused("broke")

    runtime = await lab.runtime(boss, worker(replies=[broken]))
    turn = await runtime.start("lead", "hi")
    view = await turn.settle()
    told = outcome(await turn.history(), "call_3_0")

    assert (view.final_output, list(statuses(view))) == ("done", ["a", "b", "c"])
    (fault,) = told["faults"]
    assert fault["path"] == "$"
    assert fault["message"].endswith("the limit is 65536")


@pytest.mark.parametrize("limit", [4096, 6000, 9000])
async def test_outcome_over_the_limit(lab: Lab, limit: int) -> None:
    """DESIGN 8: where no save has room for what tasks came to the turn fails, is not parked, and frees its conversation."""
    boss = lead(plans(task("a"), task("b"), task("c", "a", "b")), "done")
    runtime = await lab.runtime(boss, worker(replies=[lambda request: "r" * 3000]), max_snapshot=limit)
    turn = await runtime.start("lead", "hi", conversation="c-1")
    view = await turn.settle()
    assert view.plan is not None
    assert view.error is not None

    assert (view.status, view.error.type, view.quarantine) == (Status.FAILED, "SnapshotTooLarge", None)
    assert (view.plan.status, view.plan.completed) == (PlanStatus.FAILED, 3 if limit == 9000 else 2)
    assert {each.result for each in view.plan.tasks} == {None}
    assert open_calls(await turn.history()) == []
    child = await runtime.turn(view.plan.tasks[0].child_turn_id or "").view()
    assert child.final_output == "r" * 3000
    assert await runtime.conversation("c-1").open_turn() is None


async def test_cancel_over_the_limit(lab: Lab, desk: Desk) -> None:
    """A cancel that waits for a tool ends the turn, though there is no room for what the plan beside it came to."""
    # as JSON the result is six times as long as in the snapshot
    gates = {"b": Gate()}
    slow = desk.tool(gate=Gate(), cancellable=False)
    boss = lead([plans(task("a"), task("b")), call("refund")], "done", tools=[slow])
    runtime = await lab.runtime(boss, worker(gates=gates, says={"a": "\1" * 800}), max_snapshot=4096)
    turn = await runtime.start("lead", "hi", conversation="c-1")
    await lab.idle()
    assert statuses(await turn.view()) == {"a": "COMPLETED", "b": "RUNNING"}
    view = await lab.during(turn.cancel("enough"))

    assert (view.status, view.quarantine, statuses(view)) == (Status.CANCELLED, None, {"a": "COMPLETED", "b": "CANCELLED"})
    assert open_calls(await turn.history()) == []


async def test_answered_behind_the_plan(lab: Lab) -> None:
    """Without a summary, too, the model is asked where a person has answered a question since the last task ended."""
    gate = Gate()
    boss = lead(plans(task("a")), "as you like", final_summary_required=False)
    runtime = await lab.runtime(boss, worker(gates={"a": gate}))
    turn = await runtime.start("lead", "hi")
    await lab.idle()
    await turn.suspend("Is this still of use?")
    gate.open()
    assert (await turn.settle()).status is Status.WAITING_FOR_USER
    view = await turn.resume(ResumeCommand.user_input("no, stop it"))

    assert view.final_output == "as you like"
    assert talk(await turn.history())[-2:] == ["user: no, stop it", "assistant: as you like"]


@pytest.mark.parametrize("first", ["child", "task"])
async def test_child_beside_the_plan(lab: Lab, first: str) -> None:
    """Without a summary, too, the model is asked what to make of a child that the application has started beside the plan."""
    gates = {"task": Gate(), "child": Gate()}

    async def other(request: Any) -> str:
        await gates["child"].passing()
        return "news"

    boss = lead(plans(task("a")), "with the news", final_summary_required=False)
    runtime = await lab.runtime(boss, worker(gates={"a": gates["task"]}), agent(other, id="other"))
    turn = await runtime.start("lead", "hi")
    await lab.idle()
    await turn.start_child("other", "look")
    for name in (first, *(gates.keys() - {first})):
        gates[name].open()
        await lab.idle()

    assert (await turn.settle()).final_output == "with the news"
    assert "news" in talk(await turn.history())[-2]
