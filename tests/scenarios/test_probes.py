"""Section R: what the anchor gets wrong, done right. Probes told better in their own section are listed in SCENARIOS.md."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from turnhold import (
    AiMessage,
    AlreadyAnswered,
    Budget,
    Effect,
    ExecutionPolicy,
    ModelOverloaded,
    NotSuspended,
    ResumeCommand,
    RetryPolicy,
    Status,
    SuspensionMismatch,
    ToolCall,
    TurnClosed,
)
from turnhold.store import base
from turnhold.store.urls import open_store
from turnhold.testing import call

from .lab import Desk, Gate, Lab, agent, approved, model_of, open_calls, result_of, stored_events, talk, waiting


def reply(*calls: ToolCall) -> AiMessage:
    """A reply whose calls have the ids that they come with, as a careless provider sends them."""
    return AiMessage(tool_calls=calls)


async def test_same_id_in_two_replies(lab: Lab, desk: Desk) -> None:
    """R05 (W-3), T108: an id that a later reply uses again is another call: it asks for itself, and has a key of its own."""
    tools = [desk.tool("read", approval=True), desk.tool("delete", approval=True)]
    shop = agent(reply(ToolCall("call_0", "read")), reply(ToolCall("call_0", "delete")), "done", tools=tools)
    runtime = await lab.runtime(shop)
    turn, first = await waiting(runtime, shop)

    view = await approved(turn, first, by="ann")

    (second,) = view.open_waits
    assert (view.status, desk.starts) == (Status.WAITING_FOR_APPROVAL, ["read"])
    assert second.correlation_id != first.correlation_id
    with pytest.raises(AlreadyAnswered):
        await turn.submit(ResumeCommand.approve_tool("call_0"))
    await turn.resume(ResumeCommand.reject_tool(second))
    assert (desk.starts, len(set(desk.keys))) == (["read"], 1)
    assert open_calls(await turn.history()) == []


async def test_same_id_in_one_reply(lab: Lab, desk: Desk) -> None:
    """R06 (W-3), T15, T28: two calls with one id in a reply are two calls: each asks, each is answered alone."""
    twins = reply(ToolCall("same", "refund", {"amount": 1}), ToolCall("same", "refund", {"amount": 2}))
    shop = agent(twins, "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    one, two = (await turn.settle()).open_waits
    assert one.correlation_id != two.correlation_id

    view = await approved(turn, two)
    assert (view.status, [each["amount"] for each in desk.arguments]) == (Status.WAITING_FOR_APPROVAL, [2])
    view = await turn.resume(ResumeCommand.reject_tool(one, "no"))

    assert (view.status, len(desk.starts)) == (Status.COMPLETED, 1)
    assert open_calls(await turn.history()) == []


@pytest.mark.parametrize("bad", ["", "  ", "a/b", "x" * 200, "ü", "new\nline", "\x00"], ids=repr)
async def test_hostile_ids(lab: Lab, desk: Desk, bad: str) -> None:
    """W-3, DESIGN 5.3: a missing or unusable call id is replaced before anything is stored; the wait can be named and answered."""
    shop = agent(reply(ToolCall(bad, "refund"), ToolCall("good", "refund")), "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    one, two = (await turn.settle()).open_waits

    assert (two.correlation_id, one.correlation_id != bad) == ("good", True)
    await approved(turn, two)
    view = await turn.resume(ResumeCommand.approve_tool(one.correlation_id))

    assert (view.status, len(desk.starts)) == (Status.COMPLETED, 2)
    assert open_calls(model_of(shop).requests[-1].messages) == []


async def test_each_approver(lab: Lab, desk: Desk) -> None:
    """R11 (W-22): every decision has its own record: an approval without remarks is not given those of the one before."""
    shop = agent([call("a"), call("b")], "done", tools=[desk.tool("a", approval=True), desk.tool("b", approval=True)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    one, two = (await turn.settle()).open_waits

    first = await turn.submit(ResumeCommand.approve_tool(one, by="alice", metadata={"n": 1}))
    second = await turn.submit(ResumeCommand.approve_tool(two))

    assert ((first.by, first.metadata), (second.by, second.metadata)) == (("alice", {"n": 1}), (None, {}))


async def test_retries_of_a_child(lab: Lab) -> None:
    """R12 (W-20): a child's retries are its own: its parent still has all of its retries, each request counts for itself."""
    policy = ExecutionPolicy(retry_policy=RetryPolicy(max_retries=1, initial_delay=0))
    gate = Gate()

    async def first(request):
        if len(request.messages) == 1:
            await gate.passing()
        raise ModelOverloaded("mother") if request.attempt == 1 else AssertionError("attempt 2 is scripted")

    async def scripted(request):
        if request.attempt == 1:
            return await first(request)
        return "mother done"

    child_agent = agent(ModelOverloaded("child"), "child done", id="child", policy=policy)
    mother = agent(scripted, id="mother", policy=policy)
    runtime = await lab.runtime(mother, child_agent)
    parent = await runtime.start(mother, "hi")
    await lab.idle()
    child = await parent.start_child("child", "x")

    view = await lab.during(parent.settle(through_retries=True))

    assert (view.final_output, view.retry_count) == ("mother done", 1)
    assert (await child.view()).retry_count == 1


