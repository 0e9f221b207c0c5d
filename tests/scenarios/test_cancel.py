"""Section H: cancel, from every state, and the history it leaves."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from turnhold import (
    Agent,
    AiMessage,
    AlreadyAnswered,
    Effect,
    EventType,
    ExecutionPolicy,
    FormDefinition,
    ModelOverloaded,
    ModelRequest,
    ResumeCommand,
    RetryPolicy,
    Status,
    TurnClosed,
    TurnNotFound,
    Usage,
    user_input_tool,
)
from turnhold.store import base
from turnhold.testing import call

from .lab import Desk, Gate, Lab, agent, model_of, open_calls, result_of, stored_events, talk, types, waiting

FORM = FormDefinition("f", description="a form", schema={"type": "object"})


async def test_before_the_first_step(lab: Lab) -> None:
    """H131: a turn that nobody has run yet is cancelled without a model request."""
    shop = agent("never")
    starter = await lab.runtime(shop)
    desks = await lab.runtime(execute=False)
    await lab.close(starter)
    announcing = await lab.runtime(agent("x", id="other"))
    turn = await _unrun(lab, shop)

    view = await desks.turn(turn).cancel("changed my mind")

    assert (view.status, model_of(shop).requests) == (Status.CANCELLED, [])
    assert talk(await announcing.turn(turn).history()) == [
        "user: hi",
        "assistant: This turn was not finished: changed my mind",
    ]


async def _unrun(lab: Lab, shop) -> str:
    """Start a turn that nobody runs yet."""
    starter = await lab.runtime(shop)
    starter._node.draining = True
    turn = await starter.start(shop, "hi")
    await lab.close(starter)
    return turn.id


async def test_while_a_tool_runs(lab: Lab, desk: Desk) -> None:
    """H132: a tool that cannot be interrupted is awaited; its result is recorded; no further model request."""
    gate = Gate()
    shop = agent(call("refund"), "never", tools=[desk.tool(gate=gate)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await lab.idle()

    cancelling = asyncio.ensure_future(turn.cancel("stop"))
    await lab.idle()
    view = await turn.view()
    assert (view.status, view.cancel_requested) == (Status.RUNNING, True)
    gate.open()
    view = await cancelling

    assert (view.status, len(model_of(shop).requests)) == (Status.CANCELLED, 1)
    assert talk(await turn.history()) == [
        "user: hi",
        "assistant -> refund",
        "call_1_0 = refunded",
        "assistant: This turn was not finished: stop",
    ]


async def test_grace(lab: Lab, desk: Desk) -> None:
    """DESIGN 5.8: a tool that still runs when the grace is over is closed as "outcome unknown"; a late result changes nothing."""
    gate = Gate()

    async def body(context, arguments):
        seen.append(context.cancel_requested)
        return "late"

    seen: list[bool] = []
    shop = agent(call("refund"), "never", tools=[desk.tool(gate=gate, body=body)])
    runtime = await lab.runtime(shop, cancel_grace=7)
    turn = await runtime.start(shop, "hi")
    await lab.idle()
    cancelling = asyncio.ensure_future(turn.cancel())

    await lab.clock.advance(6)
    assert not cancelling.done()
    await lab.clock.advance(1)
    view = await cancelling
    gate.open()
    await lab.idle()

    assert view.status is Status.CANCELLED
    assert json.loads(result_of(await turn.history()))["type"] == "outcome_unknown"
    assert "late" not in result_of(await turn.history())


async def test_tool_sees_the_cancel(lab: Lab, desk: Desk) -> None:
    """DESIGN 4: a long tool can look whether its turn is to end, and end early by itself."""
    gate = Gate()
    seen: list[bool] = []

    async def body(context, arguments):
        seen.append(context.cancel_requested)
        return "stopped early"

    shop = agent(call("refund"), tools=[desk.tool(gate=gate, body=body)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await lab.idle()
    cancelling = asyncio.ensure_future(turn.cancel())
    await lab.idle()
    gate.open()
    await cancelling

    assert (seen, result_of(await turn.history())) == ([True], "stopped early")


async def test_cancellable(lab: Lab, desk: Desk) -> None:
    """T95, T90: a cancellable tool is interrupted at once and awaited; its call says that the outcome is unknown."""
    gate = Gate()
    shop = agent(call("refund"), tools=[desk.tool(gate=gate, cancellable=True)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await lab.idle()

    view = await turn.cancel()

    assert (view.status, gate.left, desk.ended) == (Status.CANCELLED, 1, [])
    result = json.loads(result_of(await turn.history()))
    assert (result["error"], result["type"]) == (True, "cancelled")


async def test_model_request(lab: Lab) -> None:
    """DESIGN 5.8: a request under way is stopped at once."""
    gate = Gate()

    async def slow(request):
        await gate.passing()
        return "late"

    shop = agent(slow)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await lab.idle()

    view = await turn.cancel()
    await lab.idle()

    assert (view.status, gate.left, view.final_output) == (Status.CANCELLED, 1, None)


async def test_waiting_approval(lab: Lab, desk: Desk) -> None:
    """H133, H134, H135, T90: cancelled from another node, the tool never runs; the request is recorded before the end."""
    shop = agent(call("refund"), tools=[desk.tool(approval=True)])
    first, second = await lab.runtime(shop), await lab.runtime(execute=False)
    turn, wait = await waiting(first, shop)

    view = await second.turn(turn.id).cancel("no need")

    assert (view.status, view.open_waits, (await first.inbox()).items) == (Status.CANCELLED, (), ())
    seen = await types(turn)
    assert seen.index(EventType.CANCELLATION_REQUESTED) < seen.index(EventType.TURN_CANCELLED)
    assert seen[-1] is EventType.TURN_CANCELLED
    with pytest.raises(AlreadyAnswered) as late:
        await turn.submit(ResumeCommand.approve_tool(wait))
    assert (late.value.receipt.effect, late.value.agrees) == (Effect.CANCELLED, False)
    with pytest.raises(TurnClosed):
        await turn.submit(ResumeCommand.approve_tool())
    assert desk.starts == []


STATES: dict[str, Any] = {
    "approval": call("refund"),
    "form of the model": call("request_user_input", form_key="f"),
    "form of a tool": call("asks"),
    "retry of a tool": call("breaks"),
    "retry of the model": ModelOverloaded("busy"),
    "several": [call("refund"), call("asks"), call("breaks"), call("request_user_input", form_key="f")],
}


@pytest.mark.parametrize("state", STATES)
async def test_every_wait(lab: Lab, desk: Desk, state: str) -> None:
    """R02 (W-7), R03 (W-5), T89: cancel ends every kind of wait at once, with a receipt, and closes the history."""
    policy = ExecutionPolicy(retry_policy=RetryPolicy(max_retries=3, initial_delay=60))
    tools = [
        desk.tool(approval=True),
        desk.tool("asks", forms=[FORM]),
        desk.tool("breaks", errors=[ConnectionError("lost")] * 9),
        user_input_tool(FORM),
    ]
    shop = agent(STATES[state], "never", tools=tools, policy=policy)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi", conversation="c-1")
    before = await turn.settle()
    starts = list(desk.starts)

    view = await turn.cancel("enough")

    assert before.open_waits
    assert (view.status, view.open_waits, view.suspensions, view.next_runnable_at) == (Status.CANCELLED, (), (), None)
    assert (await runtime.inbox()).items == ()
    ended = [event.data for event in await stored_events(turn) if event.type is EventType.WAIT_ENDED]
    assert {str(data["suspensionId"]) for data in ended} == {wait.id for wait in before.open_waits}
    assert {str(data["effect"]) for data in ended} == {"CANCELLED"}
    history = await turn.history()
    assert open_calls(history) == []
    assert talk(history)[-1] == "assistant: This turn was not finished: enough"
    assert await runtime.conversation("c-1").open_turn() is None
    await lab.clock.advance(120)
    assert desk.starts == starts


async def test_templates(lab: Lab, desk: Desk) -> None:
    """H137: the closing texts are the policy's, with tool name, call id, turn id and reason filled in."""
    policy = ExecutionPolicy(
        interrupted_tool_message_template="{toolName}/{toolCallId}: {reason}",
        interrupted_turn_message_template="{turnId} ended: {reason}{toolName} {other}",
        cancellation_reason="policy reason",
    )
    shop = agent(call("refund"), tools=[desk.tool(approval=True)], policy=policy)
    runtime = await lab.runtime(shop)
    for reason in ("mine", None):
        turn, _ = await waiting(runtime, shop)
        await turn.cancel(reason)

        text = reason or "policy reason"
        assert talk(await turn.history())[-2:] == [
            f"call_1_0 = refund/call_1_0: {text}",
            f"assistant: {turn.id} ended: {text} {{other}}",
        ]


