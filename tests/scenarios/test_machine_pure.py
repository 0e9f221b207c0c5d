"""Orderings that are hard to time through a runtime, told to the machine itself."""

from __future__ import annotations

from typing import Any

import pytest

from turnhold import (
    AiMessage,
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
    ToolMessage,
    Usage,
)
from turnhold.actors.machine import messages as m
from turnhold.actors.machine.draft import Accepted, AskPolicy, Park, Refusal, RunTool, StopModel, StopTool
from turnhold.actors.turn import CallStatus, Failure

from .lab import Desk, open_calls, talk
from .machine import Machine, machine

GATED = ApprovalDecision.require(expires_in=60)
REFUND = ToolCall("c", "refund")
DENIED = Failure("PermissionError", "denied")


def waiting(decision: ApprovalDecision = GATED, **options: Any) -> Machine:
    """A turn whose one call waits for approval, until 60 s from the start."""
    turn = machine(Desk().tool(approval=decision, **options))
    turn.feed(turn.replied(REFUND))
    assert turn.state.status is Status.WAITING_FOR_APPROVAL
    return turn


def approve(turn: Machine, **options: Any) -> ResumeCommand:
    return ResumeCommand.approve_tool("c", **options)


def running(effect: Any = "repeatable", policy: ExecutionPolicy | None = None, **options: Any) -> Machine:
    """A turn whose one call runs as attempt 1."""
    turn = machine(Desk().tool(effect=effect, **options), policy=policy or ExecutionPolicy())
    turn.feed(turn.replied(REFUND))
    assert turn.statuses == [CallStatus.RUNNING]
    return turn


# ------------------------------------------------------------------------------------------------- time against mail


@pytest.mark.parametrize("read", [0, 1, 3_600_000], ids=lambda late: f"read {late} ms late")
@pytest.mark.parametrize(("at", "wins"), [(59_999, True), (60_000, False), (60_001, False)])
def test_deadline_against_mail(at: int, wins: bool, read: int) -> None:
    """DESIGN 5.7: what counts is when an answer was delivered, not when it is read; at the deadline the wait is over."""
    turn = waiting()
    delivered = turn.now + at
    turn.now = delivered + read

    turn.feed(turn.mail(approve(turn), at=delivered), m.DeadlinePassed())

    (answer,) = turn.answers
    if wins:
        assert isinstance(answer, Accepted)
        assert turn.started == [("c", 1)]
    else:
        assert isinstance(answer, Refusal)
        assert (answer.error, answer.receipt and answer.receipt.effect) == ("AlreadyAnswered", Effect.EXPIRED)
        assert turn.started == []
    assert len(turn.receipts) == 1


def test_two_answers_around_a_deadline() -> None:
    """One answer in time and one too late, read together: the first wins, the second learns of it."""
    turn = waiting()
    early, late = turn.now + 59_000, turn.now + 61_000
    turn.now += 100_000

    turn.feed(turn.mail(approve(turn, by="ann"), at=early), turn.mail(ResumeCommand.reject_tool("c", by="bob"), at=late))

    first, second = turn.answers
    assert isinstance(first, Accepted)
    assert isinstance(second, Refusal)
    assert second.receipt == first.receipt
    assert (first.receipt.by, second.agrees) == ("ann", False)


def test_deadlines_in_their_order() -> None:
    """Several deadlines that are read at once end their waits in the order of their times."""
    tools = [Desk().tool(name, approval=ApprovalDecision.require(expires_in=seconds)) for name, seconds in (("a", 30), ("b", 10))]
    turn = machine(*tools)
    turn.feed(turn.replied(ToolCall("1", "a"), ToolCall("2", "b")))

    turn.now += 100_000
    turn.feed(m.DeadlinePassed())

    assert [receipt.suspension_id.split("/")[1] for receipt in turn.receipts] == ["2", "1"]


