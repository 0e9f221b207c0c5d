"""Section K: who runs a turn, how work finds a node, and how a node leaves."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from turnhold import (
    Agent,
    AgentNotFound,
    AnswerPending,
    Effect,
    EventType,
    ExecutionPolicy,
    ResumeCommand,
    Status,
    StoreUnavailable,
    SuspensionType,
)
from turnhold.store import base
from turnhold.testing import call, crash

from .lab import LEASE, Desk, Gate, Lab, agent, approved, model_of, result_of, stored_events, types, waiting


def slow(gate: Gate, answer: str = "done"):
    async def reply(request):
        await gate.passing()
        return answer

    return reply


async def test_one_owner(lab: Lab) -> None:
    """K204, T05, R08 (W-1): a turn that runs on one node is driven by no other; who settles elsewhere only waits."""
    gate = Gate()
    shop = agent(slow(gate))
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    await lab.idle()

    waiter = asyncio.ensure_future(second.turn(turn.id).settle())
    await lab.clock.advance(3 * LEASE)
    view = await second.turn(turn.id).view()
    assert view.owner is not None
    assert (view.owner.node, view.status) == (first.node, Status.RUNNING)
    gate.open()

    assert (await waiter).final_output == "done"
    assert len(model_of(shop).requests) == 1


async def test_in_the_background(lab: Lab) -> None:
    """K205: a started turn runs by itself; nobody has to wait for it."""
    shop = agent("done")
    seen: list[EventType] = []
    runtime = await lab.runtime(shop, listeners=[lambda event: seen.append(event.type)])
    turn = await runtime.start(shop, "hi")

    await lab.idle()

    assert seen[-1] is EventType.TURN_COMPLETED
    assert (await turn.view()).status is Status.COMPLETED


@pytest.mark.parametrize("leave", ["stay", "close"])
async def test_long_request(lab: Lab, leave: str) -> None:
    """K206, K207: a request longer than the lease keeps its turn (leases are renewed), also while the node drains."""
    gate = Gate()
    shop = agent(slow(gate))
    first, second = await lab.runtime(shop, drain=600), await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    await lab.idle()
    closing = asyncio.ensure_future(lab.close(first)) if leave == "close" else None

    await lab.clock.advance(5 * LEASE)
    assert (await second.turn(turn.id).view()).status is Status.RUNNING
    gate.open()
    view = await lab.during(second.turn(turn.id).settle())

    assert (view.final_output, len(model_of(shop).requests)) == ("done", 1)
    assert second.statistics().reaped == 0
    if closing is not None:
        await closing


async def test_closed_twice(lab: Lab) -> None:
    """K208, K209: a runtime may be left twice; it says whether it runs, and refuses work when it does not."""
    runtime = await lab.runtime(agent("done"))
    assert runtime.healthy

    await lab.close(runtime)
    await runtime.__aexit__(None, None, None)

    assert not runtime.healthy
    with pytest.raises(StoreUnavailable):
        await runtime.start("shop", "hi")


async def test_answer_at_once(lab: Lab, desk: Desk) -> None:
    """R10 (W-12), T46, T47, T128: who answers on hearing of the wait is heard, on any node: it is stored before it is told."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    other = await lab.runtime(execute=False)
    answers: list[asyncio.Future] = []

    def hear(event) -> None:
        if event.type is EventType.TURN_SUSPENDED:
            command = ResumeCommand.approve_tool(event.data["suspensionId"], by="ann")
            answers.append(asyncio.ensure_future(other.turn(event.turn_id).submit(command)))

    runtime = await lab.runtime(shop, listeners=[hear])
    turn = await runtime.start(shop, "hi")
    await lab.idle()

    (answer,) = answers
    assert (await answer).by == "ann"
    assert (await lab.during(turn.settle())).status is Status.COMPLETED
    assert desk.starts == ["refund"]


