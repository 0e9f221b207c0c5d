"""Plans: a model splits its work into tasks, agents carry them out as child turns, the call of the plan gets what they came to."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from turnhold import (
    Agent,
    AgentNotFound,
    EventType,
    ExecutionPolicy,
    InvalidDefinition,
    ModelOptions,
    PlanningPolicy,
    PlanStatus,
    ResumeCommand,
    RetryPolicy,
    Status,
    TurnView,
    UserMessage,
    tool,
)
from turnhold.actors.turn import TurnState
from turnhold.testing import ScriptedModel, call

from .lab import Desk, Gate, Lab, agent, approved, model_of, result_of, stored_events, talk, told
from .planners import lead, offered, outcome, plans, statuses, task, worker
from .test_child_nodes import OneLoader

# ------------------------------------------------------------------------------------------------------------ the result


async def test_model_need_not_plan(lab: Lab) -> None:
    """B49, L219: with planning enabled a greeting is answered directly: one request, which offers the tool, and no plan."""
    boss = lead("hello")
    runtime = await lab.runtime(boss, worker())
    view = await runtime.run("lead", "hi")

    assert (view.status, view.final_output, view.plan) == (Status.COMPLETED, "hello", None)
    assert [offered(request) for request in model_of(boss).requests] == [["create_task_plan"]]


async def test_two_tasks(lab: Lab) -> None:
    """L220, L221: both tasks complete as children; the summary sees their results in the one result of the call, typed and tied."""
    boss = lead(plans(task("a"), task("b"), goal="ship it"), "all shipped")
    runtime = await lab.runtime(boss, worker())
    turn = await runtime.start("lead", "hi")
    view = await turn.settle()
    plan = view.plan
    assert plan is not None

    assert (view.final_output, plan.goal, plan.status) == ("all shipped", "ship it", PlanStatus.COMPLETED)
    assert (plan.completed, plan.failed, plan.total, plan.revision_count) == (2, 0, 2, 0)
    children = {child.id for child in await turn.children()}
    assert {each.child_turn_id for each in plan.tasks} == children
    assert [each.result for each in plan.tasks] == ["a done", "b done"]
    told = outcome(await turn.history())
    assert (told["accepted"], told["planId"], told["status"]) == (True, plan.id, "FINALIZING")
    assert [(each["id"], each["status"], each["agentId"], each["result"]) for each in told["tasks"]] == [
        ("a", "COMPLETED", "worker", "a done"),
        ("b", "COMPLETED", "worker", "b done"),
    ]
    assert {each["childTurnId"] for each in told["tasks"]} == children
    assert [type(message).__name__ for message in await turn.history()] == ["UserMessage", "AiMessage", "ToolMessage", "AiMessage"]
    assert model_of(boss).requests[-1].tools == ()


async def test_view_is_the_same_everywhere(lab: Lab) -> None:
    """I166, L221: plan and tasks survive the snapshot: another node, JSON, and the stored bytes give the same."""
    boss = lead(plans(task("a", expectedOutput="a word"), task("b", "a")), "done")
    runtime = await lab.runtime(boss, worker())
    turn = await runtime.start("lead", "hi")
    plan = (await turn.settle()).plan
    other = await lab.runtime(execute=False)
    view = await other.turn(turn.id).view()

    assert view.plan == plan is not None
    assert TurnView.from_dict(view.to_dict()).plan == plan
    state = TurnState(turn.id, "lead", "1")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=TurnState).plan is None


async def test_task_waits_for_approval(lab: Lab, desk: Desk) -> None:
    """L222, L223, L224: while a task waits for a person so do plan and root; an approval at the root lets all of them complete."""
    hand = worker(replies=[call("refund"), "refunded"], tools=[desk.tool(approval=True)])
    boss = lead(lambda request: "hello again" if len(request.messages) > 1 else plans(task("a")), "done")
    runtime = await lab.runtime(boss, hand)
    turn = await runtime.start("lead", "hi", conversation="c-1")
    view = await turn.settle()
    (wait,) = view.open_waits
    assert view.plan is not None

    assert (view.status, view.plan.status, statuses(view)) == (Status.WAITING_FOR_CHILD, PlanStatus.WAITING, {"a": "WAITING"})
    assert (wait.turn_id, wait.ancestors) == (view.plan.tasks[0].child_turn_id, (turn.id,))
    assert (await runtime.turn(wait.turn_id).view()).status is Status.WAITING_FOR_APPROVAL
    assert desk.starts == []
    assert view.suspension is not None
    assert view.suspension.metadata["taskId"] == "a"
    view = await approved(turn, wait, by="ann")
    assert (view.final_output, desk.starts, statuses(view)) == ("done", ["refund"], {"a": "COMPLETED"})
    again = await runtime.run("lead", "more", history=await turn.history(), conversation="c-1")
    assert (again.final_output, again.plan) == ("hello again", None)


async def test_submit_at_the_root(lab: Lab, desk: Desk) -> None:
    """L225: an approval submitted at the root is taken by the child, which runs; the receipt names it."""
    gate = Gate()
    hand = worker(replies=[call("refund"), "refunded"], tools=[desk.tool(approval=True, gate=gate)])
    runtime = await lab.runtime(lead(plans(task("a")), "done"), hand)
    turn = await runtime.start("lead", "hi")
    (wait,) = (await turn.settle()).open_waits

    receipt = await turn.submit(ResumeCommand.approve_tool(wait))
    await lab.idle()
    below = await runtime.turn(receipt.turn_id).view()
    assert (receipt.turn_id, below.status) == (wait.turn_id, Status.RUNNING)
    assert statuses(await turn.view()) == {"a": "RUNNING"}
    gate.open()
    assert (await turn.settle()).final_output == "done"


async def test_specialist(lab: Lab) -> None:
    """L226: a task goes to the agent that it names, else to the planning agent itself."""

    def reply(request: Any) -> Any:
        return "by myself" if offered(request) == [] else plans(task("a"), task("b", agent=None))

    boss = lead(reply, "done")
    runtime = await lab.runtime(boss, worker())
    turn = await runtime.start("lead", "hi")
    view = await turn.settle()
    assert view.plan is not None

    assert [(each.agent_id, each.result) for each in view.plan.tasks] == [("worker", "a done"), ("lead", "by myself")]


async def test_events(lab: Lab) -> None:
    """L230: the plan, and each task's start and end, are events, before the call's result and in order."""
    runtime = await lab.runtime(lead(plans(task("a"), task("b", "a")), "done"), worker(failing=["b"]))
    turn = await runtime.start("lead", "hi")
    plan = (await turn.settle()).plan
    assert plan is not None
    events = [event for event in await stored_events(turn) if event.type.value.startswith(("PLAN", "TASK", "CHILD"))]

    assert [event.type for event in events] == [
        EventType.PLAN_CREATED,
        EventType.TASK_STARTED,
        EventType.CHILD_STARTED,
        EventType.TASK_COMPLETED,
        EventType.TASK_STARTED,
        EventType.CHILD_STARTED,
        EventType.TASK_FAILED,
    ]
    child = plan.tasks[0].child_turn_id
    assert told(events[0]) == {"planId": plan.id, "goal": "all of it", "taskCount": 2}
    assert told(events[1]) == {"taskId": "a", "title": "Do a", "childTurnId": child, "childAgentId": "worker"}
    assert told(events[2]) == {"childTurnId": child, "childAgentId": "worker", "toolCallId": "call_1_0", "taskId": "a"}
    assert told(events[3]) == {"taskId": "a", "childTurnId": child, "taskStatus": "COMPLETED", "result": "a done"}
    assert (events[6].data["taskStatus"], events[6].data["error"]) == ("FAILED", "b broke")


async def test_next_turn(lab: Lab) -> None:
    """L231: a turn that goes on from the history of a planned one has no plan of its own."""
    runtime = await lab.runtime(lead(lambda request: "hello" if len(request.messages) > 1 else plans(task("a")), "done"), worker())
    turn = await runtime.start("lead", "hi")
    assert (await turn.settle()).plan is not None
    view = await runtime.run("lead", "more", history=await turn.history())

    assert (view.status, view.final_output, view.plan) == (Status.COMPLETED, "hello", None)


async def test_retried_inside(lab: Lab, desk: Desk) -> None:
    """L232, L233: a task's child retries by its own rules; at depth 1 its model is not offered the tool."""
    hand = worker(
        replies=[call("refund"), "refunded"],
        tools=[desk.tool(errors=[ConnectionError("once")])],
        policy=ExecutionPolicy(retry_policy=RetryPolicy(max_retries=1)),
        planning=PlanningPolicy(),
    )
    runtime = await lab.runtime(lead(plans(task("a")), "done"), hand)
    turn = await runtime.start("lead", "hi")
    view = await lab.during(turn.settle(through_retries=True))

    assert (view.final_output, desk.attempts, statuses(view)) == ("done", [1, 2], {"a": "COMPLETED"})
    assert offered(model_of(hand).requests[0]) == ["refund"]


