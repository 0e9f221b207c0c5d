"""The pure machine: attempts that never began, and starts that the store has forgotten."""

from __future__ import annotations

import pytest

from turnhold import Effect, ResumeCommand, Status, SuspensionType, ToolCall
from turnhold.actors.machine import messages as m
from turnhold.actors.machine.rewound import unknown_to
from turnhold.actors.turn import CallStatus

from .lab import Desk
from .machine import REFUND, Machine, approve, machine, running, waiting


def told(turn: Machine, attempt: int = 1, call: str = "c", effect: str = "once") -> m.Received:
    return m.Received("r1", m.Rewound((m.Start(call, attempt, effect),)), turn.now)  # type: ignore[arg-type]


def test_an_approval_was_forgotten() -> None:
    """A call that ran and waits for approval again is in doubt; the old wait is superseded; a rerun has a new number."""
    turn = waiting()
    turn.feed(told(turn))
    assert [wait.type for wait in turn.state.waits] == [SuspensionType.IN_DOUBT]
    assert turn.state.status is Status.IN_DOUBT
    assert [receipt.effect for receipt in turn.receipts] == [Effect.SUPERSEDED]
    turn.feed(turn.mail(ResumeCommand.rerun("c")))
    assert turn.started == [("c", 2)]


def test_an_approval_in_the_same_batch() -> None:
    """Somebody approves again, and the owner of before tells of its start in time: nothing starts."""
    turn = waiting()
    turn.feed(turn.mail(approve(turn)), told(turn))
    assert turn.started == []
    assert turn.state.status is Status.IN_DOUBT


def test_a_start_that_is_known() -> None:
    """What the state knows is left alone: a running attempt, a finished call, a person's doubt."""
    turn = running("once")
    turn.feed(told(turn))
    assert turn.statuses == [CallStatus.RUNNING]
    turn.crash()
    turn.feed(told(turn))
    assert len(turn.state.waits) == 1
    turn.feed(turn.mail(ResumeCommand.give_result("c", "ok")))
    assert turn.asked_model()
    assert unknown_to(turn.state, [m.Start("c", 1, "once")]) == ([], [])
    assert unknown_to(turn.state, [m.Start("other", 1, "once")])[1] == [m.Start("other", 1, "once")]


def test_a_rerun_was_forgotten() -> None:
    """A call in doubt whose rerun was forgotten stays with the same question, and its next attempt has a new number."""
    turn = running("once")
    turn.crash()
    asked = [wait.id for wait in turn.state.waits]
    turn.feed(told(turn, attempt=3))
    assert [wait.id for wait in turn.state.waits] == asked
    assert len(asked) == 1
    turn.feed(turn.mail(ResumeCommand.rerun("c")))
    assert turn.started == [("c", 1), ("c", 4)]


def test_a_repeatable_call_goes_on() -> None:
    """No doubt for what may be repeated, but its number is used up."""
    turn = waiting(effect="repeatable")
    turn.feed(told(turn, effect="repeatable"), turn.mail(approve(turn)))
    assert turn.started == [("c", 2)]


def test_told_behind_the_end() -> None:
    """A turn that ends says of a call that ran that its outcome is unknown."""
    turn = waiting()
    turn.feed(m.CancelRequested("enough"), told(turn))
    assert turn.state.status is Status.CANCELLED
    assert "outcome_unknown" in turn.talk[-2].content


@pytest.mark.parametrize("effect", ["once", "repeatable"])
def test_an_attempt_that_never_began(effect: str) -> None:
    """It waits as RETRY, longer each time and at most a minute, and then starts under the next number."""
    turn = running(effect)
    pauses: list[int] = []
    for attempt in range(1, 10):
        turn.feed(m.NotStarted("c", attempt, "no replica"))
        (wait,) = turn.state.waits
        assert wait.type is SuspensionType.RETRY
        assert not turn.draft.progress
        pauses.append((wait.expires or 0) - turn.now)
        turn.now = wait.expires or 0
        turn.feed(m.DeadlinePassed())
    assert pauses == [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000, 60_000]
    assert turn.started == [("c", attempt) for attempt in range(1, 11)]
    assert turn.state.tool_call_count == 1


def test_never_began_and_cancelled() -> None:
    """A cancel that came meanwhile closes the call as one that was not started."""
    turn = running("once")
    turn.feed(m.CancelRequested("enough"), m.NotStarted("c", 1, "no replica"))
    assert turn.state.status is Status.CANCELLED
    assert "not started" in turn.talk[-2].content


def test_a_stranger_never_began() -> None:
    """A late word about an attempt of before changes nothing."""
    turn = machine()
    turn.feed(turn.replied(REFUND))
    turn.feed(m.NotStarted("c", 1, "no replica"))
    assert not turn.state.waits


def test_an_ended_turn_owes_nothing() -> None:
    """Its calls are in no record any more; who lost it has nothing to tell."""
    turn = waiting()
    turn.feed(m.CancelRequested("stop"))
    assert turn.state.status is Status.CANCELLED

    assert unknown_to(turn.state, [m.Start("c", 1, "once"), m.Start("other", 1, "once")]) == ([], [])


def test_a_call_that_has_been_decided_otherwise() -> None:
    """A call that has its result meanwhile, here by a rejection, keeps it: there is nothing left to ask about."""
    turn = machine(Desk().tool(approval=True))
    turn.feed(turn.replied(REFUND, ToolCall("d", "refund")))
    turn.feed(turn.mail(ResumeCommand.reject_tool("c")))

    turn.feed(told(turn))

    assert turn.statuses == [CallStatus.REJECTED, CallStatus.AWAITING]
    assert [wait.correlation for wait in turn.state.waits] == ["d"]


def test_a_forgotten_start_counts_once() -> None:
    """Against the limit of tool calls, as if it had not been forgotten; its rerun does not count again."""
    turn = waiting()
    assert turn.state.tool_call_count == 0
    turn.feed(told(turn))
    assert turn.state.tool_call_count == 1

    turn.feed(turn.mail(ResumeCommand.rerun("c")))

    assert (turn.started, turn.state.tool_call_count) == ([("c", 2)], 1)
