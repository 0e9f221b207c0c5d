"""Section L, as far as it is built: children that the application starts, and the waits of a whole tree."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from turnhold import (
    AgentNotFound,
    AiMessage,
    ConversationBusy,
    Event,
    EventType,
    ModelRefused,
    ResumeCommand,
    Runtime,
    Status,
    SuspensionMismatch,
    SuspensionType,
    TurnClosed,
    TurnNotFound,
    TurnRef,
    Usage,
)
from turnhold.testing import call

from .lab import Desk, Gate, Lab, agent, approved, model_of, open_calls, stored_events, talk, told


def mother(*replies: Any, gate: Gate, **options: Any):
    """An agent whose first reply waits at a gate, so that children can be started before it."""

    async def first(request):
        if request.messages[-1].content == "hi":
            await gate.passing()
        return replies[0] if replies else "mother done"

    return agent(first, *replies[1:], id="mother", **options)


async def family(lab: Lab, child, *, runtime: Runtime | None = None, **options: Any) -> tuple[Runtime, TurnRef, TurnRef, Any]:
    """Return a runtime, a parent that waits for its child, the child, and the parent's agent."""
    parent_agent = mother(gate=Gate())
    runtime = runtime or await lab.runtime(parent_agent, child)
    parent = await runtime.start(parent_agent, "hi", **options)
    await lab.idle()
    return runtime, parent, await parent.start_child(child.id, "do it", metadata={"part": 1}), parent_agent


async def test_parent_waits(lab: Lab) -> None:
    """L215, K213: a parent whose child runs waits for it under the child's id; nobody outside can answer that wait."""
    gate = Gate()

    async def slow(request):
        await gate.passing()
        return "child done"

    runtime, parent, child, _ = await family(lab, agent(slow, id="child"))
    await lab.idle()
    view = await parent.view()

    assert view.status is Status.WAITING_FOR_CHILD
    assert view.suspension is not None
    assert (view.suspension.type, view.suspension.correlation_id) == (SuspensionType.CHILD_AGENT, child.id)
    assert view.open_waits == ()
    assert (await runtime.inbox()).items == ()
    assert await parent.children() == [child]
    gate.open()
    assert (await parent.settle()).status is Status.COMPLETED


async def test_result(lab: Lab) -> None:
    """L216, L217, K214: the child's outcome enters the parent's history once, its model sees it, and it completes."""
    _, parent, child, shop = await family(lab, agent("child text", id="child"))

    view = await parent.settle()

    assert (view.final_output, (await child.view()).final_output) == ("mother done", "child text")
    history = talk(await parent.history())
    assert [line for line in history if "child text" in line] == [history[1]]
    assert "child text" in talk(model_of(shop).requests[-1].messages)[-1]


async def test_failing_child(lab: Lab) -> None:
    """L218: a child that fails does not fail its parent: the parent's model reads status and error."""
    _, parent, child, shop = await family(lab, agent(ModelRefused("child broke"), id="child"))

    view = await parent.settle()

    assert (view.status, (await child.view()).status) == (Status.COMPLETED, Status.FAILED)
    told = talk(model_of(shop).requests[-1].messages)[-1]
    assert "FAILED" in told
    assert "child broke" in told


async def test_inherits(lab: Lab) -> None:
    """I167, R14 (W-21): a child has its parent's conversation, tenant, metadata and streaming, and knows its parent."""
    seen: list[Any] = []

    def policy(turn, call, tool):
        seen.append((turn.tenant, turn.conversation_id, turn.metadata))
        return True

    child_agent = agent(call("refund"), "ok", id="child", tools=[Desk().tool()], approval=policy)
    runtime, parent, child, _ = await family(
        lab, child_agent, conversation="c-1", tenant="acme", metadata={"order": 7}, streaming=True
    )
    (wait,) = (await parent.settle()).open_waits
    view = await child.view()

    assert seen == [("acme", "c-1", {"order": 7, "part": 1})]
    assert (view.parent_turn_id, view.root_turn_id, view.streaming) == (parent.id, parent.id, True)
    assert (wait.conversation_id, wait.tenant, wait.turn_id) == ("c-1", "acme", child.id)
    assert [item.id for item in (await runtime.inbox(tenant="acme")).items] == [wait.id]


