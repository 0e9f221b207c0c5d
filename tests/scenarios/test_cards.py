"""Cards: what people see of approvals and forms in a conversation, from the question to each of its four ends."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from turnhold import (
    ActionMessage,
    ApprovalDecision,
    CardStatus,
    CommandType,
    ExecutionPolicy,
    FormDeclined,
    FormDefinition,
    FormMessage,
    MemoryMessage,
    ResumeCommand,
    Runtime,
    Status,
    ToolCall,
    user_input_tool,
)
from turnhold.runtime.runtime import node_of
from turnhold.store import base, codec
from turnhold.testing import call, crash
from turnhold.testing.crashes import POINTS

from .lab import Desk, Gate, Lab, agent, approved, asks, model_of, waiting

GATED = call("refund", amount=1)
SCHEMA = {"type": "object", "title": "Where to?", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ADDRESS = FormDefinition("address", description="An address", schema=SCHEMA)
ULM = {"city": "Ulm"}


async def cards(runtime: Runtime, conversation: str = "c") -> list[Any]:
    """The conversation's cards, in their order."""
    entries = await runtime.conversation(conversation).messages(limit=1000)
    assert all(entry.shown == (not isinstance(entry.message, ActionMessage | FormMessage)) for entry in entries)
    return [entry.message for entry in entries if not entry.shown]


async def card(runtime: Runtime) -> Any:
    (found,) = await cards(runtime)
    return found


async def counts(runtime: Runtime) -> tuple[int, int]:
    """How many messages the conversation has, and how many of them models may see."""
    entries = await runtime.conversation("c").messages(limit=1000)
    return len(entries), sum(entry.shown for entry in entries)


# -------------------------------------------------------------------------------------------------------------- approvals


async def test_card_of_an_approval(lab: Lab, desk: Desk) -> None:
    """M247, M248, M249, M250: a PENDING card with two actions, then APPROVED by who answered elsewhere; the turn completes."""
    shop = agent(GATED, "done", tools=[desk.tool(approval=True)])
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn, wait = await waiting(first, shop, conversation="c")

    assert (await turn.view()).conversation_id == "c"
    assert await counts(first) == (3, 2)
    pending = await card(first)
    assert isinstance(pending, ActionMessage)
    assert pending.message_id == f"{turn.id}:approval:call_1_0"
    assert (pending.turn_id, pending.action_id) == (turn.id, wait.id)
    assert (pending.status, pending.version, pending.operator) == (CardStatus.PENDING, 0, None)
    assert pending.actions == (CommandType.APPROVE_TOOL, CommandType.REJECT_TOOL)
    assert (pending.content, pending.call) == (wait.message, wait.call)

    answer = ResumeCommand.approve_tool(pending.action_id, by="ann", metadata={"desk": 3})
    view = await lab.during(second.turn(pending.turn_id).resume(answer))
    assert (view.status, desk.starts) == (Status.COMPLETED, ["refund"])
    ended = await card(first)
    assert (ended.status, ended.version, ended.operator, ended.actions) == (CardStatus.APPROVED, 1, "ann", ())
    assert ended.message_id == pending.message_id
    assert ended.metadata["answer"] == {"desk": 3}
    assert ended.ended_at is not None
    assert await counts(first) == (5, 4)


async def test_rejected(lab: Lab, desk: Desk) -> None:
    """A rejection tells on the card who gave it, and why."""
    shop = agent(GATED, "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop, conversation="c")

    await turn.resume(ResumeCommand.reject_tool(wait, "too much", by="bob"))

    found = await card(runtime)
    assert (found.status, found.operator, found.reason) == (CardStatus.REJECTED, "bob", "too much")


async def test_each_answer_is_its_own(lab: Lab, desk: Desk) -> None:
    """W-22: of two approvals each card has its own operator and metadata; who gives none is not given another's."""
    tools = [desk.tool(approval=True), desk.tool("pay", approval=True)]
    shop = agent([GATED, call("pay")], "done", tools=tools)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi", conversation="c")
    one, two = (await turn.settle()).open_waits

    await turn.submit(ResumeCommand.approve_tool(one, by="ann", metadata={"n": 1}))
    await turn.resume(ResumeCommand.approve_tool(two))

    first, second = await cards(runtime)
    assert (first.operator, first.metadata.get("answer")) == ("ann", {"n": 1})
    assert (second.operator, second.metadata.get("answer")) == (None, None)
    assert first.status is second.status is CardStatus.APPROVED


async def test_masked_and_edited(lab: Lab, desk: Desk) -> None:
    """A card shows what the wait shows: sensitive arguments masked, edited ones edited and with who did it."""
    tool = desk.tool(approval=True, sensitive=("text",))
    shop = agent(call("refund", amount=1, text="4242"), "done", tools=[tool])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop, conversation="c")
    assert (await card(runtime)).call.arguments == {"amount": 1, "text": "***"}

    await approved(turn, wait, arguments={"amount": 2, "text": "***"}, by="ann")

    found = await card(runtime)
    assert (found.call.arguments, found.call.edited_by) == ({"amount": 2, "text": "***"}, "ann")
    assert desk.arguments == [{"amount": 2, "text": "4242"}]
    assert b"4242" not in found.to_json()


