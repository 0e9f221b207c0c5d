"""Turns from start to end, on one node and on two: answers, repeated, conflicting and late; drains; leases that are lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from turnhold import (
    Agent,
    AiMessage,
    AlreadyAnswered,
    AnswerPending,
    CommandIdReused,
    ExecutionPolicy,
    NotSuspended,
    Receipt,
    ResumeCommand,
    Runtime,
    Status,
    StoreUnavailable,
    SuspensionType,
    Tool,
    ToolCall,
    ToolContext,
    ToolMessage,
    TurnClosed,
    TurnView,
    WrongCommand,
    tool,
)
from turnhold.runtime.runtime import node_of
from turnhold.store import base, codec
from turnhold.store.memory import MemoryStore
from turnhold.store.sqlite import SqliteStore
from turnhold.testing import ScriptedModel, call
from turnhold.testing.arena import Gate, GatedStore, Seat
from turnhold.testing.loop import VirtualLoop
from turnhold.testing.witness import Witness

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from turnhold.actors.tools import ToolEffect

LEASE = 10.0


class World:
    """Two nodes on a store of their own, and an agent whose gated tool waits until it is let go."""

    def __init__(
        self, store: base.TurnStore, effect: ToolEffect = "once", replies: tuple = (call("refund", amount=25), "done")
    ) -> None:
        self.loop = VirtualLoop()
        self.clock = self.loop.clock
        self.started: list[tuple[str, int]] = []
        self.seconds = 0.0

        @tool(approval=True, effect=effect)
        async def refund(amount: int) -> str:
            """Refund an amount."""
            context = ToolContext.current()
            self.started.append((context.idempotency_key, context.attempt))
            await asyncio.sleep(self.seconds)
            return f"refunded {amount}"

        @tool
        async def look_up() -> str:
            """Look something up."""
            return "fine"

        self.agent = Agent("shop", model=ScriptedModel(*replies), tools=[refund, look_up])
        self.witness = Witness()
        self.first, self.second = (Seat(number, store, [self.agent], self.clock, self.witness) for number in range(2))

    @property
    def a(self) -> Runtime:
        return self.first.runtime

    @property
    def b(self) -> Runtime:
        return self.second.runtime

    def run(self, program: Coroutine[object, object, None]) -> None:
        async def whole() -> None:
            await self.first.open(LEASE)
            await self.second.open(LEASE)
            try:
                await program
            finally:
                await self.first.leave()
                await self.second.leave()

        try:
            self.loop.run_until_complete(whole())
        finally:
            self.loop.close()
        self.witness.testify()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> base.TurnStore:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "turns.db", synchronous="normal")


@pytest.fixture
def world(store: base.TurnStore) -> World:
    return World(store)


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


def test_an_answer_that_is_pending_outlives_the_owner_it_was_told(store: base.TurnStore) -> None:
    """The owner here has just released the turn when the answer reaches its mailbox: pending means that the store has it."""
    world = World(store, replies=([call("refund", amount=25), call("look_up")], "done"))

    async def program() -> None:
        await world.second.leave()
        world.first.gate.behind = "save"
        turn = await world.a.start("shop", "go")
        await world.clock.idle()
        while (await opened(store, turn.id)) is None:
            world.first.gate.open()
            world.first.gate.behind = "save"
            await world.clock.idle()
        assert node_of(world.a).placement.live(turn.id) is not None
        wait = await opened(store, turn.id)
        sender = asyncio.ensure_future(turn.submit(ResumeCommand.approve_tool(wait, command_id="one"), 1))
        await world.clock.advance(2)
        world.first.gate.open()

        with pytest.raises(AnswerPending):
            await sender
        assert (await turn.settle()).status is Status.COMPLETED
        assert (await turn.submit(ResumeCommand.approve_tool(wait, command_id="one"))).replayed
        await world.second.open(LEASE)

    world.run(program())


async def opened(store: base.TurnStore, turn_id: str) -> str | None:
    """Return the one open wait of a turn that nobody owns, past all gates."""
    connection = await store.connect("spy", lambda kind, turn: None, lambda: 0, inline=True)
    look = await connection.call(base.Look(turn=turn_id))
    await connection.close()
    assert isinstance(look, base.Looked)
    return None if look.activation or not look.wait_bodies else codec.decode_suspension(turn_id, look.wait_bodies[0]).id


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


def test_a_claim_that_arrives_in_a_node_that_drains_is_given_back(world: World) -> None:
    """The node leaves while the reply to its claim is under way: the turn is handed off, not left to its lease."""

    async def program() -> None:
        await world.second.leave()
        await world.second.open(LEASE)
        turn = await world.a.start("shop", "go")
        await turn.settle()
        gate = world.second.gate
        gate.behind = "claim"
        await turn.submit(ResumeCommand.approve_tool())
        world.first.cut = "all"
        await world.first.again(LEASE)
        world.first.gate.close()
        await turn_hand_off(world, turn.id)
        leaving = asyncio.ensure_future(node_of(world.b).stop())
        await world.clock.idle()
        gate.open()
        await leaving
        assert node_of(world.b).placement.actors == {}
        world.first.gate.open()
        await world.second.open(LEASE)
        assert (await world.b.turn(turn.id).settle()).status.terminal

    world.run(program())


def test_a_claim_of_work_that_a_draining_node_cannot_start_is_given_back_at_once(world: World, store: base.TurnStore) -> None:
    """The claimed turn changes in nothing, as the node starts nothing any more: it is handed off, without a lease that ends."""

    async def program() -> None:
        await world.first.leave()
        api = Runtime(GatedStore(store, Gate(), world.witness), execute=False, clock=world.clock, lease=LEASE)
        await api.__aenter__()
        turn = api.turn((await world.b.start("shop", "go")).id)
        await turn.settle()
        world.second.gate.behind = "claim"
        await turn.submit(ResumeCommand.approve_tool())
        await world.clock.idle()
        assert turn.id in node_of(world.b).placement.claiming
        leaving = asyncio.ensure_future(node_of(world.b).stop())
        await world.clock.idle()
        world.second.gate.open()
        await world.clock.advance(0.1)

        assert leaving.done()
        assert (await turn.view()).owner is None
        await world.first.open(LEASE)
        await world.second.open(LEASE)
        view = await turn.settle()
        assert (view.status, len(world.started)) == (Status.COMPLETED, 1)
        assert world.a.statistics().reaped == world.b.statistics().reaped == 0
        await api.__aexit__(None, None, None)

    world.run(program())


async def turn_hand_off(world: World, turn_id: str) -> None:
    """Bring a turn to the second node's claim, whose reply does not arrive."""
    await world.clock.advance(2 * LEASE)
    assert turn_id in node_of(world.b).placement.claiming


