"""Calling tools: arguments bound, context, progress, results."""

from __future__ import annotations

import enum
import functools
import math
from datetime import UTC, datetime
from functools import reduce
from typing import Annotated, Any

import msgspec
import pydantic
import pytest
from msgspec import Meta

from turnhold.actors.context import NoToolContext, ToolContext
from turnhold.actors.errors import ArgumentsInvalid, FormRequired, InvalidDefinition, ToolResultInvalid, TurnholdError
from turnhold.actors.forms import FormDefinition
from turnhold.actors.results import result_text
from turnhold.actors.tools import Tool, tool

from .samples import Address, Colour, Desk, Item, Node, Services, context


class Picky(msgspec.Struct):
    size: int

    def __post_init__(self) -> None:
        if self.size == 1:
            raise ValueError("too small")
        if self.size == 2:
            raise KeyError("two")


@tool
def order(
    item: Item,
    when: datetime | None = None,
    colour: Colour = Colour.RED,
    code: Annotated[str, Meta(pattern="^[a-z]+$", max_length=5)] = "a",
    address: Address | None = None,
    chain: Node | None = None,
    tags: set[int] | None = None,
    extra: Any = None,
    ratio: float = 1.0,
    picky: Picky | None = None,
) -> str:
    return f"{item.sku}x{item.count} {colour.name}"


def test_arguments_are_converted() -> None:
    """The function gets its own types; what the call leaves out is left to the function's defaults."""
    bound = order.bind(
        {
            "item": {"sku": "s", "count": 2.0},
            "when": "2026-01-01T00:00:00Z",
            "colour": "blue",
            "chain": {"value": 1, "next": {"value": 2}},
            "tags": [1, 2],
            "ratio": 2,
        }
    )

    assert bound == {
        "item": Item("s", 2),
        "when": datetime(2026, 1, 1, tzinfo=UTC),
        "colour": Colour.BLUE,
        "chain": Node(1, Node(2)),
        "tags": {1, 2},
        "ratio": 2.0,
    }
    assert order.invoke(bound, context(order)) == "sx2 BLUE"


def test_bound_arguments_share_nothing_with_the_call() -> None:
    """A tool that changes what it got does not change the stored call."""
    arguments: Any = {"item": {"sku": "s"}, "extra": {"list": [1]}}

    order.bind(arguments)["extra"]["list"].append(2)

    assert arguments["extra"] == {"list": [1]}


DEEP: Any = reduce(lambda inner, _: [inner], range(10_000), 1)


@pytest.mark.parametrize(
    ("arguments", "path", "words"),
    [
        ([], "$", "must be an object"),
        (None, "$", "must be an object"),
        ("{}", "$", "must be an object"),
        ({}, "$.item", "is missing"),
        ({"item": 3}, "$.item", "must be an object"),
        ({"item": {}}, "$.item.sku", "is missing"),
        ({"item": {"sku": 1}}, "$.item.sku", "must be text"),
        ({"item": {"sku": "s", "count": 1.5}}, "$.item.count", "must be a whole number"),
        ({"item": {"sku": "s", "count": True}}, "$.item.count", "must be a whole number"),
        ({"item": {"sku": "s", "count": "1"}}, "$.item.count", "must be a whole number"),
        ({"item": {"sku": "s"}, "price": 1}, "$.price", "is not allowed"),
        ({"item": {"sku": "s"}, "when": "tomorrow"}, "$.when", "datetime"),
        ({"item": {"sku": "s"}, "colour": "green"}, "$.colour", 'must be one of "blue", "red"'),
        ({"item": {"sku": "s"}, "code": "A"}, "$.code", "must match"),
        ({"item": {"sku": "s"}, "code": "aaaaaa"}, "$.code", "at most 5"),
        ({"item": {"sku": "s"}, "address": {"zip": "1"}}, "$.address.street", "is missing"),
        ({"item": {"sku": "s"}, "chain": {"value": 1, "next": {"value": "x"}}}, "$.chain.next.value", "whole number"),
        ({"item": {"sku": "s"}, "extra": {1, 2}}, "$.extra", "not JSON-like"),
        ({"item": {"sku": "\ud800"}}, "$.item.sku", "not valid Unicode"),
        ({"item": {"sku": "s"}, "extra": DEEP}, "$.extra" + "[0]" * 63, "nested too deep"),
        ({"item": {"sku": "s"}, "ratio": float("nan")}, "$.ratio", "nan"),
        ({"item": {"sku": "s"}, "picky": {"size": 1}}, "$.picky", "too small"),
        ({"item": {"sku": "s"}, "picky": {"size": 2}}, "$", "KeyError"),
        ({1: 2}, "$", "key that is not text"),
    ],
)
def test_bad_arguments_name_path_and_rule(arguments: Any, path: str, words: str) -> None:
    """Every fault has its place and a message a model can act on."""
    with pytest.raises(ArgumentsInvalid) as caught:
        order.bind(arguments)

    ((found, message),) = caught.value.faults
    assert found == path
    assert words in message
    assert caught.value.tool == "order"
    assert isinstance(caught.value, TurnholdError)