async def test_what_a_policy_says(lab: Lab, desk: Desk) -> None:
    """The card has the decision's message, code, reason, metadata, assignee and time limit."""
    decision = ApprovalDecision.require(
        code="big", message="Sure?", reason="over 10", metadata={"limit": 10}, assignee="desk", expires_in=60
    )
    shop = agent(GATED, "done", tools=[desk.tool(approval=decision)])
    runtime = await lab.runtime(shop)
    _, wait = await waiting(runtime, shop, conversation="c")

    found = await card(runtime)
    assert (found.content, found.assignee, found.expires_at) == ("Sure?", "desk", wait.expires_at)
    assert found.metadata == wait.metadata
    assert found.metadata["approvalCode"] == "big"


async def test_cards_are_no_authorization(lab: Lab, desk: Desk) -> None:
    """Whatever the memory says: only an accepted command lets the call run, and no model is shown a card."""
    shop = agent(GATED, "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop, conversation="c")
    await runtime.conversation("c").clear()

    view = await approved(turn, wait)
    plain = agent("x", id="plain")
    other = await lab.runtime(plain)
    await other.run(plain, "next", conversation="c")

    assert (view.status, desk.starts) == (Status.COMPLETED, ["refund"])
    assert (await card(runtime)).status is CardStatus.APPROVED
    assert not any(isinstance(each, ActionMessage) for each in model_of(plain).requests[0].messages)


class Written:
    """Notes a node's store calls."""

    def __init__(self) -> None:
        self.ops: list[base.Op] = []

    def before(self, op: base.Op) -> None:
        self.ops.append(op)

    def after(self, op: base.Op, reply: base.Reply) -> None:
        pass


async def test_without_a_conversation(lab: Lab, desk: Desk) -> None:
    """A turn without a conversation has no card, and writes no memory."""
    shop = agent(GATED, "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    written = node_of(runtime).fault = Written()
    turn, wait = await waiting(runtime, shop)
    await approved(turn, wait)

    saves = [op for op in written.ops if isinstance(op, base.Save)]
    assert len(saves) == 4
    assert {(op.conversation, op.memory, op.relay) for op in saves} == {(None, (), False)}


# ------------------------------------------------------------------------------------------------------------------ forms


async def test_card_of_a_form(lab: Lab, desk: Desk) -> None:
    """F103, F106, F108: the form a model asks for is a card with title and schema, then with the data and who gave it."""
    shop = agent(call("request_user_input", form_key="address"), "done", tools=[user_input_tool(ADDRESS)])
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn, wait = await waiting(first, shop, conversation="c")

    pending = await card(first)
    assert isinstance(pending, FormMessage)
    assert pending.message_id == f"{turn.id}:input:call_1_0"
    assert (pending.status, pending.form_key, pending.content) == (CardStatus.PENDING, "address", "Where to?")
    assert (pending.schema, "schema" in pending.metadata) == (wait.schema, False)
    assert pending.actions == (CommandType.SUBMIT_FORM, CommandType.DECLINE)

    view = await lab.during(second.turn(turn.id).resume(ResumeCommand.submit_form(pending.action_id, ULM, by="eve")))
    ended = await card(first)
    assert (ended.status, ended.data, ended.operator) == (CardStatus.SUBMITTED, ULM, "eve")
    assert (ended.actions, ended.version) == ((), 1)
    assert view.status is Status.COMPLETED
    assert await counts(first) == (5, 4)


async def test_card_of_a_form_of_a_tool(lab: Lab, desk: Desk) -> None:
    """F113, F114: a tool that asks for a form has a card of its call; submitted elsewhere it shows the data."""
    shop = agent(call("refund"), "done", tools=[desk.tool(forms=[ADDRESS])])
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn, wait = await waiting(first, shop, conversation="c")
    pending = await card(first)
    assert (pending.message_id, pending.status) == (f"{turn.id}:input:call_1_0", CardStatus.PENDING)

    await lab.during(second.turn(turn.id).resume(ResumeCommand.submit_form(wait, ULM, by="eve")))

    ended = await card(first)
    assert (ended.status, ended.data, ended.operator) == (CardStatus.SUBMITTED, ULM, "eve")


async def test_several_cards_of_a_call(lab: Lab, desk: Desk) -> None:
    """A call that is approved, and then asks for two forms, has three cards; none takes the place of another."""
    size = FormDefinition("size", description="A size", schema={"type": "integer"})
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True, forms=[ADDRESS, size])])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop, conversation="c")
    (wait,) = (await approved(turn, wait)).open_waits
    (wait,) = (await turn.resume(ResumeCommand.submit_form(wait, ULM))).open_waits
    await turn.resume(ResumeCommand.submit_form(wait, 0))

    found = await cards(runtime)
    assert [each.message_id.removeprefix(turn.id) for each in found] == [
        ":approval:call_1_0",
        ":input:call_1_0",
        ":input:call_1_0:2",
    ]
    assert [each.status for each in found] == [CardStatus.APPROVED, CardStatus.SUBMITTED, CardStatus.SUBMITTED]
    assert [each.data for each in found[1:]] == [ULM, 0]


