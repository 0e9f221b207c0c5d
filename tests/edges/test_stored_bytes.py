"""Bytes that were changed behind the runtime's back: nobody is stuck, nothing is overwritten, and an operator can end it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from turnhold import (
    Agent,
    AnswerPending,
    CommandRefused,
    ConversationBusy,
    ResumeCommand,
    Runtime,
    SnapshotCorrupt,
    Status,
    TurnClosed,
    TurnNotFound,
    TurnRef,
    UserMessage,
    tool,
)
from turnhold.actors.machine.draft import Noted
from turnhold.actors.turn import SCHEMA
from turnhold.store import base, codec
from turnhold.testing import ScriptedModel, call

from .hostile import cases
from .place import Place, gated, plain, waiting

BAD_SNAPSHOTS: dict[str, Any] = {
    "empty": lambda body: b"",
    "noise": lambda body: bytes(range(256)),
    "cut": lambda body: body[:-1],
    "longer": lambda body: body + b"\0",
    "of another type": lambda body: msgspec.msgpack.encode({"a": 1}),
    "of another turn": lambda body: body.replace(body[4:20], b"x" * 16),
    "deep": lambda body: b"\x91" * 100_000,
    "of another history": lambda body: codec.encode_state(_counting(body), 1 << 20),
}


def _counting(body: bytes) -> Any:
    state = codec._state.decode(body)
    state.message_count += 1
    return state


@tool(approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


async def post(runtime: Runtime, op: base.Op) -> base.Reply:
    """Apply an operation as some other node would, bells included."""
    return await runtime._node.call(op)


async def broken(place: Place, runtime: Runtime, turn: TurnRef, make: Any = BAD_SNAPSHOTS["noise"]) -> bytes:
    """Bend a snapshot and let somebody find out."""
    record = place.records[turn.id]
    record.snapshot = make(record.snapshot)
    with pytest.raises(AnswerPending):
        await turn.submit(ResumeCommand.approve_tool(command_id="c1"), timeout=0)
    await place.clock.advance(1)
    return record.snapshot


# ------------------------------------------------------------------------------------------------------------ snapshots


@pytest.mark.parametrize("make", **cases(BAD_SNAPSHOTS))
async def test_an_unreadable_snapshot_is_parked(place: Place, make: Any) -> None:
    """The turn is quarantined with its bytes as they are; it can be seen, listed and waited for, and it holds its conversation."""
    runtime = await place.runtime(gated(), plain())
    turn, _ = await waiting(runtime, conversation="c")

    bytes_before = await broken(place, runtime, turn, make)

    view = await turn.settle(1)
    assert view.quarantine is not None
    assert "cannot be read" in view.quarantine.reason
    assert view.owner is None
    assert [parked.id for parked in (await runtime.turns(quarantined=True)).items] == [turn.id]
    assert (await runtime.turns(quarantined=False)).items == ()
    with pytest.raises(ConversationBusy) as busy:
        await runtime.start("plain", "x", conversation="c")
    assert busy.value.turn_id == turn.id
    assert [message.content for message in (await turn.history())[:1]] == ["please"]
    assert place.records[turn.id].snapshot == bytes_before
    assert place.records[turn.id].unread == 1
    await place.clock.advance(600)
    assert runtime.statistics().claims <= 2
    assert (await runtime.run("plain", "x")).status is Status.COMPLETED


async def test_discard_ends_it(place: Place) -> None:
    """The record is FAILED, the conversation free, the waits gone, and what lay in the mailbox is answered; the bytes stay."""
    runtime = await place.runtime(gated(), plain())
    turn, wait = await waiting(runtime, conversation="c")
    bytes_before = await broken(place, runtime, turn)

    await turn.discard("beyond repair", by="ops")

    view = await turn.settle()
    assert (view.status, view.quarantine, view.open_waits) == (Status.FAILED, None, ())
    assert (await runtime.inbox()).items == ()
    assert await runtime.conversation("c").open_turn() is None
    assert place.records[turn.id].snapshot == bytes_before
    for command in (ResumeCommand.approve_tool(command_id="c1"), ResumeCommand.approve_tool(wait)):
        with pytest.raises(TurnClosed):
            await turn.submit(command)
    with pytest.raises(TurnNotFound):
        await turn.discard("again")
    assert (await turn.cancel()).status is Status.FAILED
    assert (await runtime.run("plain", "x", conversation="c")).status is Status.COMPLETED


async def test_discard_is_for_parked_turns(place: Place) -> None:
    """A turn that can be read is not discarded, nor revived."""
    runtime = await place.runtime(gated())
    turn, wait = await waiting(runtime)

    for work in (lambda: turn.discard("x"), turn.revive):
        with pytest.raises(TurnNotFound):
            await work()

    assert (await turn.resume(ResumeCommand.approve_tool(wait))).status is Status.COMPLETED


async def test_mended_bytes_go_on(place: Place) -> None:
    """Put right and revived, the turn takes the answer that has waited for it."""
    runtime = await place.runtime(gated())
    turn, _ = await waiting(runtime)
    good = place.records[turn.id].snapshot
    await broken(place, runtime, turn)

    place.records[turn.id].snapshot = good
    await turn.revive(by="ops")
    await place.clock.advance(1)

    assert (await turn.view()).status is Status.COMPLETED
    assert (await turn.submit(ResumeCommand.approve_tool(command_id="c1"))).replayed


async def test_revived_as_it_is_it_is_parked_again(place: Place) -> None:
    """Reviving changes no bytes and makes no loop."""
    runtime = await place.runtime(gated())
    turn, _ = await waiting(runtime)
    bytes_before = await broken(place, runtime, turn)
    claims = runtime.statistics().claims

    await turn.revive()
    await place.clock.advance(600)

    assert (await turn.view()).quarantine is not None
    assert place.records[turn.id].snapshot == bytes_before
    assert runtime.statistics().claims == claims + 1


async def test_cancel_does_not_help_what_cannot_be_read(place: Place) -> None:
    """A cancel stays open and times out; it neither loops nor touches the bytes, and the turn can still be discarded."""
    runtime = await place.runtime(gated())
    turn, _ = await waiting(runtime)
    bytes_before = await broken(place, runtime, turn)
    claims = runtime.statistics().claims

    work = asyncio.ensure_future(turn.cancel(timeout=5))
    await place.clock.advance(600)
    with pytest.raises(TimeoutError):
        await work

    assert runtime.statistics().claims <= claims + 2
    assert (await turn.view()).cancel_requested
    assert place.records[turn.id].snapshot == bytes_before
    await turn.discard("x")
    assert (await turn.cancel()).status is Status.FAILED


async def test_a_parent_is_told_of_a_discarded_child(place: Place) -> None:
    """The child's end enters the parent's history like any other, and the parent goes on."""
    runtime = await place.runtime(gated(id="child"), gated(call("refund", amount=1), "done", "really done", id="parent"))
    parent, wait = await waiting(runtime, "parent")
    child = await parent.start_child("child", "look")
    await child.settle(5)
    record = place.records[child.id]
    record.snapshot = b"noise"
    with pytest.raises(AnswerPending):
        await child.submit(ResumeCommand.approve_tool(), timeout=0)
    await place.clock.advance(1)
    view = await parent.settle(1)
    assert (await child.view()).quarantine is not None
    assert not view.status.terminal

    await child.discard("beyond repair", by="ops")
    view = await parent.resume(ResumeCommand.approve_tool(wait))

    assert view.status is Status.COMPLETED
    told = [message.content for message in await parent.history() if isinstance(message, UserMessage)]
    assert any("beyond repair" in text and "FAILED" in text for text in told)


async def test_children_of_a_discarded_parent_end(place: Place) -> None:
    """Nobody waits for them any more: their waits leave the inbox, and a cancel of the tree returns."""
    runtime = await place.runtime(gated(id="child"), gated(id="parent"))
    parent, wait = await waiting(runtime, "parent")
    child = await parent.start_child("child", "look")
    await child.settle(5)
    place.records[parent.id].snapshot = b"noise"
    with pytest.raises(AnswerPending):
        await parent.submit(ResumeCommand.approve_tool(wait), timeout=0)
    await place.clock.advance(1)

    await parent.discard("beyond repair", by="ops")
    await place.clock.advance(1)

    assert (await child.view()).status is Status.CANCELLED
    assert (await runtime.inbox()).items == ()
    assert (await parent.cancel(timeout=5)).status is Status.FAILED


async def test_an_unreadable_turn_hides_no_other(place: Place) -> None:
    """Lists show the rest, and the record of the one that cannot be read."""
    runtime = await place.runtime(gated())
    turn, _ = await waiting(runtime)
    other, wait = await waiting(runtime)
    place.records[turn.id].snapshot = b"noise"

    found = {view.id: view for view in (await runtime.turns()).items}

    error = found[turn.id].error
    assert error is not None
    assert (error.type, found[turn.id].status) == ("SnapshotCorrupt", Status.WAITING_FOR_APPROVAL)
    assert found[other.id].error is None
    assert (await other.resume(ResumeCommand.approve_tool(wait))).status is Status.COMPLETED


# --------------------------------------------------------------------------------------------------------- newer schema


async def test_a_newer_snapshot_is_left_in_place(place: Place) -> None:
    """It is not parked and not touched; what is sent waits for a node that can read it."""
    runtime = await place.runtime(gated())
    turn, _ = await waiting(runtime)
    record = place.records[turn.id]
    good, record.schema, record.snapshot, record.status = record.snapshot, SCHEMA + 1, b"of the future", "DREAMING"

    with pytest.raises(AnswerPending):
        await turn.submit(ResumeCommand.approve_tool(command_id="c1"), timeout=0)
    await place.clock.advance(30)

    view = await turn.view()
    assert view.error is not None
    assert (view.error.type, view.quarantine, view.status) == ("SnapshotTooNew", None, Status.READY)
    assert record.snapshot == b"of the future"
    assert record.crashes == 0
    work = asyncio.ensure_future(turn.settle(5))
    await place.clock.advance(6)
    with pytest.raises(TimeoutError):
        await work
    with pytest.raises(TurnNotFound):
        await turn.discard("x")
    record.schema, record.snapshot, record.status = SCHEMA, good, "WAITING_FOR_APPROVAL"
    await place.runtime(gated())  # one that can read it comes along
    await place.clock.advance(1)
    assert (await turn.view()).status is Status.COMPLETED
    assert (await turn.submit(ResumeCommand.approve_tool(command_id="c1"))).replayed


async def test_a_newer_turn_that_has_ended(place: Place) -> None:
    """Its record says that it is over, whatever it is called there."""
    runtime = await place.runtime(plain())
    turn = await runtime.start("plain", "x")
    await turn.settle()
    record = place.records[turn.id]
    record.schema, record.status = SCHEMA + 1, "DISSOLVED"

    view = await turn.settle()

    assert view.status is Status.FAILED
    assert view.error is not None
    assert view.error.type == "SnapshotTooNew"
    with pytest.raises(TurnClosed):
        await turn.submit(ResumeCommand.approve_tool())


# ----------------------------------------------------------------------------------------------------------------- mail

BAD_MAIL: dict[str, bytes] = {
    "empty": b"",
    "noise": bytes(range(200)),
    "of another type": msgspec.msgpack.encode([1, 2]),
    "of an unknown kind": msgspec.msgpack.encode({"type": "Explode", "command": {}}),
    "without its command": msgspec.msgpack.encode({"type": "Resume"}),
    "a command with a bad field": msgspec.msgpack.encode({"type": "Resume", "command": {"type": "RETRY", "by": "x" * 200}}),
    "a command with bad data": msgspec.msgpack.encode({"type": "Resume", "command": {"type": "RETRY", "metadata": {"a": b"x"}}}),
    "a command with NaN": msgspec.msgpack.encode({"type": "Resume", "command": {"type": "SUBMIT_FORM", "value": float("nan")}}),
    "deep": b"\x81\xa4type\xa6Resume" + b"\x91" * 100_000,
}


@pytest.mark.parametrize("body", **cases(BAD_MAIL))
async def test_unreadable_mail(place: Place, body: bytes) -> None:
    """It is taken out and refused under its id; what came before and after it is answered."""
    runtime = await place.runtime(gated())
    turn, wait = await waiting(runtime)
    record = place.records[turn.id]

    for number in range(3):
        await post(runtime, base.Deliver(turn=turn.id, mail=base.Mail(f"bad-{number}", body, f"c{number}", wait.id)))
    await place.clock.advance(1)

    assert record.unread == 0
    assert (await turn.view()).quarantine is None
    found = await post(runtime, base.ReadReplies(turn=turn.id, message_ids=("bad-0", "bad-1", "bad-2")))
    assert isinstance(found, base.Found)
    for reply in found.bodies:
        assert reply is not None
        outcome = codec.decode_outcome(turn.id, reply)
        assert getattr(outcome, "error", None) == "CommandRefused"
    assert (await turn.resume(ResumeCommand.approve_tool(wait))).status is Status.COMPLETED


async def test_unreadable_mail_while_a_tool_runs(place: Place) -> None:
    """It is taken out at once, not only when the tool has ended."""
    gate, entered = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        entered.set()
        await gate.wait()
        return "went"

    runtime = await place.runtime(Agent("slow", model=ScriptedModel(call("wait"), "done"), tools=[wait]))
    turn = await runtime.start("slow", "x")
    await entered.wait()

    await post(runtime, base.Deliver(turn=turn.id, mail=base.Mail("bad", b"noise")))
    await place.clock.idle()

    assert place.records[turn.id].unread == 0
    found = await post(runtime, base.ReadReplies(turn=turn.id, message_ids=("bad",)))
    assert isinstance(found, base.Found)
    assert found.bodies[0] is not None
    gate.set()
    assert (await turn.settle()).status is Status.COMPLETED


# ------------------------------------------------------------------------------------------- receipts, replies, indexes


async def test_an_unreadable_receipt(place: Place) -> None:
    """A command whose receipt cannot be read is refused: it is not taken for a new one."""
    runtime = await place.runtime(gated([call("refund", amount=1), call("refund", amount=2)], "done"))
    turn = await runtime.start("shop", "x")
    first, second = (await turn.settle()).open_waits
    await turn.submit(ResumeCommand.approve_tool(first, command_id="c1"))
    await place.clock.idle()
    place.memory.core._trees[turn.id].receipts["command c1"] = b"noise"

    with pytest.raises(SnapshotCorrupt):
        await turn.submit(ResumeCommand.approve_tool(second, command_id="c1"))

    assert [wait.id for wait in (await turn.view()).open_waits] == [second.id]
    assert (await turn.resume(ResumeCommand.approve_tool(second, command_id="c2"))).status is Status.COMPLETED


async def test_an_unreadable_receipt_of_a_live_turn(place: Place) -> None:
    """The owner, too, refuses a command whose receipt it cannot read, and lives on."""
    gate, entered = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        entered.set()
        await gate.wait()
        return "went"

    agent = Agent("slow", model=ScriptedModel([call("wait"), call("pay")], "done"), tools=[wait, pay])
    runtime = await place.runtime(agent)
    turn = await runtime.start("slow", "x")
    await entered.wait()
    await place.clock.idle()
    place.memory.core._trees[turn.id].receipts["command c1"] = b"noise"
    (approval,) = (await turn.view()).open_waits

    with pytest.raises(CommandRefused, match="its receipt cannot be read"):
        await turn.submit(ResumeCommand.approve_tool(approval, command_id="c1"))

    assert (await turn.submit(ResumeCommand.approve_tool(approval, command_id="c2"))).effect == "APPROVED"
    gate.set()
    assert (await turn.settle()).status is Status.COMPLETED


async def test_an_unreadable_answer(place: Place) -> None:
    """An owner's answer that cannot be read is a typed error for its sender; the turn is as the owner left it."""
    runtime = await place.runtime(gated())
    turn, wait = await waiting(runtime)
    runtime._node.new_id = lambda: "the-message"
    place.memory.core._trees[turn.id].replies["the-message"] = b"noise"

    with pytest.raises(SnapshotCorrupt):
        await turn.submit(ResumeCommand.approve_tool(wait))

    assert [item.id for item in (await turn.view()).open_waits] == [wait.id]