def test_all_faults_are_listed() -> None:
    """The model learns of all its mistakes at once."""
    with pytest.raises(ArgumentsInvalid, match="invalid arguments for order") as caught:
        order.bind({"item": {"sku": 1, "count": "x"}, "colour": 3})

    assert [path for path, _ in caught.value.faults] == ["$.item.sku", "$.item.count", "$.colour"]


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 9}, "b": {"type": "string"}},
    "required": ["a"],
}


def test_tools_from_a_schema_get_arguments_by_name_or_as_one_dict() -> None:
    """By name, by ``**``, or all in one dict called arguments; with the context where it is asked for."""

    def by_name(a: int, b: str = "none") -> str:
        return f"{a} {b}"

    def by_stars(ctx: ToolContext, **arguments: Any) -> Any:
        return ctx.call_id, arguments

    def in_one(arguments: dict[str, Any]) -> Any:
        return arguments

    results = []
    functions: list[Any] = [by_name, by_stars, in_one]
    for function in functions:
        made = Tool.from_schema("x", "", SCHEMA, function)
        results.append(made.invoke(made.bind({"a": 3}), context(made)))

    assert results == ["3 none", ("c1", {"a": 3}), {"a": 3}]


@pytest.mark.parametrize(
    ("arguments", "path"),
    [({}, "$.a"), ({"a": 10}, "$.a"), ({"a": 1, "b": 2}, "$.b"), ({"a": 1, "c": 2}, "$.c"), ({"a": "x" * 2_000_000}, "$")],
)
def test_tools_from_a_schema_are_checked_by_it(arguments: dict, path: str) -> None:
    """The given schema decides; a name that the function does not take is refused too."""
    made = Tool.from_schema("x", "", SCHEMA, lambda a, b="": None)

    with pytest.raises(ArgumentsInvalid) as caught:
        made.bind(arguments)
    assert [found for found, _ in caught.value.faults] == [path]


def test_large_arguments_of_a_tool_are_fine() -> None:
    """A file to write is larger than a form; up to 1 MiB is checked."""
    made = Tool.from_schema("x", "", {"type": "object", "properties": {"text": {"type": "string"}}}, lambda text="": len(text))

    assert made.invoke(made.bind({"text": "x" * 500_000}), context(made)) == 500_000


def test_a_running_tool_knows_its_turn() -> None:
    """Scenarios D 69 and D 70: ids, agent, tool, call and the key are there; by `current()` and as a parameter."""

    @tool
    def look(ctx: ToolContext[Services]) -> bool:
        return ctx is ToolContext.current()

    ctx = context(look, attempt=2, epoch=7, services=Services(), metadata={"m": 1}, tenant="t", conversation_id="conv")

    assert look.invoke({}, ctx) is True
    assert (ctx.turn_id, ctx.root_turn_id, ctx.parent_turn_id) == ("00-t", "00-r", None)
    assert (ctx.agent_id, ctx.agent_version, ctx.tenant, ctx.conversation_id) == ("shop", "2", "t", "conv")
    assert (ctx.tool, ctx.call.id, ctx.call_id, ctx.call.name) == (look, "c1", "c1", "look")
    assert ctx.idempotency_key == "00-t:c1"
    assert (ctx.attempt, ctx.epoch, ctx.services.answer, ctx.metadata) == (2, 7, 42, {"m": 1})
    assert "c1" in repr(ctx)


def test_outside_of_a_tool_there_is_no_context() -> None:
    """A clear error, and again after a tool has run or failed."""

    @tool
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail.invoke({}, context(fail))
    with pytest.raises(NoToolContext, match="no tool is running here"):
        ToolContext.current()
    with pytest.raises(LookupError):
        ToolContext.current()


async def test_an_async_tool_has_its_context_while_it_runs() -> None:
    """Interleaved calls each see their own; a plain function may return an awaitable as well."""

    @tool
    async def first() -> str:
        return ToolContext.current().call_id

    @functools.wraps(first.function)
    def wrapped() -> Any:
        return first.function()

    second = tool(wrapped, name="second")
    a: Any = first.invoke({}, context(first))
    b: Any = second.invoke({}, context(second))

    assert first.is_async
    assert not second.is_async
    assert (await b, await a) == ("c1", "c1")
    with pytest.raises(NoToolContext):
        ToolContext.current()


