"""Faults that repeat, owners that are lost, and how a turn ends, told to the machine itself."""

from __future__ import annotations

import pytest

from turnhold import (
    ApprovalDecision,
    Budget,
    Effect,
    EventType,
    ExecutionPolicy,
    ResumeCommand,
    RetryPolicy,
    Status,
    SuspensionType,
    ToolCall,
)
from turnhold.actors.machine import messages as m
from turnhold.actors.machine.draft import AskPolicy, Park, Refusal, RunTool, StopModel, StopTool
from turnhold.actors.turn import CallStatus

from .lab import Desk, open_calls, result_of, talk
from .machine import DENIED, REFUND, approve, machine, running

# ----------------------------------------------------------------------------------------------------------- faults


def test_policy_keeps_failing() -> None:
    """R16 (W-11): a policy that raises is asked again after 1, 2, 4 … seconds, and fails the turn at `max_crashes`."""
    turn = machine(Desk().tool(), approval=lambda turn, call, tool: True, policy=ExecutionPolicy(max_crashes=4))
    turn.feed(turn.replied(REFUND))
    delays: list[int] = []

    while not turn.state.status.terminal:
        turn.feed(m.PolicyFailed("c", DENIED))
        if turn.state.waits:
            (wait,) = turn.state.waits
            assert (wait.type, turn.state.status) == (SuspensionType.RETRY, Status.RETRY_SCHEDULED)
            delays.append((wait.expires or 0) - turn.now)
            turn.now = wait.expires or 0
            turn.feed(m.DeadlinePassed())

    assert (delays, turn.state.status) == ([1000, 2000, 4000], Status.FAILED)
    assert turn.state.error is not None
    assert "denied" in turn.state.error.message
    assert (turn.started, open_calls(turn.talk)) == ([], [])


def test_policy_back_off_has_an_end() -> None:
    """DESIGN 5.9: back-off is at most 60 s."""
    turn = machine(Desk().tool(), approval=lambda turn, call, tool: True, policy=ExecutionPolicy(max_crashes=12))
    turn.feed(turn.replied(REFUND))
    delays: list[int] = []
    for _ in range(11):
        turn.feed(m.PolicyFailed("c", DENIED))
        (wait,) = turn.state.waits
        delays.append((wait.expires or 0) - turn.now)
        turn.now = wait.expires or 0
        turn.feed(m.DeadlinePassed())

    assert max(delays) == delays[-1] == 60_000


def test_policy_recovers() -> None:
    """A policy that answers after two failures is believed; its failures are forgotten."""
    turn = machine(Desk().tool(), approval=lambda turn, call, tool: True, policy=ExecutionPolicy(max_crashes=3))
    turn.feed(turn.replied(REFUND))
    for _ in range(2):
        turn.feed(m.PolicyFailed("c", DENIED))
        turn.now += 60_000
        turn.feed(m.DeadlinePassed())

    turn.feed(turn.decided(ApprovalDecision.allow()))

    assert (turn.started, turn.call().policy_failures) == ([("c", 1)], 0)


def test_crashes_of_a_repeatable_call() -> None:
    """DESIGN 5.9: each lost owner costs an attempt; at `max_crashes` the call is in doubt instead of started again."""
    turn = running("repeatable", ExecutionPolicy(max_crashes=3))
    for _ in range(2):
        turn.crash()
        assert turn.statuses == [CallStatus.RUNNING]
    turn.crash()

    assert (turn.state.status, turn.started) == (Status.IN_DOUBT, [("c", 1), ("c", 2), ("c", 3)])
    turn.feed(turn.mail(ResumeCommand.rerun("c")))
    assert turn.started[-1] == ("c", 4)
    turn.crash()
    assert turn.started[-1] == ("c", 5)


def test_failures_do_not_count_as_crashes() -> None:
    """DESIGN 5.9: a result, also a failure, resets the count of crashes; an intent does not."""
    policy = ExecutionPolicy(max_crashes=2, retry_policy=RetryPolicy(max_retries=5, initial_delay=0, jitter=0))
    turn = running("repeatable", policy)
    for _ in range(3):
        turn.crash()
        assert turn.statuses == [CallStatus.RUNNING]
        turn.feed(turn.failed())
        turn.feed(m.DeadlinePassed())

    assert turn.statuses == [CallStatus.RUNNING]


