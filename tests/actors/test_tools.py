"""Tools as definitions: what can become one, its schema, its options."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from datetime import date, datetime, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from msgspec import Meta

from turnhold.actors.chat import ToolCall
from turnhold.actors.context import ToolContext
from turnhold.actors.errors import InvalidDefinition
from turnhold.actors.policies import ApprovalDecision
from turnhold.actors.tools import Tool, decision_of, tool

from .samples import Address, Colour, Desk, Greeter, Item, Node, Opaque, Services


def plain(order_id: str, amount: int = 5) -> str:
    """Refund an order and change its state.

    Only once.

    :param order_id: the order's number,
        as printed
    :param amount: in cents
    :returns: a text
    """
    return f"{order_id}/{amount}"


async def slow(order_id: str) -> str:
    return order_id


def test_the_schema_comes_from_signature_and_docstring() -> None:
    """Types, defaults, required names, descriptions; nothing else is allowed."""
    made = tool(plain)

    assert made.name == "plain"
    assert made.description == "Refund an order and change its state."
    assert made.parameters == {
        "type": "object",
        "properties": {
            "order_id": {"type": "string", "description": "the order's number, as printed"},
            "amount": {"type": "integer", "default": 5, "description": "in cents"},
        },
        "required": ["order_id"],
        "additionalProperties": False,
    }
    assert made.definition.to_dict() == {"name": made.name, "description": made.description, "parameters": made.parameters}


def every_type(
    any_json,
    described: Annotated[int, Meta(description="a number", ge=1)],
    item: Item,
    node: Node,
    address: Address,
    colour: Colour,
    size: Literal["s", "m"],
    when: datetime,
    day: date,
    key: UUID,
    several: list[Item],
    by_name: dict[str, float],
    either: int | str | None,
    maybe: Item | None = None,
    thing: object = None,
    opaque_default: Any = Opaque,
) -> None: ...


def test_annotations_of_all_kinds() -> None:
    """Structs, dataclasses, TypedDicts, enums, literals, times, unions, unannotated: all have a schema with local parts."""
    parameters = tool(every_type).parameters
    properties: Any = parameters["properties"]

    assert properties["any_json"] == {}
    assert properties["described"] == {"type": "integer", "minimum": 1, "description": "a number"}
    assert properties["item"] == {"$ref": "#/$defs/Item"}
    assert properties["size"] == {"enum": ["m", "s"]} or properties["size"] == {"enum": ["s", "m"]}
    assert properties["key"] == {"type": "string", "format": "uuid"}
    assert properties["maybe"] == {"anyOf": [{"$ref": "#/$defs/Item"}, {"type": "null"}], "default": None}
    assert "default" not in properties["opaque_default"]
    assert set(parameters["$defs"]) == {"Address", "Colour", "Item", "Node"}  # type: ignore[arg-type]
    assert "either" in parameters["required"]  # type: ignore[operator]


def test_a_decorated_function_stays_callable() -> None:
    """With and without options, called with its own arguments."""

    @tool(name="double-it", description="Doubles.")
    def double(x: int) -> int:
        return 2 * x

    assert double(4) == 8
    assert double(x=5) == 10
    assert (double.name, double.description) == ("double-it", "Doubles.")
    assert tool(plain)("a", 3) == "a/3"


def test_methods_partials_and_objects() -> None:
    """Bound methods, partials (what they fill is hidden), callable objects and static methods."""
    desk = Desk()
    book, half = tool(desk.book), tool(functools.partial(plain, amount=7))
    greet, price = tool(Greeter(), name="greet"), tool(Desk.price)
    static = tool(Desk.__dict__["price"])

    assert (book.name, book.is_async, list(book.parameters["properties"])) == ("book", True, ["seat"])  # type: ignore[arg-type]
    assert (half.name, list(half.parameters["properties"]), half(order_id="x")) == ("plain", ["order_id"], "x/7")  # type: ignore[arg-type]
    assert (greet.description, greet("ann")) == ("Greets people.", "hello ann")
    assert price(3) == static(3) == 30
    assert tool(functools.partial(slow)).is_async
    assert not tool(plain).is_async


def test_the_context_is_no_argument() -> None:
    """A parameter annotated with the context, generic or optional, is not in the schema."""

    def one(x: int, ctx: ToolContext) -> None: ...
    def two(ctx: ToolContext[Services], x: int) -> None: ...
    def three(x: int, *, ctx: ToolContext[Services] | None = None) -> None: ...

    assert [list(tool(each).parameters["properties"]) for each in (one, two, three)] == [["x"]] * 3  # type: ignore[arg-type]


def star(*args: int) -> None: ...
def stars(**kwargs: int) -> None: ...
def positional(x: int, /) -> None: ...
def unknown(x: Nowhere) -> None: ...  # type: ignore[name-defined] # noqa: F821
def opaque(x: int, y: Opaque) -> None: ...
def broken(x: list[Item | Node]) -> None: ...
def generator() -> Iterator[int]:
    yield 1


async def agenerator() -> AsyncIterator[int]:
    yield 1


def wordy() -> None:
    """Say much
    in one paragraph.

    And more.
    """  # noqa: D205 - the break is the subject


def test_the_description_is_the_first_paragraph() -> None:
    """Line breaks inside it are no breaks."""
    assert tool(wordy).description == "Say much in one paragraph."
    assert tool(star_free).description == ""


def star_free() -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (star, r"tool star: a model cannot fill \*args"),
        (stars, r"tool stars: a model cannot fill \*\*kwargs"),
        (positional, "x is positional-only"),
        (unknown, "annotation of x cannot be resolved .*Nowhere"),
        (opaque, "parameter y has a type without a JSON form"),
        (broken, "parameter x has a type without a JSON form"),
        (Desk.unbound, "self is not bound"),
        (generator, "a generator has no result"),
        (agenerator, "a generator has no result"),
        (Item, "made of a function"),
        (3, "made of a function"),
        (None.__class__, "made of a function"),
        (tool(plain), "made of a function"),
        (functools.partial(tool(plain), amount=1), "made of a function"),
        (lambda x: x, "a tool's name has"),
        (max, "cannot be read|positional"),
    ],
)
def test_what_cannot_be_a_tool(function: Any, words: str) -> None:
    """Each function that a model could not call is refused with its reason."""
    with pytest.raises(InvalidDefinition, match=words):
        tool(function)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": ""}, "a tool's name"),
        ({"name": "x" * 65}, "a tool's name"),
        ({"name": "a b"}, "a tool's name"),
        ({"name": "né"}, "a tool's name"),
        ({"name": "a\n"}, "a tool's name"),
        ({"name": 3}, "a tool's name"),
        ({"name": "request_user_input"}, "belongs to a control tool"),
        ({"name": "create_task_plan"}, "belongs to a control tool"),
        ({"name": "update_task_plan"}, "belongs to a control tool"),
        ({"description": 3}, "description must be text"),
        ({"description": "\ud800"}, "description is not valid Unicode"),
        ({"description": "x" * 65_537}, "description has 65537 bytes"),
        ({"approval": None}, "approval must be"),
        ({"approval": "yes"}, "approval must be"),
        ({"approval": lambda price: True}, "approval asks for 'price'"),
        ({"approval": lambda *a: True}, "by name, so not a"),
        ({"approval": max}, "approval"),
        ({"effect": "twice"}, "effect must be"),
        ({"effect": True}, "effect must be"),
        ({"timeout": 0}, "timeout must be more than 0"),
        ({"timeout": -1}, "timeout must be more than 0"),
        ({"timeout": True}, "timeout must be a timedelta"),
        ({"timeout": "5"}, "timeout must be a timedelta"),
        ({"timeout": float("nan")}, "timeout is not a possible"),
        ({"timeout": 1e30}, "timeout is not a possible"),
        ({"sequential": 1}, "sequential must be a bool"),
        ({"cancellable": "yes"}, "cancellable must be a bool"),
        ({"cancellable": True}, "only an async function"),
        ({"sensitive": "order_id"}, "sensitive must be a tuple"),
        ({"sensitive": ("card",)}, "sensitive names 'card'"),
        ({"sensitive": (["x"],)}, "sensitive names"),
        ({"assignee": ""}, "assignee must not be blank"),
        ({"assignee": 3}, "assignee must be text"),
        ({"assignee": "x" * 129}, "assignee has 129 bytes"),
        ({"metadata": [1]}, "metadata must be a mapping"),
        ({"metadata": {1: 2}}, "metadata key must be text"),
    ],
)
def test_each_wrong_option_is_named(options: dict, words: str) -> None:
    """Every option is checked when the tool is built."""
    with pytest.raises(InvalidDefinition, match=words):
        tool(plain, **options)


def test_options_are_kept() -> None:
    """All options are readable; a number is a duration in seconds."""
    made = tool(
        slow,
        approval=True,
        effect="once",
        timeout=2.5,
        sequential=True,
        cancellable=True,
        sensitive=["order_id"],
        assignee="ann",
        metadata={"team": "billing"},
    )

    assert (made.approval, made.effect, made.timeout) == (True, "once", timedelta(seconds=2.5))
    assert (made.sequential, made.cancellable, made.assignee) == (True, True, "ann")
    assert made.sensitive == ("order_id",)
    assert made.forms == ()


def test_a_tool_is_immutable() -> None:
    """No attribute can be set or deleted."""
    made = tool(plain)

    with pytest.raises(AttributeError):
        made.name = "other"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del made.name  # type: ignore[misc]


def test_metadata_is_a_read_only_copy() -> None:
    """Scenarios A 17 and A 18: the source map may change, the tool's does not, and nobody writes to it."""
    source = {"team": "billing"}
    made = tool(plain, metadata=source)
    source["team"] = "other"

    assert made.metadata == {"team": "billing"}
    with pytest.raises(TypeError):
        made.metadata["team"] = "x"  # type: ignore[index]