async def test_an_answer_to_something_else(place: Place) -> None:
    """An answer that can be read and is none to a command is corrupt as well."""
    runtime = await place.runtime(gated())
    turn, wait = await waiting(runtime)
    runtime._node.new_id = lambda: "the-message"
    place.memory.core._trees[turn.id].replies["the-message"] = codec.encode_outcome(Noted())

    with pytest.raises(SnapshotCorrupt, match="a command is accepted or refused"):
        await turn.submit(ResumeCommand.approve_tool(wait))


async def test_an_unreadable_entry_of_the_inbox(place: Place) -> None:
    """It hides no other, and its turn can still be answered."""
    runtime = await place.runtime(gated())
    turn, wait = await waiting(runtime)
    other, foreign = await waiting(runtime)
    (row,) = place.records[turn.id].waits.values()
    bent = msgspec.structs.replace(row, body=b"noise")
    place.memory.core.put_wait(place.records[turn.id], bent)

    assert [item.id for item in (await runtime.inbox()).items] == [foreign.id]
    assert (await turn.view()).open_waits == ()
    assert [item.id for item in (await turn.view()).suspensions] == [wait.id]
    assert (await turn.resume(ResumeCommand.approve_tool(wait))).status is Status.COMPLETED
    assert (await other.resume(ResumeCommand.approve_tool())).status is Status.COMPLETED