async def test_retries_start_anew(lab: Lab, desk: Desk) -> None:
    """R12 (W-20): retries are counted for each operation: what one request used up, the next one has again."""
    policy = ExecutionPolicy(retry_policy=RetryPolicy(max_retries=1, initial_delay=1, jitter=0))
    tools = [desk.tool(errors=[ConnectionError("lost")])]
    shop = agent(ModelOverloaded("a"), call("refund"), ModelOverloaded("b"), "done", tools=tools, policy=policy)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await lab.during(turn.settle(through_retries=True))

    assert (view.final_output, view.retry_count) == ("done", 3)
    assert [request.attempt for request in model_of(shop).requests] == [1, 2, 1, 2]


async def test_suspended_before_its_first_step(lab: Lab) -> None:
    """R15 (W-24): a turn that is asked something before its first step waits; no model request until it is answered."""
    shop = agent("done")
    starter = await lab.runtime(shop)
    starter._node.draining = True
    turn_id = (await starter.start(shop, "hi")).id
    await lab.close(starter)
    desks = await lab.runtime(execute=False)
    await desks.turn(turn_id).suspend("sure?")

    runtime = await lab.runtime(shop)
    await lab.clock.advance(30)
    view = await runtime.turn(turn_id).settle()

    assert (view.status, model_of(shop).requests) == (Status.WAITING_FOR_USER, [])