async def test_answer_without_nodes(lab: Lab, desk: Desk) -> None:
    """T48: accepting an answer needs only the store: with no executor alive it is stored, and counts when one comes."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    first = await lab.runtime(shop)
    turn, wait = await waiting(first, shop)
    await lab.close(first)
    desks = await lab.runtime(execute=False)

    receipt = await desks.turn(turn.id).submit(ResumeCommand.approve_tool(wait, by="ann"))
    await lab.close(desks)
    later = await lab.runtime(shop)
    view = await later.turn(turn.id).settle()

    assert (receipt.by, view.status, desk.starts) == ("ann", Status.COMPLETED, ["refund"])


async def test_answer_to_a_dead_owner(lab: Lab, desk: Desk) -> None:
    """DESIGN 5.6, T46: mail for an owner that is gone is pending for its sender, and decided once by whoever takes over."""
    gate = Gate()
    tools = [desk.tool("slow", gate=gate), desk.tool("refund", approval=True)]
    shop = agent([call("slow"), call("refund")], "done", tools=tools)
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    await lab.idle()
    (wait,) = (await turn.view()).open_waits
    await lab.kill(first)
    there = second.turn(turn.id)
    command = ResumeCommand.approve_tool(wait, command_id="c1")

    asking = asyncio.ensure_future(there.submit(command, timeout=1))
    await lab.idle()
    await lab.clock.advance(1)
    with pytest.raises(AnswerPending) as pending:
        await asking
    assert pending.value.command_id == "c1"
    gate.open()
    await lab.take_over()
    receipt = await lab.during(there.submit(command))
    view = await lab.during(there.settle())

    assert (receipt.command_id, view.status) == ("c1", Status.COMPLETED)
    assert desk.starts.count("refund") == 1


async def test_api_node(lab: Lab, desk: Desk) -> None:
    """DESIGN 4: a node with execute=False starts by id what an executor announces, answers and cancels; it runs nothing."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)], instructions="be kind")
    desks = await lab.runtime(execute=False)
    with pytest.raises(AgentNotFound):
        await desks.start("shop", "hi")
    await lab.runtime(shop)

    turn = await desks.start("shop", "hi")
    view = await lab.during(turn.settle())
    (wait,) = view.open_waits
    view = await lab.during(approved(turn, wait))

    assert (view.final_output, desk.starts) == ("done", ["refund"])
    assert model_of(shop).requests[0].messages[0].content == "be kind"
    assert desks.statistics().effects == 0