@pytest.mark.parametrize("what", ["create", "deliver", "cancel"])
def test_a_caller_that_goes_away_leaves_no_turn_that_nobody_runs(world: World, what: str) -> None:
    """The caller is cancelled when the store has already given the turn to its node: that runs it, without losing a lease."""

    async def program() -> None:
        turn = await world.a.start("shop", "go")
        await turn.settle()
        work = {
            "create": lambda: world.a.start("shop", "go", idempotency_key="k"),
            "deliver": lambda: turn.submit(ResumeCommand.approve_tool()),
            "cancel": turn.cancel,
        }
        world.first.gate.behind = what
        caller = asyncio.ensure_future(work[what]())
        await world.clock.idle()
        assert world.first.gate.shut

        caller.cancel()
        await world.clock.idle()
        world.first.gate.open()
        await world.clock.idle()

        if what == "create":
            turn = await world.a.start("shop", "go", idempotency_key="k")
        view = await turn.settle()
        wanted = {"create": Status.WAITING_FOR_APPROVAL, "deliver": Status.COMPLETED, "cancel": Status.CANCELLED}
        assert caller.cancelled()
        assert view.status is wanted[what]
        assert world.a.statistics().reaped == world.b.statistics().reaped == 0
        assert (node_of(world.a).placement.actors, node_of(world.a).placement.claiming) == ({}, set())

    world.run(program())


def test_a_policy_that_answers_while_its_turn_looks_something_up_is_asked_once() -> None:
    """Its answer arrives behind the batch in the making; asked again, the old answer would also count for edited arguments."""
    loop, asked, answered = VirtualLoop(), list[dict[str, object]](), asyncio.Event()

    async def policy(turn: TurnView, call: ToolCall, tool: Tool) -> bool:
        asked.append(call.arguments)
        if call.name == "look_up":
            await answered.wait()
        return call.name == "refund"

    @tool
    async def refund(amount: int) -> str:
        """Refund an amount."""
        return "refunded"

    @tool
    async def look_up() -> str:
        """Look something up."""
        return "fine"

    calls = [ToolCall("a", "refund", {"amount": 1}), ToolCall("b", "look_up", {})]
    agent = Agent("shop", model=ScriptedModel(AiMessage("", calls), "done"), tools=[refund, look_up], approval=policy)
    seat = Seat(0, MemoryStore(), [agent], loop.clock, Witness())

    async def program() -> None:
        await seat.open(LEASE)
        turn = await seat.runtime.start("shop", "go")
        await loop.clock.idle()
        (wait,) = (await turn.view()).open_waits
        seat.gate.behind = "find"
        sender = asyncio.ensure_future(turn.submit(ResumeCommand.approve_tool(wait)))
        await loop.clock.idle()
        assert seat.gate.shut
        answered.set()
        await loop.clock.idle()
        seat.gate.open()
        await sender
        assert (await turn.settle()).status is Status.COMPLETED
        await seat.leave()

    loop.run_until_complete(program())
    loop.close()
    assert asked == [{"amount": 1}, {}]


def test_a_history_that_cannot_be_read_is_no_answer_of_the_model(store: base.TurnStore) -> None:
    """The store fails while a model request is made up: the turn does not fail, it goes on where it can."""
    world = World(store, replies=(call("refund", amount=1), "done"))

    class NoHistory:
        left = 3

        def before(self, op: base.Op) -> None:
            if isinstance(op, base.ReadHistory) and self.left:
                self.left -= 1
                raise StoreUnavailable("a test")

        def after(self, op: base.Op, reply: base.Reply) -> None:
            pass

    async def program() -> None:
        turn = await world.a.start("shop", "go", history=[])
        (wait,) = (await turn.settle()).open_waits
        await world.second.leave()
        fault = node_of(world.a).fault = NoHistory()
        await turn.submit(ResumeCommand.approve_tool(wait, arguments={"amount": 2}))
        view = await turn.settle()
        assert view.status is Status.COMPLETED
        assert fault.left == 0
        await world.second.open(LEASE)

    world.run(program())