async def test_next_turn(lab: Lab, desk: Desk) -> None:
    """H138, H139: the next turn of the conversation goes on from the closed history and completes."""
    shop = agent(call("refund"), tools=[desk.tool(approval=True)])
    plain = agent("hello again", id="plain")
    runtime = await lab.runtime(shop, plain)
    turn, _ = await waiting(runtime, shop, conversation="c-1")
    await turn.cancel()

    history = await turn.history()
    view = await runtime.run(plain, "more", conversation="c-1", history=history)

    assert isinstance(history[-1], AiMessage)
    assert view.final_output == "hello again"
    sent = model_of(plain).requests[0].messages
    assert isinstance(sent[-2], AiMessage)
    assert open_calls(sent) == []


async def test_twice(lab: Lab, desk: Desk) -> None:
    """T13, J178: cancelling again, at once or later, is the same cancel; the first reason stands and one terminal event exists."""
    shop = agent(call("refund"), tools=[desk.tool(approval=True)])
    runtime, other = await lab.runtime(shop), await lab.runtime(shop)
    turn, _ = await waiting(runtime, shop)

    first, second = await lab.during(asyncio.gather(turn.cancel("one"), other.turn(turn.id).cancel("two")))
    third = await turn.cancel("three")

    assert {first.status, second.status, third.status} == {Status.CANCELLED}
    assert (await types(turn)).count(EventType.TURN_CANCELLED) == 1
    assert "one" in talk(await turn.history())[-1]