async def test_declined_and_asked_for_another(lab: Lab, desk: Desk) -> None:
    """A tool that hears of a decline and asks for something else has a card for each form."""
    seat = FormDefinition("seat", description="x", schema={"type": "string"}, tell_decline=True)
    meal = FormDefinition("meal", description="x", schema={"type": "string"}, tell_decline=True)

    async def book(context: Any, _: Any) -> str:
        try:
            return context.form(seat)
        except FormDeclined:
            return context.form(meal)

    shop = agent(call("refund"), "done", tools=[desk.tool(body=book)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop, conversation="c")
    (wait,) = (await turn.resume(ResumeCommand.decline(wait, "none free", by="eve"))).open_waits
    assert (await turn.resume(ResumeCommand.submit_form(wait, "soup"))).status is Status.COMPLETED

    first, second = await cards(runtime)
    assert (first.status, first.reason, first.operator, first.data) == (CardStatus.DECLINED, "none free", "eve", None)
    assert (second.status, second.data, second.form_key) == (CardStatus.SUBMITTED, "soup", "meal")
    assert second.message_id == f"{first.message_id}:2"


@pytest.mark.parametrize("data", [None, False, "", 0, {}, []])
async def test_empty_answers(lab: Lab, desk: Desk, data: Any) -> None:
    """What is submitted stands on the card, also where it is next to nothing."""
    form = FormDefinition("any", description="Anything", schema={"title": "Anything"})
    shop = agent(call("refund"), "done", tools=[desk.tool(forms=[form])])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop, conversation="c")
    await turn.resume(ResumeCommand.submit_form(wait, data))

    found = await card(runtime)
    assert (found.status, found.data) == (CardStatus.SUBMITTED, data)


async def test_json(lab: Lab, desk: Desk) -> None:
    """F118, F119: cards survive their JSON: id, version, key, schema, status and the id of the action."""
    shop = agent([GATED, call("ask")], "done", tools=[desk.tool(approval=True), desk.tool("ask", forms=[ADDRESS])])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi", conversation="c")
    await turn.settle()
    await turn.submit(ResumeCommand.approve_tool((await cards(runtime))[0].action_id, by="ann"))
    await lab.idle()

    entries = [entry for entry in await runtime.conversation("c").messages() if not entry.shown]
    assert {type(entry.message) for entry in entries} == {ActionMessage, FormMessage}
    for entry in entries:
        assert MemoryMessage.from_dict(entry.to_dict()) == entry
        assert type(entry.message).from_dict(entry.message.to_dict()) == entry.message
        assert isinstance(entry.message, ActionMessage | FormMessage)
        assert (entry.id, entry.version) == (entry.message.message_id, entry.message.version)


# --------------------------------------------------------------------------------------------------------- the other ends


