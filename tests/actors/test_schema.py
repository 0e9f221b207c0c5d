"""Schemas at definition time: what is accepted, what is refused and where the message points."""

from __future__ import annotations

import subprocess
import sys
from functools import reduce

import pytest

from turnhold.actors.errors import InvalidDefinition
from turnhold.actors.schema import check_schema, faults


def nested(levels: int, wrap=lambda inner: {"not": inner}) -> dict:
    return reduce(lambda inner, _: wrap(inner), range(levels), {"type": "null"})


def shared(levels: int) -> list:
    return reduce(lambda inner, _: [inner, inner], range(levels), [1])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": ["string", "null"], "minLength": 0},
        {"properties": {"a": True, "b": False}, "additionalProperties": False},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.com/x", "type": "string"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$anchor": "here", "type": "string"}}},
        {"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "string"}}},
        {"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"type": "string"}}},
        {"properties": {"child": {"$ref": "#"}}},
        {"properties": {"$ref": {"type": "string"}, "pattern": {"type": "string"}}},
        {"enum": [{"$ref": "http://example.com"}, {"pattern": "("}]},
        {"allOf": [{"type": "object"}], "$ref": "#/allOf/0"},
        {"x-own": {"anything": "("}, "title": "T"},
        nested(31),
    ],
)
def test_a_good_schema_is_accepted(schema: dict) -> None:
    """A valid schema comes back as an equal copy."""
    checked = check_schema("form", schema)

    assert checked == schema
    assert checked is not schema


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (None, "form must be a non-empty"),
        ({}, "form must be a non-empty"),
        (True, "form must be a non-empty"),
        ([], "form must be a non-empty"),
        ("{}", "form must be a non-empty"),
        ({"type": "text"}, r"form\.type must be one of"),
        ({"type": []}, r"form\.type"),
        ({"type": ["string", "string"]}, r"form\.type"),
        ({"properties": {"age": {"minimum": "3"}}}, r"form\.properties\.age\.minimum must be a number"),
        ({"properties": {"a b": {"required": "x"}}}, r'form\.properties\["a b"\]\.required must be a list'),
        ({"required": ["a", "a"]}, r"form\.required must not repeat"),
        ({"items": [{"type": "string"}]}, r"form\.items"),
        ({"anyOf": []}, r"form\.anyOf must have at least 1"),
        ({"anyOf": [{"type": "string"}, 3]}, r"form\.anyOf\[1\]"),
        ({"minLength": -1}, r"form\.minLength"),
        ({"minLength": 1.5}, r"form\.minLength"),
        ({"multipleOf": 0}, r"form\.multipleOf must be more than 0"),
        ({"uniqueItems": "yes"}, r"form\.uniqueItems"),
        ({"$defs": {"x": {"properties": []}}}, r"form\.\$defs\.x\.properties"),
        ({"$ref": 3}, r"form\.\$ref"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, r"form\.\$schema is .*draft-07"),
        ({"const": float("nan")}, r"form\.const is nan"),
        ({"const": 2**64}, r"form\.const is a whole number outside"),
        ({"const": {1}}, r"form\.const is a set"),
        ({"const": b"x"}, r"form\.const is a bytes"),
        ({"title": "\ud800"}, r"form\.title is not valid Unicode"),
        ({3: 4}, "form has a key that is not text"),
    ],
)
def test_a_wrong_schema_is_refused_at_its_place(schema: object, place: str) -> None:
    """The message begins with the name of the schema and the place in it."""
    with pytest.raises(InvalidDefinition, match=place):
        check_schema("form", schema)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"$ref": "http://example.com/schema"}, r"form\.\$ref 'http://example.com/schema' leaves the schema"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, r"form\.properties\.a\.\$ref .* leaves"),
        ({"$ref": "other.json#/x"}, "leaves the schema"),
        ({"$ref": ""}, "leaves the schema"),
        ({"$ref": "#/$defs/missing"}, "does not point at a schema"),
        ({"$ref": "#missing"}, "does not point at a schema"),
        ({"$ref": "#/enum/0", "enum": [{"type": "string"}]}, "does not point at a schema"),
        ({"$dynamicRef": "#x"}, r"form\.\$dynamicRef is not supported"),
        ({"items": {"$dynamicAnchor": "x"}}, r"form\.items\.\$dynamicAnchor is not supported"),
        ({"$defs": {"a": {"$id": "https://example.com/a"}}}, r"form\.\$defs\.a\.\$id is not supported"),
        ({"items": {"$schema": "http://json-schema.org/draft-07/schema#"}}, r"form\.items\.\$schema is not supported"),
        ({"$ref": "#/anyOf/x", "anyOf": [True]}, "does not point at a schema"),
        ({"$ref": "#/title/0", "title": "x"}, "does not point at a schema"),
        ({"$defs": {"a": {"$anchor": "x"}, "b": {"$anchor": "x"}}}, "used twice"),
        ({"$ref": "#"}, "refers to itself"),
        ({"allOf": [{"$ref": "#"}]}, "refers to itself"),
        ({"not": {"if": {"anyOf": [{"$ref": "#/not"}]}}}, "refers to itself"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"oneOf": [{"$ref": "#/$defs/a"}]}}}, "itself"),
        ({"dependentSchemas": {"x": {"$ref": "#"}}}, "refers to itself"),
        (
            {"$ref": "#/$defs/0", "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(200)} | {"200": True}},
            "over more than 32",
        ),
    ],
)
def test_a_reference_stays_inside_and_gets_somewhere(schema: dict, place: str) -> None:
    """References that leave the schema, hit nothing or go in a circle are refused; so are dynamic ones."""
    with pytest.raises(InvalidDefinition, match=place):
        check_schema("form", schema)


