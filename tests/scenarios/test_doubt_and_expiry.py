"""Calls in doubt, crashes that repeat, and waits that end by themselves (DESIGN 5.5, 5.7, 5.9)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from turnhold import (
    AlreadyAnswered,
    ApprovalDecision,
    Budget,
    Effect,
    EventType,
    ExecutionPolicy,
    ResumeCommand,
    RetryPolicy,
    Status,
    SuspensionType,
)
from turnhold.actors.machine.messages import Resume
from turnhold.store import base, codec
from turnhold.testing import call

from .lab import Desk, Gate, Lab, agent, approved, model_of, open_calls, result_of, stored_events, waiting


def retries(count: int, delay: float = 1, **more: Any) -> ExecutionPolicy:
    return ExecutionPolicy(retry_policy=RetryPolicy(max_retries=count, initial_delay=delay, jitter=0), **more)


async def in_doubt(lab: Lab, desk: Desk, *replies: Any, **options: Any):
    """Return a turn whose approved tool was running when its node was killed."""
    gate = Gate()
    shop = agent(call("refund"), *replies, tools=[desk.tool(gate=gate, approval=True)], **options)
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn, wait = await waiting(first, shop, conversation="c-1")
    await turn.submit(ResumeCommand.approve_tool(wait, by="ann"))
    await gate.entered.wait()
    await lab.kill(first)
    await lab.take_over()
    gate.open()
    there = second.turn(turn.id)
    (doubt,) = (await there.settle()).open_waits
    return second, shop, there, doubt


async def test_in_doubt(lab: Lab, desk: Desk) -> None:
    """T04, DESIGN 5.5: an approved call that was running when its node died is not run again: it is in doubt, for a person."""
    runtime, _, turn, doubt = await in_doubt(lab, desk, "done")
    view = await turn.view()

    assert (view.status, doubt.type, doubt.correlation_id) == (Status.IN_DOUBT, SuspensionType.IN_DOUBT, "call_1_0")
    assert desk.attempts == [1]
    assert (await runtime.inbox(type=SuspensionType.IN_DOUBT)).items == (doubt,)
    await lab.clock.advance(60)
    assert desk.attempts == [1]


async def test_rerun(lab: Lab, desk: Desk) -> None:
    """DESIGN 5.5: a person lets it run once more, under the same key, as attempt 2."""
    _, _, turn, doubt = await in_doubt(lab, desk, "done")

    view = await turn.resume(ResumeCommand.rerun(doubt, by="ann"))

    assert (view.status, desk.attempts) == (Status.COMPLETED, [1, 2])
    assert len(set(desk.keys)) == 1


@pytest.mark.parametrize("value", ["refunded by hand", None, {"amount": 5}], ids=repr)
async def test_give_result(lab: Lab, desk: Desk, value: Any) -> None:
    """DESIGN 5.5: a person says what the call has returned; it does not run again."""
    _, _, turn, doubt = await in_doubt(lab, desk, "done")

    view = await turn.resume(ResumeCommand.give_result(doubt, value, by="ann"))

    assert (view.status, desk.attempts) == (Status.COMPLETED, [1])
    result = result_of(await turn.history())
    assert (result if isinstance(value, str) else json.loads(result)) == value


async def test_fail_call(lab: Lab, desk: Desk) -> None:
    """DESIGN 5.5: a person says that the call has failed; the model reads the reason."""
    _, shop, turn, doubt = await in_doubt(lab, desk, "sorry")

    view = await turn.resume(ResumeCommand.fail_call(doubt, "nothing arrived", by="ann"))

    assert (view.final_output, desk.attempts) == ("sorry", [1])
    result = json.loads(result_of(model_of(shop).requests[-1].messages))
    assert (result["error"], result["message"]) == (True, "nothing arrived")


async def test_cancel_in_doubt(lab: Lab, desk: Desk) -> None:
    """A turn in doubt can be cancelled; its conversation is free and its history closed."""
    runtime, _, turn, _ = await in_doubt(lab, desk, "done")

    view = await turn.cancel("never mind")

    assert view.status is Status.CANCELLED
    assert open_calls(await turn.history()) == []
    assert await runtime.conversation("c-1").open_turn() is None


async def test_doubt_is_seen(lab: Lab, desk: Desk) -> None:
    """W-35: going into doubt and out of it are stored events with the attempt and who resolved it."""
    _, _, turn, doubt = await in_doubt(lab, desk, "done")
    await turn.resume(ResumeCommand.give_result(doubt, "ok", by="ann"))

    events = await stored_events(turn)

    (lost,) = [event for event in events if event.type is EventType.TOOL_IN_DOUBT]
    assert (lost.data["toolCallId"], lost.data["attempt"], lost.data["suspensionId"]) == ("call_1_0", 1, doubt.id)
    assert events[-1].type is EventType.TURN_COMPLETED
    ended = [event.data for event in events if event.type is EventType.WAIT_ENDED]
    assert (ended[-1]["effect"], ended[-1]["by"]) == ("RESULT_GIVEN", "ann")


@pytest.mark.parametrize("effect", ["once", "repeatable"])
async def test_exception_of_a_tool(lab: Lab, desk: Desk, effect: str) -> None:
    """DESIGN 5.5: an exception of a `once` tool is its result, also with retries allowed; a repeatable one is tried again."""
    policy = retries(1, tool_errors="return_to_model")
    tools = [desk.tool(errors=[ConnectionError("lost")], effect=effect)]
    shop = agent(call("refund"), "done", tools=tools, policy=policy)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await lab.during(turn.settle(through_retries=True))

    assert view.status is Status.COMPLETED
    assert desk.attempts == ([1] if effect == "once" else [1, 2])
    assert ("lost" in result_of(await turn.history())) == (effect == "once")


async def test_repeatable_is_taken_over(lab: Lab, desk: Desk) -> None:
    """DESIGN 5.5: a repeatable call that lost its node starts again elsewhere, as attempt 2 under the same key."""
    gate = Gate()
    shop = agent(call("refund"), "done", tools=[desk.tool(gate=gate)])
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    await gate.entered.wait()
    await lab.kill(first)
    gate.open()

    await lab.take_over()
    view = await second.turn(turn.id).settle()

    assert (view.final_output, desk.attempts, len(set(desk.keys))) == ("done", [1, 2], 1)
    assert len(model_of(shop).requests) == 2


async def test_crashing_call(lab: Lab, desk: Desk) -> None:
    """W-56, DESIGN 5.9: a repeatable call that costs `max_crashes` nodes is in doubt, not started for ever."""
    shop = agent(call("refund"), "done", tools=[desk.tool(gate=Gate())], policy=ExecutionPolicy(max_crashes=2))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    for _ in range(2):
        await lab.idle()
        following = await lab.runtime(shop)
        await lab.kill(runtime)
        await lab.take_over()
        runtime = following

    view = await runtime.turn(turn.id).settle()

    assert (view.status, desk.attempts) == (Status.IN_DOUBT, [1, 2])


async def test_crashing_model(lab: Lab) -> None:
    """W-56, DESIGN 5.9: a model request that costs `max_crashes` nodes parks the turn: settle returns, cancel ends it."""
    gate = Gate()

    async def hangs(request):
        await gate.passing()
        return "done"

    shop = agent(hangs, policy=ExecutionPolicy(max_crashes=2))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi", conversation="c-1")
    for _ in range(2):
        await lab.idle()
        following = await lab.runtime(shop)
        await lab.kill(runtime)
        await lab.clock.advance(120)
        runtime = following

    view = await runtime.turn(turn.id).settle()
    assert view.quarantine is not None
    assert view.quarantine.crashes == 2
    assert len(model_of(shop).requests) == 2
    assert [parked.id for parked in (await runtime.turns(quarantined=True)).items] == [turn.id]
    assert (await runtime.turn(turn.id).cancel()).status is Status.CANCELLED
    assert await runtime.conversation("c-1").open_turn() is None


async def test_revive(lab: Lab) -> None:
    """DESIGN 5.9: `revive` ends the quarantine, and the turn goes on."""
    gate = Gate()

    async def hangs(request):
        await gate.passing()
        return "done"

    shop = agent(hangs, policy=ExecutionPolicy(max_crashes=1))
    first = await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    await lab.idle()
    second = await lab.runtime(shop)
    await lab.kill(first)
    await lab.clock.advance(120)
    assert (await second.turn(turn.id).view()).quarantine is not None
    gate.open()

    await second.turn(turn.id).revive(by="ann")
    view = await lab.during(second.turn(turn.id).settle())

    assert (view.final_output, view.quarantine) == ("done", None)


@pytest.mark.parametrize(
    ("end", "status"), [(None, "COMPLETED"), ("reject", "COMPLETED"), ("cancel", "CANCELLED"), ("fail", "FAILED")]
)
async def test_approval_expires(lab: Lab, desk: Desk, end: Any, status: str) -> None:
    """W-38, W-52: an approval with `expires_in` ends by itself; the model reads that nobody decided, not that a person refused."""
    ask = ApprovalDecision.require(expires_in=60, on_expiry=end)
    shop = agent(call("refund"), "went on", tools=[desk.tool(approval=ask)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop, conversation="c-1")

    await lab.clock.advance(61)
    view = await turn.settle()

    history = await turn.history()
    assert (view.status.value, desk.starts, view.open_waits) == (status, [], ())
    assert open_calls(history) == []
    if status == "COMPLETED":
        result = json.loads(result_of(history))
        assert result["type"] == "approval_expired"
        assert "by" not in result
    with pytest.raises(AlreadyAnswered) as late:
        await turn.submit(ResumeCommand.approve_tool(wait))
    assert late.value.receipt.effect is Effect.EXPIRED
    assert await runtime.conversation("c-1").open_turn() is None


async def test_answer_just_in_time(lab: Lab, desk: Desk) -> None:
    """DESIGN 5.7: an answer that was delivered before the deadline wins, also where nobody could read it before."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=ApprovalDecision.require(expires_in=60))])
    first = await lab.runtime(shop)
    turn, wait = await waiting(first, shop)
    await lab.close(first)
    desks = await lab.runtime(execute=False)

    await lab.clock.advance(59)
    receipt = await desks.turn(turn.id).submit(ResumeCommand.approve_tool(wait))
    await lab.clock.advance(3600)
    second = await lab.runtime(shop)
    view = await second.turn(turn.id).settle()

    assert receipt.effect is Effect.APPROVED
    assert (view.status, desk.starts) == (Status.COMPLETED, ["refund"])


