"""Section C: the loop of model and tools."""

from __future__ import annotations

import asyncio

import pytest

from turnhold import AiMessage, EventType, ExecutionPolicy, ModelRefused, Status, TurnNotCompleted, Usage
from turnhold.testing import ScriptedModel, call

from .lab import Desk, Gate, Lab, agent, approved, model_of, open_calls, talk, types, waiting


class Silent:
    """A model that answers with something that is no message."""

    def __init__(self, answer=None) -> None:
        self.answer = answer

    async def complete(self, request):
        return self.answer


async def test_plain_reply(lab: Lab) -> None:
    """C50: one reply of text completes the turn."""
    shop = agent("hello")
    runtime = await lab.runtime(shop)

    view = (await runtime.run(shop, "hi")).raise_for_status()

    assert (view.status, view.final_output, view.iteration_count) == (Status.COMPLETED, "hello", 1)
    assert (view.error, view.open_waits, view.pending_calls) == (None, (), ())


async def test_rounds(lab: Lab, desk: Desk) -> None:
    """C51, C52, C53: the model is asked again with its calls and their results in place; step by step to the text."""
    shop = agent(call("refund", amount=3), "done", tools=[desk.tool(result={"amount": 3})])
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert talk(model_of(shop).requests[1].messages) == ["user: hi", "assistant -> refund", 'call_1_0 = {"amount":3}']
    assert (view.final_output, view.step_count, view.iteration_count, view.tool_call_count) == ("done", 2, 2, 1)
    assert desk.arguments == [{"amount": 3, "text": ""}]


@pytest.mark.parametrize(("answer", "word"), [(None, "null"), ("text", "str"), (42, "int")])
async def test_no_message(lab: Lab, answer: object, word: str) -> None:
    """C54: a model that returns nothing (or something else) fails the turn with an error that says so."""
    shop = agent(model=Silent(answer))
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert view.status is Status.FAILED
    assert view.error is not None
    assert word in view.error.message
    with pytest.raises(TurnNotCompleted) as raised:
        view.raise_for_status()
    assert raised.value.view is view


async def test_max_iterations(lab: Lab, desk: Desk) -> None:
    """C55: a model that only calls tools is stopped: 2 iterations, 2 runs, no output, history closed."""
    shop = agent(*[call("refund")] * 5, tools=[desk.tool()], policy=ExecutionPolicy(max_iterations=2))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await turn.settle()

    assert view.status is Status.MAX_ITERATIONS_REACHED
    assert (view.iteration_count, len(desk.starts), view.final_output) == (2, 2, None)
    history = await turn.history()
    assert open_calls(history) == []
    assert talk(history)[-1].startswith("assistant: ")
    assert (await types(turn))[-1] is EventType.MAX_ITERATIONS_REACHED


async def test_max_iterations_elsewhere(lab: Lab, desk: Desk) -> None:
    """C56: the limit counts over nodes: one iteration here, and no second one there."""
    shop = agent(*[call("refund")] * 5, tools=[desk.tool(approval=True)], policy=ExecutionPolicy(max_iterations=1))
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn, wait = await waiting(first, shop)
    await lab.close(first)

    view = await approved(second.turn(turn.id), wait)

    assert (view.status, view.iteration_count, len(model_of(shop).requests)) == (Status.MAX_ITERATIONS_REACHED, 1, 1)


async def test_max_steps(lab: Lab, desk: Desk) -> None:
    """C57: at most 2 steps: 2 iterations, 2 tool calls."""
    shop = agent(*[call("refund")] * 5, tools=[desk.tool()], policy=ExecutionPolicy(max_steps=2))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await turn.settle()

    assert view.status is Status.MAX_STEPS_REACHED
    assert (view.step_count, view.iteration_count, view.tool_call_count) == (2, 2, 2)
    assert open_calls(await turn.history()) == []