# ------------------------------------------------------------------------------------------------- what the model is told


async def test_what_is_offered(lab: Lab) -> None:
    """L234, L235, L237: the tool tells instructions, delegates and their descriptions, and lists the own id first."""
    boss = lead("hello", planning_instructions="Never more than two.", max_tasks=7)
    hand = worker(description="Does what it is told.", attributes={"secret": "s-1"}, instructions="hush")
    runtime = await lab.runtime(boss, hand)
    await runtime.run("lead", "hi")
    (definition,) = model_of(boss).requests[0].tools
    parameters: Any = definition.parameters
    item = parameters["properties"]["tasks"]

    assert "Never more than two." in definition.description
    assert "- worker / worker: Does what it is told." in definition.description
    assert "at most 7 tasks" in definition.description
    assert "s-1" not in str(definition)
    assert "hush" not in str(definition)
    assert item["items"]["properties"]["assignedAgentId"]["enum"] == ["lead", "worker"]
    assert item["maxItems"] == 7
    assert (hand.attributes["secret"], boss.planning and boss.planning.allowed_agent_ids) == ("s-1", ("worker",))


async def test_what_a_task_is_told(lab: Lab) -> None:
    """L236: a task's child reads goal, title, description, expected output, and the results of those it depends on, no others."""
    boss = lead(plans(task("a"), task("x"), task("b", "a", expectedOutput="one word"), goal="ship it"), "done")
    hand = worker(instructions="You work.")
    runtime = await lab.runtime(boss, hand)
    turn = await runtime.start("lead", "hi")
    view = await turn.settle()
    assert view.plan is not None
    last = view.plan.tasks[2]
    system, told, said = await runtime.turn(last.child_turn_id or "").history()

    assert (system.content, said.content, last.expected_output) == ("You work.", "b done", "one word")
    assert isinstance(told, UserMessage)
    for text in ("ship it", "Do b", "The work of b.", "one word", "Do a", "a done", "only this task"):
        assert text in told.content, text
    assert "x done" not in told.content
    assert "hi" not in told.content.split()