def test_sensitive_arguments_are_masked() -> None:
    """Only the named ones, and in a copy."""
    made = tool(plain, sensitive=("order_id",))
    arguments = {"order_id": "secret", "amount": 3}

    assert made.mask(arguments) == {"order_id": "***", "amount": 3}
    assert arguments["order_id"] == "secret"
    assert made.mask({}) == {}


CALL = ToolCall("c1", "plain", {"order_id": "o"})


@pytest.mark.parametrize(
    ("approval", "expected"),
    [
        (True, True),
        (False, False),
        (ApprovalDecision.deny(code="no"), ApprovalDecision.deny(code="no")),
        (lambda: True, True),
        (lambda amount: amount, 5),
        (lambda order_id, amount, *, call: (order_id, amount, call), ("o", 5, CALL)),
        (lambda arguments, turn: (arguments, turn), ({"order_id": "o"}, None)),
        (lambda limit=3: limit, 3),
        (lambda **known: sorted(known), ["amount", "arguments", "call", "order_id", "turn"]),
    ],
)
def test_an_approval_function_gets_what_it_names(approval: Any, expected: object) -> None:
    """The tool's arguments with their defaults, the call, the turn."""
    assert tool(plain, approval=approval).ask({"order_id": "o"}, CALL) == expected


def test_a_parameter_goes_before_a_word_of_ours() -> None:
    """A tool with a parameter `call` asks its approval with that argument."""

    def dial(call: str) -> None: ...

    assert tool(dial, approval=lambda call: call == "112").ask({"call": "112"}, CALL) is True