async def test_cancelled(lab: Lab, desk: Desk) -> None:
    """R02 (W-7): a cancel closes the cards of approvals and forms, with its reason; no live button is left on a dead turn."""
    shop = agent([GATED, call("ask")], tools=[desk.tool(approval=True), desk.tool("ask", forms=[ADDRESS])])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi", conversation="c")
    await turn.settle()
    await turn.cancel("enough")

    for found in await cards(runtime):
        assert (found.status, found.reason, found.actions) == (CardStatus.CANCELLED, "enough", ())
        assert (found.operator, found.version) == (None, 1)


async def test_expired(lab: Lab, desk: Desk) -> None:
    """A wait that nobody answers in time leaves an EXPIRED card; a form's default stands on it."""
    form = FormDefinition("where", description="x", schema=SCHEMA, expires_in=60, on_expiry="default", default=ULM)
    decision = ApprovalDecision.require(expires_in=60)
    shop = agent([GATED, call("ask")], "done", tools=[desk.tool(approval=decision), desk.tool("ask", forms=[form])])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi", conversation="c")
    await turn.settle()
    await lab.clock.advance(61)

    assert (await lab.during(turn.settle())).status is Status.COMPLETED
    one, two = await cards(runtime)
    assert (one.status, two.status, two.data) == (CardStatus.EXPIRED, CardStatus.EXPIRED, ULM)
    assert one.actions == two.actions == ()
    assert one.operator is None