async def test_must_plan(lab: Lab) -> None:
    """A choice of the planning tool holds while that is offered: for the first request, not for the summary, nor for tasks."""

    def reply(request: Any) -> Any:
        return plans(task("a", agent=None)) if offered(request) else "alone"

    boss = lead(reply, "done").replace(options=ModelOptions(tool_choice="create_task_plan"))
    runtime = await lab.runtime(boss, worker())
    assert (await runtime.run("lead", "hi")).final_output == "done"
    assert [request.options.tool_choice for request in model_of(boss).requests] == ["create_task_plan", None, None]


@pytest.mark.parametrize(
    ("tasks", "fault"),
    [
        ([task("a", agent="stranger")], "'stranger'"),
        ([task(f"t{n}") for n in range(11)], "at most 10"),
        ([], "at least one"),
        ([task("a"), task("a")], "another task"),
        ([task("a", "zz")], "no task 'zz'"),
        ([task("a", "a")], "depends on itself"),
        ([task("a", "b"), task("b", "c"), task("c", "b")], "wait for each other: a, b, c"),
        ([{"id": "a", "title": "t"}], "description"),
        ([task("a", title=" ")], "must not be blank"),
        ([task("a", colour="red")], "colour"),
        ([{**task("a"), "id": 7}], "Expected `str`"),
        ([task("a" * 129)], "128 bytes"),
        ([task("a", description="long" * 20_000)], "65536"),
    ],
)
async def test_bad_plan(lab: Lab, tasks: Any, fault: str) -> None:
    """L227, L228, DESIGN 5.10: a wrong plan goes back to the model with all that is wrong; nothing starts, and it may try again."""
    boss = lead(plans(*tasks), plans(task("a")), "done")
    runtime = await lab.runtime(boss, worker())
    turn = await runtime.start("lead", "hi")
    view = await turn.settle()
    told = outcome(await turn.history())

    assert (told["error"], told["type"]) == (True, "invalid_plan")
    assert any(fault in f"{each['path']} {each['message']}" for each in told["faults"]), told
    assert (view.final_output, statuses(view)) == ("done", {"a": "COMPLETED"})
    assert len(await turn.children()) == 1


