"""What a JSON Schema may contain beyond what the metaschema says; its references, resolved."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, TypeAlias, cast

import regex
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from .record import JsonObject, JsonValue

Place: TypeAlias = tuple[str | int, ...]

MAX_CHAIN = 32
MAX_GROWTH = 20_000  # characters of all patterns together; each takes the compiler up to 700 bytes
MAX_PARTS = 2000  # the library takes about a second to check a definition of as many
DIALECT = "https://json-schema.org/draft/2020-12/schema"
TYPES = 7  # what JSON has; the library takes quadratic time to see that a longer list repeats one
DYNAMIC = ("$dynamicRef", "$recursiveRef", "$dynamicAnchor", "$recursiveAnchor")
INSIDE = (*DYNAMIC, "$id", "$schema")  # refused below the root; the library would take another base or another dialect
ONE = {
    *("additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then"),
    *("unevaluatedItems", "unevaluatedProperties"),
}
MANY = {
    *("allOf", "anyOf", "oneOf", "prefixItems", "$defs", "definitions", "dependentSchemas", "patternProperties", "properties"),
}
IN_PLACE = {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"}
NEVER: JsonObject = {"enum": []}


class WrongSchema(Exception):
    """A schema is not one that we check data against; the message goes on behind the place."""

    def __init__(self, place: Place, message: str) -> None:
        super().__init__(message)
        self.place = place


class Definition:
    """A schema that was walked through once. Each `false` in it becomes ``{"enum": []}``: the library does not place its faults.

    :raises WrongSchema: if it has a word that is not supported, refers outside, or a pattern does not compile.
    """

    def __init__(self, schema: JsonObject) -> None:
        self.schema = schema
        self._places: dict[int, Place] = {}
        self._steps: dict[int, list[JsonObject]] = {}  # what is applied to the same data
        self._depths: dict[int, int] = {}
        self._anchors: set[str] = set()
        self._references: list[tuple[JsonObject, str]] = []
        self._parts = 0
        self._growth = 0
        self._visit((), schema)

    def targets(self) -> dict[str, JsonValue]:
        """Return what each reference of a valid schema means.

        :raises WrongSchema: if a reference hits nothing, goes in a circle, or only after too many others.
        """
        resolver = Registry[Any]().with_resource("", DRAFT202012.create_resource(self.schema)).crawl().resolver()
        found: dict[str, JsonValue] = {}
        for schema, reference in self._references:
            try:
                target = found[reference] = cast("JsonValue", resolver.lookup(reference).contents)
            except Exception:  # among Unresolvable, whatever a pointer into the wrong kind of value gives
                target = None
            if isinstance(target, dict) and id(target) in self._places:
                self._steps[id(schema)].append(target)
            elif target is not True:
                place = (*self._places[id(schema)], "$ref")
                raise WrongSchema(place, f"{reference!r} does not point at a schema in this one")
        for key in self._places:
            self._depth(key, ())
        return found

    def _visit(self, place: Place, schema: JsonObject) -> None:
        self._places[id(schema)] = place
        steps = self._steps[id(schema)] = list[JsonObject]()
        self._check(place, schema)
        for keyword, value in schema.items():
            holder: Any = schema if keyword in ONE else value if keyword in MANY else None
            for key in [keyword] if keyword in ONE else _keys(holder):
                self._parts += 1
                if self._parts > MAX_PARTS:
                    raise WrongSchema((), f"has more than {MAX_PARTS} schemas in it")
                if holder[key] is False:
                    holder[key] = NEVER.copy()
                if isinstance(holder[key], dict):
                    part = cast("JsonObject", holder[key])
                    steps += [part] if keyword in IN_PLACE else []
                    self._visit((*place, key) if keyword in ONE else (*place, keyword, key), part)

    def _check(self, place: Place, schema: JsonObject) -> None:
        for word in INSIDE if place else DYNAMIC:
            if word in schema:
                raise WrongSchema((*place, word), "is not supported here: refer by '#/$defs/…'")
        if (dialect := schema.get("$schema", DIALECT)) not in (DIALECT, DIALECT + "#"):
            raise WrongSchema(("$schema",), f"is {dialect!r}; only {DIALECT} is known (leave it out if that fits too)")
        if isinstance(kinds := schema.get("type"), list) and len(kinds) > TYPES:
            raise WrongSchema((*place, "type"), "has more entries than there are types")
        if isinstance(anchor := schema.get("$anchor"), str):
            if anchor in self._anchors:
                raise WrongSchema((*place, "$anchor"), f"{anchor!r} is used twice")
            self._anchors.add(anchor)
        if isinstance(reference := schema.get("$ref"), str):
            if not reference.startswith("#"):
                raise WrongSchema((*place, "$ref"), f"{reference!r} leaves the schema: only '#…' is followed")
            self._references.append((schema, reference))
        for keyword in ("pattern", "patternProperties"):
            value = schema.get(keyword)
            for pattern in [value] if isinstance(value, str) else value if isinstance(value, dict) else ():
                self._growth += _growth(pattern)
                if self._growth > MAX_GROWTH:
                    raise WrongSchema((*place, keyword), f"{pattern[:80]!r} is not a regular expression: it repeats too much")
                try:
                    compiled_pattern(pattern)
                except Exception as error:
                    reason = str(error) if isinstance(error, regex.error) else type(error).__name__
                    message = f"{pattern[:80]!r} is not a regular expression: {reason}"
                    raise WrongSchema((*place, keyword), message) from None

    def _depth(self, key: int, way: tuple[int, ...]) -> int:
        """Follow the steps that consume no input: none may lead back, and no chain of them may be too long to follow."""
        if key in way:
            raise WrongSchema(self._places[key], "refers to itself without consuming input")
        if len(way) + self._depths.get(key, 1) > MAX_CHAIN:
            raise WrongSchema(self._places[(*way, key)[0]], f"refers on over more than {MAX_CHAIN} schemas")
        if key not in self._depths:
            self._depths[key] = 1 + max((self._depth(id(step), (*way, key)) for step in self._steps[key]), default=0)
        return self._depths[key]


def _keys(value: Any) -> list[Any]:
    kind: object = cast("object", type(value))
    return [*value] if kind is dict else [*range(len(value))] if kind is list else []


@lru_cache(maxsize=1024)
def compiled_pattern(pattern: str) -> regex.Pattern[str]:
    """Compile a pattern.

    :raises regex.error: if it is not one; the compiler has other errors too for absurd ones.
    """
    return regex.compile(pattern)


def _growth(pattern: str) -> int:
    """Return a number of characters by which a pattern does not grow when the compiler writes out what must be repeated.

    ``(a){4000000000}`` would take all memory. What repeats a group multiplies, what repeats one character adds. Where blanks and
    comments may stand between the two, each may repeat a group.
    """
    loose = _VERBOSE.search(pattern) is not None
    size, times = len(pattern), 1
    for found in _LEAST.finditer(pattern):
        least = max(1, int(found[1][:20]))
        if loose or pattern[found.start() - 1 : found.start()] == ")":
            times *= least
        else:
            size += least
        if size * times > MAX_GROWTH + len(pattern):
            break
    return size * times - len(pattern)


_LEAST = re.compile(r"\{\s*(\d+)")
_VERBOSE = re.compile(r"\(\?[a-zA-Z0-9-]*x")