@pytest.mark.parametrize(("crashes", "parked"), [(1, False), (4, False), (5, True), (9, True)])
def test_crashes_of_a_model_request(crashes: int, parked: bool) -> None:
    """DESIGN 5.9: after `max_crashes` owners lost over one model request the turn is parked; before that it is sent again."""
    turn = machine()

    turn.crash(crashes)

    assert any(isinstance(action, Park) for action in turn.draft.actions) == parked
    assert parked or turn.asked_model()


@pytest.mark.parametrize(("crashes", "parked"), [(4, False), (5, True)])
def test_crashes_of_a_model_request_that_was_never_saved(crashes: int, parked: bool) -> None:
    """The first request leaves while its save is under way: a model that kills its owner at once is counted without it."""
    turn = machine()
    turn.state.request = None

    turn.crash(crashes)

    assert any(isinstance(action, Park) for action in turn.draft.actions) == parked
    assert parked or turn.asked_model()


def test_crashes_of_a_call_are_not_those_of_the_next_model_request() -> None:
    """A call that has cost all its owners is resolved by a person: the turn goes on, and asks its model."""
    turn = running("repeatable", ExecutionPolicy(max_crashes=2))
    for crashes in (1, 2):
        turn.crash(crashes)
    assert turn.state.status is Status.IN_DOUBT
    turn.feed(turn.mail(ResumeCommand.fail_call("c")))
    turn.state.request = None

    turn.crash(2)

    assert turn.asked_model()


@pytest.mark.parametrize(("crashes", "parked"), [(4, False), (5, True)])
def test_crashes_of_a_policy(crashes: int, parked: bool) -> None:
    """W-11, DESIGN 5.9: a policy that costs `max_crashes` owners parks the turn, too: it does not spin."""
    turn = machine(Desk().tool(), approval=lambda turn, call, tool: True)
    turn.feed(turn.replied(REFUND))

    turn.crash(crashes)

    assert any(isinstance(action, Park) for action in turn.draft.actions) == parked


@pytest.mark.parametrize("phase", ["model", "policy"])
def test_cancel_and_the_last_crash(phase: str) -> None:
    """DESIGN 5.9: a cancel that is open when the turn would be parked ends it; parked with the flag up nobody would wake it."""
    turn = machine(Desk().tool(), approval=lambda turn, call, tool: True)
    if phase == "policy":
        turn.feed(turn.replied(REFUND))

    turn.activation = "a9"
    turn.asking.clear()
    turn.feed(m.Activated(9), m.CancelRequested("enough"))

    assert turn.state.status is Status.CANCELLED
    assert not any(isinstance(action, Park) for action in turn.draft.actions)
    assert open_calls(turn.history) == []


@pytest.mark.parametrize("together", [True, False])
def test_cancel_of_a_call_in_doubt(together: bool) -> None:
    """DESIGN 5.8: the outcome of a call in doubt stays unknown when the turn is cancelled, and the model reads so."""
    turn = running("once")
    turn.activation = "a9"
    batch = [m.Activated(1), m.CancelRequested("enough")]
    for messages in [batch] if together else [[message] for message in batch]:
        turn.feed(*messages)

    assert turn.state.status is Status.CANCELLED
    assert "outcome_unknown" in result_of(turn.history, "c")


def test_crash_while_ending() -> None:
    """A turn that was ending when its owner died ends at once: what ran there is closed as unknown, nothing starts again."""
    turn = running("repeatable")
    turn.feed(m.CancelRequested("stop"))
    assert turn.state.status is Status.RUNNING

    turn.crash()

    assert (turn.state.status, turn.started) == (Status.CANCELLED, [("c", 1)])
    assert "unknown" in talk(turn.talk)[2]


def test_crash_while_a_policy_is_asked() -> None:
    """A policy that nobody answers for any more is asked again by the next owner."""
    turn = machine(Desk().tool(), approval=lambda turn, call, tool: True)
    turn.feed(turn.replied(REFUND))

    turn.crash()

    assert [action for action in turn.draft.actions if isinstance(action, AskPolicy)] == [AskPolicy("c")]