async def test_answer_at_the_root(lab: Lab, desk: Desk) -> None:
    """R24 (W-14), L223, T110, T112, T54: a wait of a grandchild is readable and answerable at the root, from any node."""
    leaf = agent(call("refund"), "leaf done", id="leaf", tools=[desk.tool(approval=True)])
    gate = Gate()

    async def first(request):
        if len(request.messages) == 1:
            await gate.passing()
        return "child done"

    middle = agent(first, id="child")
    top = mother(gate=Gate())
    runtime = await lab.runtime(top, middle, leaf)
    root = await runtime.start(top, "hi")
    await lab.idle()
    child = await root.start_child("child", "do it")
    await lab.idle()
    grandchild = await child.start_child(leaf, "do it all")
    view = await root.settle()
    (wait,) = view.open_waits

    assert (wait.turn_id, wait.root_turn_id) == (grandchild.id, root.id)
    other = await lab.runtime(execute=False)
    view = await lab.during(approved(other.turn(root.id), wait, by="ann"))

    assert (view.final_output, desk.starts) == ("mother done", ["refund"])
    assert [(await ref.view()).status for ref in (child, grandchild)] == [Status.COMPLETED] * 2


async def test_unnamed_answer_at_the_root(lab: Lab, desk: Desk) -> None:
    """DESIGN 4, T16: without a name exactly one wait of the tree must fit; with two it is refused and both are listed."""
    child_agent = agent(call("refund"), "child done", id="child", tools=[desk.tool(approval=True)])
    _, parent, first, _ = await family(lab, child_agent)
    second = await parent.start_child("child", "once more")
    await parent.settle()

    with pytest.raises(SuspensionMismatch) as refused:
        await parent.submit(ResumeCommand.approve_tool())
    assert {wait.turn_id for wait in refused.value.open_waits} == {first.id, second.id}
    await second.submit(ResumeCommand.approve_tool())
    view = await lab.during(parent.resume(ResumeCommand.approve_tool()))

    assert view.status is Status.COMPLETED
    assert len(desk.starts) == 2