# ---------------------------------------------------------------------------------------------------- history and events


async def test_an_unreadable_message_of_the_history(place: Place) -> None:
    """The history is a typed error, the view is not; whoever takes the turn over parks it."""
    runtime = await place.runtime(gated())
    turn, wait = await waiting(runtime)
    place.records[turn.id].history[0] = b"noise"

    with pytest.raises(SnapshotCorrupt):
        await turn.history()
    assert [item.id for item in (await turn.view()).open_waits] == [wait.id]
    with pytest.raises(AnswerPending):
        await turn.submit(ResumeCommand.approve_tool(wait), timeout=0)
    assert (await turn.view()).quarantine is not None
    assert place.records[turn.id].history[0] == b"noise"


async def test_an_unreadable_message_of_a_long_history(place: Place) -> None:
    """Where the beginning is read only for the model, the turn fails instead of asking with half a history."""
    agent = gated()
    runtime = await place.runtime(agent)
    turn, wait = await waiting(runtime, history=[UserMessage(str(number)) for number in range(100)])
    place.records[turn.id].history[0] = b"noise"

    view = await turn.resume(ResumeCommand.approve_tool(wait))

    assert view.status is Status.FAILED
    assert view.error is not None
    assert view.error.type == "SnapshotCorrupt"
    assert isinstance(agent.model, ScriptedModel)
    assert len(agent.model.requests) == 1


async def test_unreadable_events(place: Place) -> None:
    """A reader gets those before, then a typed error; the turn does not mind."""
    runtime = await place.runtime(gated())
    turn, wait = await waiting(runtime)
    record = place.records[turn.id]
    last, batch = record.events.popitem()
    first = batch.first
    record.events[last] = msgspec.structs.replace(batch, body=b"noise")
    seen: list[int] = []

    async def read() -> None:
        async for event in turn.events(follow=False):
            seen.append(event.sequence)  # noqa: PERF401

    with pytest.raises(SnapshotCorrupt):
        await read()

    assert seen == list(range(1, first))
    assert (await turn.resume(ResumeCommand.approve_tool(wait))).status is Status.COMPLETED
