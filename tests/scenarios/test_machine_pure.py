"""Orderings that are hard to time through a runtime, told to the machine itself."""

from __future__ import annotations

from typing import Any

import msgspec
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
    ToolCall,
    ToolMessage,
    Usage,
)
from turnhold.actors.machine import limits
from turnhold.actors.machine import messages as m
from turnhold.actors.machine.draft import Accepted, AskPolicy, Context, Draft, Refusal
from turnhold.actors.machine.handle import handle
from turnhold.actors.turn import CallStatus, TurnState

from .lab import Desk, open_calls, talk
from .machine import DENIED, REFUND, approve, machine, running, waiting


def test_a_draft_leaves_its_state_alone() -> None:
    """A draft that is thrown away, as its save was refused, leaves the state as it was."""
    state = TurnState("t", "a", "1", status=Status.WAITING_FOR_CHILD, arrived=("x",), questions=("y",), children=("z",))
    before = msgspec.msgpack.encode(state)

    draft = handle(state, [m.CancelRequested("enough"), m.DeadlinePassed()], Context(now=1, activation="a"))

    assert (draft.state.status, draft.state.children, draft.state.questions) == (Status.CANCELLED, (), ())
    assert msgspec.msgpack.encode(state) == before


def test_a_state_holds_no_lists_that_could_be_changed() -> None:
    """What a state is made of is replaced and never changed, so a draft may share it."""
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(TurnState("t", "a", "1", children=("z",))), type=TurnState)

    kinds = {type(getattr(state, name)) for name in ("calls", "waits", "children", "arrived", "questions", "active_tools")}

    assert kinds == {tuple}


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
    assert [kind for kind, *_ in turn.events].count(EventType.TURN_COMPLETED) == 1
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


@pytest.mark.parametrize("change", [{"arguments": {"amount": 999}}, {"name": "other"}], ids=str)
def test_approval_of_another_call(change: dict[str, Any]) -> None:
    """T35, T34: an approval is bound to name and arguments: a stored call that differs from what was shown does not run."""
    turn = waiting()
    turn.state.calls = (msgspec.structs.replace(turn.call(), **change), *turn.state.calls[1:])

    turn.feed(turn.mail(approve(turn)))

    assert isinstance(turn.answers[0], Accepted)
    assert turn.started == []
    assert "approval_mismatch" in talk(turn.talk)[2]
    assert turn.asked_model()


def test_the_given_state_is_not_changed() -> None:
    """T69, T68: a transition works on a copy: the state it was given, which may be on its way into the store, stays as it was."""
    turn = waiting()
    kept = msgspec.msgpack.encode(turn.state)
    given = turn.state

    turn.feed(turn.mail(approve(turn)), m.CancelRequested("stop"))

    assert msgspec.msgpack.encode(given) == kept
    assert turn.state.status is Status.CANCELLED


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


# ------------------------------------------------------------------------------------------- a tree that has wanted too much


def again(way: str) -> Draft:
    """Return the draft that starts a repeatable call the second time."""
    turn = running(
        effect="repeatable", policy=ExecutionPolicy(budget=Budget(max_tool_calls=2), retry_policy=RetryPolicy(max_retries=1))
    )
    if way == "first":
        return turn.draft
    if way == "lost":
        return turn.crash()
    if way == "handed on":
        return turn.feed(m.HandOff(frozenset()))  # and taken up again
    turn.feed(turn.failed())
    turn.now += 3_600_000
    return turn.feed(m.DeadlinePassed())


@pytest.mark.parametrize(("way", "refused"), [("first", True), ("lost", True), ("handed on", False), ("tried again", False)])
def test_a_call_that_had_room_may_be_started_again(way: str, refused: bool) -> None:
    """Others have wanted more than the tree has; only of a call that a lost owner had is it not known whether there was room."""
    draft = again(way)

    assert [type(action).__name__ for action in draft.actions] == ["RunTool"]
    assert bool(limits.unaffordable(draft, (0, 0, 0, 3))) is refused
    assert not limits.unaffordable(draft, (0, 0, 0, 2))


def test_what_is_reported_with_a_hand_off_is_known() -> None:
    """The node drains, and the call has just ended: its result counts, in whichever order the two have come."""
    turn = running(effect="once")

    turn.feed(m.HandOff(frozenset()), turn.returned())

    assert not turn.state.waits
    assert [entry.content for entry in turn.history if isinstance(entry, ToolMessage)] == ["ok"]