async def test_a_bound_method_keeps_its_object() -> None:
    """The method of this very object is called."""
    desk = Desk()
    book = tool(desk.book)

    result: Any = book.invoke(book.bind({"seat": 4}), context(book))

    assert (await result, desk.calls) == (4, [4])


async def test_progress_and_cancel_go_to_the_runtime() -> None:
    """Scenario D 71: no cancel is reported, progress can be emitted, from sync and async tools."""
    heard: list[Any] = []
    quiet = context(order)
    ctx = context(order, report=lambda message, data: heard.append((message, data)), cancelled=lambda: bool(heard))

    assert ctx.cancel_requested is False
    await ctx.progress("half", done=1)
    ctx.progress_nowait("full", done=2)
    await quiet.progress("nobody listens")

    assert heard == [("half", {"done": 1}), ("full", {"done": 2})]
    assert ctx.cancel_requested is True
    assert quiet.cancel_requested is False


@pytest.mark.parametrize(
    ("message", "data", "words"), [(3, {}, "message must be text"), ("m", {"a": {1}}, r"data\.a"), ("\ud800", {}, "message")]
)
async def test_progress_is_checked(message: Any, data: dict, words: str) -> None:
    """What cannot be sent fails in the tool that sends it."""
    with pytest.raises(InvalidDefinition, match=words):
        await context(order).progress(message, **data)


def test_a_tool_asks_for_a_form_and_gets_it() -> None:
    """Before the answer the form is raised, after it the data comes back, as its type where there is one."""
    address = FormDefinition("address", description="d", schema=Address)
    item = FormDefinition("item", description="d", schema=Item)
    ctx = context(order)

    with pytest.raises(FormRequired) as caught:
        ctx.form(address)
    assert caught.value.form is address
    assert ctx.form_data is None

    answered = context(order, forms={"address": {"street": "s"}, "item": {"sku": "s"}}, form_data={"sku": "s"})
    assert answered.form(address) == {"street": "s"}
    assert answered.form(item) == Item("s")
    assert answered.form_data == {"sku": "s"}


@pytest.mark.parametrize("data", [None, False, "", 0, {}, []])
def test_every_json_value_is_an_answer(data: Any) -> None:
    """Falsy data is data, not a missing answer."""
    form: FormDefinition[Any] = FormDefinition("any", description="d", schema={"description": "anything"})

    assert context(order, forms={"any": data}).form(form) == data


class Level(enum.IntEnum):
    HIGH = 3


class Title(enum.StrEnum):
    SIR = "sir"


class Model(pydantic.BaseModel):
    when: datetime


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ("plain \n text", "plain \n text"),
        ("", ""),
        (True, "true"),
        (3, "3"),
        (2**80, str(2**80)),
        (1.5, "1.5"),
        (math.nan, "null"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (Item("s"), '{"sku":"s","count":1}'),
        (Node(1), '{"value":1,"next":null}'),
        (datetime(2026, 1, 1, tzinfo=UTC), '"2026-01-01T00:00:00Z"'),
        ([Colour.RED, Level.HIGH, Title.SIR], '["red",3,"sir"]'),
        (Title.SIR, '"sir"'),
        ((1, 2), "[1,2]"),
        (b"x", '"eA=="'),
        ({1: 2}, '{"1":2}'),
        (Model(when=datetime(2026, 1, 1, tzinfo=UTC)), '{"when":"2026-01-01T00:00:00Z"}'),
        ("x" * 128, "x" * 128),
    ],
)
def test_results_as_text(value: object, text: str) -> None:
    """Scenario D 73 too: text as it is and not shortened, everything else as JSON."""
    assert result_text(value) == text


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "type object has no JSON form"),
        (iter([]), "no JSON form"),
        ({(1, 2): 3}, "type dict has no JSON form"),
        ({"a": object()}, "no JSON form"),
        (CYCLE, "type list has no JSON form"),
        (DEEP, "type list has no JSON form"),
        ("\ud800", "not valid Unicode"),
        (["\ud800"], "not valid Unicode"),
        (ValueError("x"), "type ValueError has no JSON form"),
        (Item, "no JSON form"),
        (Model, "no JSON form"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_results_without_a_json_form(value: object, words: str) -> None:
    """A clear error rather than a half-true text."""
    with pytest.raises(ToolResultInvalid, match=words):
        result_text(value)