async def test_answer_just_in_time_behind_much_mail(lab: Lab, desk: Desk) -> None:
    """DESIGN 5.7: so it does when it stands in the mailbox behind more mail than is read at once."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=ApprovalDecision.require(expires_in=60))])
    first = await lab.runtime(shop)
    turn, wait = await waiting(first, shop)
    await lab.close(first)
    store = (await lab.runtime(execute=False))._node._connection
    assert store is not None

    await lab.clock.advance(59)
    for number in range(40):
        command = ResumeCommand.retry("no-such-call") if number < 39 else ResumeCommand.approve_tool(wait, command_id="ann")
        mail = base.Mail(f"m{number}", codec.encode_mail(Resume(command), 10_000), command.command_id)
        assert isinstance(await store.call(base.Deliver(turn=turn.id, mail=mail)), base.Delivered)
    await lab.clock.advance(3600)
    second = await lab.runtime(shop)
    view = await second.turn(turn.id).settle()

    assert (view.status, desk.starts) == (Status.COMPLETED, ["refund"])


async def test_approved_then_budget(lab: Lab, desk: Desk) -> None:
    """An approval does not lift a limit: an approved call over the tool budget does not run."""
    policy = ExecutionPolicy(budget=Budget(max_tool_calls=1))
    shop = agent(call("a"), call("refund"), "done", tools=[desk.tool("a"), desk.tool(approval=True)], policy=policy)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    view = await turn.settle()
    view = await approved(turn, view.open_waits[0]) if view.open_waits else view

    assert (view.status, desk.starts) == (Status.BUDGET_EXCEEDED, ["a"])
