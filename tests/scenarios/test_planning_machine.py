"""Plans told to the machine itself: random plans with random ends, and what is hard to time through a runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from turnhold import Budget, ExecutionPolicy, PlanningPolicy, PlanStatus, Status, TaskStatus, ToolCall
from turnhold.actors.machine import messages as m
from turnhold.actors.machine import plans as plan_texts
from turnhold.actors.machine.draft import Context, Draft
from turnhold.actors.machine.handle import handle
from turnhold.actors.turn import Failure
from turnhold.runtime import persist
from turnhold.store import base

from .lab import open_calls, talk
from .machine import Machine, machine
from .planners import outcome, task

ENDS = (Status.COMPLETED, Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.BUDGET_EXCEEDED)


def planner(*items: dict[str, Any], execution: ExecutionPolicy | None = None, **options: Any) -> Machine:
    """A turn whose model has just written a plan."""
    turn = machine(planning=PlanningPolicy(**options), policy=execution or ExecutionPolicy())
    turn.feed(turn.replied(ToolCall("p", "create_task_plan", {"goal": "g", "tasks": list(items)})))
    return turn


def mine(name: str, *after: str) -> dict[str, Any]:
    return task(name, *after, agent=None)


def child_of(turn: Machine, name: str) -> str:
    plan = turn.state.plan
    assert plan is not None
    found = plan.task(name)
    assert found is not None
    assert found.child is not None
    return found.child


def ended(turn: Machine, name: str, status: Status = Status.COMPLETED) -> m.Received:
    """The mail of a child that has ended."""
    child = child_of(turn, name)
    error = Failure("ModelError", "broke") if status is Status.FAILED else None
    output = f"{name} done" if status is Status.COMPLETED else None
    return m.Received(f"{child}/end", m.ChildEnded(child, "shop", status, output, error), turn.now)


# --------------------------------------------------------------------------------------------------------- random plans


@st.composite
def graphs(draw: Callable[..., Any]) -> list[dict[str, Any]]:
    """Up to seven tasks in any order; each may depend on those that come before it in another."""
    order = draw(st.permutations(range(draw(st.integers(1, 7)))))
    items = [mine(f"t{n}", *(f"t{k}" for k in order[:at] if draw(st.booleans()))) for at, n in enumerate(order)]
    return draw(st.permutations(items))


class Judge:
    """Watches a plan: what may start, how much at once, and everything once."""

    def __init__(self, turn: Machine, most: int) -> None:
        self.turn = turn
        self.most = most
        self.children: set[str] = set()
        self.look(turn.draft)

    def look(self, draft: Draft) -> None:
        plan = draft.state.plan
        assert plan is not None
        done = {each.id for each in plan.having(TaskStatus.COMPLETED)}
        running = plan.having(TaskStatus.RUNNING)
        assert len(running) <= self.most
        assert all(done.issuperset(each.depends_on) for each in (*running, *plan.having(TaskStatus.COMPLETED)))
        for child in draft.children:
            assert child.state.turn_id not in self.children
            self.children.add(child.state.turn_id)
        assert {each.child for each in plan.tasks if each.child} == self.children
        waits = {str((wait.metadata or {})["childTurnId"]) for wait in draft.state.waits}
        assert waits == {each.child for each in running} == set(draft.state.children)
        if not draft.context.execute:
            assert not draft.children
        elif plan.status is PlanStatus.RUNNING:
            assert running
            assert not plan.startable()
        elif not running:
            assert draft.state.request is not None


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_random_plans(data: st.DataObject) -> None:
    """A task starts when what it depends on has completed, never too many at once, each once; in the end no task is left open."""
    pick = data.draw
    most = pick(st.integers(1, 4))
    options: dict[str, Any] = {"max_parallel": most, "failure_strategy": pick(st.sampled_from(["stop", "continue"]))}
    options |= {"task_revision_allowed": pick(st.booleans()), "task_append_allowed": pick(st.booleans())}
    if options["task_revision_allowed"] or options["task_append_allowed"]:
        options["max_replans"] = pick(st.integers(0, 2))
    turn = planner(*pick(graphs()), **options)
    judge = Judge(turn, most)
    for number in range(60):
        plan = turn.state.plan
        assert plan is not None
        running = plan.having(TaskStatus.RUNNING)
        if not running:
            if not (plan.status is PlanStatus.REPLANNING and pick(st.booleans())):
                break
            kept = [mine(each.id, *each.depends_on) for each in plan.having(TaskStatus.PENDING)]
            news = [mine(f"n{number}", *(each.id for each in plan.having(TaskStatus.COMPLETED)))]
            change: Any = [*kept, *(news if plan.policy.task_append_allowed or not kept else [])]
            turn.feed(turn.replied(ToolCall(f"u{number}", "update_task_plan", {"reason": "r", "tasks": change})))
        else:
            several = pick(st.lists(st.sampled_from([each.id for each in running]), min_size=1, max_size=3))
            letters = [ended(turn, name, pick(st.sampled_from(ENDS))) for name in several]
            if pick(st.booleans()):
                judge.look(turn.crash())
            elif pick(st.booleans()):  # a node that runs nothing reads the mail
                turn.take(handle(turn.state, letters, Context(turn.now, "api", execute=False)))
                judge.look(turn.draft)
                judge.look(turn.crash())
            turn.feed(*letters)
        judge.look(turn.draft)
    turn.feed(turn.replied(text="done"))
    plan = turn.state.plan
    assert plan is not None

    assert (turn.state.status, plan.status) == (Status.COMPLETED, PlanStatus.COMPLETED)
    assert {each.status for each in plan.tasks} <= {TaskStatus(name) for name in ("COMPLETED", "FAILED", "CANCELLED", "SKIPPED")}
    assert open_calls(turn.talk) == []


# ------------------------------------------------------------------------------------------------------------- by hand


def test_ends_of_two_in_one_batch() -> None:
    """Two tasks that end together, one of them twice: each is taken in once, and the call gets one result."""
    turn = planner(mine("a"), mine("b"))
    turn.feed(ended(turn, "a"), ended(turn, "b"), ended(turn, "a", Status.FAILED))

    assert [each["result"] for each in outcome(turn.talk, "p")["tasks"]] == ["a done", "b done"]
    assert turn.asked_model()
    assert len(turn.receipts) == 2


def test_an_api_node_starts_nothing() -> None:
    """Where effects may not be started an end is taken in, and the turn is handed off as there is a task to start."""
    turn = planner(mine("a"), mine("b", "a"))
    draft = handle(turn.state, [ended(turn, "a")], Context(turn.now, "api", execute=False))
    assert draft.state.plan is not None

    assert [each.status.value for each in draft.state.plan.tasks] == ["COMPLETED", "PENDING"]
    assert (draft.children, persist.release_of(draft)[0], draft.state.status) == ((), base.Mode.HAND_OFF, Status.RUNNING)
    turn.take(draft)
    turn.crash(0)
    assert len(turn.draft.children) == 1


def test_an_api_node_gives_the_result() -> None:
    """The last end gives the call its result, on whatever node; the request is an executor's, and so is an answer without one."""
    for summary in (True, False):
        turn = planner(mine("a"), final_summary_required=summary)
        draft = handle(turn.state, [ended(turn, "a")], Context(turn.now, "api", execute=False))
        assert (len(draft.messages), persist.release_of(draft)[0]) == (1, base.Mode.HAND_OFF)
        turn.take(draft)
        turn.crash(0)
        assert (turn.state.status, turn.asked_model()) == ((Status.RUNNING, True) if summary else (Status.COMPLETED, False))


