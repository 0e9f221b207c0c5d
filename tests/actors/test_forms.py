"""Forms: definitions, the control tool, the signal that asks for one."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import msgspec
import pytest

from turnhold.actors.context import ToolContext
from turnhold.actors.errors import ArgumentsInvalid, FormLoop, FormRequired, InvalidDefinition
from turnhold.actors.forms import FormDefinition, find_form_required, form_loop, user_input_tool
from turnhold.actors.schema import faults
from turnhold.actors.tools import Tool

from .samples import Address, Item, Node, Opaque, context

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
ADDRESS = FormDefinition("address", description="where to send it", schema=Address)
AGE = FormDefinition("age", description="how old", schema=SCHEMA)


class Stay(msgspec.Struct):
    night: date


def test_the_schema_is_copied_and_frozen() -> None:
    """Scenario Q 335: neither the source nor what is handed out changes the form."""
    source = {"type": "object", "properties": {"age": {"type": "integer"}}}
    form = FormDefinition("age", description="d", schema=source)
    source["properties"] = {}
    form.json_schema["properties"] = {}

    assert form.json_schema["properties"] == {"age": {"type": "integer"}}
    with pytest.raises(AttributeError):
        form.form_key = "x"  # type: ignore[misc]


@pytest.mark.parametrize(("type_", "required"), [(Item, ["sku"]), (Node, ["value"]), (Address, ["street"]), (Stay, ["night"])])
def test_a_type_is_a_schema(type_: Any, required: list[str]) -> None:
    """Structs, dataclasses and TypedDicts, also recursive ones."""
    assert FormDefinition("x", description="d", schema=type_).json_schema["required"] == required


@pytest.mark.parametrize(
    ("schema", "data", "expected"),
    [
        (Item, {"sku": "a"}, Item("a")),
        (Node, {"value": 1, "next": {"value": 2}}, Node(1, Node(2))),
        (Address, {"street": "s"}, {"street": "s"}),
        (Stay, {"night": "2026-01-31"}, Stay(date(2026, 1, 31))),
        (SCHEMA, {"age": 3}, {"age": 3}),
        (list[int], [1], [1]),
    ],
)
def test_data_comes_converted(schema: Any, data: Any, expected: object) -> None:
    """As the type of the form; without one as it is, but in a copy."""
    converted = FormDefinition("x", description="d", schema=schema).convert(data)

    assert converted == expected
    assert converted is not data


def test_data_of_a_form_that_has_changed() -> None:
    """What was accepted under another schema is a typed error, not a half-built object."""
    with pytest.raises(ArgumentsInvalid) as caught:
        FormDefinition("x", description="d", schema=Item).convert({"sku": 3})
    assert caught.value.faults[0][0] == "$.sku"


def test_what_a_type_refuses_its_schema_refuses() -> None:
    """A wrong date is found when it is submitted, while the wait is open."""
    form = FormDefinition("x", description="d", schema=Stay)

    assert faults(form.json_schema, {"night": "2026-02-31"}) == [("$.night", "must be a date")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"form_key": ""}, "form_key must not be blank"),
        ({"form_key": " "}, "form_key must not be blank"),
        ({"form_key": None}, "form_key must be text"),
        ({"form_key": "x" * 129}, "form_key has 129 bytes"),
        ({"form_key": "\ud800"}, "form_key is not valid Unicode"),
        ({"form_key": "a\0"}, "form_key must not contain a NUL"),
        ({"description": ""}, "form age: description must not be blank"),
        ({"description": None}, "form age: description must be text"),
        ({"schema": {}}, "form age: schema must be a non-empty"),
        ({"schema": None}, "form age: schema must be a non-empty"),
        ({"schema": True}, "form age: schema must be a non-empty"),
        ({"schema": "{}"}, "form age: schema must be a non-empty"),
        ({"schema": {"type": "objekt"}}, r"form age: schema\.type must be one of"),
        ({"schema": {"pattern": "("}}, r"form age: schema\.pattern"),
        ({"schema": Opaque}, "form age: schema has a type without a JSON form"),
        ({"assignee": " "}, "assignee must not be blank"),
        ({"assignee": 3}, "assignee must be text"),
        ({"expires_in": 0}, "expires_in must be more than 0"),
        ({"expires_in": -1}, "expires_in must be more than 0"),
        ({"expires_in": True}, "expires_in must be a timedelta"),
        ({"expires_in": "1h"}, "expires_in must be a timedelta"),
        ({"expires_in": float("inf")}, "expires_in is not a possible"),
        ({"on_expiry": "reject"}, "on_expiry needs expires_in"),
        ({"on_expiry": "explode", "expires_in": 1}, "on_expiry must be"),
        ({"on_expiry": True, "expires_in": 1}, "on_expiry must be"),
        ({"default": {"age": 3}}, "default is only used with"),
        ({"default": {"age": 3}, "expires_in": 1, "on_expiry": "reject"}, "default is only used with"),
        ({"expires_in": 1, "on_expiry": "default"}, "default must be an object"),
        ({"expires_in": 1, "on_expiry": "default", "default": {"age": "x"}}, r"default\.age must be a whole number"),
        ({"expires_in": 1, "on_expiry": "default", "default": object()}, "default is not JSON-like"),
    ],
)
def test_each_wrong_argument_is_named(arguments: dict, words: str) -> None:
    """Scenario Q 336 and more: every argument is checked when the form is defined."""
    good: dict[str, Any] = {"form_key": "age", "description": "d", "schema": SCHEMA}

    with pytest.raises(InvalidDefinition, match=words):
        FormDefinition(**(good | arguments))


def test_expiry_and_default() -> None:
    """A number is seconds; a default may be an object of the form's type; null is a default where the schema allows it."""
    typed = FormDefinition("x", description="d", schema=Item, expires_in=90, on_expiry="default", default=Item("a"))
    null = FormDefinition("x", description="d", schema={"type": "null"}, expires_in=1, on_expiry="default")

    assert (typed.expires_in, typed.default) == (timedelta(seconds=90), {"sku": "a", "count": 1})
    assert null.default is None