async def test_streamed_approval(lab: Lab, desk: Desk) -> None:
    """K210, K211: a streamed approve cycle: every kind of event once in order, one terminal event, sequences without a gap."""

    async def body(context, arguments):
        await context.progress("half")
        return "ok"

    shop = agent(call("refund"), "all done", tools=[desk.tool(approval=True, body=body)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop, streaming=True)
    live: list[EventType] = []

    async def watch() -> None:
        live.extend([event.type async for event in turn.events()])

    watcher = asyncio.ensure_future(watch())
    await lab.idle()
    view = await approved(turn, wait)
    await watcher

    assert (view.status, desk.starts) == (Status.COMPLETED, ["refund"])
    assert {EventType.MODEL_TEXT_DELTA, EventType.TOOL_PROGRESS, EventType.TURN_RESUMED} <= set(live)
    events = await stored_events(turn)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert [event.type for event in events].count(EventType.TURN_COMPLETED) == 1


# -------------------------------------------------------------------------------------------------------------- leaving


async def test_drain_lets_calls_end(lab: Lab, desk: Desk) -> None:
    """DESIGN 5.13: during drain what runs may end and is saved, nothing new starts, and the turn goes on elsewhere."""
    gate = Gate()
    shop = agent(call("refund"), "done", tools=[desk.tool(gate=gate, effect="once")])
    first = await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    await lab.idle()

    closing = asyncio.ensure_future(lab.close(first))
    await lab.idle()
    gate.open()
    await closing
    second = await lab.runtime(shop)
    view = await lab.during(second.turn(turn.id).settle())

    assert (view.final_output, desk.attempts) == ("done", [1])
    assert len(model_of(shop).requests) == 2


@pytest.mark.parametrize("effect", ["once", "repeatable"])
async def test_drain_is_over(lab: Lab, desk: Desk, effect: str) -> None:
    """DESIGN 5.13: at its end `once` calls in flight are in doubt, `repeatable` ones pending; the turn is handed off at once."""
    gate = Gate()
    shop = agent(call("refund"), "done", tools=[desk.tool(gate=gate, effect=effect)])
    first = await lab.runtime(shop, drain=5)
    second = await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    await lab.idle()

    await lab.close(first)
    gate.open()
    view = await lab.during(second.turn(turn.id).settle())

    if effect == "once":
        assert (view.status, desk.attempts) == (Status.IN_DOUBT, [1])
    else:
        assert (view.final_output, desk.attempts) == ("done", [1, 2])
    assert second.statistics().reaped == 0


async def test_drain_stops_the_model(lab: Lab) -> None:
    """DESIGN 5.13: a model request that outlasts the drain is sent again by another node."""
    gate = Gate()
    shop = agent(slow(gate))
    first, second = await lab.runtime(shop, drain=5), await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    await lab.idle()

    await lab.close(first)
    gate.open()
    view = await lab.during(second.turn(turn.id).settle())

    assert (view.final_output, view.iteration_count, len(model_of(shop).requests)) == ("done", 1, 2)


async def test_drain_takes_answers(lab: Lab, desk: Desk) -> None:
    """DESIGN 5.13: an answer that reaches a draining node is decided; its call starts elsewhere."""
    gate = Gate()
    tools = [desk.tool("slow", gate=gate), desk.tool("refund", approval=True)]
    shop = agent([call("slow"), call("refund")], "done", tools=tools)
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    await lab.idle()
    (wait,) = (await turn.view()).open_waits
    closing = asyncio.ensure_future(lab.close(first))
    await lab.idle()

    receipt = await second.turn(turn.id).submit(ResumeCommand.approve_tool(wait, by="ann"))
    assert receipt.by == "ann"
    assert desk.starts == ["slow"]
    gate.open()
    await closing
    view = await lab.during(second.turn(turn.id).settle())

    assert (view.final_output, desk.starts) == ("done", ["slow", "refund"])


async def test_lost_lease(lab: Lab, desk: Desk) -> None:
    """J171, T76, T79, T80: a node that was frozen past its lease saves nothing any more: the one that took over decides."""
    gate = Gate()
    shop = agent(call("refund"), "done", tools=[desk.tool(gate=gate, effect="once")])
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    await lab.idle()
    frozen = first._node

    async def stuck(op):
        raise StoreUnavailable("frozen")

    assert frozen._connection is not None
    call_store, frozen._connection.call = frozen._connection.call, stuck  # pyright: ignore[reportAttributeAccessIssue]
    await lab.take_over()
    frozen._connection.call = call_store  # pyright: ignore[reportAttributeAccessIssue]
    gate.open()
    await lab.idle()
    view = await second.turn(turn.id).settle()

    assert (view.status, desk.attempts) == (Status.IN_DOUBT, [1])
    assert first.statistics().lost == 1
    view = await second.turn(turn.id).resume(ResumeCommand.give_result("call_1_0", "by hand"))
    assert result_of(await second.turn(turn.id).history()) == "by hand"


async def test_poison_hurts_nobody(lab: Lab, desk: Desk) -> None:
    """R16 (W-11): a policy that always raises costs its turn a few retries with back-off, then FAILED; others run meanwhile."""
    asked: list[str] = []

    def broken(turn, call, tool):
        asked.append(turn.id)
        raise RuntimeError("policy down")

    bad = agent(call("refund"), "never", id="bad", tools=[desk.tool()], approval=broken, policy=ExecutionPolicy(max_crashes=3))
    good = agent("fine", id="good")
    runtime = await lab.runtime(bad, good)
    turn = await runtime.start(bad, "hi")
    view = await turn.settle()
    assert (view.status, view.retry_count) == (Status.RETRY_SCHEDULED, 1)
    assert view.suspension is not None
    assert "policy down" in str(view.suspension.message)

    assert (await runtime.run(good, "hi")).final_output == "fine"
    view = await lab.during(turn.settle(through_retries=True))

    assert (view.status, desk.starts, len(asked)) == (Status.FAILED, [], 3)
    assert view.error is not None
    assert "policy down" in view.error.message
    assert len(model_of(bad).requests) == 1


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt()])
async def test_policy_raises_anything(lab: Lab, desk: Desk, error: BaseException) -> None:
    """T99, R16: also a stray CancelledError of a policy is its fault, not the end of the turn's loop."""
    asked: list[str] = []

    def broken(turn, call, tool):
        asked.append(call.id)
        if len(asked) == 1:
            raise error
        return False

    shop = agent(call("refund"), "done", tools=[desk.tool()], approval=broken)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await lab.during(turn.settle(through_retries=True))

    assert (view.final_output, len(asked), desk.starts) == ("done", 2, ["refund"])


async def test_parked_by_the_reaper(lab: Lab) -> None:
    """DESIGN 5.9: who settles a turn is told when it is parked because it has lost too many owners."""
    gate = Gate()
    shop = agent(slow(gate))
    first = await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    desk = await lab.runtime(execute=False)
    settling = asyncio.ensure_future(desk.turn(turn.id).settle())
    await lab.idle()
    await lab.kill(first)
    await lab.take_over()
    assert not settling.done()

    store = desk._node._connection
    assert store is not None
    assert isinstance(await store.call(base.Reap(turn=turn.id, grace_ms=0, max_crashes=0)), base.Reaped)

    assert (await lab.during(settling, most=0)).quarantine is not None