@pytest.mark.parametrize("effect", ["once", "repeatable"])
def test_handing_off(effect: str) -> None:
    """DESIGN 5.13: at the end of a drain `once` attempts are in doubt, `repeatable` ones pending; nothing starts."""
    turn = running(effect)

    turn.draft = turn.feed(m.HandOff())

    expected = CallStatus.AWAITING if effect == "once" else CallStatus.PENDING
    assert turn.call().status is expected or turn.started[-1] == ("c", 2)


def test_a_thread_that_runs_on() -> None:
    """A call whose thread cannot be stopped is left running at a hand-off: its owner keeps the lease."""
    turn = running("once")

    turn.feed(m.HandOff(frozenset({"c"})))

    assert turn.statuses == [CallStatus.RUNNING]


# ------------------------------------------------------------------------------------------------------- the end


def test_end_of_a_failing_reply() -> None:
    """DESIGN 5.2: a call that fails the turn: no new start, cancellable ones are stopped, waits superseded, FAILED at the end."""
    tools = [
        Desk().tool("a"),
        Desk().tool("b", cancellable=True),
        Desk().tool("c", approval=True),
        Desk().tool("d", sequential=True),
    ]
    turn = machine(*tools)
    turn.feed(turn.replied(*(ToolCall(name, name) for name in "abcd")))
    assert turn.started == [("a", 1), ("b", 1)]

    turn.feed(turn.failed("error", 0))
    assert [action for action in turn.draft.actions if isinstance(action, RunTool | StopTool)] == [StopTool("b")]
    assert (turn.state.status, turn.state.waits) == (Status.RUNNING, ())
    turn.feed(turn.failed("interrupted", 1))

    assert turn.state.status is Status.FAILED
    assert open_calls(turn.talk) == []
    assert [receipt.effect for receipt in turn.receipts] == [Effect.SUPERSEDED]
    assert [kind for kind, *_ in turn.events][-1] is EventType.TURN_FAILED


def test_cancel_overrules_a_failure() -> None:
    """A cancel during the end of a failing turn makes it CANCELLED; the grace is counted from the first end."""
    turn = running(policy=ExecutionPolicy(budget=Budget(max_wall_time=5)))
    turn.now += 5_000
    turn.feed(m.DeadlinePassed())

    turn.now += 9_000
    turn.feed(m.CancelRequested("stop"))
    turn.now += 1_000
    turn.feed(m.DeadlinePassed())

    assert turn.state.status is Status.CANCELLED


def test_nothing_happens_to_an_ended_turn() -> None:
    """DESIGN 8: whatever reaches a turn that has ended, its state stays as it is; commands are told that it is closed."""
    turn = running()
    late = [turn.returned(), turn.failed(), m.DeadlinePassed(), m.HandOff(), m.Fault(DENIED), m.ModelFailed(1, 0, DENIED)]
    turn.feed(m.CancelRequested("stop"))
    turn.now += 10_000
    turn.feed(m.DeadlinePassed())
    assert turn.state.status is Status.CANCELLED
    ended, events = turn.state, len(turn.events)

    turn.now += 10_000
    turn.feed(*late, turn.mail(approve(turn)), m.Activated(3), m.CancelRequested("again"))

    assert isinstance(turn.answers[0], Refusal)
    assert turn.answers[0].error == "TurnClosed"
    assert len(turn.events) == events
    assert (turn.state.status, turn.state.completed_at) == (ended.status, ended.completed_at)
    assert turn.draft.actions == []


def test_question_takes_the_request_back() -> None:
    """A plain question stops the request under way; its answer is in the next one, and the reply that was stopped is not."""
    turn = machine()
    old = turn.replied(text="too late")

    turn.feed(m.Received("m", m.Suspend("which?"), turn.now))
    assert turn.draft.actions == [StopModel()]
    turn.feed(old)
    assert turn.state.status is Status.WAITING_FOR_USER
    turn.feed(turn.mail(ResumeCommand.user_input("this")))

    assert turn.asked_model()
    assert talk(turn.talk) == ["user: hi", "user: this"]
