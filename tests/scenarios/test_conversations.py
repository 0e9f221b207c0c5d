"""A conversation that is busy: who starts there is refused, waits in its queue, or takes the place of the open turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from turnhold import (
    Agent,
    ConversationBusy,
    Effect,
    IdempotencyKeyReused,
    InvalidDefinition,
    ResumeCommand,
    Runtime,
    Status,
    TurnRef,
)
from turnhold.testing import call, crash
from turnhold.testing.crashes import POINTS

from .lab import Desk, Gate, Lab, agent, approved, echo, held, model_of, park, said, talk, types, waiting

GATED = call("refund", amount=1)


async def queue(runtime: Runtime, shop: Agent | str, input: str, **options: Any) -> TurnRef:
    return await runtime.start(shop, input, conversation="c", when_busy="queue", **options)


# ---------------------------------------------------------------------------------------------------------------- refuse


async def test_refused_by_default(lab: Lab, desk: Desk) -> None:
    """A busy conversation refuses a start, on every node, and nothing is stored of it."""
    shop = agent(GATED, "done", tools=[desk.tool(approval=True)])
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn, _ = await waiting(first, shop, conversation="c")

    ways: list[dict[str, Any]] = [{}, {"when_busy": "refuse"}]
    for options in ways:
        with pytest.raises(ConversationBusy, match=f"has an open turn {turn.id} \\(WAITING_FOR_APPROVAL\\)$") as caught:
            await second.start(shop, "more", conversation="c", **options)
        assert (caught.value.turn_id, caught.value.queued) == (turn.id, 0)

    assert len((await first.turns(conversation="c")).items) == 1


async def test_wrong_ways(lab: Lab) -> None:
    """What is to happen in a busy conversation is one of three, and two of them need a conversation."""
    shop = agent("hi")
    runtime = await lab.runtime(shop)

    with pytest.raises(InvalidDefinition, match="when_busy must be"):
        await runtime.start(shop, "x", conversation="c", when_busy="wait")  # type: ignore[arg-type]
    for way in ("queue", "supersede"):
        with pytest.raises(InvalidDefinition, match=f'when_busy="{way}" needs a conversation'):
            await runtime.start(shop, "x", when_busy=way)  # type: ignore[arg-type]
    with pytest.raises(InvalidDefinition, match="when_busy must be"):
        await runtime.run(shop, "x", conversation="c", when_busy=None)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------------------- queue


async def test_queue_in_order(lab: Lab, desk: Desk) -> None:
    """T50: queued turns are listed, run one after the other in their order, and each sees what was said before it."""
    gate = Gate()
    shop = agent(echo, model=None)
    slow = agent(held(gate, "first"), id="slow")
    first, second = await lab.runtime(shop, slow), await lab.runtime(shop, slow)
    open_turn = await first.start(slow, "one", conversation="c")
    await gate.entered.wait()

    queued = [await queue((first, second)[number % 2], shop, f"n{number}") for number in range(4)]
    assert await second.conversation("c").queued() == queued
    assert await second.conversation("c").open_turn() == open_turn
    assert {(await turn.view()).status for turn in queued} == {Status.READY}
    await lab.clock.advance(60)
    assert model_of(shop).requests == []

    gate.open()
    views = await asyncio.gather(*(lab.during(turn.settle()) for turn in queued))
    assert [view.final_output for view in views] == [f"re n{number}" for number in range(4)]
    last = [request for request in model_of(shop).requests if request.messages[-1].content == "n3"]
    expected = ["user: one", "assistant: first"]
    for number in range(4):
        assert talk(await queued[number].history()) == [*expected, f"user: n{number}", f"assistant: re n{number}"]
        expected += [f"user: n{number}", f"assistant: re n{number}"]
    assert talk(last[0].messages) == expected[:-1]
    assert await said(first) == expected
    assert await first.conversation("c").queued() == []
    assert await first.conversation("c").open_turn() is None


async def test_queue_under_concurrency(lab: Lab) -> None:
    """Starts at once on three nodes: one runs at a time, all run, each once, in the order in which they were queued."""
    running, most, order = 0, 0, list[str]()

    async def reply(request: Any) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        order.append(request.turn_id)
        await asyncio.sleep(0)
        running -= 1
        return "ok"

    shop = agent(reply)
    nodes = [await lab.runtime(shop) for _ in range(3)]
    turns = await asyncio.gather(*(queue(nodes[number % 3], shop, f"n{number}") for number in range(12)))
    listed = [turn.id for turn in await nodes[0].conversation("c").queued()]
    for turn in turns:
        assert (await lab.during(turn.settle())).status is Status.COMPLETED

    assert (most, len(order), len(set(order))) == (1, 12, 12)
    assert order[len(order) - len(listed) :] == listed
    assert len(await said(nodes[0])) == 24


async def test_queue_is_bounded(lab: Lab) -> None:
    """The 65th turn that would wait is refused with a clear text, and can still supersede."""
    gate = Gate()
    shop = agent(held(gate))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "x", conversation="c")
    for _ in range(64):
        await queue(runtime, shop, "x")

    with pytest.raises(ConversationBusy, match="and 64 queued ones, which is the limit") as caught:
        await queue(runtime, shop, "x")
    assert (caught.value.turn_id, caught.value.queued) == (turn.id, 64)
    assert len(await runtime.conversation("c").queued()) == 64

    newest = await runtime.start(shop, "now", conversation="c", when_busy="supersede")
    assert await runtime.conversation("c").queued() in ([], [newest])
    gate.open()
    assert (await lab.during(newest.settle())).status is Status.COMPLETED


async def test_a_free_conversation(lab: Lab) -> None:
    """In a free conversation all three ways start at once."""
    shop = agent("done")
    runtime = await lab.runtime(shop)

    for way in ("refuse", "queue", "supersede"):
        view = await runtime.run(shop, way, conversation=way, when_busy=way)  # type: ignore[arg-type]
        assert view.status is Status.COMPLETED


async def test_cancel_of_a_queued_turn(lab: Lab, desk: Desk) -> None:
    """A queued turn that is cancelled never ran, leaves nothing in the memory, and does not touch the others."""
    shop = agent(GATED, echo, tools=[desk.tool(approval=True)])
    plain = agent(echo, id="plain")
    runtime = await lab.runtime(shop, plain)
    turn, wait = await waiting(runtime, shop, conversation="c")
    dropped, kept = await queue(runtime, plain, "drop me"), await queue(runtime, plain, "keep me")

    view = await dropped.cancel("not any more")
    assert (view.status, model_of(plain).requests) == (Status.CANCELLED, [])
    assert (await dropped.cancel()).status is Status.CANCELLED
    assert await runtime.conversation("c").queued() == [kept]
    assert await runtime.conversation("c").open_turn() == turn
    assert (await turn.view()).status is Status.WAITING_FOR_APPROVAL
    assert talk(await dropped.history())[0] == "user: drop me"

    await approved(turn, wait)
    assert (await lab.during(kept.settle())).final_output == "re keep me"
    assert not any("drop me" in line or "not any more" in line for line in await said(runtime))


async def test_settle_waits_through_the_queue(lab: Lab, desk: Desk) -> None:
    """A queued turn has not settled: who waits for it waits until it has run, also when a limit was set, which changes nothing."""
    shop = agent(GATED, "first", tools=[desk.tool(approval=True)])
    plain = agent("second", id="plain")
    runtime, other = await lab.runtime(shop, plain), await lab.runtime(shop, plain)
    turn, wait = await waiting(runtime, shop, conversation="c")
    queued = await queue(runtime, plain, "x")
    settling = [asyncio.ensure_future(queued.settle()), asyncio.ensure_future(other.turn(queued.id).settle())]
    late = asyncio.ensure_future(queued.settle(5))
    await lab.clock.advance(10)
    assert not any(task.done() for task in settling)
    with pytest.raises(TimeoutError):
        await late

    await approved(turn, wait)
    for task in settling:
        assert (await lab.during(task)).final_output == "second"


async def test_a_start_repeated_by_key(lab: Lab, desk: Desk) -> None:
    """A queued start that is repeated with its key finds its turn, while it waits, runs and when it is over; it waits once."""
    shop = agent(GATED, "first", tools=[desk.tool(approval=True)])
    plain = agent("second", id="plain")
    runtime, other = await lab.runtime(shop, plain), await lab.runtime(shop, plain)
    turn, wait = await waiting(runtime, shop, conversation="c")

    queued = await queue(runtime, plain, "x", idempotency_key="k")
    assert await queue(other, plain, "x", idempotency_key="k") == queued
    assert await other.start(plain, "x", conversation="c", when_busy="supersede", idempotency_key="k") == queued
    with pytest.raises(IdempotencyKeyReused):
        await queue(other, plain, "y", idempotency_key="k")
    assert await runtime.conversation("c").queued() == [queued]
    assert (await turn.view()).status is Status.WAITING_FOR_APPROVAL

    await approved(turn, wait)
    await lab.during(queued.settle())
    assert await queue(runtime, plain, "x", idempotency_key="k") == queued
    assert len(model_of(plain).requests) == 1


async def test_what_a_queued_turn_is_told(lab: Lab, desk: Desk) -> None:
    """A question, or a child, that is put to a queued turn waits with it, and comes behind what was said before."""
    shop = agent(GATED, "first", tools=[desk.tool(approval=True)])
    plain = agent("second", id="plain")
    runtime = await lab.runtime(shop, plain)
    turn, wait = await waiting(runtime, shop, conversation="c")
    queued = await queue(runtime, plain, "x")
    asking = asyncio.ensure_future(queued.suspend("sure?"))
    await lab.clock.advance(5)
    assert not asking.done()

    await approved(turn, wait)
    await lab.during(asking)
    view = await lab.during(queued.settle())
    assert (view.status, view.open_waits[0].message) == (Status.WAITING_FOR_USER, "sure?")
    view = await lab.during(queued.resume(ResumeCommand.user_input("yes")))
    assert view.final_output == "second"
    assert talk(model_of(plain).requests[0].messages)[-3:] == ["assistant: first", "user: x", "user: yes"]


async def test_api_nodes(lab: Lab, desk: Desk) -> None:
    """A node that runs nothing starts, queues and supersedes in conversations; the executor's agent and its window count."""
    shop = agent(GATED, echo, tools=[desk.tool(approval=True)], instructions="be kind")
    executor, api = await lab.runtime(shop), await lab.runtime(execute=False)
    turn = await api.start("shop", "one", conversation="c")
    (wait,) = (await lab.during(turn.settle())).open_waits
    queued = await queue(api, "shop", "two")
    assert await api.conversation("c").queued() == [queued]

    await api.turn(turn.id).submit(ResumeCommand.reject_tool(wait, "no", by="ann"))
    (wait,) = (await lab.during(queued.settle())).open_waits
    assert talk(model_of(shop).requests[-1].messages)[0] == "system: be kind"
    assert "user: one" in talk(model_of(shop).requests[-1].messages)

    newest = await api.start("shop", "three", conversation="c", when_busy="supersede")
    await lab.during(newest.settle())
    assert (await executor.turn(queued.id).view()).status is Status.CANCELLED


