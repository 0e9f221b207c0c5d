"""Data against schemas: every keyword, paths and messages, and hostile input."""

from __future__ import annotations

from functools import reduce
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnhold.actors.schema import check_schema, faults

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 3},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"item": {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0}}, "required": ["age"]}},
}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"name": "ann", "items": [{"age": 3}, {"age": 4.0}]}, []),
        ({"name": ""}, [("$.name", "must have at least 1 characters")]),
        ({}, [("$.name", "is missing")]),
        ([], [("$", "must be an object")]),
        (None, [("$", "must be an object")]),
        ({"name": "a", "items": [{"age": "x"}]}, [("$.items[0].age", "must be a whole number")]),
        ({"name": "a", "items": [{"age": True}]}, [("$.items[0].age", "must be a whole number")]),
        (
            {"name": "a", "items": [{"age": 1}, {"age": -1}, {}]},
            [("$.items[1].age", "must be at least 0"), ("$.items[2].age", "is missing")],
        ),
        ({"name": "a", "my age": 1}, [('$["my age"]', "is not allowed")]),
        ({"name": 1, "items": 2}, [("$.name", "must be text"), ("$.items", "must be a list")]),
    ],
)
def test_faults_name_path_and_rule(data: object, expected: list) -> None:
    """Probe T131: wrong data is refused with the path and a message for each fault."""
    assert faults(PERSON, data) == expected


@pytest.mark.parametrize(
    ("schema", "good", "bad", "message"),
    [
        ({"type": ["string", "null"]}, [None, ""], [1], "must be text or null"),
        ({"type": "number"}, [1, 1.5], [True, "1"], "must be a number"),
        ({"enum": [1, "a", None, [1]]}, [1.0, "a", None, [1]], [True, "b", [True]], 'must be one of 1, "a", null, [1]'),
        ({"const": {"a": [1]}}, [{"a": [1.0]}], [{"a": [True]}, {}], 'must be {"a":[1]}'),
        ({"maximum": 3}, [3, "x"], [3.5], "must be at most 3"),
        ({"exclusiveMaximum": 3}, [2], [3], "must be less than 3"),
        ({"exclusiveMinimum": 3}, [3.1], [3], "must be more than 3"),
        ({"multipleOf": 0.1}, [0.3, 1e300, 0], [0.35], "must be a multiple of 0.1"),
        ({"maxLength": 2}, ["é💥"], ["abc"], "must have at most 2 characters"),
        ({"pattern": "^a+$"}, ["aa", 3], ["b"], "must match ^a+$"),
        ({"format": "date"}, ["2026-01-31", 3], ["2026-02-31", "x"], "must be a date"),
        ({"format": "date-time"}, ["2026-01-31T00:00:00Z"], ["tomorrow"], "must be a date-time"),
        (
            {"format": "uuid"},
            ["9b2c1a4e-0000-4000-8000-00000000000f", "9B2C1A4E000040008000000000000000"],
            ["x", "9b2c1a4e-0000-4000-8000-00000000000f\n"],
            "must be a uuid",
        ),
        ({"format": "email"}, ["anything"], [], ""),
        ({"contentEncoding": "base64"}, ["eA=="], ["%"], "must be base64"),
        ({"minItems": 1}, [[1], {}], [[]], "must have at least 1 entries"),
        ({"uniqueItems": True}, [[1, True, "1"]], [[1, 1.0]], "must not repeat an entry"),
        ({"prefixItems": [True, {"type": "null"}], "items": False}, [[1], [1, None]], [], ""),
        ({"contains": {"const": 1}, "maxContains": 1}, [[1, 2]], [[1, 1]], "must have at most 1 fitting entries"),
        ({"contains": {"const": 1}}, [[1, 1]], [[]], "must have at least 1 fitting entries"),
        ({"maxProperties": 1}, [{"a": 1}], [{"a": 1, "b": 2}], "must have at most 1 members"),
        ({"oneOf": [{"minimum": 2}, {"maximum": 3}]}, [1, 4], [2], "must fit only one of the alternatives"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ["", None], [1], "must be text or null"),
        ({"anyOf": [{"minimum": 3}, {"const": 1}]}, [1, 3], [2], "fits none of the 2 alternatives"),
        ({"not": {"type": "string"}}, [1], ["a"], "is excluded"),
        ({"if": {"minimum": 3}, "then": {"multipleOf": 2}, "else": False}, [4], [1], "is not allowed"),
    ],
)
def test_each_keyword_has_its_message(schema: dict, good: list, bad: list, message: str) -> None:
    """Good data has no fault, bad data exactly one at the root."""
    check_schema("form", schema)

    assert [data for data in good if faults(schema, data)] == []
    assert [found for data in bad if (found := faults(schema, data)) != [("$", message)]] == []


