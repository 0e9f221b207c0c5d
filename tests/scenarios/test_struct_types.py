"""Structs in metadata and form data: `Runtime(types=…)`."""

from __future__ import annotations

import json
import logging
from datetime import UTC, date, datetime
from typing import Any

import msgspec
import pytest

from turnhold import (
    ApprovalDecision,
    FormDefinition,
    FormMessage,
    InvalidDefinition,
    InvalidFormData,
    Middleware,
    ResumeCommand,
    ToolContext,
    ToolMessage,
    TurnContext,
    TurnOptions,
    TurnView,
)
from turnhold.actors.turn import TurnState
from turnhold.runtime.runtime import node_of
from turnhold.store import base, codec
from turnhold.testing import call, crash, tool_context

from .lab import Desk, Lab, agent, approved, model_of


class Address(msgspec.Struct, frozen=True):
    town: str
    tags: frozenset[str] = frozenset()


class Customer(msgspec.Struct):
    name: str
    since: date
    address: Address | None = None


class Point(msgspec.Struct, array_like=True):
    x: int
    y: int


TYPES = (Customer, Point)
ANN = Customer("Änn", date(2024, 2, 29), Address("Ulm", frozenset({"a"})))
ANN_JSON = {"name": "Änn", "since": "2024-02-29", "address": {"town": "Ulm", "tags": ["a"]}}
ANY = FormDefinition("any", description="anything", schema={"type": ["object", "array"]})
WHO = FormDefinition("who", description="a customer", schema=Customer)


def changed() -> type[msgspec.Struct]:
    """A later Customer: it needs what the earlier one has not stored."""
    return msgspec.defstruct("Customer", [("name", str), ("tier", int)])


async def noted(context: ToolContext[Any], arguments: dict[str, Any]) -> Any:
    """A tool that hands out the turn's metadata as it sees it."""
    context.services.append(context.metadata)
    return "noted"


async def test_a_struct_is_restored(lab: Lab, desk: Desk) -> None:
    """I164: a Struct of a known type in metadata is that Struct again for tools and in views, on every node, after a crash."""
    seen: list[Any] = []
    shop = agent(call("refund"), "done", tools=[desk.tool(body=noted)])
    first = await lab.runtime(shop, types=TYPES, services=seen)
    second = await lab.runtime(shop, types=TYPES, services=seen)
    metadata = {"who": ANN, "path": [Point(1, 2), {"deep": Point(3, 4)}], "plain": {"town": "Ulm"}}
    with crash(first, "save", "after_apply") as crashed:
        turn = await first.start(shop, "hi", metadata=metadata)
        await crashed.wait()
    await lab.take_over()

    view = await second.turn(turn.id).settle()

    assert view.metadata == metadata
    assert seen == [metadata]
    assert seen[0]["who"] is not ANN
    assert [item.metadata for item in (await second.turns()).items] == [metadata]


async def test_who_does_not_know_the_type(lab: Lab, desk: Desk) -> None:
    """I163, I165: a node without the type has JSON-like data and instantiates nothing; the records are the same on all nodes."""
    seen: list[Any] = []
    shop = agent(call("refund"), "done", tools=[desk.tool(body=noted, approval=True)])
    first = await lab.runtime(shop, types=TYPES)
    turn = await first.start(shop, "hi", metadata={"who": ANN, "path": [Point(1, 2)]})
    here = await turn.settle()
    await lab.close(first)

    second = await lab.runtime(shop, services=seen)
    there = await second.turn(turn.id).view()
    await approved(second.turn(turn.id), there.open_waits[0])

    assert seen == [there.metadata] == [{"who": ANN_JSON, "path": [[1, 2]]}]
    assert here.to_dict() == there.to_dict()
    assert json.loads(here.to_json())["metadata"]["who"] == ANN_JSON
    assert TurnView.from_dict(here.to_dict()) == there