def test_retry_that_is_due_against_a_retry_command() -> None:
    """A retry command behind the due time finds the wait ended; one before it needs force."""
    policy = ExecutionPolicy(retry_policy=RetryPolicy(max_retries=1, initial_delay=10, jitter=0))
    turn = running(policy=policy)
    turn.feed(turn.failed())
    assert turn.state.status is Status.RETRY_SCHEDULED

    turn.now += 5_000
    turn.feed(turn.mail(ResumeCommand.retry("c")))
    (early,) = turn.answers
    turn.now += 6_000
    turn.feed(turn.mail(ResumeCommand.retry("c")))
    (late,) = turn.answers

    assert isinstance(early, Refusal)
    assert isinstance(late, Refusal)
    assert (early.error, late.error, turn.started) == ("RetryNotDue", "AlreadyAnswered", [("c", 1), ("c", 2)])


@pytest.mark.parametrize("limit", ["max_duration", "max_wall_time"])
def test_limit_while_a_call_runs(limit: str) -> None:
    """A time limit during a call stops nothing that cannot be stopped: RUNNING until it returns, then BUDGET_EXCEEDED."""
    turn = running(policy=ExecutionPolicy(budget=Budget(**{limit: 5})))

    turn.now += 5_000
    turn.feed(m.DeadlinePassed())
    assert (turn.state.status, turn.state.ending) == (Status.RUNNING, Status.BUDGET_EXCEEDED)
    turn.feed(turn.returned(text="late"))

    assert turn.state.status is Status.BUDGET_EXCEEDED
    assert talk(turn.talk)[2] == "c = late"


# ---------------------------------------------------------------------------------------------------- one batch


def test_cancel_with_a_reply() -> None:
    """R28, H132: a reply that is read with the cancel is kept and counted; none of its calls starts, each has a result."""
    turn = machine(Desk().tool())
    reply = turn.replied(REFUND, ToolCall("d", "refund"))
    used = AiMessage(tool_calls=reply.reply.tool_calls, usage=Usage(3, 4))

    turn.feed(m.ModelReplied(reply.iteration, reply.failures, used), m.CancelRequested("stop"))

    assert (turn.state.status, turn.started, turn.state.usage) == (Status.CANCELLED, [], Usage(3, 4))
    assert open_calls(turn.talk) == []
    assert [message.call_id for message in turn.talk if isinstance(message, ToolMessage)] == ["c", "d"]


def test_cancel_with_the_final_reply() -> None:
    """A final reply that was there before the cancel completes the turn: nothing was left to cancel."""
    turn = machine()

    turn.feed(turn.replied(text="done"), m.CancelRequested("stop"))

    assert (turn.state.status, turn.state.final_output) == (Status.COMPLETED, "done")
    assert [kind for kind, _, _ in turn.events].count(EventType.TURN_COMPLETED) == 1
    assert turn.draft.took_cancel


def test_cancel_with_a_decision() -> None:
    """DESIGN 5.8: an approval that is read with the cancel starts nothing; it is told that its wait was cancelled."""
    turn = waiting()

    turn.feed(m.CancelRequested("stop"), turn.mail(approve(turn)))

    (answer,) = turn.answers
    assert isinstance(answer, Refusal)
    assert (answer.error, answer.receipt and answer.receipt.effect) == ("AlreadyAnswered", Effect.CANCELLED)
    assert (turn.state.status, turn.started) == (Status.CANCELLED, [])


def test_approval_then_cancel() -> None:
    """An approval just before the cancel, in one batch: the receipt stands, the call does not start."""
    turn = waiting()

    turn.feed(turn.mail(approve(turn)), m.CancelRequested("stop"))

    assert isinstance(turn.answers[0], Accepted)
    assert (turn.state.status, turn.started) == (Status.CANCELLED, [])
    assert open_calls(turn.talk) == []


def test_cancel_twice() -> None:
    """The second flag is acknowledged and changes nothing; the first reason stands."""
    turn = running()
    turn.feed(m.CancelRequested("one"))
    events = len(turn.events)

    turn.feed(m.CancelRequested("two"))

    assert (turn.state.cancel_reason, len(turn.events), turn.draft.took_cancel) == ("one", events, True)