@pytest.mark.parametrize(
    ("schema", "data", "path"),
    [
        ({"prefixItems": [{"type": "null"}]}, [1], "$[0]"),
        ({"patternProperties": {"^a": {"type": "null"}}}, {"ab": 1}, "$.ab"),
        ({"additionalProperties": {"type": "null"}, "properties": {"a": True}}, {"a": 1, "b": 1}, "$.b"),
        ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, "$.ab"),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "$.b"),
        ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1}, "$.b"),
        ({"allOf": [{"properties": {"a": {"type": "null"}}}]}, {"a": 1}, "$.a"),
        ({"anyOf": [{"type": "null"}, {"type": "object", "required": ["b"]}]}, {}, "$.b"),
        ({"unevaluatedProperties": False, "anyOf": [{"properties": {"a": True}}, {"properties": {"b": True}}]}, {"c": 1}, "$.c"),
        ({"unevaluatedItems": False, "prefixItems": [True]}, [1, 2], "$[1]"),
    ],
)
def test_faults_of_members_have_their_path(schema: dict, data: object, path: str) -> None:
    """A fault inside data is named by the place in the data."""
    assert [found for found, _ in faults(schema, data)] == [path]


def test_messages_do_not_repeat_the_data() -> None:
    """The data may be a secret, so no message shows it."""
    schema = {
        "properties": {"pin": {"type": "integer", "pattern": "^[0-9]$", "enum": [1], "maxLength": 2, "not": {"type": "string"}}}
    }

    found = faults(schema, {"pin": "hunter2"})

    assert len(found) == 5
    assert "hunter2" not in str(found)


def test_at_most_twenty_faults() -> None:
    """More faults than a person reads are not collected."""
    assert len(faults({"items": {"type": "string"}}, [1] * 10_000)) == 20


@pytest.mark.parametrize(
    ("data", "path", "message"),
    [
        (["x" * 100] * 10_000, "$", "has 1030001 bytes as JSON, the limit is 65536"),
        ({"x" * 1_000_000: 1}, "$", "has 1000006 bytes as JSON, the limit is 65536"),
        (reduce(lambda inner, _: [inner], range(10_000), 1), "$" + "[0]" * 32, "is nested too deep"),
        ({"a": {1, 2}}, "$.a", "is a set, which is not JSON-like"),
        ([float("inf")], "$[0]", "is inf, which JSON does not have"),
        (["\ud800"], "$[0]", "is not valid Unicode: surrogates not allowed"),
        (2**64, "$", "is a whole number outside 64 bits"),
        ({1: 2}, "$", "has a key that is not text: 1"),
    ],
    ids=["1 MB", "1 MB key", "10,000 levels", "set", "inf", "surrogate", "bignum", "key"],
)
def test_data_that_is_not_json_or_too_large_is_a_fault(data: object, path: str, message: str) -> None:
    """Size 64 KiB, 32 levels, JSON-like values: anything else is one fault, found fast."""
    assert faults({"type": ["object", "array", "integer"]}, data) == [(path, message)]