@pytest.mark.parametrize(("on_expiry", "status"), [("cancel", Status.CANCELLED), ("fail", Status.FAILED)])
async def test_expiry_that_ends_the_turn(lab: Lab, desk: Desk, on_expiry: Any, status: Status) -> None:
    """Where a wait that expires ends the turn, its card is EXPIRED and those of the other waits are closed with the turn."""
    decision = ApprovalDecision.require(expires_in=60, on_expiry=on_expiry)
    shop = agent([GATED, call("pay")], tools=[desk.tool(approval=decision), desk.tool("pay", approval=True)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi", conversation="c")
    await turn.settle()
    await lab.clock.advance(61)

    assert (await lab.during(turn.settle())).status is status
    one, two = await cards(runtime)
    assert one.status is CardStatus.EXPIRED
    assert two.status is (CardStatus.CANCELLED if status is Status.CANCELLED else CardStatus.SUPERSEDED)
    assert two.reason is not None


async def test_superseded(lab: Lab, desk: Desk) -> None:
    """A conversation that moves on closes the cards of the turn it leaves behind, and those of its children, as SUPERSEDED."""
    child = agent(GATED, id="child", tools=[desk.tool(approval=True)])
    shop = agent([call("child", input="x"), call("pay")], tools=[child.as_tool(), desk.tool("pay", approval=True)])
    plain = agent("next", id="plain")
    runtime = await lab.runtime(shop, child, plain)
    turn = await runtime.start(shop, "hi", conversation="c")
    await turn.settle()
    assert [each.status for each in await cards(runtime)] == [CardStatus.PENDING] * 2

    newest = await runtime.start(plain, "no, this", conversation="c", when_busy="supersede")
    assert (await lab.during(newest.settle())).status is Status.COMPLETED

    await lab.idle()
    assert [each.status for each in await cards(runtime)] == [CardStatus.SUPERSEDED] * 2
    assert all(each.reason == f"superseded by turn {newest.id}" for each in await cards(runtime))


async def test_failed_by_a_sibling(lab: Lab, desk: Desk) -> None:
    """A call that fails the turn closes the cards of the calls beside it as SUPERSEDED, with why."""
    gate = Gate()
    tools = [desk.tool(approval=True), desk.tool("pay", gate=gate, errors=[ValueError("broken")])]
    shop = agent([GATED, call("pay")], tools=tools, policy=ExecutionPolicy(tool_errors="fail"))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi", conversation="c")
    await gate.entered.wait()
    assert (await card(runtime)).status is CardStatus.PENDING
    gate.open()

    assert (await lab.during(turn.settle())).status is Status.FAILED
    found = await card(runtime)
    assert (found.status, found.reason) == (CardStatus.SUPERSEDED, "broken")


# --------------------------------------------------------------------------------------------------------------- children


async def test_cards_of_children(lab: Lab, desk: Desk) -> None:
    """R14 (W-21): approvals and forms of a child, and of one below it, are cards in the root's conversation, answered there."""
    leaf = agent(GATED, "leaf done", id="leaf", tools=[desk.tool(approval=True)])
    ask = desk.tool("ask", forms=[ADDRESS])
    child = agent([call("leaf", input="x"), call("ask")], "child done", id="child", tools=[leaf.as_tool(), ask])
    shop = agent(asks("child"), "done", tools=[child.as_tool()])
    runtime, api = await lab.runtime(shop, child, leaf), await lab.runtime(execute=False)
    turn = await runtime.start(shop, "hi", conversation="c", tenant="acme")
    await turn.settle()

    found = await cards(api)
    assert {type(each) for each in found} == {ActionMessage, FormMessage}
    assert all(each.status is CardStatus.PENDING and each.turn_id.startswith(turn.id) for each in found)
    for each in found:
        if isinstance(each, FormMessage):
            await api.turn(each.turn_id).submit(ResumeCommand.submit_form(each.action_id, ULM, by="eve"))
        else:
            await api.turn(each.turn_id).submit(ResumeCommand.approve_tool(each.action_id, by="ann"))
    assert (await lab.during(turn.settle())).final_output == "done"

    assert {each.operator for each in await cards(api)} == {"ann", "eve"}
    assert {each.status for each in await cards(api)} == {CardStatus.APPROVED, CardStatus.SUBMITTED}
    assert (await counts(api))[1] == 4


async def test_cancel_closes_the_cards_of_children(lab: Lab, desk: Desk) -> None:
    """A cancel of the root closes the cards of its children."""
    child = agent(GATED, id="child", tools=[desk.tool(approval=True)])
    shop = agent(asks("child"), tools=[child.as_tool()])
    runtime = await lab.runtime(shop, child)
    turn = await runtime.start(shop, "hi", conversation="c")
    await turn.settle()
    await turn.cancel("enough")

    assert (await card(runtime)).status is CardStatus.CANCELLED


# ----------------------------------------------------------------------------------------------------------------- faults


async def test_an_api_node_writes_the_card(lab: Lab, desk: Desk) -> None:
    """An answer that is applied by a node which runs nothing closes the card in its save, before any executor looks at it."""
    shop = agent(GATED, "done", tools=[desk.tool(approval=True)])
    executor, api = await lab.runtime(shop), await lab.runtime(execute=False)
    turn, wait = await waiting(executor, shop, conversation="c")
    await lab.close(executor)

    await api.turn(turn.id).submit(ResumeCommand.approve_tool(wait, by="ann"))

    assert ((await card(api)).status, desk.starts) == (CardStatus.APPROVED, [])


@pytest.mark.parametrize("nth", range(1, 5))
@pytest.mark.parametrize("point", POINTS)
async def test_crash_around_an_answer(lab: Lab, desk: Desk, point: Any, nth: int) -> None:
    """Wherever the answering node dies, the card says what the turn's receipt says, once it is asked again."""
    shop = agent(GATED, "done", tools=[desk.tool(approval=True, effect="repeatable")])
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn, wait = await waiting(second, shop, conversation="c")
    await lab.close(second)
    answer = ResumeCommand.approve_tool(wait, by="ann", command_id="k")
    with crash(first, "*", point, nth=nth) as crashed:
        submitting = asyncio.ensure_future(first.turn(turn.id).submit(answer))
        await asyncio.wait([submitting])
        await lab.idle()
    submitting.exception()
    if crashed.happened and point != "lost_reply":
        await lab.kill(first)
    third = await lab.runtime(shop)
    await lab.take_over()

    view = await lab.during(third.turn(turn.id).resume(answer))
    assert view.status is Status.COMPLETED
    found = await card(third)
    assert (found.status, found.operator, found.version) == (CardStatus.APPROVED, "ann", 1)


def test_a_card_too_large() -> None:
    """What does not fit into the limit is left off a card: no save fails of it, and it still says which it is and how it ended."""
    large = ToolCall("c", "refund", {"text": "x" * 5000})
    for card in (
        ActionMessage(message_id="m", turn_id="t", action_id="a", status=CardStatus.APPROVED, call=large, operator="ann"),
        FormMessage(
            message_id="m", turn_id="t", action_id="a", form_key="k", schema={"enum": ["x" * 5000]}, call=large, operator="ann"
        ),
    ):
        body = codec.encode_card(card, 4096)
        entry = base.MemoryEntry("m", body, shown=False, place=1, version=3, change=1, at=0)
        found = codec.decode_remembered(entry).message
        assert len(body) < 4096
        assert isinstance(found, ActionMessage | FormMessage)
        assert (found.message_id, found.status, found.operator, found.version) == ("m", card.status, "ann", 3)
        assert (found.call, found.metadata) == (None, {"truncated": True})
        assert codec.encode_card(card, 1 << 20) == msgspec.msgpack.encode(card)