async def test_behind_a_parked_turn(lab: Lab, desk: Desk) -> None:
    """A parked turn holds its conversation and is named by who finds it busy; when it is discarded the queue goes on."""
    shop = agent(GATED, "first", tools=[desk.tool(approval=True)])
    plain = agent("second", id="plain")
    runtime = await lab.runtime(shop, plain)
    turn, _ = await waiting(runtime, shop, conversation="c")
    await park(runtime, turn)
    queued = await queue(runtime, plain, "x")

    with pytest.raises(ConversationBusy, match=turn.id):
        await runtime.start(plain, "y", conversation="c")
    await turn.discard("nobody can read it")
    assert (await lab.during(queued.settle())).final_output == "second"


# ------------------------------------------------------------------------------------------------------------- supersede


async def test_supersede_while_a_tool_runs(lab: Lab, desk: Desk) -> None:
    """T50: the open turn and all queued ones are cancelled; the new one runs when the tool has ended and the open turn with it."""
    gate = Gate()
    shop = agent(call("slow"), "first", tools=[desk.tool("slow", gate=gate)])
    plain = agent(echo, id="plain")
    runtime, other = await lab.runtime(shop, plain), await lab.runtime(shop, plain)
    turn = await runtime.start(shop, "one", conversation="c")
    await gate.entered.wait()
    queued = await queue(runtime, plain, "two")

    newest = await other.start(plain, "three", conversation="c", when_busy="supersede")
    await lab.clock.advance(2)
    assert ((await turn.view()).status, model_of(plain).requests) == (Status.RUNNING, [])
    assert await other.conversation("c").queued() == [newest]
    gate.open()
    view = await lab.during(newest.settle())

    assert (view.final_output, desk.ended) == ("re three", ["slow"])
    assert {(await runtime.turn(each.id).view()).status for each in (turn, queued)} == {Status.CANCELLED}
    assert (await said(runtime))[-2:] == ["user: three", "assistant: re three"]
    assert "call_1_0 = refunded" in talk(model_of(plain).requests[0].messages)
    assert f"superseded by turn {newest.id}" in (await turn.history())[-1].content