def test_unknown_usage_comes_first() -> None:
    """Where the tree's usage matters and a new activation does not know it, a save comes before the next task."""
    turn = planner(mine("a"), mine("b"), mine("c", "a"), execution=ExecutionPolicy(budget=Budget(max_total_tokens=100)))
    turn.crash(0)
    turn.feed(ended(turn, "a"))
    assert (turn.draft.asks_tree, turn.draft.children, persist.release_of(turn.draft)[0]) == (True, (), base.Mode.KEEP)

    known = msgspec.structs.replace(turn.context(), others=(1, 1, 2, 0))
    turn.take(handle(turn.state, [m.TreeKnown()], known))
    assert len(turn.draft.children) == 1


def test_cancel_with_an_end() -> None:
    """A cancel and a child's end in one batch, in either order: the task says how its child ended, the plan is cancelled."""
    for first in (True, False):
        turn = planner(mine("a"), mine("b", "a"))
        batch = [ended(turn, "a"), m.CancelRequested("enough")]
        turn.feed(*(batch if first else batch[::-1]))
        plan = turn.state.plan
        assert plan is not None
        assert (turn.state.status, plan.status) == (Status.CANCELLED, PlanStatus.CANCELLED)
        assert [each.status.value for each in plan.tasks] == ["COMPLETED", "CANCELLED"]
        assert turn.draft.children == ()
        assert open_calls(turn.talk) == []


def test_late_end() -> None:
    """The end of a child whose task is over, or of a child that is none of the plan's, changes nothing."""
    turn = planner(mine("a"), mine("b", "a"))
    letter = ended(turn, "a")
    turn.feed(letter)
    before = msgspec.msgpack.encode(turn.state)
    turn.feed(letter, m.Received("x", m.ChildEnded("nobody", "shop", Status.COMPLETED, "?"), turn.now))

    assert msgspec.msgpack.encode(turn.state) == before


def test_plan_beside_a_failed_turn() -> None:
    """A plan that was accepted and never begun, as a limit ended the turn, is over, too."""
    turn = planner(mine("a"), execution=ExecutionPolicy(budget=Budget(max_total_tokens=0, max_wall_time=5)))
    turn.now += 6_000
    turn.feed(m.DeadlinePassed())
    plan = turn.state.plan
    assert plan is not None

    assert (turn.state.status, plan.status) == (Status.BUDGET_EXCEEDED, PlanStatus.FAILED)
    assert outcome(turn.talk, "p")["tasks"][0]["status"] == "CANCELLED"
    assert talk(turn.talk)[-1].startswith("assistant: This turn was not finished")


def test_texts_of_a_change() -> None:
    """What may be changed is said in words: what has not started, whether it must be kept, how many may be there."""
    turn = planner(mine("a"), mine("b", "a"), failure_strategy="continue", max_replans=1, task_append_allowed=True, max_tasks=3)
    plan = turn.state.plan
    assert plan is not None

    assert plan_texts.changes_allowed(plan) == (
        "Not started: b. They must be kept as they are. New ones may be added. At most 2 in all."
    )