@pytest.mark.parametrize(
    "pattern", ["(", "[a", "*", r"\L<words>", r"\p{Nonsense}", "(" * 5000 + ")" * 5000, "(?:" * 300 + "a" + ")*" * 300]
)
@pytest.mark.parametrize("keyword", ["pattern", "patternProperties"])
def test_a_pattern_compiles(pattern: str, keyword: str) -> None:
    """What the regex package cannot compile is refused at its place."""
    value = pattern if keyword == "pattern" else {pattern: True}

    with pytest.raises(InvalidDefinition, match=rf"form\.items\.{keyword} .* is not a regular expression"):
        check_schema("form", {"items": {keyword: value}})


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (nested(32), "nested too deep"),
        (nested(10_000), "nested too deep"),
        ({"enum": ["x" * 100] * 10_000}, "the limit is 65536"),
        ({"description": "x" * 1_000_000}, "the limit is 65536"),
        ({"const": shared(25)}, "over the limit"),
        ({"allOf": [{}] * 20_000}, "has more than 2000 schemas"),
        ({"type": [None, *range(9000)]}, "more entries than there are types"),
    ],
    ids=["33 levels", "10,000 levels", "1 MB", "1 MB text", "shared parts", "many parts", "many types"],
)
def test_a_hostile_schema_is_refused_at_once(schema: dict, words: str) -> None:
    """Depth and size are bounded, also where parts are shared so that they would multiply."""
    with pytest.raises(InvalidDefinition, match=words):
        check_schema("form", schema)


def test_a_dialect_does_not_undo_the_bounds() -> None:
    """With `$schema` and `$id`, too, patterns are those of `regex` and have a time limit."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/x",
        "pattern": r"^(\p{L}|aa)+$",
    }
    check_schema("form", schema)

    assert faults(schema, "é") == []
    assert faults(schema, "a" * 60 + "!") == [("$", "takes too long to match against a pattern")]


@pytest.mark.process
def test_the_library_is_imported_at_the_first_use() -> None:
    """`import turnhold` does not pay for jsonschema; the first schema does."""
    before = "import sys, turnhold\nassert 'jsonschema' not in sys.modules"
    after = "turnhold.FormDefinition('a', description='A', schema={'type': 'null'})\nassert 'jsonschema' in sys.modules"

    subprocess.run([sys.executable, "-c", f"{before}\n{after}"], check=True)


def test_a_kind_can_be_asked_for() -> None:
    """Tool parameters must describe an object."""
    with pytest.raises(InvalidDefinition, match=r"tool x\.type must be 'object', not 'array'"):
        check_schema("tool x", {"type": "array"}, kind="object")


@pytest.mark.parametrize("schema", [{"minimum": "x"}, {"$ref": "#/nowhere"}, {"pattern": "("}, {"required": 3}, {"properties": 1}])
def test_a_check_against_a_bad_schema_is_a_fault(schema: dict) -> None:
    """A stored schema that was never checked gives a fault, not an error."""
    ((path, message),) = faults(
        schema, {"a": 1} if "required" in schema or "properties" in schema else "1" if "pattern" in schema else 1
    )

    assert path == "$"
    assert message.startswith("cannot be checked")
