"""Children and questions that the application asks for, told to the machine itself: repeated, at a bad moment, or too late."""

from __future__ import annotations

import pytest

from turnhold import (
    Agent,
    ApprovalDecision,
    Effect,
    ExecutionPolicy,
    FormDefinition,
    RetryPolicy,
    Status,
    SuspensionType,
    ToolCall,
    Usage,
    UserMessage,
)
from turnhold.actors.ids import child_id
from turnhold.actors.machine import messages as m
from turnhold.actors.machine.draft import Refusal, StopModel
from turnhold.testing import ScriptedModel

from .lab import Desk, talk
from .machine import LOST, REFUND, Machine, machine

WHICH = m.Suspend("which?")


def child(turn: Machine) -> m.StartChild:
    return m.StartChild(child_id(turn.state.turn_id, bytes(10)), "shop", "1", UserMessage("help"))


def open_waits(turn: Machine) -> list[SuspensionType]:
    return [wait.type for wait in turn.state.waits]


@pytest.mark.parametrize("what", ["child", "question"])
def test_a_turn_that_ends_begins_nothing(what: str) -> None:
    """DESIGN 5.8: while a cancelled turn waits for a tool, it starts no child and asks nothing, and says that it is closed."""
    turn = machine(Desk().tool())
    turn.feed(turn.replied(REFUND))
    turn.feed(m.CancelRequested("stop"))
    assert (turn.state.status, turn.state.ending) == (Status.RUNNING, Status.CANCELLED)

    turn.feed(m.Received("m", child(turn) if what == "child" else WHICH, turn.now))

    assert turn.answers == [Refusal("TurnClosed", f"turn {turn.state.turn_id} is CANCELLED", status="CANCELLED")]
    assert (turn.draft.children, turn.state.children, turn.state.waits, turn.state.question) == ((), (), (), None)


def test_a_child_is_started_once() -> None:
    """The same message, in one batch or in two, finds the child that the first one has started."""
    turn = machine()
    order = child(turn)

    turn.feed(m.Received("m", order, turn.now), m.Received("n", order, turn.now))
    assert tuple(one.state.turn_id for one in turn.draft.children) == turn.state.children == (order.child_id,)
    turn.feed(m.Received("o", order, turn.now))

    assert (turn.draft.children, turn.state.children) == ((), (order.child_id,))
    assert open_waits(turn) == [SuspensionType.CHILD_AGENT]


def test_a_question_waits_for_what_is_open() -> None:
    """It is asked when the child that is waited for has ended, and before the model hears of that."""
    turn = machine()
    order = child(turn)
    turn.feed(m.Received("m", order, turn.now))

    turn.feed(m.Received("n", WHICH, turn.now))
    assert open_waits(turn) == [SuspensionType.CHILD_AGENT]
    turn.feed(m.Received("o", m.ChildEnded(order.child_id, "shop", Status.COMPLETED, "helped"), turn.now))

    assert open_waits(turn) == [SuspensionType.USER_INPUT]
    assert not turn.asked_model()
    assert [line.partition(":")[0] for line in talk(turn.talk)] == ["user", "user"]


@pytest.mark.parametrize("what", ["child", "question"])
def test_what_is_asked_takes_the_place_of_a_retry(what: str) -> None:
    """The request that was to be repeated is none any more: what is asked now stands before the next one."""
    turn = machine(policy=ExecutionPolicy(retry_policy=RetryPolicy(max_retries=3, initial_delay=60)))
    turn.feed(m.ModelFailed(1, 0, LOST, retryable=True))
    assert open_waits(turn) == [SuspensionType.RETRY]

    turn.feed(m.Received("m", child(turn) if what == "child" else WHICH, turn.now))

    assert open_waits(turn) == [SuspensionType.CHILD_AGENT if what == "child" else SuspensionType.USER_INPUT]
    assert [receipt.effect for receipt in turn.receipts] == [Effect.SUPERSEDED]
    assert not any(isinstance(action, StopModel) for action in turn.draft.actions)


def test_the_end_of_a_child_is_progress() -> None:
    """DESIGN 5.9: it is the result of an effect, so owners that were lost before it do not count behind it."""
    turn = machine()
    order = child(turn)
    turn.feed(m.Received("m", order, turn.now))
    assert not turn.draft.progress

    turn.feed(m.Received("n", m.ChildEnded(order.child_id, "shop", Status.COMPLETED, "helped"), turn.now))

    assert turn.draft.progress


def test_a_sequential_call_waits_for_an_agents_call() -> None:
    """It runs alone: not beside the child that the call before it has started."""
    helper = Agent("helper", model=ScriptedModel("helped"))
    turn = machine(helper.as_tool(), Desk().tool(sequential=True))
    turn.feed(turn.replied(ToolCall("h", "helper", {"input": "please"}), REFUND))
    (started,) = turn.draft.children
    assert turn.started == []

    turn.feed(m.Received("m", m.ChildEnded(started.state.turn_id, "helper", Status.COMPLETED, "helped"), turn.now))

    assert turn.started == [("c", 1)]


def test_a_request_that_is_stopped_costs_what_was_seen_of_it() -> None:
    """DESIGN 5.8: tokens that the model has reported before a cancel are counted."""
    turn = machine()
    turn.seen = Usage(3, 4)

    turn.feed(m.CancelRequested("stop"))

    assert (turn.state.status, turn.state.usage) == (Status.CANCELLED, Usage(3, 4))


def test_the_status_is_that_of_the_first_wait() -> None:
    """DESIGN 2: in call order, whatever the calls are called and whichever wait was opened first."""
    form = FormDefinition("f", description="a form", schema={"type": "object"})
    turn = machine(Desk().tool(), Desk().tool("other"), approval=lambda turn, call, tool: True)
    turn.feed(turn.replied(ToolCall("z", "refund"), ToolCall("a", "other")))
    turn.feed(turn.decided(ApprovalDecision.allow(), 1))
    turn.feed(m.FormAsked("a", 1, form))
    assert turn.state.status is Status.RUNNING

    turn.feed(turn.decided(ApprovalDecision.require()))

    assert sorted(open_waits(turn)) == [SuspensionType.TOOL_APPROVAL, SuspensionType.USER_INPUT]
    assert turn.state.status is Status.WAITING_FOR_APPROVAL