async def test_a_child_has_a_tree_of_its_own(lab: Lab, desk: Desk) -> None:
    """DESIGN 4: settle, view, answer and cancel of a child are about it and those below it, whatever its root waits for."""
    leaf = agent(call("refund"), "leaf done", id="leaf", tools=[desk.tool(approval=True)])
    child_agent = agent(call("refund"), "child done", id="child", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(mother(gate=Gate()), child_agent, leaf)
    parent = await runtime.start("mother", "hi")
    await lab.idle()
    first, second = [await parent.start_child("child", "do it") for _ in range(2)]
    await parent.settle()
    below = await first.start_child(leaf, "do it all")
    views = [await ref.settle(5) for ref in (parent, first, second, below)]
    order = [first.id, below.id, second.id]

    assert [[wait.turn_id for wait in view.open_waits] for view in views] == [order, order[:2], order[2:], order[1:2]]
    with pytest.raises(SuspensionMismatch) as refused:
        await first.submit(ResumeCommand.approve_tool())
    assert [wait.turn_id for wait in refused.value.open_waits] == order[:2]
    assert (await first.cancel(timeout=5)).status is Status.CANCELLED
    assert (await below.view()).status is Status.CANCELLED
    assert [wait.turn_id for wait in (await parent.view()).open_waits] == order[2:]
    assert (await lab.during(second.resume(ResumeCommand.approve_tool(), 5))).status is Status.COMPLETED
    assert (await lab.during(parent.settle())).final_output == "mother done"


async def test_live_events_are_of_one_turn(lab: Lab) -> None:
    """DESIGN 5.12: who watches a turn sees its own events, live ones too, not those of its children."""
    gate = Gate()

    async def held(request):
        await gate.passing()
        return "child done"

    _, parent, child, _ = await family(lab, agent(held, id="child"), streaming=True)

    async def watch(turn: TurnRef) -> list[tuple[str, bool]]:
        return [(event.turn_id, event.durable) async for event in turn.events()]

    watchers = [asyncio.create_task(watch(turn)) for turn in (parent, child)]
    await lab.idle()
    gate.open()
    await lab.during(parent.settle())
    seen = [await lab.during(watcher) for watcher in watchers]

    assert [{turn for turn, _ in events} for events in seen] == [{parent.id}, {child.id}]
    assert all(False in {durable for _, durable in events} for events in seen)


async def test_cancel_the_tree(lab: Lab, desk: Desk) -> None:
    """R24 (W-14), R07 (W-2), H140: cancel at the root ends the whole tree; nothing of it runs on, a late result changes nothing."""
    gate = Gate()
    child_agent = agent([call("refund"), call("slow")], id="child", tools=[desk.tool(approval=True), desk.tool("slow", gate=gate)])
    runtime, parent, child, shop = await family(lab, child_agent, conversation="c-1")
    await lab.idle()

    cancelling = asyncio.ensure_future(parent.cancel("enough"))
    await lab.idle()
    gate.open()
    view = await lab.during(cancelling)

    assert (view.status, (await child.view()).status) == (Status.CANCELLED, Status.CANCELLED)
    assert (desk.starts, (await runtime.inbox()).items) == (["slow"], ())
    for turn in (parent, child):
        assert open_calls(await turn.history()) == []
    assert not [line for line in talk(await parent.history()) if "child" in line]
    assert await runtime.conversation("c-1").open_turn() is None
    assert len(model_of(shop).requests) == 1


async def test_cancel_and_start_child(lab: Lab) -> None:
    """R07 (W-2), R24 (W-14): a child asked for at the moment of the cancel either is refused or cancelled with its parent."""
    child_agent, top = agent("child done", id="child"), mother(gate=Gate())
    runtime, other = await lab.runtime(top, child_agent), await lab.runtime(execute=False)
    parent = await runtime.start(top, "hi")
    await lab.idle()

    found = await lab.during(
        asyncio.gather(parent.start_child("child", "x"), other.turn(parent.id).cancel(), return_exceptions=True)
    )
    await lab.idle()

    assert (await parent.view()).status is Status.CANCELLED
    if isinstance(found[0], TurnRef):
        assert (await found[0].view()).status.terminal
    else:
        assert isinstance(found[0], TurnClosed)


async def test_child_alone(lab: Lab, desk: Desk) -> None:
    """A cancelled child ends alone: its parent is told and goes on."""
    child_agent = agent(call("refund"), id="child", tools=[desk.tool(approval=True)])
    _, parent, child, _ = await family(lab, child_agent)
    await parent.settle()

    await child.cancel("not needed")
    view = await lab.during(parent.settle())

    assert view.final_output == "mother done"
    assert [line for line in talk(await parent.history()) if "CANCELLED" in line]


async def test_settle_means_the_tree(lab: Lab) -> None:
    """DESIGN 4: a parent is settled when its tree is: settle waits for a child that still runs."""
    gate = Gate()

    async def slow(request):
        await gate.passing()
        return "child done"

    _, parent, _, _ = await family(lab, agent(slow, id="child"))

    waiter = asyncio.ensure_future(parent.settle())
    await lab.idle()
    assert not waiter.done()
    gate.open()

    assert (await waiter).status is Status.COMPLETED


async def test_owner_dies(lab: Lab) -> None:
    """K212, T107: the node of parent and child dies while the child runs; another one completes both, each once."""
    gate = Gate()

    async def slow(request):
        await gate.passing()
        return AiMessage("child done", usage=Usage(3, 4))

    child_agent, top = agent(slow, id="child"), mother(gate=Gate())
    first, second = await lab.runtime(top, child_agent), await lab.runtime(top, child_agent)
    parent = await first.start(top, "hi")
    await lab.idle()
    child = await parent.start_child("child", "do it")
    await lab.idle()
    await lab.kill(first)
    gate.open()

    await lab.clock.advance(60)
    view = await lab.during(second.turn(parent.id).settle())

    assert view.final_output == "mother done"
    there = second.turn(parent.id)
    assert [event.type for event in await stored_events(there)].count(EventType.CHILD_STARTED) == 1
    assert len([line for line in talk(await there.history()) if "child done" in line]) == 1
    assert (await second.turn(child.id).view()).usage == Usage(3, 4)


@pytest.mark.parametrize("steps", range(8))
async def test_start_given_up(lab: Lab, steps: int) -> None:
    """T98: whoever starts a child and is cancelled at any moment leaves a whole child or none; the parent ends either way."""
    child_agent, gate = agent("child done", id="child"), Gate()
    top = mother(gate=gate)
    runtime = await lab.runtime(top, child_agent)
    parent = await runtime.start(top, "hi")
    await lab.idle()
    starting = asyncio.ensure_future(parent.start_child("child", "do it"))
    for _ in range(steps):
        await asyncio.sleep(0)

    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    gate.open()
    view = await lab.during(parent.settle())

    children = await parent.children()
    assert view.final_output == "mother done"
    assert len(children) <= 1
    assert [(await child.view()).status for child in children] == [Status.COMPLETED] * len(children)
    assert len([line for line in talk(await parent.history()) if "child done" in line]) == len(children)


async def test_events_of_children(lab: Lab) -> None:
    """W-35: a child has its own events and sequence, linked to its parent and root; the parent says when it started."""
    heard: list[Event] = []
    runtime, parent, child, _ = await family(lab, agent("child done", id="child"))
    runtime.add_listener(heard.append)
    second = await parent.start_child("child", "once more")
    await parent.settle()

    assert [event for event in heard if event.turn_id == second.id] == await stored_events(second)
    started, _ = [event for event in await stored_events(parent) if event.type is EventType.CHILD_STARTED]
    events = await stored_events(child)

    assert told(started) == {"childTurnId": child.id, "childAgentId": "child"}
    assert {(event.parent_turn_id, event.root_turn_id) for event in events} == {(parent.id, parent.id)}
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))