async def test_a_type_that_has_changed(lab: Lab, desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """A Struct that no longer fits its type stays plain data, everywhere, with a note in the log; a view is never refused."""
    seen: list[Any] = []
    shop = agent(call("refund"), "done", tools=[desk.tool(body=noted, approval=True)])
    first = await lab.runtime(shop, types=TYPES)
    turn = await first.start(shop, "hi", metadata={"who": ANN, "at": Point(1, 2)})
    await turn.settle()
    await lab.close(first)

    second = await lab.runtime(shop, types=[changed(), Point], services=seen)
    view = await second.turn(turn.id).view()
    caplog.set_level(logging.WARNING, "turnhold")
    await approved(second.turn(turn.id), view.open_waits[0])

    assert view.metadata == {"who": ANN_JSON, "at": Point(1, 2)} == seen[0]
    (record,) = [record for record in caplog.records if record.message == "struct_unfit"]
    assert "who does not fit Customer" in vars(record)["why"]


async def test_a_type_that_has_grown(lab: Lab) -> None:
    """A field with a default may be added to a type: what is stored fits."""
    shop = agent("done")
    first = await lab.runtime(shop, types=TYPES)
    view = await first.run(shop, "hi", metadata={"at": Point(1, 2)})
    grown = msgspec.defstruct("Point", [("x", int), ("y", int), ("z", int, 7)], array_like=True)
    second = await lab.runtime(shop, types=[grown])

    assert (await second.turn(view.id).view()).metadata == {"at": grown(1, 2, 7)}


async def test_options_and_children(lab: Lab, desk: Desk) -> None:
    """Metadata of options is under that of the start, and a child has its parent's, key by key, with Structs in all of them."""
    shop, small = agent(call("refund"), "done", tools=[desk.tool(approval=True)]), agent("done", id="small")
    runtime = await lab.runtime(shop, small, types=TYPES)
    options = TurnOptions(metadata={"a": Point(1, 1), "b": Point(2, 2), "c": 3})
    turn = await runtime.start(shop, "hi", options=options, metadata={"b": [Point(5, 5)], "who": ANN})
    wait = (await turn.settle()).open_waits[0]
    child = await turn.start_child(small, "go", metadata={"who": "nobody", "c": {"d": Point(6, 6)}})
    await lab.idle()
    view = await child.settle()
    await approved(turn, wait)

    assert options.metadata == {"a": Point(1, 1), "b": Point(2, 2), "c": 3}
    assert view.metadata == {"a": Point(1, 1), "b": [Point(5, 5)], "who": "nobody", "c": {"d": Point(6, 6)}}


async def test_policies_and_middleware(lab: Lab, desk: Desk) -> None:
    """An approval policy and a middleware have the Struct, too."""
    seen: list[Any] = []

    def decide(turn: TurnView) -> ApprovalDecision:
        seen.append(turn.metadata["who"])
        return ApprovalDecision.require() if turn.metadata["who"].name == "Änn" else ApprovalDecision.allow()

    class Look(Middleware):
        async def around_tool_call(self, context: ToolContext[Any], proceed: Any) -> Any:
            seen.append(context.metadata["who"])
            return await proceed()

        async def around_model_call(self, request: Any, proceed: Any) -> Any:
            seen.append(TurnContext.current().metadata["who"])
            return await proceed(request)

    shop = agent(call("refund"), "done", tools=[desk.tool()], approval=lambda turn, call, tool: decide(turn), middleware=[Look()])
    runtime = await lab.runtime(shop, types=TYPES)
    turn = await runtime.start(shop, "hi", metadata={"who": ANN})
    await approved(turn, (await turn.settle()).open_waits[0])

    assert seen == [ANN] * 4


async def test_form_data(lab: Lab, desk: Desk) -> None:
    """Form data may hold Structs: checked as their JSON, given to the tool again, on another node and for every form it has."""
    seen: list[Any] = []

    async def ask(context: ToolContext[Any], arguments: dict[str, Any]) -> str:
        first, second = context.form(ANY), context.form(WHO)
        seen.extend([first, second, context.form_data, context.forms])
        return "asked"

    shop = agent(call("refund"), "done", tools=[desk.tool(body=ask)])
    desks, runtime = await lab.runtime(execute=False, types=TYPES), await lab.runtime(shop, types=TYPES)
    turn = await runtime.start(shop, "hi", conversation="c")
    await turn.settle()
    data = {"at": [Point(1, 2)], "n": 1}
    command = ResumeCommand.submit_form(None, data, command_id="c1")
    data["at"][0].x = 100
    receipt = await desks.turn(turn.id).submit(command)
    again = await desks.turn(turn.id).submit(ResumeCommand.submit_form(None, {"at": [[1, 2]], "n": 1}, command_id="c1"))
    await lab.idle()
    await turn.resume(ResumeCommand.submit_form(None, ANN))

    assert again.digest == receipt.digest
    assert seen == [{"at": [Point(1, 2)], "n": 1}, ANN, ANN, {"any": {"at": [Point(1, 2)], "n": 1}, "who": ANN}]
    shown = [item.message for item in await runtime.conversation("c").messages()]
    assert [card.data for card in shown if isinstance(card, FormMessage)] == [{"at": [[1, 2]], "n": 1}, ANN_JSON]


async def test_form_data_that_does_not_fit(lab: Lab, desk: Desk) -> None:
    """A Struct is checked against the form as its JSON is; a refused one changes nothing."""
    shop = agent(call("refund"), "done", tools=[desk.tool(forms=[WHO])])
    runtime = await lab.runtime(shop, types=TYPES)
    turn = await runtime.start(shop, "hi")
    view = await turn.settle()

    with pytest.raises(InvalidFormData):
        await turn.submit(ResumeCommand.submit_form(view.open_waits[0], Point(1, 2)))

    assert (await turn.view()).open_waits == view.open_waits


async def test_a_given_result_and_a_returned_one(lab: Lab, desk: Desk) -> None:
    """What a tool returns, and what a person says it has returned, is text for the model: a Struct's JSON."""
    shop = agent(call("refund"), call("look"), "done", tools=[desk.tool(effect="once"), desk.tool("look", result=ANN)])
    first, second = await lab.runtime(shop, types=TYPES), await lab.runtime(shop, types=TYPES)
    with crash(first, "save", "after_apply") as crashed:
        turn = await first.start(shop, "hi")
        await crashed.wait()
    await lab.take_over()

    there = second.turn(turn.id)
    await there.resume(ResumeCommand.give_result(None, {"who": ANN}))
    sent = [item.content for item in model_of(shop).requests[-1].messages if isinstance(item, ToolMessage)]

    assert [json.loads(text) for text in sent] == [{"who": ANN_JSON}, ANN_JSON]


@pytest.mark.parametrize("types", [(), (Point,), (changed(),)])
async def test_a_type_that_is_not_registered(lab: Lab, desk: Desk, types: Any) -> None:
    """I159, I163: a Struct of a type the Runtime was not given is refused by name, at every door; another of its name, too."""
    shop, small = agent(call("refund"), "done", tools=[desk.tool(forms=[WHO])]), agent("done", id="small")
    runtime = await lab.runtime(shop, small, types=types)
    told = r"is a .*test_struct_types\.Customer, which is none of the types"
    with pytest.raises(InvalidDefinition, match=r"metadata\.who\[0\] " + told):
        await runtime.start(shop, "hi", metadata={"who": [ANN]})
    with pytest.raises(InvalidDefinition, match=r"metadata\.who " + told):
        await runtime.start(shop, "hi", options=TurnOptions(metadata={"who": ANN}))
    assert (await runtime.turns()).items == ()
    turn = await runtime.start(shop, "hi")
    view = await turn.settle()

    with pytest.raises(InvalidDefinition, match=told):
        await turn.start_child(small, "go", metadata={"who": ANN})
    with pytest.raises(InvalidDefinition, match="data " + told):
        await turn.submit(ResumeCommand.submit_form(view.open_waits[0], ANN))
    with pytest.raises(InvalidDefinition, match="data " + told):
        await turn.submit(ResumeCommand.give_result("call_1_0", ANN))

    assert (await turn.view()).to_dict() == view.to_dict()


async def test_nothing_else_carries_structs(lab: Lab) -> None:
    """Metadata of commands and of decisions, and edited arguments, stay JSON-like."""
    with pytest.raises(InvalidDefinition, match="a Point"):
        ResumeCommand.approve_tool(metadata={"at": Point(1, 2)})
    with pytest.raises(InvalidDefinition, match="a Point"):
        ResumeCommand.approve_tool(arguments={"at": Point(1, 2)})
    with pytest.raises(InvalidDefinition, match="a Point"):
        ApprovalDecision.require(metadata={"at": Point(1, 2)})


async def test_no_dict_is_taken_for_a_struct(lab: Lab, desk: Desk) -> None:
    """No dict becomes a Struct, whatever its keys: types are kept beside the data. Nor does a command that came as JSON."""
    seen: list[Any] = []

    async def ask(context: ToolContext[Any], arguments: dict[str, Any]) -> str:
        seen.append((context.form(ANY), context.metadata))
        return "asked"

    shop = agent(call("refund"), "done", tools=[desk.tool(body=ask)])
    runtime = await lab.runtime(shop, types=TYPES)
    forged = {"type": "Customer", "$type": "Customer", "marks": [[["who"], "Customer"]], "who": ANN_JSON}
    turn = await runtime.start(shop, "hi", metadata=forged)
    await turn.settle()
    sent = ResumeCommand.submit_form(None, forged).to_dict() | {"marks": [[["who"], "Customer"]]}
    await turn.resume(ResumeCommand.from_dict(sent))

    assert seen == [(forged, forged)]


async def test_a_command_over_the_wire(lab: Lab) -> None:
    """A command's JSON has the JSON of its Structs."""
    command = ResumeCommand.submit_form("w", {"who": ANN}, command_id="c")

    assert command.value == {"who": ANN}
    assert ResumeCommand.from_dict(command.to_dict()).value == {"who": ANN_JSON}
    assert ResumeCommand.from_dict(command.to_dict()).digest == command.digest
    many = [ResumeCommand.submit_form("w", Address("Ulm", frozenset(tags))) for tags in (("a", "b", "c"), ("c", "b", "a"))]
    assert ResumeCommand.submit_form("w", {"tags": ["a", "b", "c"], "town": "Ulm"}).digest == many[0].digest == many[1].digest


async def test_what_is_stored(lab: Lab) -> None:
    """Stored is plain data, and beside it where the Structs stand."""
    shop = agent("done")
    runtime = await lab.runtime(shop, types=TYPES)
    rows = []
    for metadata in ({"at": [1, 2]}, {"at": Point(1, 2)}):
        view = await runtime.run(shop, "hi", metadata=metadata)
        look = await node_of(runtime).call(base.Look(turn=view.id))
        assert isinstance(look, base.Looked)
        rows.append((msgspec.msgpack.decode(look.snapshot), codec.decode_state(view.id, look.schema, look.snapshot)))
    place = TurnState.__struct_fields__.index("metadata_marks")

    assert [state.metadata for _, state in rows] == [{"at": [1, 2]}] * 2
    assert [row[place] for row, _ in rows] == [[], [[["at"], "Point"]]]


async def test_unit_tests_of_tools(lab: Lab) -> None:
    """`tool_context` takes Structs as they are; an untyped form gives them as a copy."""
    with tool_context(metadata={"who": ANN}, forms={"any": [ANN]}) as context:
        assert ToolContext.current().metadata["who"] is ANN
        (copy,) = context.form(ANY)

    assert copy == ANN
    assert copy is not ANN


async def test_every_value_of_json(lab: Lab) -> None:
    """What a Struct may hold goes to the store and back: times, bytes, numbers as keys."""
    kind = msgspec.defstruct("Kind", [("at", datetime), ("raw", bytes), ("more", dict[int, tuple[float, ...]])])
    value = kind(datetime(2024, 1, 2, 3, 4, 5, 678901, UTC), b"\0\xff", {-1: (0.1, 1e300)})
    shop = agent("done")
    runtime = await lab.runtime(shop, types=[kind])

    view = await runtime.run(shop, "hi", metadata={"value": value})

    assert view.metadata == {"value": value}
    assert (await runtime.turn(view.id).view()).metadata == {"value": value}