def doubling(levels: int) -> dict:
    parts = {str(level): {"anyOf": [{"properties": {"x": {"$ref": f"#/$defs/{level + 1}"}}}] * 4} for level in range(levels)}
    return {"$ref": "#/$defs/0", "$defs": {**parts, str(levels): {"type": "string"}}}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ({"pattern": "^(a|aa)+$"}, "a" * 60 + "!"),
        ({"items": {"pattern": "^(a|aa)+$"}}, ["a" * 60 + "!"] * 900),
        ({"patternProperties": {"^(a|aa)+$": True}}, {"a" * 60 + "!": 1}),
        ({"propertyNames": {"pattern": "^(a|aa)+$"}}, {"a" * 60 + "!": 1}),
        ({"pattern": "(?R)"}, "a"),
        (doubling(25), reduce(lambda inner, _: {"x": inner}, range(25), 1)),
        ({"additionalProperties": False, "patternProperties": {"^(a|aa)+$": True}}, {"a" * 60 + "!": 1}),
        ({"unevaluatedProperties": False, "allOf": [{"patternProperties": {"^(a|aa)+$": True}}]}, {"a" * 60 + "!": 1}),
        ({"anyOf": [{"const": [*range(8000), 1]}] + [{"$ref": "#/anyOf/0"}] * 1000}, list(range(8000))),
        ({"anyOf": [{"type": "string"}] * 1000 + [{"type": "object"}] * 900}, [1] * 32_000),
        ({"items": {"allOf": [True] * 1900}}, [1] * 32_000),
        ({"allOf": [{"uniqueItems": True}] * 500}, [None, *range(11_000)]),
        ({"items": {"properties": {str(key): True for key in range(1900)}}}, [{}] * 20_000),
        ({"anyOf": [{"additionalProperties": False}] * 900}, {str(key): 1 for key in range(6000)}),
    ],
    ids=[
        *("pattern", "many patterns", "keys", "names", "recursion", "doubling", "other keys", "unevaluated keys"),
        *("large constants", "large messages", "nothing to do", "unique", "properties", "faults of alternatives"),
    ],
)
def test_a_check_takes_bounded_time(schema: dict, data: object) -> None:
    """A pattern or a schema that would take for ever is a fault."""
    check_schema("form", schema)

    path, message = faults(schema, data)[-1]

    assert path == "$"
    assert message.startswith("takes too long")


def test_a_list_without_order_is_looked_through_once() -> None:
    """`uniqueItems` takes linear time, also where the entries cannot be sorted."""
    assert faults({"uniqueItems": True}, [None, *range(11_000)]) == []
    assert faults({"uniqueItems": True}, [[], {}, False, 0, [0], {"a": 0}, "0"]) == []
    assert faults({"uniqueItems": True}, [{"a": [0]}, None, {"a": [0.0]}]) == [("$", "must not repeat an entry")]


def test_a_textbook_exponential_pattern_does_not_hang() -> None:
    """``(a+)+$`` is answered: a fault, whichever."""
    assert len(faults({"pattern": "(a+)+$"}, "a" * 5000 + "!")) == 1


def test_a_false_schema_somewhere_refuses_what_is_there() -> None:
    """Boolean schemas mean all or nothing."""
    assert faults({"properties": {"a": False, "b": True}}, {"a": 1, "b": 2}) == [("$.a", "is not allowed")]


LEAVES = st.none() | st.booleans() | st.sampled_from([0, 1, 1.0, "", "a", "ab"])
DATA = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=6
)


def schemas(inner: st.SearchStrategy) -> st.SearchStrategy:
    parts, patterns = st.lists(inner, min_size=1, max_size=3), st.sampled_from(["^a", "b|c"])
    keywords: dict = {
        **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties", "additionalProperties", "propertyNames", "items"), inner),
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), parts),
        **dict.fromkeys(("if", "then", "else", "contains"), inner),
        **dict.fromkeys(("properties", "dependentSchemas"), st.dictionaries(st.sampled_from("abc"), inner, max_size=2)),
        "patternProperties": st.dictionaries(patterns, inner, max_size=2),
        "pattern": patterns,
        "uniqueItems": st.booleans(),
        "multipleOf": st.sampled_from([0.5, 1, 2]),
        "$ref": st.just("#/$defs/x"),
        "const": DATA,
    }
    return st.fixed_dictionaries({}, optional=keywords)


SCHEMAS = st.recursive(st.booleans() | st.just({}), schemas, max_leaves=5)


@given(schema=SCHEMAS.filter(lambda schema: isinstance(schema, dict)), defined=LEAVES, data=DATA)
def test_our_own_keywords_judge_as_the_librarys(schema: dict, defined: object, data: Any) -> None:
    """The keywords that we have in place of the library's differ in their bounds and paths only."""
    schema = {**schema, "$defs": {"x": {"const": defined}}}
    check_schema("form", schema)

    assert (faults(schema, data) == []) == jsonschema.Draft202012Validator(schema).is_valid(data)
