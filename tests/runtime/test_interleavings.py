"""Claims, drains, callers and answers that meet in the middle of something."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest

from turnhold import (
    Agent,
    AiMessage,
    AnswerPending,
    ResumeCommand,
    Runtime,
    Status,
    StoreUnavailable,
    Tool,
    ToolCall,
    TurnView,
    UserMessage,
    WrongCommand,
    tool,
)
from turnhold.runtime.runtime import node_of
from turnhold.store import base, codec
from turnhold.store.memory import MemoryStore
from turnhold.testing import ScriptedModel, call
from turnhold.testing.arena import Gate, GatedStore, Seat
from turnhold.testing.loop import VirtualLoop
from turnhold.testing.witness import Witness

from .duo import LEASE, World


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


def test_an_answer_that_is_pending_here_is_stored_once_more(store: base.TurnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It came here with the turn, perhaps without waiting for the disk; before its sender is told that it is stored, it is."""
    world, said = World(store), list[base.Reply]()

    def noted(op: base.Op, reply: base.Reply) -> None:
        if isinstance(op, base.Deliver):
            said.append(reply)

    async def program() -> None:
        turn = await world.a.start("shop", "go")
        (wait,) = (await turn.settle()).open_waits
        monkeypatch.setattr(world.witness, "applied", noted)
        world.first.wire.slow, world.first.wire.delay = "save", 3
        with pytest.raises(AnswerPending):
            await turn.submit(ResumeCommand.approve_tool(wait), 1)
        assert [type(reply) for reply in said] == [base.Claimed, base.Delivered]
        world.first.wire.clean()
        assert (await turn.settle()).status is Status.COMPLETED

    world.run(program())


def test_a_pending_answer_is_not_left_to_a_claim(store: base.TurnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn is let go in the moment in which the time is over: who is told that the answer is stored got no turn with it."""
    world, sent = World(store, replies=([call("refund", amount=25), call("look_up")], "done")), list[base.Deliver]()

    def noted(op: base.Op, reply: base.Reply) -> None:
        if isinstance(op, base.Deliver):
            sent.append(op)

    async def program() -> None:
        await world.second.leave()
        world.first.gate.behind = "save"
        turn = await world.a.start("shop", "go")
        await world.clock.idle()
        while (wait := await opened(store, turn.id)) is None:
            world.first.gate.open()
            world.first.gate.behind = "save"
            await world.clock.idle()
        monkeypatch.setattr(world.witness, "applied", noted)
        node = node_of(world.a)
        plain = node.world.answer

        async def answer(waiter: asyncio.Future[object], seconds: float) -> object:
            try:
                return await plain(waiter, seconds)
            except TimeoutError:
                world.first.gate.open()
                for _ in range(5):
                    await asyncio.sleep(0)
                assert not node.placement.here(turn.id)
                raise

        monkeypatch.setattr(node.world, "answer", answer)
        sender = asyncio.ensure_future(turn.submit(ResumeCommand.approve_tool(wait), 1))
        await world.clock.advance(2)

        with pytest.raises(AnswerPending):
            await sender
        assert [op.claim for op in sent] == [None]
        assert (await turn.settle()).status is Status.COMPLETED
        await world.second.open(LEASE)

    world.run(program())


@pytest.mark.parametrize("refused", [False, True])
def test_what_is_stored_for_senders(store: base.TurnStore, monkeypatch: pytest.MonkeyPatch, refused: bool) -> None:
    """An answer under the message's id, for who may look for it; who waits here and is accepted has the receipt."""
    world, sent = World(store), list[str]()

    def noted(op: base.Op, reply: base.Reply) -> None:
        if isinstance(op, base.Deliver):
            sent.append(op.mail.message_id)

    async def program() -> None:
        turn = await world.a.start("shop", "go")
        (wait,) = (await turn.settle()).open_waits
        monkeypatch.setattr(world.witness, "applied", noted)
        command = ResumeCommand.give_result(wait, "x") if refused else ResumeCommand.approve_tool(wait)
        with pytest.raises(WrongCommand) if refused else nullcontext():
            await turn.submit(command)
        (message,) = sent
        found = await node_of(world.a).call(base.ReadReplies(turn=turn.id, message_ids=(message,)))
        assert isinstance(found, base.Found)
        assert (found.bodies[0] is not None) == refused

    world.run(program())


async def opened(store: base.TurnStore, turn_id: str) -> str | None:
    """Return the one open wait of a turn that nobody owns, past all gates."""
    connection = await store.connect("spy", lambda kind, turn: None, lambda: 0, inline=True)
    look = await connection.call(base.Look(turn=turn_id))
    await connection.close()
    assert isinstance(look, base.Looked)
    return None if look.activation or not look.wait_bodies else codec.decode_suspension(turn_id, look.wait_bodies[0]).id


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
    loop, asked, answered = VirtualLoop(), list[object](), asyncio.Event()

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

    calls = (ToolCall("a", "refund", {"amount": 1}), ToolCall("b", "look_up", {}))
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
        long = [UserMessage("of old"), *[AiMessage("so")] * 100]  # more than comes with a claim
        turn = await world.a.start("shop", "go", history=long)
        (wait,) = (await turn.settle()).open_waits
        await world.second.leave()
        fault = node_of(world.a).fault = NoHistory()
        await turn.submit(ResumeCommand.approve_tool(wait, arguments={"amount": 2}))
        view = await turn.settle()
        assert view.status is Status.COMPLETED
        assert fault.left == 0
        await world.second.open(LEASE)

    world.run(program())