def test_the_control_tool_shows_keys_and_descriptions_only() -> None:
    """Scenario F 100: the model is offered `request_user_input` and never sees the schemas."""
    made = user_input_tool(ADDRESS, AGE)

    assert made.name == "request_user_input"
    assert made.forms == (ADDRESS, AGE)
    assert made.parameters["properties"]["form_key"]["enum"] == ["address", "age"]  # type: ignore[index, call-overload]
    assert "- address: where to send it" in made.description
    assert "street" not in made.definition.to_json().decode()
    assert made.bind({"form_key": "age"}) == {"form_key": "age"}
    with pytest.raises(ArgumentsInvalid):
        made.bind({"form_key": "other"})
    with pytest.raises(InvalidDefinition, match="handled by the runtime"):
        made.invoke({"form_key": "age"}, context(made))


@pytest.mark.parametrize(
    ("forms", "words"),
    [
        ((), "at least one form"),
        ((AGE, AGE), "two forms have the key 'age'"),
        ((AGE, FormDefinition("age", description="other", schema=SCHEMA)), "two forms have the key 'age'"),
        ((SCHEMA,), "takes FormDefinitions, not dict"),
    ],
)
def test_wrong_forms_of_the_control_tool(forms: tuple, words: str) -> None:
    """Scenario Q 337: no form, or one key twice."""
    with pytest.raises(InvalidDefinition, match=words):
        user_input_tool(*forms)


@pytest.mark.parametrize("form", [None, "age", SCHEMA])
def test_the_signal_needs_a_form(form: Any) -> None:
    """Scenario Q 337: a signal without a form is refused where it is raised."""
    with pytest.raises(InvalidDefinition, match="FormRequired needs a FormDefinition"):
        FormRequired(form)


SIGNAL = FormRequired(AGE)


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (SIGNAL, SIGNAL),
        (BaseExceptionGroup("g", [ValueError(), SIGNAL]), SIGNAL),
        (BaseExceptionGroup("g", [ExceptionGroup("h", [KeyError()]), BaseExceptionGroup("i", [SIGNAL])]), SIGNAL),
        (ExceptionGroup("g", [ValueError()]), None),
        (ValueError(), None),
        (KeyboardInterrupt(), None),
    ],
)
def test_the_signal_is_found_in_groups(error: BaseException, found: FormRequired | None) -> None:
    """A tool that ran a task group raises a group; the form in it counts."""
    assert find_form_required(error) is found


def test_the_signal_is_no_exception() -> None:
    """``except Exception`` in a tool does not swallow it."""
    assert not isinstance(SIGNAL, Exception)
    assert "age" in str(SIGNAL)


def test_asking_twice_for_one_form_is_a_loop() -> None:
    """A form that the call already has, whatever was answered."""
    loop = form_loop(SIGNAL, {"age": None})

    assert isinstance(loop, FormLoop)
    assert "age" in str(loop)
    assert form_loop(SIGNAL, {"address": {}}) is None
    assert form_loop(SIGNAL, None) is None


def test_several_forms_of_one_call() -> None:
    """Each is asked for once; with all answered the tool goes through."""

    def book(ctx: ToolContext) -> tuple:
        return ctx.form(ADDRESS), ctx.form(AGE)

    made = Tool.from_schema("book", "", {"type": "object"}, book)
    asked: list[str] = []
    forms: dict[str, Any] = {}
    answers = {"address": {"street": "s"}, "age": {"age": 3}}
    for _ in range(3):
        try:
            result = made.invoke(made.bind({}), context(made, forms=forms))
        except FormRequired as required:
            key = required.form.form_key  # type: ignore[attr-defined]
            asked.append(key)
            forms[key] = answers[key]

    assert asked == ["address", "age"]
    assert result == ({"street": "s"}, {"age": 3})