async def test_completed(lab: Lab) -> None:
    """A turn that has ended stays as it ended; cancel returns it, and writes nothing."""
    shop = agent("hello")
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    before = await turn.settle()

    view = await turn.cancel()

    assert view.to_dict() == before.to_dict()
    assert (await types(turn))[-1] is EventType.TURN_COMPLETED


async def test_unknown(lab: Lab) -> None:
    """A turn that does not exist cannot be cancelled."""
    runtime = await lab.runtime(agent("hello"))

    for name in ("00-" + "a" * 26, "nonsense"):
        with pytest.raises(TurnNotFound):
            await runtime.turn(name).cancel()


async def test_approval_and_cancel(lab: Lab, desk: Desk) -> None:
    """H136, DESIGN 5.8: cancel and approval at once from two nodes: whichever comes first, no tool starts behind the flag."""
    gate = Gate()
    shop = agent(call("refund"), "never", tools=[desk.tool(approval=True, gate=gate)])
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn, wait = await waiting(first, shop)

    found = await lab.during(
        asyncio.gather(turn.cancel(), second.turn(turn.id).submit(ResumeCommand.approve_tool(wait)), return_exceptions=True)
    )

    assert (await turn.view()).status is Status.CANCELLED
    if isinstance(found[1], BaseException):
        assert desk.starts == []


