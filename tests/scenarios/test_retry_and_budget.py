"""Section G: failures that pass, limits that do not, and calls whose outcome nobody knows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from turnhold import (
    AiMessage,
    AlreadyAnswered,
    Budget,
    Effect,
    EventType,
    ExecutionPolicy,
    ModelOptions,
    ModelOverloaded,
    ModelRateLimited,
    ModelRefused,
    ModelTimeout,
    Phase,
    QuotaExhausted,
    ResumeCommand,
    RetryNotDue,
    RetryPolicy,
    Status,
    SuspensionType,
    Usage,
)
from turnhold.testing import call

from .lab import Desk, Gate, Lab, agent, model_of, open_calls, talk, types, waiting


def retries(count: int, delay: float = 1, **more: Any) -> ExecutionPolicy:
    return ExecutionPolicy(retry_policy=RetryPolicy(max_retries=count, initial_delay=delay, jitter=0), **more)


async def test_model_retry(lab: Lab) -> None:
    """G120, G121: a passing failure schedules a retry, counted; when it is due the same request is sent again."""
    shop = agent(ModelOverloaded("busy"), "done", policy=retries(1))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await turn.settle()
    assert (view.status, view.phase, view.retry_count) == (Status.RETRY_SCHEDULED, Phase.MODEL, 1)
    assert view.next_runnable_at == lab.clock.now() + timedelta(seconds=1)
    await lab.clock.advance(1)
    view = await turn.settle()

    assert (view.final_output, view.iteration_count) == ("done", 1)
    first, second = model_of(shop).requests
    assert first.messages == second.messages
    assert (first.attempt, second.attempt) == (1, 2)


async def test_a_retry_is_nobodys_task(lab: Lab) -> None:
    """DESIGN 4: a scheduled retry goes on by itself; the inbox has it only where its type is asked for."""
    shop = agent(ModelOverloaded("busy"), "done", policy=retries(1))
    runtime = await lab.runtime(shop)
    view = await runtime.run(shop, "hi")

    assert (await runtime.inbox()).items == ()
    assert (await runtime.inbox(type=SuspensionType.RETRY)).items == view.suspensions


async def test_no_delay(lab: Lab) -> None:
    """G120: with no delay a retry needs no time to pass; `through_retries` waits for it."""
    shop = agent(ModelOverloaded("busy"), ModelTimeout("late"), "done", policy=retries(2, delay=0))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await lab.during(turn.settle(through_retries=True), most=2)

    assert (view.final_output, view.retry_count) == ("done", 2)


async def test_tool_retry(lab: Lab, desk: Desk) -> None:
    """G122, G123: a repeatable tool that fails waits for its retry with its call pending; the decision is not repeated."""
    shop = agent(call("refund"), "done", tools=[desk.tool(errors=[ConnectionError("lost")])], policy=retries(1))
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    view = await turn.settle()
    assert (view.status, view.phase) == (Status.RETRY_SCHEDULED, Phase.TOOLS)
    assert [pending.id for pending in view.pending_calls] == ["call_1_0"]
    await lab.close(first)

    await lab.clock.advance(1)
    view = await second.turn(turn.id).settle()

    assert (view.final_output, desk.attempts, len(model_of(shop).requests)) == ("done", [1, 2], 2)
    assert len(set(desk.keys)) == 1


async def test_retries_used_up(lab: Lab) -> None:
    """G124: three failures and two retries: FAILED with the error, three requests, two retries counted."""
    shop = agent(*[ModelOverloaded("busy")] * 5, policy=retries(2))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await lab.during(turn.settle(through_retries=True))

    assert (view.status, len(model_of(shop).requests), view.retry_count) == (Status.FAILED, 3, 2)
    assert view.error is not None
    assert (view.error.type, view.error.message) == ("ModelOverloaded", "busy")


async def test_back_off(lab: Lab) -> None:
    """DESIGN 5.9, W-47: delays grow from retry to retry; a provider's longer wish is honoured."""
    policy = retries(3, delay=2)
    shop = agent(ModelOverloaded("a"), ModelRateLimited("b", retry_after=60), ModelOverloaded("c"), "done", policy=policy)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    delays: list[float] = []

    while (view := await turn.settle()).status is Status.RETRY_SCHEDULED:
        assert view.next_runnable_at is not None
        delays.append((view.next_runnable_at - lab.clock.now()).total_seconds())
        await lab.clock.advance(delays[-1])

    assert (delays, view.final_output) == ([2, 60, 8], "done")


@pytest.mark.parametrize("error", [ModelRefused("no"), QuotaExhausted("empty"), ValueError("odd")])
async def test_not_retried(lab: Lab, error: Exception) -> None:
    """T116: only a closed list of errors is retried; the others fail the turn at once."""
    shop = agent(error, "never", policy=retries(5))
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert (view.status, len(model_of(shop).requests)) == (Status.FAILED, 1)
    assert view.error is not None
    assert view.error.type == type(error).__name__


async def test_model_timeout(lab: Lab) -> None:
    """W-30: a request over its time is stopped and counts as a timeout, which is retried."""
    gate = Gate()

    async def slow(request):
        if request.attempt == 1:
            await gate.passing()
        return "done"

    shop = agent(slow, policy=retries(1), options=ModelOptions(timeout=30))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    await lab.clock.advance(30)
    assert ((await turn.view()).status, gate.left) == (Status.RETRY_SCHEDULED, 1)
    await lab.clock.advance(1)

    assert (await turn.settle()).final_output == "done"


