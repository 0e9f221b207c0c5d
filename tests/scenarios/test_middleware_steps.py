"""Section P: middleware around steps, one attempt in one process; and how long hooks may take."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from turnhold import (
    ExecutionPolicy,
    ModelOptions,
    NoToolContext,
    Status,
    StepEnd,
    ToolContext,
)
from turnhold.testing import call

from .hooks import Around, Diary, again
from .lab import Desk, Gate, Lab, agent, approved, model_of, result_of, waiting

TELL = ExecutionPolicy(tool_errors="return_to_model")


async def test_order(lab: Lab, desk: Desk) -> None:
    """P316, D65: first in, last out, for steps, model requests and calls; a step is entered before all that is in it."""
    notes: list[str] = []
    shop = agent(call("refund"), "done", tools=[desk.tool()], middleware=[Diary("a", notes), Diary("b", notes)])
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert view.final_output == "done"
    assert notes == [
        *("a > step 1", "b > step 1", "a > model 1", "b > model 1", "b < model 1", "a < model 1"),
        *("a > refund", "b > refund", "b < refund", "a < refund", "b < step 1 completed", "a < step 1 completed"),
        *("a > step 2", "b > step 2", "a > model 2", "b > model 2", "b < model 2", "a < model 2"),
        *("b < step 2 completed", "a < step 2 completed"),
    ]


async def test_step_fails(lab: Lab, desk: Desk) -> None:
    """P318, P323: an inner hook raises before its step: the outer one cleans up, nothing starts, the turn fails with that error."""
    notes: list[str] = []

    async def raises(turn, proceed):
        with pytest.raises(NoToolContext):
            ToolContext.current()
        raise ValueError("not today")

    shop = agent("never", middleware=[Diary("a", notes), Around(step=raises)])
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert (view.status, view.error and view.error.type, view.error and view.error.message) == (
        Status.FAILED,
        "ValueError",
        "not today",
    )
    assert (notes, model_of(shop).requests) == (["a > step 1", "a < step 1 ValueError"], [])


async def test_step_twice(lab: Lab, desk: Desk) -> None:
    """A second proceed of a step is an error behind it: logged and counted, and nothing changes."""
    shop = agent(call("refund"), "done", tools=[desk.tool()], middleware=[Around(step=again)])
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert (view.status, desk.starts, view.step_count) == (Status.COMPLETED, ["refund"], 2)
    assert runtime.statistics().hooks_failed == 2


async def test_approval_in_between(lab: Lab, desk: Desk) -> None:
    """A step ends when its turn waits, and the work after the answer is one more, elsewhere too; no hook spans the wait."""
    notes: list[str] = []
    diary = Diary("a", notes)
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)], middleware=[diary])
    first = await lab.runtime(shop)
    turn, wait = await waiting(first, shop)
    assert notes == ["a > step 1", "a > model 1", "a < model 1", "a < step 1 suspended"]
    assert diary.ends == [StepEnd(1, "suspended", Status.WAITING_FOR_APPROVAL)]
    await lab.close(first)
    notes.clear()

    second = await lab.runtime(shop)
    view = await approved(second.turn(turn.id), wait)

    assert view.status is Status.COMPLETED
    assert notes == [
        *("a > step 2", "a > refund", "a < refund", "a < step 2 completed"),
        *("a > step 3", "a > model 2", "a < model 2", "a < step 3 completed"),
    ]


async def test_crash_in_between(lab: Lab, desk: Desk) -> None:
    """A step whose owner dies goes on in another process, under its number: hooks there begin anew, those here end as lost."""
    notes: list[str] = []
    gate = Gate()
    shop = agent(call("refund"), "done", tools=[desk.tool(gate=gate)], middleware=[Diary("a", notes)])
    first = await lab.runtime(shop)
    second = await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    await lab.idle()
    await lab.kill(first)
    assert notes[-1] in {"a < step 1 lost", "a < step 1 CancelledError"}
    notes.clear()
    gate.open()
    await lab.take_over()

    view = await second.turn(turn.id).settle()

    assert (view.status, desk.starts, desk.attempts) == (Status.COMPLETED, ["refund", "refund"], [1, 2])
    assert notes[:4] == ["a > step 1", "a > refund", "a < refund", "a < step 1 completed"]


async def test_hand_off(lab: Lab, desk: Desk) -> None:
    """A node that drains releases the step; its hooks end before the node is gone."""
    notes: list[str] = []
    gate = Gate()
    shop = agent(call("refund"), "done", tools=[desk.tool(gate=gate)], middleware=[Diary("a", notes)])
    first = await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    await lab.idle()

    await lab.close(first)

    assert notes[-1] == "a < step 1 released"
    notes.clear()
    gate.open()
    second = await lab.runtime(shop)
    assert (await second.turn(turn.id).settle()).status is Status.COMPLETED
    assert notes[0] == "a > step 1"


async def test_step_without_proceed(lab: Lab, desk: Desk) -> None:
    """A hook returns and has not called proceed: what was to start fails, be it a call that a person has approved."""

    async def skip(turn, proceed):
        if turn.step == 1:
            await proceed()

    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)], middleware=[Around(step=skip)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    view = await approved(turn, wait)

    assert (view.status, view.error and view.error.type, desk.starts) == (Status.FAILED, "MiddlewareError", [])
    assert view.error is not None
    assert "returned and had not called proceed()" in view.error.message


async def test_step_hook_gates_effects(lab: Lab, desk: Desk) -> None:
    """While a hook has not called proceed nothing of the step starts; a cancel ends the turn all the same."""
    gate = Gate()

    async def slow(turn, proceed):
        await gate.passing()
        return await proceed()

    shop = agent("done", middleware=[Around(step=slow)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await lab.idle()
    assert (gate.entered.is_set(), model_of(shop).requests) == (True, [])

    view = await lab.during(turn.cancel())

    assert (view.status, model_of(shop).requests, gate.left) == (Status.CANCELLED, [], 1)


async def test_step_hook_that_hangs_behind(lab: Lab, desk: Desk) -> None:
    """A hook that does not end when its step has is cancelled after a grace; the turn goes on, and the node can close."""

    async def hangs(turn, proceed):
        await proceed()
        await Gate().passing()

    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)], middleware=[Around(step=hangs)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    view = await lab.during(turn.settle())

    view = await lab.during(approved(turn, view.open_waits[0]))

    assert (view.status, desk.starts) == (Status.COMPLETED, ["refund"])
    await lab.close(runtime)


async def test_what_a_hook_leaves_running_is_awaited(lab: Lab, desk: Desk) -> None:
    """A hook that returns while its proceed runs in a task of its own does not let go of the function: that is awaited."""
    gate = Gate()
    left: list[Any] = []

    async def leave(context, proceed):
        left.append(asyncio.ensure_future(proceed()))
        await gate.entered.wait()
        return "early"

    shop = agent(call("refund"), "done", tools=[desk.tool(gate=gate)], middleware=[Around(tool=leave)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await lab.idle()
    assert (await turn.view()).status is Status.RUNNING

    gate.open()
    view = await turn.settle()

    assert (view.status, result_of(await turn.history()), desk.ended) == (Status.COMPLETED, "early", ["refund"])


async def test_timeouts_span_the_hooks(lab: Lab, desk: Desk) -> None:
    """The time of a request and of an attempt counts from before the hooks."""

    async def slow(subject, proceed):
        await Gate().passing()

    shop = agent("never", options=ModelOptions(timeout=5), middleware=[Around(model=slow)])
    runtime = await lab.runtime(shop)
    view = await lab.during(runtime.run(shop, "hi"))
    assert (view.status, view.error and view.error.type) == (Status.FAILED, "ModelTimeout")

    once = desk.tool(timeout=5, effect="once")
    other = agent(call("refund"), "done", id="other", tools=[once], policy=TELL, middleware=[Around(tool=slow)])
    runtime = await lab.runtime(other)
    turn = await runtime.start(other, "hi")
    view = await lab.during(turn.settle())
    assert (view.status, desk.starts) == (Status.COMPLETED, [])
    assert "did not begin within 5.0 s" in result_of(await turn.history())


async def test_timeout_of_a_call_that_had_begun(lab: Lab, desk: Desk) -> None:
    """When the time is over behind proceed, a once call is in doubt as without hooks, whatever they make of it."""

    async def around(context, proceed):
        return await proceed()

    once = desk.tool(timeout=5, effect="once", gate=Gate())
    shop = agent(call("refund"), "done", tools=[once], middleware=[Around(tool=around)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await lab.during(turn.settle())

    assert (view.status, desk.starts) == (Status.IN_DOUBT, ["refund"])


async def test_cancelled_within_a_hook(lab: Lab, desk: Desk) -> None:
    """No function starts when its turn has seen the cancel, however long a hook took in front of it."""
    gate = Gate()

    async def slow(context, proceed):
        await gate.passing()
        return await proceed()

    shop = agent(call("refund"), "done", tools=[desk.tool()], middleware=[Around(tool=slow)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await lab.idle()
    cancel = asyncio.ensure_future(turn.cancel())
    await lab.idle()
    gate.open()

    view = await cancel

    assert (view.status, desk.starts) == (Status.CANCELLED, [])