async def test_round_trips(lab: Lab, desk: Desk) -> None:
    """R22 (W-43): an approve cycle takes at most six store operations that are on its way."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    await lab.idle()
    counted: list[str] = []

    class Counter:
        def before(self, op: Any) -> None:
            counted.append(type(op).__name__)

        def after(self, op: Any, reply: Any) -> None:
            pass

    runtime._node.fault = Counter()
    turn = await runtime.start(shop, "hi")
    view = await turn.settle()
    await turn.submit(ResumeCommand.approve_tool(view.open_waits[0]))
    await turn.settle()

    own = [name for name in counted if name not in ("Due", "Renew", "Beat", "Versions")]
    assert len(own) <= 6, own


async def test_retry_is_one_call(lab: Lab, desk: Desk) -> None:
    """R27 (W-32): attempts of one call count once against max_tool_calls."""
    policy = ExecutionPolicy(
        retry_policy=RetryPolicy(max_retries=2, initial_delay=0), budget=Budget(max_tool_calls=1), max_iterations=3
    )
    shop = agent(call("refund"), "done", tools=[desk.tool(errors=[ConnectionError("a"), ConnectionError("b")])], policy=policy)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await lab.during(turn.settle(through_retries=True))

    assert (view.status, view.tool_call_count, desk.attempts) == (Status.COMPLETED, 1, [1, 2, 3])


@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
async def test_answer_delivered_twice(lab: Lab, desk: Desk, named: bool) -> None:
    """R29 (W-33): a text answer that is delivered twice answers one question; the next question stays open."""
    gate, second_gate = Gate(), Gate()

    async def first(request):
        await (gate if not gate.entered.is_set() else second_gate).passing()
        return "done"

    shop = agent(first)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await lab.idle()
    await turn.suspend("first?")
    (wait,) = (await turn.settle()).open_waits
    command = ResumeCommand.user_input("yes", wait=wait if named else None, command_id="m-1")
    receipt = await turn.submit(command)
    await lab.idle()
    await turn.suspend("second?")
    (other,) = (await turn.settle()).open_waits

    again = await turn.submit(command)

    assert (again.replayed, again.suspension_id) == (True, receipt.suspension_id)
    assert (await turn.view()).open_waits == (other,)
    assert talk(await turn.history()) == ["user: hi", "user: yes"]


async def test_first_come(lab: Lab) -> None:
    """R31 (W-41): turns that wait for a free node run in the order of their creation."""
    order: list[str] = []

    def note(request):
        order.append(request.messages[0].content)
        return "done"

    shop = agent(note)
    desks = await lab.runtime(execute=False)
    announcer = await lab.runtime(shop)
    announcer._node.draining = True
    for name in ("b", "a", "d", "c"):
        await desks.start("shop", name)
        await lab.clock.advance(0.01)
    await lab.close(announcer)
    runtime = await lab.runtime(shop, max_active=1)
    await lab.idle()
    await lab.clock.advance(5)

    assert order == ["b", "a", "d", "c"]
    assert runtime.statistics().live_turns == 0


async def test_nobody_stands_in_front(lab: Lab) -> None:
    """R32, R33 (W-41): turns that no live node can run hide nobody: the one behind many of them runs at once."""
    shop, strange = agent("done"), agent("never", id="strange")
    stranger = await lab.runtime(strange)
    stranger._node.draining = True
    for number in range(12):
        await stranger.start(strange, f"hi {number}")
        await lab.clock.advance(0.01)
    announcer = await lab.runtime(shop)
    announcer._node.draining = True
    turn = await announcer.start(shop, "hi")
    await lab.close(stranger)
    await lab.close(announcer)

    runtime = await lab.runtime(shop, max_active=1)
    await lab.idle()
    await lab.clock.advance(2)

    assert (await runtime.turn(turn.id).view()).status is Status.COMPLETED
    assert model_of(strange).requests == []


async def test_finished_turns_cost_nothing(lab: Lab) -> None:
    """R34 (W-40): what is finished is not looked at: a start takes as many store operations behind 60 turns as behind none."""
    shop = agent("done")
    runtime = await lab.runtime(shop)
    counted: list[str] = []

    class Counter:
        def before(self, op: Any) -> None:
            counted.append(type(op).__name__)

        def after(self, op: Any, reply: Any) -> None:
            pass

    async def count(conversation: str) -> int:
        await lab.idle()
        counted.clear()
        await runtime.run(shop, "hi", conversation=conversation)
        await lab.idle()
        return len(counted)

    runtime._node.fault = Counter()
    before = await count("c-1")
    for number in range(60):
        await runtime.run(shop, f"hi {number}", conversation=f"d-{number}")

    assert await count("c-1") == before


async def test_commands_in_their_order_of_checks(lab: Lab, desk: Desk) -> None:
    """DESIGN 5.6: known id, ended wait, ended turn, no wait, no such wait: each refusal is the first that fits; ids stay free."""
    gate = Gate()
    shop = agent(call("refund"), call("slow"), "done", tools=[desk.tool(approval=True), desk.tool("slow", gate=gate)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    with pytest.raises(SuspensionMismatch):
        await turn.submit(ResumeCommand.reject_tool("nope", command_id="c1"))
    accepted = await turn.submit(ResumeCommand.approve_tool(wait, command_id="c1"))
    await lab.idle()
    with pytest.raises(NotSuspended):
        await turn.submit(ResumeCommand.approve_tool("nope", command_id="c2"))
    with pytest.raises(AlreadyAnswered):
        await turn.submit(ResumeCommand.reject_tool(wait, command_id="c2"))
    gate.open()
    await turn.settle()
    with pytest.raises(AlreadyAnswered):
        await turn.submit(ResumeCommand.reject_tool(wait, command_id="c2"))
    with pytest.raises(TurnClosed):
        await turn.submit(ResumeCommand.approve_tool("nope", command_id="c2"))

    again = await turn.submit(ResumeCommand.approve_tool(wait, command_id="c1"))
    assert (again.replayed, again.at, again.effect) == (True, accepted.at, Effect.APPROVED)


@pytest.mark.parametrize("nth", range(1, 5))
async def test_cancel_is_not_lost(lab: Lab, desk: Desk, nth: int) -> None:
    """R07 (W-2), H136: a cancel that arrives while its owner saves something else is seen: nothing starts behind it."""
    shop = agent(call("a"), call("b"), call("c"), "done", tools=[desk.tool(name) for name in ("a", "b", "c")])
    runtime, other = await lab.runtime(shop), await lab.runtime(execute=False)
    cancels: list[asyncio.Future] = []
    started: list[int] = []
    saves: list[Any] = []

    class Race:
        def before(self, op: Any) -> None:
            if isinstance(op, base.Save):
                saves.append(op)
                if len(saves) == nth:
                    cancels.append(asyncio.ensure_future(other.turn(op.turn).cancel()))

        def after(self, op: Any, reply: Any) -> None:
            pass

    class Flagged:
        def before(self, op: Any) -> None:
            pass

        def after(self, op: Any, reply: Any) -> None:
            if isinstance(op, base.Cancel):
                started.append(len(desk.starts))

    runtime._node.fault, other._node.fault = Race(), Flagged()
    turn = await runtime.start(shop, "hi")

    view = await lab.during(turn.settle())
    await lab.during(asyncio.gather(*cancels))

    assert view.status is Status.CANCELLED
    assert len(desk.starts) <= started[0] + 1  # one whose start was saved before the flag may still begin


async def test_no_leak_of_cards(lab: Lab, desk: Desk) -> None:
    """R02 (W-7), T65: what is listed as open is exactly what can be answered, through the whole life of a turn."""
    tools = [desk.tool("a", approval=True), desk.tool("b", approval=True)]
    shop = agent([call("a"), call("b")], call("a"), "done", tools=tools)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await turn.settle()

    for _ in range(3):
        view = await turn.view()
        assert {wait.id for wait in (await runtime.inbox()).items} == {wait.id for wait in view.open_waits}
        await turn.resume(ResumeCommand.approve_tool(view.open_waits[0]))

    assert (await turn.view()).status is Status.COMPLETED
    assert (await runtime.inbox()).items == ()
    asked = [event.data["suspensionId"] for event in await stored_events(turn) if event.type.value == "TOOL_APPROVAL_REQUESTED"]
    assert len(asked) == len(set(asked)) == 3


async def test_a_store_of_ones_own(lab: Lab, desk: Desk) -> None:
    """DESIGN 4: a store object serves as well as its URL; its history is the same on every node."""
    shop = agent(call("refund"), "done", tools=[desk.tool()])
    runtime = await lab.runtime(shop, store=open_store(lab.url))
    turn = await runtime.start(shop, "hi")
    await turn.settle()
    other = await lab.runtime(execute=False)

    assert result_of(await other.turn(turn.id).history()) == "refunded"