async def test_retry_by_hand(lab: Lab) -> None:
    """DESIGN 4, R03: RETRY before its time is refused and says when it is due; with force it goes at once."""
    shop = agent(ModelOverloaded("busy"), "done", policy=retries(1, delay=60))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    view = await turn.settle()

    with pytest.raises(RetryNotDue) as early:
        await turn.submit(ResumeCommand.retry())
    assert early.value.due == view.next_runnable_at
    receipt = await turn.submit(ResumeCommand.retry(force=True, by="ann"))

    assert receipt.effect is Effect.RETRIED
    assert (await turn.settle()).final_output == "done"


async def test_budget_before_retry(lab: Lab, desk: Desk) -> None:
    """G125: a retry whose turn runs out of (wall) time meanwhile is not made."""
    policy = retries(1, delay=60, budget=Budget(max_wall_time=30))
    shop = agent(call("refund"), "done", tools=[desk.tool(errors=[ConnectionError("lost")])], policy=policy)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    await lab.clock.advance(31)
    view = await turn.view()

    assert view.status is Status.BUDGET_EXCEEDED
    assert view.budget_exceeded_reason is not None
    assert view.budget_exceeded_reason.startswith("max_wall_time (")
    await lab.clock.advance(60)
    assert desk.attempts == [1]


USED = Usage(10, 7)


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        (Budget(max_total_tokens=16), "max_total_tokens (17/16)"),
        (Budget(max_input_tokens=9), "max_input_tokens (10/9)"),
        (Budget(max_output_tokens=6), "max_output_tokens (7/6)"),
        (Budget(max_total_tokens=0), "max_total_tokens (17/0)"),
        (Budget(max_total_tokens=1, max_output_tokens=1, max_input_tokens=1), "max_input_tokens (10/1)"),
        (Budget(max_total_tokens=1, max_output_tokens=1), "max_output_tokens (7/1)"),
        (Budget(max_total_tokens=17, max_input_tokens=10, max_output_tokens=7), None),
    ],
    ids=str,
)
@pytest.mark.parametrize("calls", [False, True], ids=["text", "calls"])
async def test_tokens(lab: Lab, desk: Desk, budget: Budget, reason: str | None, calls: bool) -> None:
    """G126, G127, R01 (W-6): tokens over a limit end the turn, first limit first; tools do not run; every call has its result."""
    first = AiMessage("text", (call("refund"),) if calls else (), usage=USED)
    shop = agent(first, AiMessage("done", usage=Usage()), tools=[desk.tool()], policy=ExecutionPolicy(budget=budget))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await turn.settle()

    assert view.usage == USED
    assert view.budget_exceeded_reason == reason
    assert (view.status is Status.BUDGET_EXCEEDED) == (reason is not None)
    assert open_calls(await turn.history()) == []
    if reason is not None:
        assert desk.starts == []
        assert (await types(turn))[-1] is EventType.BUDGET_EXCEEDED


async def test_duration(lab: Lab) -> None:
    """G128, R23 (W-30): a model slower than the time budget is stopped then: BUDGET_EXCEEDED on duration, not FAILED."""
    gate = Gate()

    async def slow(request):
        await gate.passing()
        return "late"

    shop = agent(slow, policy=ExecutionPolicy(budget=Budget(max_duration=5)))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi", streaming=True)

    await lab.clock.advance(5)
    view = await turn.view()

    assert (view.status, gate.left) == (Status.BUDGET_EXCEEDED, 1)
    assert view.budget_exceeded_reason == "max_duration (5000 ms/5000 ms)"


async def test_duration_counts_work_only(lab: Lab, desk: Desk) -> None:
    """DESIGN 5.13: `max_duration` counts active time over all activations, not the time a person needs."""
    gate = Gate()
    policy = ExecutionPolicy(budget=Budget(max_duration=10))
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True, gate=gate)], policy=policy)
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)
    await lab.clock.advance(100)

    await turn.submit(ResumeCommand.approve_tool(wait))
    await lab.clock.advance(9)
    assert (await turn.view()).status is Status.RUNNING
    gate.open()

    assert (await turn.settle()).status is Status.COMPLETED


async def test_wall_time(lab: Lab, desk: Desk) -> None:
    """W-38: `max_wall_time` ends a turn that waits for a person, too, and closes its wait."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)], policy=ExecutionPolicy(budget=Budget(max_wall_time=60)))
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop, conversation="c-1")

    await lab.clock.advance(60)
    view = await turn.view()

    assert (view.status, view.open_waits, (await runtime.inbox()).items) == (Status.BUDGET_EXCEEDED, (), ())
    assert open_calls(await turn.history()) == []
    assert await runtime.conversation("c-1").open_turn() is None
    with pytest.raises(AlreadyAnswered) as late:
        await turn.submit(ResumeCommand.approve_tool(wait))
    assert late.value.receipt.effect is Effect.SUPERSEDED


@pytest.mark.parametrize("limit", ["max_duration", "max_wall_time"])
async def test_no_time_at_all(lab: Lab, limit: str) -> None:
    """0 means none allowed: such a turn is stored, asks no model, and ends."""
    shop = agent("never", policy=ExecutionPolicy(budget=Budget(**{limit: 0})))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await turn.settle()

    assert (view.status, model_of(shop).requests) == (Status.BUDGET_EXCEEDED, [])
    assert talk(await turn.history())[0] == "user: hi"


async def test_no_calls_at_all(lab: Lab, desk: Desk) -> None:
    """0 means none allowed: with max_tool_calls=0 no tool starts; the reason tells the limit."""
    shop = agent(call("refund"), "done", tools=[desk.tool()], policy=ExecutionPolicy(budget=Budget(max_tool_calls=0)))
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert (view.budget_exceeded_reason, desk.starts) == ("max_tool_calls (0/0)", [])