async def test_max_steps_closes_calls(lab: Lab, desk: Desk) -> None:
    """W-6: where the last step ends with an approved call that may not start, the call is answered in the history."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)], policy=ExecutionPolicy(max_steps=1))
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    view = await approved(turn, wait)

    assert (view.status, desk.starts) == (Status.MAX_STEPS_REACHED, [])
    assert open_calls(await turn.history()) == []


async def test_usage(lab: Lab, desk: Desk) -> None:
    """C58: tokens of all replies are counted, a missing total is the sum; also over nodes."""
    first = AiMessage(tool_calls=(call("refund"),), usage=Usage(10, 5))
    shop = agent(first, AiMessage("done", usage=Usage(20, 1, 30)), tools=[desk.tool(approval=True)])
    one, two = await lab.runtime(shop), await lab.runtime(shop)
    turn, wait = await waiting(one, shop)
    await lab.close(one)

    view = await approved(two.turn(turn.id), wait)

    assert view.usage == Usage(30, 6, 45)


async def test_streamed_as_whole(lab: Lab, desk: Desk) -> None:
    """I156, I155: a streamed turn gives the same history and output, and is still streaming on another node."""
    shop = agent(call("refund", text="ümlaut 漢字"), "done at last", tools=[desk.tool(approval=True)])
    one, two = await lab.runtime(shop), await lab.runtime(shop)
    turn, wait = await waiting(one, shop, "grüße", streaming=True)
    await lab.close(one)

    view = await approved(two.turn(turn.id), wait)

    assert (view.streaming, view.final_output) == (True, "done at last")
    assert desk.arguments == [{"amount": 0, "text": "ümlaut 漢字"}]
    assert talk(await two.turn(turn.id).history()) == [
        "user: grüße",
        "assistant -> refund",
        "call_1_0 = refunded",
        "assistant: done at last",
    ]


async def test_script_is_over(lab: Lab) -> None:
    """A fault of the model fails the turn with its text; nothing is retried that no retry mends."""
    shop = agent(model=ScriptedModel())
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert (view.status, len(model_of(shop).requests)) == (Status.FAILED, 1)
    assert view.error is not None
    assert "no reply for iteration 1" in view.error.message


async def test_failure_closes_history(lab: Lab, desk: Desk) -> None:
    """A turn that fails ends with an assistant message; every call before it has its result."""
    shop = agent(call("refund"), ModelRefused("bad request"), tools=[desk.tool()])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await turn.settle()

    assert view.status is Status.FAILED
    assert view.error is not None
    assert view.error.type == "ModelRefused"
    history = await turn.history()
    assert open_calls(history) == []
    assert talk(history)[-1] == "assistant: This turn was not finished: bad request"


async def test_text_beside_calls(lab: Lab, desk: Desk) -> None:
    """Text that comes with calls is kept, but is not the final output."""
    shop = agent(AiMessage("let me see", (call("refund"),)), "done", tools=[desk.tool()])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await turn.settle()

    assert view.final_output == "done"
    assert (await turn.history())[1] == AiMessage("let me see", (call("refund").__class__("call_1_0", "refund"),))


@pytest.mark.parametrize("error", [asyncio.CancelledError(), TimeoutError("slow"), KeyError("k")])
async def test_model_raises_anything(lab: Lab, error: BaseException) -> None:
    """T99, DESIGN 5.9: whatever a model raises, also a stray CancelledError, ends in a status; the turn never hangs."""
    shop = agent(error, "never")
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await lab.during(turn.settle(), most=3)

    assert view.status is Status.FAILED
    assert view.error is not None
    assert view.error.type == type(error).__name__


async def test_waiting_is_not_owning(lab: Lab) -> None:
    """T97, T93: who gives up waiting for a turn changes nothing: it goes on and ends."""
    gate = Gate()

    async def slow(request):
        await gate.passing()
        return "done"

    shop = agent(slow)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    waiter = asyncio.ensure_future(turn.settle())
    await gate.entered.wait()

    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    short = asyncio.ensure_future(turn.settle(timeout=5))
    await lab.clock.advance(6)
    with pytest.raises(TimeoutError):
        await short
    gate.open()

    assert (await turn.settle()).final_output == "done"
    assert runtime.statistics().watched_trees == 0


async def test_completed_is_terminal(lab: Lab) -> None:
    """T56: a finished turn is not run again by anybody, however long nodes live."""
    shop = agent("hello")
    first = await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    await turn.settle()
    second = await lab.runtime(shop)

    await lab.clock.advance(60)
    view = await second.turn(turn.id).settle()

    assert (view.status, len(model_of(shop).requests)) == (Status.COMPLETED, 1)