async def test_refused(lab: Lab) -> None:
    """A child of an unknown agent, of a finished turn or of no turn is refused, and nothing is created."""
    child_agent = agent("child done", id="child")
    runtime, parent, _, _ = await family(lab, child_agent)
    with pytest.raises(AgentNotFound):
        await parent.start_child("nobody", "x")
    await parent.settle()

    with pytest.raises(TurnClosed):
        await parent.start_child("child", "x")
    with pytest.raises(TurnNotFound):
        await runtime.turn("00-" + "a" * 26).start_child("child", "x")

    assert len(await parent.children()) == 1
    assert len((await runtime.turns(root=parent.id)).items) == 2


async def test_child_beside_an_approval(lab: Lab, desk: Desk) -> None:
    """R04 (W-4): a child started while a call waits for approval: both finish, the approved tool runs, no call is left open."""
    child_agent = agent("child done", id="child")
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop, child_agent)
    turn = await runtime.start(shop, "hi")
    (wait,) = (await turn.settle()).open_waits

    await turn.start_child("child", "x")
    await lab.idle()
    view = await lab.during(approved(turn, wait))

    assert (view.final_output, desk.starts) == ("done", ["refund"])
    sent = model_of(shop).requests[-1].messages
    assert open_calls(sent) == []
    assert talk(sent)[2] == "call_1_0 = refunded"
    assert "child done" in talk(sent)[3]


async def test_nested_run_in_its_own_conversation(lab: Lab, desk: Desk) -> None:
    """T85: a tool that starts a turn in the conversation of its own turn is told that it is busy; it does not wait for itself."""
    inner = agent("inner done", id="inner")
    services: list[Runtime] = []

    async def body(context, arguments):
        try:
            await services[0].run("inner", "hi", conversation=context.conversation_id)
        except ConversationBusy as busy:
            return f"busy with {busy.turn_id}"

    shop = agent(call("refund"), "done", tools=[desk.tool(body=body)])
    runtime = await lab.runtime(shop, inner)
    services.append(runtime)
    turn = await runtime.start(shop, "hi", conversation="c-1")

    assert (await turn.settle()).final_output == "done"
    assert talk(await turn.history())[2] == f"call_1_0 = busy with {turn.id}"


async def test_nested_run_in_a_tool(lab: Lab, desk: Desk) -> None:
    """R09 (W-15): a tool may run another turn on the same runtime and wait for it."""
    inner = agent("inner done", id="inner")

    services: list[Runtime] = []
    shop = agent(call("refund"), "done", tools=[desk.tool(body=lambda context, arguments: nested())])

    async def nested():
        return (await services[0].run("inner", "hi")).final_output

    runtime = await lab.runtime(shop, inner)
    services.append(runtime)
    turn = await runtime.start(shop, "hi")

    assert (await turn.settle()).final_output == "done"
    assert talk(await turn.history())[2] == "call_1_0 = inner done"