@pytest.mark.parametrize("second", ["same command", "agrees", "differs", "same id, other content"])
def test_two_commands_for_one_wait(second: str) -> None:
    """T11, T01: two commands for one wait, read together: one is accepted, the other gets its receipt or a typed refusal."""
    turn = waiting()
    one = approve(turn, command_id="c1", by="ann")
    two = {
        "same command": one,
        "agrees": approve(turn, command_id="c2"),
        "differs": ResumeCommand.reject_tool("c", command_id="c2"),
        "same id, other content": ResumeCommand.reject_tool("c", command_id="c1"),
    }[second]

    turn.feed(turn.mail(one), turn.mail(two))

    first, other = turn.answers
    assert isinstance(first, Accepted)
    assert (turn.started, len(turn.receipts)) == ([("c", 1)], 1)
    if second == "same command":
        assert isinstance(other, Accepted)
        assert other.receipt.replayed
    else:
        assert isinstance(other, Refusal)
        assert other.error == ("CommandIdReused" if "content" in second else "AlreadyAnswered")
        assert other.receipt == first.receipt
        assert other.agrees == (second == "agrees")


def test_refused_command_frees_its_id() -> None:
    """A refused command changes nothing; its id may be used for the right answer in the same batch."""
    turn = waiting()
    before = turn.state

    turn.feed(turn.mail(ResumeCommand.user_input("yes", wait="c", command_id="c1")))
    assert (turn.state, turn.draft.changed) == (before, False)
    turn.feed(turn.mail(ResumeCommand.approve_tool("d", command_id="c1")), turn.mail(approve(turn, command_id="c1")))

    wrong, right = turn.answers
    assert isinstance(wrong, Refusal)
    assert isinstance(right, Accepted)


def test_all_results_at_once() -> None:
    """Results that are read in another order than the reply's enter the history in the reply's order, with one request behind."""
    turn = machine(Desk().tool("a"), Desk().tool("b"))
    turn.feed(turn.replied(ToolCall("1", "a"), ToolCall("2", "b")))

    turn.feed(turn.returned(1, "two"), turn.returned(0, "one"))

    assert talk(turn.talk)[2:] == ["1 = one", "2 = two"]
    assert turn.asked_model()


# ------------------------------------------------------------------------------------------------------ late results


@pytest.mark.parametrize("effect", ["once", "repeatable"])
def test_result_after_a_timeout(effect: str) -> None:
    """DESIGN 5.1: what a timed-out attempt returns later changes nothing: its call has gone on (or waits for a person)."""
    policy = ExecutionPolicy(retry_policy=RetryPolicy(max_retries=1, initial_delay=1, jitter=0))
    turn = running(effect, policy)
    turn.feed(turn.failed("timeout"))
    state = turn.state

    turn.feed(turn.returned(text="late", attempt=1))
    assert (turn.state, turn.draft.changed) == (state, False)
    if effect == "once":
        assert turn.state.status is Status.IN_DOUBT
        return
    turn.now += 1_000
    turn.feed(m.DeadlinePassed())
    turn.feed(turn.returned(text="late", attempt=1))
    assert turn.statuses == [CallStatus.RUNNING]
    turn.feed(turn.returned(text="in time", attempt=2))
    assert talk(turn.talk)[-1] == "c = in time"


def test_result_of_a_lost_owner() -> None:
    """DESIGN 8: a result that belongs to an earlier activation is nobody's: the call is in doubt and stays there."""
    turn = running("once")
    turn.crash()
    assert turn.state.status is Status.IN_DOUBT

    turn.feed(turn.returned(text="late", attempt=1))

    assert (turn.state.status, open_calls(turn.talk)) == (Status.IN_DOUBT, ["c"])