async def test_cancel_timeout(lab: Lab, desk: Desk) -> None:
    """DESIGN 4: who waits no longer than a timeout for the end gets TimeoutError; the cancel stands."""
    gate = Gate()
    shop = agent(call("refund"), tools=[desk.tool(gate=gate)])
    runtime = await lab.runtime(shop, cancel_grace=60)
    turn = await runtime.start(shop, "hi")
    await lab.idle()

    impatient = asyncio.ensure_future(turn.cancel(timeout=1))
    await lab.clock.advance(2)
    with pytest.raises(TimeoutError):
        await impatient
    gate.open()

    assert (await turn.settle()).status is Status.CANCELLED


async def test_tokens_of_a_cancelled_reply(lab: Lab) -> None:
    """R28 (W-34), T94: tokens of a reply that arrives with the cancel are counted."""
    gate = Gate()
    other: list[Any] = []

    async def last(request):
        other.append(asyncio.ensure_future(runtime.turn(request.turn_id).cancel()))
        return AiMessage("done", usage=Usage(400, 100))

    shop = agent(last)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    gate.open()

    view = await turn.settle()
    await lab.idle()

    assert view.usage.total_tokens == 500
    await asyncio.gather(*other)


async def test_policy_under_way(lab: Lab, desk: Desk) -> None:
    """A turn whose approval policy is being asked is cancelled at once; the answer of the policy comes too late to matter."""
    gate = Gate()

    async def slow(turn, call, tool):
        await gate.passing()
        return False

    shop = agent(call("refund"), tools=[desk.tool()], approval=slow)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await gate.entered.wait()

    view = await turn.cancel()
    gate.open()
    await lab.idle()

    assert (view.status, desk.starts) == (Status.CANCELLED, [])
    assert open_calls(await turn.history()) == []


@pytest.mark.parametrize("ending", ["result", "error", "form", "grace"])
async def test_how_a_call_ends_under_cancel(lab: Lab, desk: Desk, ending: str) -> None:
    """DESIGN 5.8: whatever the last running call does: CANCELLED, one result for each call, nothing is retried or asked."""
    gate = Gate()

    async def body(context, arguments):
        if ending == "error":
            raise ConnectionError("lost")
        if ending == "form":
            context.form(FORM)
        return "fine"

    policy = ExecutionPolicy(retry_policy=RetryPolicy(max_retries=3, initial_delay=0))
    shop = agent([call("refund"), call("quick")], tools=[desk.tool(gate=gate, body=body), desk.tool("quick")], policy=policy)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await lab.idle()
    cancelling = asyncio.ensure_future(turn.cancel())
    await lab.idle()
    if ending == "grace":
        await lab.clock.advance(11)
    else:
        gate.open()

    view = await cancelling

    assert (view.status, view.open_waits, desk.starts) == (Status.CANCELLED, (), ["refund", "quick"])
    history = await turn.history()
    assert open_calls(history) == []
    assert result_of(history, "call_1_1") == "refunded"


async def test_while_it_is_parked(lab: Lab) -> None:
    """DESIGN 5.9: a cancel that comes between the claim and the quarantine of a turn that has cost too many owners ends it."""
    gate = Gate()

    class Silent:
        async def complete(self, request: ModelRequest) -> AiMessage:
            await gate.passing()
            return AiMessage("late")

    class Late:
        """Raises the flag, as another process would, right before the turn is parked."""

        def before(self, op: base.Op) -> None:
            if isinstance(op, base.Quarantine):
                connection = second._node._connection
                assert connection is not None
                with pytest.raises(StopIteration):
                    connection.call(base.Cancel(turn=op.turn, cause="enough")).send(None)

        def after(self, op: base.Op, reply: base.Reply) -> None:
            pass

    shop = Agent("shop", model=Silent(), policy=ExecutionPolicy(max_crashes=1))
    first = await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    await lab.idle()
    await lab.kill(first)
    second = await lab.runtime(shop)
    second._node.fault = Late()
    await lab.take_over()

    view = await second.turn(turn.id).view()
    assert (view.status, view.quarantine) == (Status.CANCELLED, None)