@pytest.mark.parametrize("error", [ConnectionError("no agents today"), asyncio.CancelledError(), SystemExit(3)], ids=repr)
async def test_loader_raises(lab: Lab, desk: Desk, error: BaseException) -> None:
    """DESIGN 5.9: a loader that raises costs its turns some back-off: no lease, no crash, no answer, and nothing of others."""
    shop, other = agent(call("refund"), "done", tools=[desk.tool(approval=True)]), agent("fine", id="other")
    down = 0

    class Loader:
        def known(self) -> list[str]:
            return ["shop@1", "other@1"]

        async def load(self, id: str, version: str) -> Agent | None:
            nonlocal down
            if id == "shop" and down:
                down -= 1
                raise error
            return await self.load_active(id)

        async def load_active(self, id: str) -> Agent | None:
            return {"shop": shop, "other": other}.get(id)

    runtime = await lab.runtime(loader=Loader())
    turn, wait = await waiting(runtime, shop)
    down = 3
    answering = asyncio.ensure_future(turn.submit(ResumeCommand.approve_tool(wait)))
    assert (await runtime.run(other, "hi")).final_output == "fine"
    receipt = await lab.during(answering, most=8)

    assert receipt.effect is Effect.APPROVED
    assert (await turn.settle()).status is Status.COMPLETED
    assert (down, desk.starts, runtime.statistics().reaped) == (0, ["refund"], 0)


async def test_memory_drops(lab: Lab, desk: Desk) -> None:
    """R21 (W-46), T86, T125, T126: a turn that waits or has ended leaves nothing in the process."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    for number in range(20):
        await waiting(runtime, shop, conversation=f"c-{number}")
    await lab.idle()

    numbers = runtime.statistics()

    assert (numbers.live_turns, numbers.effects, numbers.watched_trees) == (0, 0, 0)
    assert runtime._node.placement.tasks == {}


async def test_nodes(lab: Lab) -> None:
    """DESIGN 4: every node is listed with what it runs and when it was last there; one that has left is not."""
    shop = agent("fine")
    worker = await lab.runtime(shop, node="worker")
    api = await lab.runtime(node="api", execute=False)
    await lab.clock.advance(3600)

    listed = {info.node: info for info in await api.nodes()}

    assert {name: info.agents for name, info in listed.items()} == {"worker": (shop.key,), "api": ()}
    assert all(timedelta(0) <= lab.clock.now() - info.seen_at <= timedelta(minutes=2) for info in listed.values())
    await lab.close(worker)
    assert [info.node for info in await api.nodes()] == ["api"]


async def test_owner_dies_between_save_and_reply(lab: Lab, desk: Desk) -> None:
    """DESIGN 5.6: the owner dies when it has saved the receipt: whoever asks again with the same id gets that receipt."""
    gate = Gate()
    tools = [desk.tool("slow", gate=gate, effect="once"), desk.tool("refund", approval=True)]
    shop = agent([call("slow"), call("refund")], "done", tools=tools)
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    await lab.idle()
    (wait,) = (await turn.view()).open_waits
    command = ResumeCommand.approve_tool(wait, command_id="c1", by="ann")
    with crash(first, "save", "after_apply") as crashed:
        asking = asyncio.ensure_future(turn.submit(command))
        await crashed.wait()
    with pytest.raises(StoreUnavailable):
        await asking

    receipt = await lab.during(second.turn(turn.id).submit(command))
    await lab.take_over()
    view = await second.turn(turn.id).settle()

    assert (receipt.replayed, receipt.by) == (True, "ann")
    assert [item.type for item in view.open_waits] == [SuspensionType.IN_DOUBT, SuspensionType.IN_DOUBT]
    assert desk.starts == ["slow"]


async def test_events_over_nodes(lab: Lab, desk: Desk) -> None:
    """W-35, K212, T81: sequences go on over nodes and crashes; nothing is told twice."""
    gate = Gate()
    shop = agent(call("refund"), "done", tools=[desk.tool(gate=gate)])
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    await lab.idle()
    await lab.kill(first)
    gate.open()
    await lab.take_over()
    there = second.turn(turn.id)
    await there.settle()

    events = await stored_events(there)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    seen = await types(there)
    assert seen.count(EventType.TURN_STARTED) == seen.count(EventType.TURN_COMPLETED) == 1
    epochs = [event.epoch for event in events]
    assert epochs == sorted(epochs)
    assert len(set(epochs) - {0}) == 2