def test_reply_of_an_earlier_attempt() -> None:
    """A reply to a request that has failed since, or that was taken back, is not applied; its tokens are counted."""
    policy = ExecutionPolicy(retry_policy=RetryPolicy(max_retries=2, initial_delay=0, jitter=0))
    turn = machine(policy=policy)
    old = turn.replied(text="old")
    turn.feed(m.ModelFailed(1, 0, DENIED, retryable=True))
    turn.feed(m.DeadlinePassed())

    turn.feed(m.ModelReplied(old.iteration, old.failures, AiMessage("old", usage=Usage(5, 5))))
    assert (turn.state.status, turn.state.usage) == (Status.RUNNING, Usage(5, 5))
    turn.feed(turn.replied(text="new"))

    assert turn.state.final_output == "new"


def test_decision_of_a_policy_twice() -> None:
    """A second answer of a policy about a call comes too late: the first one stands."""
    turn = machine(Desk().tool(), approval=lambda turn, call, tool: True)
    turn.feed(turn.replied(REFUND))
    assert any(isinstance(action, AskPolicy) for action in turn.draft.actions)
    turn.feed(turn.decided(ApprovalDecision.require()))

    turn.feed(turn.decided(ApprovalDecision.allow()))

    assert (turn.statuses, turn.started) == ([CallStatus.AWAITING], [])


# -------------------------------------------------------------------------------------------------------- call ids


@pytest.mark.parametrize(
    "ids",
    [
        ["x", "x"],
        ["x", "x", "x"],
        ["", ""],
        ["call_1_1", "", "call_1_0"],
        ["a/b", "a/b"],
        ["ü", "ü"],
        [" ", "x" * 129],
        ["call_1_0"] * 3,
    ],
    ids=str,
)
def test_ids_of_one_reply(ids: list[str]) -> None:
    """R06, T15: whatever ids a reply has, the stored calls have different ones that can be named; history and records agree."""
    turn = machine(Desk().tool(approval=True))
    turn.feed(turn.replied(*(ToolCall(name, "refund", {"amount": index}) for index, name in enumerate(ids))))

    names = [call.id for call in turn.state.calls]
    (reply,) = [message for message in turn.talk if isinstance(message, AiMessage)]

    assert len(set(names)) == len(ids)
    assert [call.id for call in reply.tool_calls] == names
    assert all(name.isprintable() and name.isascii() and "/" not in name and 0 < len(name) <= 128 for name in names)
    for index, name in enumerate(names):
        turn.feed(turn.mail(ResumeCommand.approve_tool(name)))
        assert turn.started[-1] == (name, 1)
        assert turn.call(index).arguments == {"amount": index}


def test_ids_over_replies() -> None:
    """R05: an id is used once in a turn, over as many replies as there are; approvals never carry over."""
    turn = machine(Desk().tool(approval=True))
    seen: set[str] = set()
    for _ in range(30):
        turn.feed(turn.replied(ToolCall("call_0", "refund"), ToolCall("call_0", "refund")))
        names = [call.id for call in turn.state.calls]
        assert not seen & set(names)
        assert turn.state.status is Status.WAITING_FOR_APPROVAL
        seen |= set(names)
        for name in names:
            turn.feed(turn.mail(ResumeCommand.reject_tool(name)))

    assert (len(seen), turn.started) == (60, [])


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
def test_crashes_of_a_policy(crashes: int, parked: bool) -> None:
    """W-11, DESIGN 5.9: a policy that costs `max_crashes` owners parks the turn, too: it does not spin."""
    turn = machine(Desk().tool(), approval=lambda turn, call, tool: True)
    turn.feed(turn.replied(REFUND))

    turn.crash(crashes)

    assert any(isinstance(action, Park) for action in turn.draft.actions) == parked


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
    assert (turn.state.status, turn.state.waits) == (Status.RUNNING, [])
    turn.feed(turn.failed("interrupted", 1))

    assert turn.state.status is Status.FAILED
    assert open_calls(turn.talk) == []
    assert [receipt.effect for receipt in turn.receipts] == [Effect.SUPERSEDED]
    assert [kind for kind, _, _ in turn.events][-1] is EventType.TURN_FAILED


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