async def test_supersede_a_turn_that_waits(lab: Lab, desk: Desk) -> None:
    """The wait ends as superseded, so does the one below it in a child; a late answer is told so, and by nobody."""
    child = agent(GATED, id="child", tools=[desk.tool(approval=True)])
    shop = agent([call("child", input="x"), call("pay")], tools=[child.as_tool(), desk.tool("pay", approval=True)])
    runtime = await lab.runtime(shop, child)
    turn = await runtime.start(shop, "one", conversation="c")
    waits = (await turn.settle()).open_waits
    assert {wait.call.name for wait in waits if wait.call} == {"refund", "pay"}

    plain = await runtime.start(child, "two", conversation="c", when_busy="supersede")
    await lab.during(plain.settle())

    assert (await turn.view()).status is Status.CANCELLED
    for wait in waits:
        with pytest.raises(Exception, match="SUPERSEDED") as caught:
            await runtime.turn(wait.turn_id).submit(ResumeCommand.approve_tool(wait))
        assert getattr(caught.value, "receipt").effect is Effect.SUPERSEDED  # noqa: B009
    assert desk.starts == []
    assert (await types(turn))[-1].value == "TURN_CANCELLED"


@pytest.mark.parametrize("way", ["supersede", "cancel"])
async def test_turns_of_agents_that_nobody_has_any_more(lab: Lab, desk: Desk, way: str) -> None:
    """To end a turn, and what is below it, nobody needs its agent: a version that was left out holds no conversation for ever."""
    child = agent(GATED, id="child", tools=[desk.tool(approval=True)])
    old = agent(call("child", input="x"), tools=[child.as_tool()])
    first = await lab.runtime(old)
    turn = await first.start(old, "one", conversation="c")
    await turn.settle()
    queued = await queue(first, old, "two")
    await lab.close(first)

    plain = agent(echo, id="plain")
    runtime = await lab.runtime(plain)
    newest = await runtime.start(plain, "three", conversation="c", when_busy="supersede" if way == "supersede" else "queue")
    if way == "cancel":
        await lab.during(runtime.turn(turn.id).cancel())
        await lab.clock.advance(120)  # the next one is not run, and left alone for longer and longer
        assert await runtime.conversation("c").open_turn() == queued
        await lab.during(runtime.turn(queued.id).cancel(), most=5)

    assert (await lab.during(newest.settle(), most=15)).final_output == "re three"
    assert {(await runtime.turn(each.id).view()).status for each in (turn, queued)} == {Status.CANCELLED}
    assert desk.starts == []


