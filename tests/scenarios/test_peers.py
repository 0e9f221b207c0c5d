"""What users of other systems hit: the cases of `peer-cases` that no section of the anchor tells."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from turnhold import (
    CommandIdReused,
    EventType,
    ExecutionPolicy,
    ModelOverloaded,
    ResumeCommand,
    RetryPolicy,
    Status,
    StoreUnavailable,
    SuspensionMismatch,
    TurnNotFound,
    WrongCommand,
)
from turnhold.testing import call, crash

from .lab import Desk, Gate, Lab, agent, approved, model_of, stored_events, talk, waiting


async def test_ids_outlive_everything(lab: Lab, desk: Desk) -> None:
    """T10, T01: a command id is known on every node, after many more saves, and after the end of the turn."""
    rounds = [call("refund") for _ in range(4)]
    shop = agent(*rounds, "done", tools=[desk.tool(approval=True)])
    first = await lab.runtime(shop)
    turn, wait = await waiting(first, shop)
    command = ResumeCommand.approve_tool(wait, command_id="c1", by="ann")
    await turn.submit(command)
    while (view := await turn.settle()).open_waits:
        await turn.submit(ResumeCommand.approve_tool(view.open_waits[0]))
    await lab.close(first)
    second = await lab.runtime(execute=False)

    receipt = await second.turn(turn.id).submit(command)
    with pytest.raises(CommandIdReused) as reused:
        await second.turn(turn.id).submit(ResumeCommand.reject_tool(wait, command_id="c1"))

    assert (receipt.replayed, receipt.by) == (True, "ann")
    assert reused.value.receipt.suspension_id == wait.id
    assert len(desk.starts) == 4


async def test_answered_stays_answered(lab: Lab, desk: Desk) -> None:
    """T17, T59, T55: of two waits one is answered: it never opens again, and what stood before the wait is not done again."""
    tools = [desk.tool("free"), desk.tool("a", approval=True), desk.tool("b", approval=True)]
    shop = agent(call("free"), [call("a"), call("b")], "done", tools=tools)
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    one, two = (await turn.settle()).open_waits
    await approved(turn, one)
    await lab.close(first)
    there = second.turn(turn.id)

    assert (await there.view()).open_waits == (two,)
    view = await approved(there, two)

    assert (view.status, desk.starts, len(model_of(shop).requests)) == (Status.COMPLETED, ["free", "a", "b"], 3)


async def test_many_runnable_turns(lab: Lab) -> None:
    """T83, T127: more runnable turns than a node may hold are run one after the other; none is left, none needs a thread."""
    shop = agent("done")
    announcer = await lab.runtime(shop)
    announcer._node.draining = True
    turns = [await announcer.start(shop, f"hi {number}") for number in range(12)]
    await lab.close(announcer)

    runtime = await lab.runtime(shop, max_active=2)
    await lab.idle()
    await lab.clock.advance(5)

    views = [await runtime.turn(turn.id).view() for turn in turns]
    assert {view.status for view in views} == {Status.COMPLETED}


async def test_full_node_still_starts(lab: Lab) -> None:
    """T70: a node that holds as many turns as it may stores a start all the same; the turn runs when there is room."""
    gate = Gate()

    async def slow(request):
        await gate.passing()
        return "done"

    shop = agent(slow)
    runtime = await lab.runtime(shop, max_active=1)
    first, second = await runtime.start(shop, "one"), await runtime.start(shop, "two")
    await lab.idle()
    assert (await second.view()).status is Status.READY
    gate.open()

    views = await lab.during(asyncio.gather(first.settle(), second.settle()))

    assert {view.status for view in views} == {Status.COMPLETED}


@pytest.mark.parametrize("steps", range(8))
async def test_given_up_anywhere(lab: Lab, desk: Desk, steps: int) -> None:
    """T98, T99: a sender that is cancelled at any moment leaves a clean turn: its answer counts as a whole or not at all."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    runtime, other = await lab.runtime(shop), await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)
    command = ResumeCommand.approve_tool(wait, command_id="c1")
    sending = asyncio.ensure_future(turn.submit(command))
    for _ in range(steps):
        await asyncio.sleep(0)

    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    receipt = await lab.during(other.turn(turn.id).submit(command))
    view = await lab.during(turn.settle())

    assert (receipt.command_id, view.status, desk.starts) == ("c1", Status.COMPLETED, ["refund"])


@pytest.mark.parametrize("steps", range(6))
async def test_start_given_up(lab: Lab, steps: int) -> None:
    """T98: a start that is cancelled at any moment is found by its key, or starts then: one turn, which completes."""
    shop = agent("done")
    runtime = await lab.runtime(shop)
    starting = asyncio.ensure_future(runtime.start(shop, "hi", idempotency_key="k"))
    for _ in range(steps):
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)

    turn = await runtime.start(shop, "hi", idempotency_key="k")
    view = await lab.during(turn.settle())

    assert view.status is Status.COMPLETED
    assert len((await runtime.turns()).items) == 1


async def test_pauses_cost_no_attempt(lab: Lab, desk: Desk) -> None:
    """T115: waiting for people uses up no retries, no attempts and no iterations."""
    policy = ExecutionPolicy(retry_policy=RetryPolicy(max_retries=1, initial_delay=0), max_iterations=2, max_crashes=1)
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)], policy=policy)
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)
    for _ in range(3):
        with pytest.raises((WrongCommand, SuspensionMismatch)):
            await turn.submit(ResumeCommand.user_input("no answer to an approval"))

    view = await approved(turn, wait)

    assert (view.status, view.retry_count, view.iteration_count, desk.attempts) == (Status.COMPLETED, 0, 2, [1])


