"""What a final reply may be written like, and which types may be asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest

from turnhold import Agent, InvalidDefinition, OutputInvalid
from turnhold.actors.output import MAX_OUTPUT, output_of
from turnhold.testing import ScriptedModel


class Item(msgspec.Struct):
    sku: str
    count: Annotated[int, msgspec.Meta(ge=1)] = 1


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    age: int


class Part(TypedDict):
    name: str


@dataclass
class Plan:
    goal: str
    parts: list[Part] = field(default_factory=list)


class Word(msgspec.Struct):
    word: Annotated[str, msgspec.Meta(pattern="^[a-z]+$")]


class Even(msgspec.Struct):
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError("must be even")


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (str, ' {"a": 1} ', ' {"a": 1} '),
        (Item, '{"sku": "a", "count": 2}', Item("a", 2)),
        (Item, '\n {"sku": "a", "more": null}', Item("a")),
        (Item, '{"sku": "a", "count": 2.0}', Item("a", 2)),
        (Item, '```json\n{"sku": "a"}\n```', Item("a")),
        (Item, '```\n{"sku": "a"}', Item("a")),
        (Item, 'Here you are:\n\n```JSON\n{"sku": "a"}\n```\nAnything else?', Item("a")),
        (Item, '```json\n{"sku": "```py\\n```"}\n```', Item("```py\n```")),
        (Item, '```json\n{"sku": "a"}\n```\nor\n```\nelse\n```', Item("a")),
        (Plan, '{"goal": "g", "parts": [{"name": "n"}]}', Plan("g", [{"name": "n"}])),
        (Part, '{"name": "n"}', {"name": "n"}),
        (Cat | Dog, '{"value": {"type": "Dog", "age": 3}}', Dog(3)),
        (Cat | Dog, '{"type": "Cat", "lives": 7}', Cat(7)),
        (list[Item], '{"value": [{"sku": "a"}]}', [Item("a")]),
        (list[Item], '[{"sku": "a"}]', [Item("a")]),
        (dict[str, int], '{"value": 3}', {"value": 3}),
        (dict, '{"value": {"a": [1]}}', {"value": {"a": [1]}}),
        (int, "5", 5),
        (int, '{"value": 5}', 5),
        (bool, "true", True),
        (Item | None, "null", None),
        (Any, "[1, 2.5]", [1, 2.5]),
        (Literal["yes", "no"], '"yes"', "yes"),
        (Literal["yes", "no"], " yes\n", "yes"),
        (Item | str, "none of them", "none of them"),
        (Item | str, '{"value": {"sku": "a"}}', Item("a")),
        (Word, '{"word": "abc"}', Word("abc")),
    ],
)
def test_what_fits(type_: Any, text: str, value: object) -> None:
    """A reply is the JSON of a value, bare, in a fence or (of what is no object) under `value`; or text where the type takes it."""
    output = output_of("output_type", type_)

    assert output.convert(output.read(text)) == value


@pytest.mark.parametrize(
    ("type_", "text", "place", "word"),
    [
        (Item, "", "$", "is not JSON"),
        (Item, "Sure, here it is.", "$", "is not JSON"),
        (Item, '```python\n{"sku": "a"}\n```', "$", "is not JSON"),
        (Item, '{"sku": "a"', "$", "is not JSON"),
        (Item, "[" * 100_000, "$", "is not JSON"),
        (list, "[" * 100 + "]" * 100, "$[0]", "is nested too deep"),
        (Item, '"' + "x" * MAX_OUTPUT + '"', "$", "the limit is 262144"),
        (Item, "[]", "$", "must be an object"),
        (Item, '{"count": 1}', "$.sku", "is missing"),
        (Item, '{"sku": "a", "count": 0}', "$.count", "must be at least 1"),
        (Item, '{"sku": "a", "count": 99999999999999999999}', "$.count", "outside 64 bits"),
        (list[Item], '{"value": [{"sku": 1}]}', "$[0].sku", "must be text"),
        (Word, '{"word": "ABC"}', "$.word", "must match"),
        (Even, '{"number": 3}', "$", "must be even"),
        (int, "five", "$", "is not JSON"),
        (Literal["yes", "no"], '"maybe"', "$", 'must be one of "no", "yes"'),
    ],
)
def test_what_does_not_fit(type_: Any, text: str, place: str, word: str) -> None:
    """Anything else is told with its place in the output, never more than its limits allow."""
    with pytest.raises(OutputInvalid, match="the reply does not fit") as raised:
        output_of("output_type", type_).read(text)

    assert raised.value.faults[0][0].startswith(place)
    assert word in raised.value.faults[0][1]


def test_what_a_model_is_told() -> None:
    """Nothing for text; the schema of an object; any other schema as that of an object with a `value`."""
    told = output_of("output_type", Item).schema
    listed = output_of("output_type", list[Item]).schema

    assert output_of("output_type", str).schema is None
    assert told is not None
    assert (told["title"], told["type"], told["required"]) == ("Item", "object", ["sku"])
    assert listed is not None
    assert (listed["type"], listed["required"], listed["additionalProperties"]) == ("object", ["value"], False)
    assert listed["properties"] == {"value": {"type": "array", "items": {"$ref": "#/$defs/Item"}}}


@pytest.mark.parametrize("type_", [5, "Item", object, Agent, Item("a"), {"type": "object"}, lambda: 0, set[complex]])
def test_types_without_json(type_: Any) -> None:
    """What has no JSON form is refused when the agent is built, by the name of the argument."""
    with pytest.raises(InvalidDefinition, match="agent shop: output_type"):
        Agent("shop", model=ScriptedModel("x"), output_type=type_)


def test_untagged_structs() -> None:
    """A union of Structs needs tags to tell them apart, as msgspec says."""
    with pytest.raises(InvalidDefinition, match=r"output_type.*tag"):
        Agent("shop", model=ScriptedModel("x"), output_type=Item | Word)


def test_replacing_it() -> None:
    """`replace` keeps the type, or changes it."""
    agent = Agent("shop", model=ScriptedModel("x"), output_type=Item)

    assert agent.replace(version="2").output.schema == agent.output.schema
    assert agent.replace(output_type=str).output.schema is None
    assert (agent.output_type, Agent("shop", model=ScriptedModel("x")).output_type) == (Item, str)