async def test_wrong_calls(lab: Lab) -> None:
    """W-25: a second plan, a change that is not due, and what is no object are answered; the turn goes on."""
    boss = lead([plans(task("a")), plans(task("b")), call("update_task_plan", reason="x", tasks=[task("c")])], "done")
    runtime = await lab.runtime(boss, worker())
    turn = await runtime.start("lead", "hi")
    view = await turn.settle()
    history = await turn.history()

    assert (view.final_output, statuses(view)) == ("done", {"a": "COMPLETED"})
    assert [outcome(history, f"call_1_{n}").get("type") for n in range(3)] == [None, "plan_exists", "not_replanning"]


async def test_without_planning(lab: Lab) -> None:
    """W-27: an agent that does not plan has no such tool; the names are refused for tools of one's own."""
    shop = agent(plans(task("a")), "done")
    runtime = await lab.runtime(shop)
    turn = await runtime.start("shop", "hi")

    assert (await turn.settle()).final_output == "done"
    assert outcome(await turn.history())["type"] == "unknown_tool"

    def update_task_plan() -> str:
        """Not ours."""
        return ""

    for wrong in (
        lambda: Agent("shop", model=ScriptedModel(), tools=[update_task_plan]),
        lambda: tool(update_task_plan, name="request_user_input"),
    ):
        with pytest.raises(InvalidDefinition, match="control tool"):
            wrong()


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tasks": 0},
        {"max_tasks": 101},
        {"max_depth": 0},
        {"max_replans": -1},
        {"max_replans": 1},
        {"max_parallel": 0},
        {"task_result_max_length": 0},
        {"failure_strategy": "panic"},
        {"final_summary_required": "perhaps"},
        {"planning_instructions": 7},
        {"allowed_agent_ids": "worker"},
        {"allowed_agent_ids": ("",)},
        {"allowed_agent_ids": 7},
    ],
    ids=str,
)
def test_wrong_policy(wrong: dict[str, Any]) -> None:
    """Contract 1.6: a policy that makes no sense is a wrong definition."""
    with pytest.raises(InvalidDefinition):
        PlanningPolicy(**wrong)
    with pytest.raises(InvalidDefinition):
        PlanningPolicy.from_dict(wrong)


def test_policy_values() -> None:
    """A policy has a JSON form; ids are kept in order, each once; an agent takes nothing else."""
    ids: Any = ["b", "a", "b"]
    policy = PlanningPolicy(allowed_agent_ids=ids, max_replans=2, task_append_allowed=True)

    assert policy.allowed_agent_ids == ("b", "a")
    assert PlanningPolicy.from_dict(policy.to_dict()) == policy
    assert agent(planning=policy).replace(version="2").planning == policy
    with pytest.raises(InvalidDefinition, match="planning"):
        agent(planning=True)


async def test_unknown_delegate(lab: Lab) -> None:
    """A delegate that nobody knows is refused before anything is stored: when a Runtime is built, or (by a loader) at the start."""
    with pytest.raises(InvalidDefinition, match="'worker'"):
        await lab.runtime(lead("hello"))
    runtime = await lab.runtime(loader=OneLoader(lead("hello")))
    with pytest.raises(AgentNotFound, match="worker"):
        await runtime.start("lead", "hi")
    assert (await runtime.turns()).items == ()


# ---------------------------------------------------------------------------------------------------- results, summary