async def test_lost_replies(lab: Lab, desk: Desk) -> None:
    """T75, T92: a store that does its work and loses the reply is asked again: no error escapes, nothing happens twice."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)

    for operation in ("create", "save", "deliver"):
        with crash(runtime, operation, "lost_reply"):
            turn = await runtime.start(shop, "hi")
            view = await turn.settle()
            view = await approved(turn, view.open_waits[0])
            assert view.status is Status.COMPLETED
            assert [event.sequence for event in await stored_events(turn)] == list(range(1, 19))

    assert len(desk.starts) == 3


async def test_store_is_away(lab: Lab, desk: Desk) -> None:
    """T75, W-16: a store outage in the middle of a turn is no failure of its tools: the turn goes on when it is back."""
    gate = Gate()
    shop = agent(call("refund"), "done", tools=[desk.tool(gate=gate)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await lab.idle()
    away = [True]

    class Outage:
        def before(self, op: Any) -> None:
            if away[0]:
                raise StoreUnavailable("away")

        def after(self, op: Any, reply: Any) -> None:
            pass

    runtime._node.fault = Outage()
    gate.open()
    await lab.clock.advance(5)
    away[0] = False
    view = await lab.during(turn.settle())

    assert (view.status, view.error) == (Status.COMPLETED, None)
    assert set(desk.attempts) <= {1, 2}


async def test_wake_ups_are_data(lab: Lab) -> None:
    """T105, T106, T78: a retry is due in the store: it comes when its node has died, in time, and without any bell."""
    policy = ExecutionPolicy(retry_policy=RetryPolicy(max_retries=1, initial_delay=30, jitter=0))
    shop = agent(ModelOverloaded("busy"), "done", policy=policy)
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    await turn.settle()
    await lab.kill(first)

    await lab.clock.advance(31)

    assert (await second.turn(turn.id).view()).status is Status.COMPLETED


async def test_no_bell_at_all(lab: Lab, desk: Desk) -> None:
    """T78, T84: bells are hints: an executor that hears none finds a turn that may run by itself."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    first = await lab.runtime(shop)
    turn, wait = await waiting(first, shop)
    await lab.close(first)
    desks = await lab.runtime(execute=False)
    await desks.turn(turn.id).submit(ResumeCommand.approve_tool(wait))

    runtime = await lab.runtime(shop)
    await lab.clock.advance(2)

    assert (await runtime.turn(turn.id).view()).status is Status.COMPLETED


async def test_unknown_turn(lab: Lab) -> None:
    """T44, T31: an id of something else, or of nothing, is a typed error, whatever is asked."""
    runtime = await lab.runtime(agent("hello"))
    turn = await runtime.start("shop", "hi")
    await turn.settle()
    asks = [
        lambda ref: ref.view(),
        lambda ref: ref.history(),
        lambda ref: ref.settle(),
        lambda ref: ref.submit(ResumeCommand.approve_tool()),
        lambda ref: ref.submit(ResumeCommand.approve_tool("call_1_0")),
        lambda ref: ref.suspend("?"),
        lambda ref: ref.cancel(),
        lambda ref: ref.revive(),
    ]

    for name in ("call_1_0", f"{turn.id}/call_1_0/1", turn.id + "a" * 16, turn.id[:-1], "", "shop"):
        for ask in asks:
            with pytest.raises(TurnNotFound):
                await ask(runtime.turn(name))


async def test_suspend_only_at_a_boundary(lab: Lab, desk: Desk) -> None:
    """T25, DESIGN 8: every request that a model ever sees has a result behind each call, whatever waited and whatever failed."""
    policy = ExecutionPolicy(tool_errors="return_to_model")
    tools = [desk.tool("a", approval=True), desk.tool("b", errors=[ValueError("no")]), desk.tool("c")]
    shop = agent([call("a"), call("b"), call("nope"), call("c")], [call("c"), call("a")], "done", tools=tools, policy=policy)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    while (view := await turn.settle()).open_waits:
        await turn.submit(ResumeCommand.reject_tool(view.open_waits[0]))

    for request in model_of(shop).requests:
        asked = [one.id for message in request.messages for one in getattr(message, "tool_calls", ())]
        answered = [getattr(message, "call_id", None) for message in request.messages]
        assert [name for name in answered if name is not None] == asked
    assert view.status is Status.COMPLETED


async def test_approval_with_a_context(lab: Lab, desk: Desk) -> None:
    """T41, T42, T120: a decision is found by its wait alone: services, history, conversation, a new node make no difference."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)], instructions="x")
    first = await lab.runtime(shop, services={"a": 1})
    turn, wait = await waiting(first, shop, conversation="c-1", history=[])
    await lab.close(first)
    second = await lab.runtime(shop, services=object())

    view = await approved(second.turn(turn.id), wait)

    assert (view.status, desk.starts) == (Status.COMPLETED, ["refund"])


async def test_waits_are_told_at_once(lab: Lab, desk: Desk) -> None:
    """T67, T63, T30: whoever hears that a turn is suspended finds all its waits in the store."""
    found: list[asyncio.Future] = []
    other = await lab.runtime(execute=False)

    def hear(event) -> None:
        if event.type is EventType.TURN_SUSPENDED:
            found.append(asyncio.ensure_future(other.turn(event.turn_id).view()))

    tools = [desk.tool("a", approval=True), desk.tool("b", approval=True)]
    shop = agent([call("a"), call("b")], "done", tools=tools)
    runtime = await lab.runtime(shop, listeners=[hear])
    turn = await runtime.start(shop, "hi")
    view = await turn.settle()
    await lab.idle()

    (seen,) = found
    assert (await seen).open_waits == view.open_waits
    assert talk(await other.turn(turn.id).history()) == ["user: hi", "assistant -> a, b"]