async def test_supersede_twice(lab: Lab) -> None:
    """Who supersedes while another one is about to take over takes its place, too: only the newest runs."""
    gate = Gate()
    shop = agent(held(gate, "late"))
    plain = agent(echo, id="plain")
    runtime = await lab.runtime(shop, plain)
    turn = await runtime.start(shop, "one", conversation="c")
    await gate.entered.wait()
    starts = [runtime.start(plain, f"n{number}", conversation="c", when_busy="supersede") for number in range(5)]
    turns = await asyncio.gather(*starts)

    statuses = [(await lab.during(each.settle())).status for each in turns]
    assert statuses.count(Status.COMPLETED) >= 1
    assert statuses[-1] is Status.COMPLETED
    assert set(statuses) <= {Status.CANCELLED, Status.COMPLETED}
    assert (await turn.view()).status is Status.CANCELLED


# --------------------------------------------------------------------------------------------------------------- crashes


@pytest.mark.parametrize("nth", range(1, 6))
@pytest.mark.parametrize("point", POINTS)
async def test_crash_around_the_promotion(lab: Lab, desk: Desk, point: Any, nth: int) -> None:
    """The queue goes on, in its order and each turn once, at whatever save of the open turn its node dies."""

    def fleet() -> tuple[Agent, Agent]:
        shop = agent(call("refund"), "first", tools=[desk.tool(effect="repeatable")])
        return shop, agent(echo, id="plain")

    agents = fleet()
    first = await lab.runtime(*agents)
    with crash(first, "save", point, nth=nth) as crashed:
        turn = await first.start(agents[0], "one", conversation="c", idempotency_key="k")
        try:
            queued = [await queue(first, agents[1], f"n{number}", idempotency_key=f"{number}") for number in range(2)]
        except Exception:
            assert crashed.happened
        await lab.idle()
    if crashed.happened and point != "lost_reply":
        await lab.kill(first)
    second = await lab.runtime(*fleet())
    await lab.take_over()
    queued = [await queue(second, agents[1].id, f"n{number}", idempotency_key=f"{number}") for number in range(2)]

    for each in queued:
        assert (await lab.during(second.turn(each.id).settle())).status is Status.COMPLETED
    assert (await second.turn(turn.id).view()).final_output == "first"
    lines = await said(second)
    assert lines == [
        *("user: one", "assistant -> refund", "call_1_0 = refunded", "assistant: first"),
        *("user: n0", "assistant: re n0", "user: n1", "assistant: re n1"),
    ]
    assert await second.conversation("c").queued() == []


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("way", ["queue", "supersede"])
async def test_crash_at_the_start(lab: Lab, desk: Desk, way: Any, point: Any) -> None:
    """A start whose node dies, or does not hear of it, is there once or not at all; repeated by its key it is there once."""
    gate = Gate()
    shop = agent(held(gate, "first"))
    plain = agent(echo, id="plain")
    first, second = await lab.runtime(shop, plain), await lab.runtime(shop, plain)
    turn = await second.start(shop, "one", conversation="c")
    await gate.entered.wait()
    with crash(first, "create", point) as crashed:
        starting = asyncio.ensure_future(
            first.start(plain, "two", conversation="c", when_busy=way, idempotency_key="k")  # the outcome is not known to us
        )
        await asyncio.wait([starting])
    assert crashed.happened
    assert starting.exception() is None or point != "lost_reply"
    if point != "lost_reply":
        await lab.kill(first)

    again = await second.start(plain, "two", conversation="c", when_busy=way, idempotency_key="k")
    gate.open()
    assert (await lab.during(again.settle())).final_output == "re two"
    status = (await turn.view()).status
    assert status is (Status.COMPLETED if way == "queue" else Status.CANCELLED)
    assert len((await second.turns(conversation="c")).items) == 2
