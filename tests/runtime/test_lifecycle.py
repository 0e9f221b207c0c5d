"""Turns from start to end, on one node and on two: answers, repeated, conflicting and late; drains; leases that are lost."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest

from turnhold import (
    Agent,
    AlreadyAnswered,
    AnswerPending,
    CommandIdReused,
    ExecutionPolicy,
    NotSuspended,
    Receipt,
    ResumeCommand,
    Runtime,
    Status,
    SuspensionType,
    ToolMessage,
    TurnClosed,
    WrongCommand,
)
from turnhold.store import base
from turnhold.testing import ScriptedModel

from .duo import LEASE, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnhold.actors.tools import ToolEffect


def test_a_text_turn(store: base.TurnStore) -> None:
    """Without calls the first reply is the end."""
    world = World(store, replies=("hello",))

    async def program() -> None:
        view = await world.a.run("shop", "hi")
        assert (view.status, view.final_output, view.open_waits) == (Status.COMPLETED, "hello", ())
        assert (await world.b.turn(view.id).view()).to_dict() == view.to_dict()

    world.run(program())


def test_approve(world: World) -> None:
    """The gated tool runs once, behind the receipt, on whichever node took the answer."""

    async def program() -> None:
        turn = await world.a.start("shop", "go")
        (wait,) = (await turn.settle()).open_waits
        before = list(world.started)
        receipt = await world.b.turn(turn.id).submit(ResumeCommand.approve_tool(wait, by="ann"))
        view = await turn.settle()
        assert before == []
        assert (receipt.by, receipt.effect, receipt.replayed) == ("ann", "APPROVED", False)
        assert (view.status, view.final_output) == (Status.COMPLETED, "done")
        assert world.started == [(f"{turn.id}:call_1_0", 1)]

    world.run(program())


def test_reject(world: World) -> None:
    """The model is told, the tool never starts."""

    async def program() -> None:
        turn = await world.a.start("shop", "go")
        await turn.settle()
        view = await turn.resume(ResumeCommand.reject_tool(reason="too much"))
        (result,) = [message for message in await turn.history() if isinstance(message, ToolMessage)]
        assert view.status is Status.COMPLETED
        assert "too much" in result.content
        assert world.started == []

    world.run(program())


def test_the_same_command_gets_the_same_receipt_for_ever(world: World) -> None:
    """Before the tool has ended, after it, and after the turn has ended; from both nodes."""
    world.seconds = 3

    async def program() -> None:
        turn = await world.a.start("shop", "go")
        (wait,) = (await turn.settle()).open_waits
        command = ResumeCommand.approve_tool(wait, command_id="one", by="ann")
        first = await turn.submit(command)
        during = await world.b.turn(turn.id).submit(command)
        await turn.settle()
        after = [await runtime.turn(turn.id).submit(command) for runtime in (world.a, world.b)]
        same = first.to_dict() | {"replayed": True}
        assert [receipt.to_dict() for receipt in (during, *after)] == [same] * 3
        with pytest.raises(CommandIdReused):
            await turn.submit(ResumeCommand.reject_tool(wait, command_id="one"))
        assert len(world.started) == 1

    world.run(program())


@pytest.mark.parametrize("second", ["approve_tool", "reject_tool"])
def test_two_answers_at_the_same_moment(world: World, second: str) -> None:
    """On two nodes: one is accepted, the other is told by whom and whether it agrees."""

    async def program() -> None:
        turn = await world.a.start("shop", "go")
        (wait,) = (await turn.settle()).open_waits
        commands = [ResumeCommand.approve_tool(wait, by="ann"), getattr(ResumeCommand, second)(wait, by="bob")]
        told = await asyncio.gather(
            *(runtime.turn(turn.id).submit(each) for runtime, each in zip((world.a, world.b), commands, strict=True)),
            return_exceptions=True,
        )
        receipt, refused = sorted(told, key=lambda each: isinstance(each, AlreadyAnswered))
        assert isinstance(refused, AlreadyAnswered)
        assert isinstance(receipt, Receipt)
        assert refused.receipt == receipt
        assert refused.agrees == (second == "approve_tool")
        view = await turn.settle()
        assert view.status is Status.COMPLETED
        assert len(world.started) == (receipt.effect == "APPROVED")

    world.run(program())


def test_what_does_not_fit_changes_nothing(world: World) -> None:
    """The wrong kind of answer, and answers where nothing waits or the turn is over, are refused by type."""
    world.seconds = 3

    async def program() -> None:
        turn = await world.a.start("shop", "go")
        view = await turn.settle()
        (wait,) = view.open_waits
        with pytest.raises(WrongCommand):
            await turn.submit(ResumeCommand.give_result(wait, "x"))
        assert (await turn.view()).to_dict() | {"version": view.version} == view.to_dict()
        await turn.submit(ResumeCommand.approve_tool(wait))
        with pytest.raises(NotSuspended):
            await world.b.turn(turn.id).submit(ResumeCommand.approve_tool())
        await turn.settle()
        with pytest.raises(TurnClosed):
            await world.b.turn(turn.id).submit(ResumeCommand.approve_tool())

    world.run(program())


def test_a_refusal_comes_back_from_another_node_at_once(world: World) -> None:
    """Mail that the owner refuses is answered by the save that consumes it, not by a timeout."""
    world.seconds = 20

    async def program() -> None:
        turn = await world.a.start("shop", "go")
        await turn.settle()
        await turn.submit(ResumeCommand.approve_tool())
        before = world.clock.now()
        with pytest.raises(NotSuspended):
            await world.b.turn(turn.id).submit(ResumeCommand.user_input("hello"))
        assert (world.clock.now() - before).total_seconds() <= 1

    world.run(program())


def test_drain_hands_over(world: World) -> None:
    """A node that leaves gives its turns away at once; the other goes on without waiting for a lease."""
    world.seconds = 2

    async def program() -> None:
        turn = await world.a.start("shop", "go")
        await turn.settle()
        await turn.submit(ResumeCommand.approve_tool())
        await world.clock.idle()
        before = world.clock.now()
        await world.first.leave()
        view = await world.b.turn(turn.id).settle()
        assert view.final_output == "done"
        assert (world.clock.now() - before).total_seconds() < LEASE / 2
        assert len(world.started) == 1
        await world.first.open(LEASE)

    world.run(program())


@pytest.mark.parametrize("effect", ["once", "repeatable"])
def test_a_drain_that_is_too_short(store: base.TurnStore, effect: ToolEffect) -> None:
    """A tool that runs on past the drain: `once` is saved as in doubt, `repeatable` starts again under the same key."""
    world = World(store, effect)
    world.seconds = 60

    async def program() -> None:
        turn = await world.a.start("shop", "go")
        await turn.settle()
        await turn.submit(ResumeCommand.approve_tool())
        await world.clock.idle()
        await world.first.leave()
        view = await world.b.turn(turn.id).settle()
        key = f"{turn.id}:call_1_0"
        if effect == "once":
            assert [wait.type for wait in view.open_waits] == [SuspensionType.IN_DOUBT]
            assert world.started == [(key, 1)]
        else:
            assert view.status is Status.COMPLETED
            assert world.started == [(key, 1), (key, 2)]
        await world.first.open(LEASE)

    world.run(program())


@pytest.mark.parametrize("effect", ["once", "repeatable"])
def test_a_lease_that_cannot_be_renewed(store: base.TurnStore, effect: ToolEffect) -> None:
    """The owner stops by itself before the lease ends; the other node takes over, and its late save is refused."""
    world = World(store, effect)
    world.seconds = 25

    async def program() -> None:
        turn = await world.a.start("shop", "go")
        await turn.settle()
        await turn.submit(ResumeCommand.approve_tool())
        await world.clock.idle()
        world.first.cut = "all"
        await world.clock.advance(LEASE)
        assert world.a.statistics().live_turns == 0
        view = await world.b.turn(turn.id).settle()
        world.first.cut = ""
        assert [attempt for _, attempt in world.started] == ([1] if effect == "once" else [1, 2])
        assert view.status is (Status.IN_DOUBT if effect == "once" else Status.COMPLETED)

    world.run(program())


@pytest.mark.parametrize("behind", ["", "save"])
def test_a_node_that_is_frozen_past_its_lease(world: World, behind: str) -> None:
    """Frozen before or behind the save of the intent: when it moves again it starts nothing that the other has taken."""

    async def program() -> None:
        turn = await world.a.start("shop", "go")
        (wait,) = (await turn.settle()).open_waits
        gate = world.first.gate
        gate.behind = behind
        if not behind:
            gate.close()
        sender = asyncio.ensure_future(turn.submit(ResumeCommand.approve_tool(wait, command_id="one"), 120))
        await world.clock.advance(3 * LEASE)
        started = list(world.started)
        gate.open()
        receipt = await sender
        view = await world.b.turn(turn.id).settle()
        assert started == []
        assert receipt.command_id == "one"
        if behind:
            assert [wait.type for wait in view.open_waits] == [SuspensionType.IN_DOUBT]
            view = await world.b.turn(turn.id).resume(ResumeCommand.rerun())
        assert view.status is Status.COMPLETED
        assert len(world.started) == 1

    world.run(program())


def test_an_answer_that_nobody_decides_in_time_is_pending(world: World) -> None:
    """The owner is frozen: `AnswerPending`, and later, under the same id, the one answer."""

    async def program() -> None:
        world.seconds = 5
        turn = await world.a.start("shop", "go")
        (wait,) = (await turn.settle()).open_waits
        world.first.gate.behind = "deliver"
        lost = asyncio.ensure_future(turn.submit(ResumeCommand.reject_tool(wait, by="ann"), 1))
        await world.clock.idle()
        command = ResumeCommand.approve_tool(wait, command_id="one", by="bob")
        with pytest.raises(AnswerPending):
            await world.b.turn(turn.id).submit(command, 1)
        world.first.gate.open()
        with pytest.raises(AlreadyAnswered) as caught:
            await world.b.turn(turn.id).submit(command)
        receipt = await lost
        assert caught.value.receipt == receipt
        assert receipt.by == "ann"
        assert (await turn.settle()).status is Status.COMPLETED

    world.run(program())


def test_a_command_by_call_id_that_is_accepted_elsewhere_while_it_looks(world: World) -> None:
    """Sent on two nodes; the first is frozen behind its look-up of the id. Both get the receipt, none is told `AlreadyAnswered`."""

    async def program() -> None:
        turn = await world.a.start("shop", "go")
        (wait,) = (await turn.settle()).open_waits
        command = ResumeCommand.approve_tool(wait.correlation_id, command_id="one")
        world.first.gate.behind = "find"
        slow = asyncio.ensure_future(turn.submit(command))
        await world.clock.idle()
        fast = await world.b.turn(turn.id).submit(command)
        world.first.gate.open()
        assert (await slow).to_dict() == fast.to_dict() | {"replayed": True}

    world.run(program())


def test_a_command_sent_twice_and_accepted_by_the_save_that_ends_the_turn(store: base.TurnStore) -> None:
    """The second delivery is unread mail when the turn ends; its sender gets the receipt, not `TurnClosed`."""
    world = World(store)
    world.agent = world.agent.replace(policy=ExecutionPolicy(max_steps=1))
    for seat in (world.first, world.second):
        seat.agents = [world.agent]

    async def program() -> None:
        turn = await world.a.start("shop", "go")
        (wait,) = (await turn.settle()).open_waits
        command = ResumeCommand.approve_tool(wait, command_id="one")
        world.first.gate.behind = "deliver"
        first = asyncio.ensure_future(turn.submit(command))
        await world.clock.idle()
        second = asyncio.ensure_future(world.b.turn(turn.id).submit(command))
        await world.clock.idle()
        world.first.gate.open()
        receipts = [await first, await second]
        assert (await turn.view()).status is Status.MAX_STEPS_REACHED
        assert [receipt.to_dict() | {"replayed": False} for receipt in receipts] == [
            receipts[0].to_dict() | {"replayed": False}
        ] * 2
        assert world.started == []

    world.run(program())


@pytest.mark.parametrize("ask", [Runtime.stop, lambda _: signal.raise_signal(signal.SIGTERM)], ids=["stop", "SIGTERM"])
async def test_serve_ends_and_serves_again(ask: Callable[[Runtime], object]) -> None:
    """`serve` opens the runtime, runs until it is asked to stop, and drains; the next time it does not remember that."""
    runtime = Runtime("memory://", agents=[Agent("shop", model=ScriptedModel("hello"))])
    for _ in range(2):
        serving = asyncio.create_task(runtime.serve())
        while not runtime.healthy:  # noqa: ASYNC110 - nothing tells that it is open
            await asyncio.sleep(0)

        view = await runtime.run("shop", "hi")
        assert not serving.done()
        ask(runtime)
        await serving

        assert (view.final_output, runtime.healthy) == ("hello", False)