async def test_cut_result(lab: Lab) -> None:
    """L244, L245: with a limit of 10 the plan and the model see the first ten characters and that it was cut; the child has all."""
    whole = "0123456789" * 3 + "abcdef"
    boss = lead(plans(task("a"), task("b", "a")), "done", task_result_max_length=10)
    runtime = await lab.runtime(boss, worker(says={"a": whole}))
    turn = await runtime.start("lead", "hi")
    view = await turn.settle()
    assert view.plan is not None
    first, second = view.plan.tasks

    assert first.result == "0123456789 [cut: 10 of 36 characters]"
    assert whole not in str(model_of(boss).requests[-1].messages)
    assert "[cut: 10 of 36 characters]" in str(model_of(boss).requests[-1].messages)
    assert (await runtime.turn(first.child_turn_id or "").view()).final_output == whole
    assert whole not in str(await runtime.turn(second.child_turn_id or "").history())


async def test_long_results(lab: Lab) -> None:
    """A snapshot stays bounded: without a limit a result has its share of 128 KiB, however many bytes a character has."""
    boss = lead(plans(*[task(f"t{n}") for n in range(10)]), "done")
    runtime = await lab.runtime(boss, worker(says={f"t{n}": "ü" * 100_000 for n in range(10)}))
    view = await runtime.run("lead", "hi")
    assert view.plan is not None

    assert view.final_output == "done"
    assert {each.result for each in view.plan.tasks} == {"ü" * 6553 + " [cut: 6553 of 100000 characters]"}


async def test_no_summary(lab: Lab) -> None:
    """L246: without a summary the last result that is not empty is the answer, in the history, and the model is asked only once."""
    boss = lead(plans(task("a"), task("b")), final_summary_required=False)
    runtime = await lab.runtime(boss, worker(says={"b": ""}))
    turn = await runtime.start("lead", "hi")
    view = await turn.settle()

    assert (view.status, view.final_output) == (Status.COMPLETED, "a done")
    assert view.plan is not None
    assert view.plan.status is PlanStatus.COMPLETED
    assert talk(await turn.history())[-1] == "assistant: a done"
    assert len(model_of(boss).requests) == 1


async def test_no_summary_after_a_failure(lab: Lab) -> None:
    """R26 (W-48): also where `stop` has ended the plan; with no result at all a fixed text says so."""
    boss = lead(plans(task("a"), task("b", "a"), task("c", "b")), final_summary_required=False)
    runtime = await lab.runtime(boss, worker(failing=["b"]))
    view = await runtime.run("lead", "hi")
    assert (view.final_output, statuses(view)) == ("a done", {"a": "COMPLETED", "b": "FAILED", "c": "SKIPPED"})
    assert len(model_of(boss).requests) == 1

    other = await lab.runtime(boss, worker(failing=["a"]), store="memory://")
    view = await other.run("lead", "hi")
    assert (view.status, view.final_output) == (Status.COMPLETED, "The plan has ended without a result.")


async def test_no_summary_waits_for_the_rest(lab: Lab, desk: Desk) -> None:
    """The answer waits until every other call of the reply has its result."""
    gate = Gate()
    boss = lead([plans(task("a")), call("refund")], tools=[desk.tool(gate=gate)], final_summary_required=False)
    runtime = await lab.runtime(boss, worker())
    turn = await runtime.start("lead", "hi")
    await lab.idle()

    assert statuses(await turn.view()) == {"a": "COMPLETED"}
    assert not (await turn.view()).status.terminal
    gate.open()
    assert (await turn.settle()).final_output == "a done"
    assert result_of(await turn.history(), "call_1_1") == "refunded"


async def test_no_summary_typed(lab: Lab) -> None:
    """An answer without summary is checked like every final reply: where it does not fit the type the model is asked."""
    options: dict[str, Any] = {"planning": PlanningPolicy(final_summary_required=False, allowed_agent_ids=("worker",))}
    boss = agent(plans(task("a")), "two", '{"count": 2}', id="lead", output_type=dict[str, int], **options)
    fitting = worker(says={"a": '{"count": 1}'})
    runtime = await lab.runtime(boss, fitting)
    view = await runtime.run(boss, "hi")
    assert (view.final_output, len(model_of(boss).requests)) == ({"count": 1}, 1)

    other = await lab.runtime(boss, worker(), store="memory://")
    view = await other.run(boss, "hi")
    assert (view.final_output, len(model_of(boss).requests)) == ({"count": 2}, 1 + 3)