async def test_an_approval_may_be_async() -> None:
    """The answer of an async function is awaited by the caller."""

    async def check(amount: int) -> bool:
        return amount > 3

    answer: Any = tool(plain, approval=check).ask({"order_id": "o"}, CALL)

    assert await answer is True


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [(True, "require"), (False, "allow"), (ApprovalDecision.deny(), "deny")],
)
def test_what_an_answer_means(answer: object, outcome: str) -> None:
    """True asks a person, false lets it run, a decision is itself."""
    assert decision_of(answer).outcome == outcome


@pytest.mark.parametrize("answer", [None, 0, 1, "yes", "allow", {"outcome": "allow"}, object()])
def test_any_other_answer_is_refused(answer: object) -> None:
    """A policy that answers something else is a fault, not a permission."""
    with pytest.raises(InvalidDefinition, match="a bool or an ApprovalDecision"):
        decision_of(answer)


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}


def takes_ab(a: int, b: str = "") -> str:
    return f"{a}{b}"


@pytest.mark.parametrize(
    ("schema", "function", "words"),
    [
        ({}, takes_ab, "parameters must be a non-empty"),
        (None, takes_ab, "parameters must be a non-empty"),
        ({"type": "array"}, takes_ab, "parameters.type must be 'object'"),
        ({"type": "object", "properties": {"a": {"type": "int"}}}, takes_ab, r"parameters\.properties\.a\.type"),
        (SCHEMA, lambda a: a, "does not take b"),
        (SCHEMA, lambda a, b: a, "needs b, which the schema does not require"),
        (SCHEMA, lambda a, b="", *, c: a, "needs c"),
        (SCHEMA, star, r"cannot fill \*args"),
        (SCHEMA, 3, "made of a function"),
    ],
)
def test_from_schema_checks_the_function_against_the_schema(schema: Any, function: Any, words: str) -> None:
    """What the schema describes, the function must be able to take."""
    with pytest.raises(InvalidDefinition, match=words):
        Tool.from_schema("x", "", schema, function)


def test_from_schema_copies_its_schema() -> None:
    """A later change of the source does not change the tool."""
    source: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    made = Tool.from_schema("x", "Takes a.", source, lambda a=1: a, approval=True, sensitive=("a",))
    source["properties"]["a"]["type"] = "string"

    assert made.parameters["properties"] == {"a": {"type": "integer"}}
    assert (made.description, made.approval, made.sensitive) == ("Takes a.", True, ("a",))
