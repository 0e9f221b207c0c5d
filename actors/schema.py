"""JSON Schema 2020-12 for forms and tool parameters: what a definition may contain, and whether data fits it.

Only references inside the schema, no dynamic ones. `pattern` is matched by the `regex` package under a time limit, and a check
takes a bounded number of steps, so neither a schema nor data can hold up the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

import msgspec
import regex

from .errors import InvalidDefinition
from .keywords import Validator
from .metaschema import METASCHEMA, SUBSCHEMA, SUBSCHEMAS_BY_NAME, SUBSCHEMAS_IN_A_LIST
from .record import JsonObject, JsonValue
from .validation import Fault, Schema, compiled_pattern, render
from .waits import MAX_DATA, check_json

MAX_LEVELS = 32
MAX_CHAIN = 32
MAX_TEXT = 300
DIALECT = "https://json-schema.org/draft/2020-12/schema"
REFUSED = ("$dynamicRef", "$recursiveRef", "$dynamicAnchor", "$recursiveAnchor")
IN_PLACE = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"})


def check_schema(name: str, schema: Any, *, kind: str | None = None) -> JsonObject:
    """Check a schema object and return a copy of it.

    :param name: what the schema belongs to; messages begin with it and go on with the place, like ``form.schema.properties.age``.
    :param kind: "object" if only a schema of objects will do.
    :raises InvalidDefinition: if it is not a non-empty object, has more than 64 KiB or 32 levels, is not valid 2020-12, refers
        outside itself or in a circle, or has a pattern that does not compile.
    """
    if not isinstance(schema, Mapping) or not schema:
        raise InvalidDefinition(f"{name} must be a non-empty JSON Schema object, not {_shown(schema)}")
    raw = _encoded(name, dict(cast("Mapping[str, JsonValue]", schema)))
    copy = cast("JsonObject", msgspec.json.decode(raw))
    if copy.get("$schema", DIALECT) not in (DIALECT, DIALECT + "#"):
        raise InvalidDefinition(f"{name}.$schema is {copy['$schema']!r}; only {DIALECT} is known (leave it out if that fits too)")
    for path, message in _metaschema().faults(copy):
        raise InvalidDefinition(f"{name}{path[1:]} {message}")
    _Walk(name, copy).check()
    if kind is not None and copy.get("type") != kind:
        raise InvalidDefinition(f"{name}.type must be {kind!r}, not {copy.get('type')!r}")
    return copy


def faults(schema: Mapping[str, Any], data: object, *, limit: int = MAX_DATA, levels: int = MAX_LEVELS) -> list[Fault]:
    """Return what is wrong with data as (path, message) pairs like ``("$.items[0].age", "must be a whole number")``; at most 20.

    Messages do not repeat the data. Data over `limit` bytes of JSON or over `levels` is one fault; so is a check that takes too
    long, and a schema that `check_schema` would have refused.
    """
    try:
        check_json("$", data, limit, levels)
        size = len(msgspec.json.encode(data))
    except (InvalidDefinition, TypeError, ValueError, RecursionError) as error:
        place, _, message = str(error).partition(" ")
        return [(place[:MAX_TEXT], message[:MAX_TEXT]) if place.startswith("$") else ("$", str(error)[:MAX_TEXT])]
    try:
        return _validator(msgspec.json.encode(schema)).faults(cast("JsonValue", data), size)
    except InvalidDefinition as error:
        return [("$", f"cannot be checked: {error}")]
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        return [("$", f"cannot be checked, the schema is not valid ({type(error).__name__})")]


@lru_cache(maxsize=256)
def _validator(raw: bytes) -> Validator:
    schema = cast("Schema", msgspec.json.decode(raw))
    return Validator(schema, _Walk("schema", schema).check())


@lru_cache(maxsize=1)
def _metaschema() -> Validator:
    return Validator(METASCHEMA, {"#": METASCHEMA})


def _encoded(name: str, schema: object) -> bytes:
    try:
        check_json(name, schema, MAX_DATA, MAX_LEVELS)
        return msgspec.json.encode(schema)
    except InvalidDefinition:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidDefinition(f"{name} is not JSON-like: {error}") from None


def _shown(value: Any) -> str:
    return "{}" if value == {} else type(value).__name__


class _Walk:
    """One pass over a schema: its subschemas by pointer, its anchors, references and patterns."""

    def __init__(self, name: str, root: Schema) -> None:
        self.name = name
        self.root = root
        self.places: dict[str, Schema] = {}
        self.anchors: dict[str, str] = {}
        self.references: list[tuple[str, str]] = []
        self.steps: dict[str, list[str]] = {}

    def check(self) -> dict[str, Schema]:
        """Check everything that the metaschema cannot say; return the target of each reference.

        :raises InvalidDefinition: if a reference leaves the schema, hits nothing, or goes in a circle; or a pattern is not one.
        """
        self._visit("#", self.root)
        targets: dict[str, Schema] = {}
        for pointer, reference in self.references:
            target = self._target(reference)
            if target not in self.places:
                raise InvalidDefinition(f"{self._place(pointer)}.$ref {reference!r} does not point at a schema in this one")
            self.steps[pointer].append(target)
            targets[reference] = self.places[target]
        self._refuse_circles()
        return targets

    def _visit(self, pointer: str, schema: Schema) -> None:
        self.places[pointer] = schema
        self.steps[pointer] = []
        if not isinstance(schema, dict):
            return
        self._words(pointer, schema)
        for keyword, value in schema.items():
            if keyword in SUBSCHEMA:
                self._child(pointer, keyword, (keyword,), value)
            elif keyword in SUBSCHEMAS_IN_A_LIST and isinstance(value, list):
                for index, item in enumerate(value):
                    self._child(pointer, keyword, (keyword, str(index)), item)
            elif keyword in SUBSCHEMAS_BY_NAME and isinstance(value, dict):
                for key, item in value.items():
                    self._child(pointer, keyword, (keyword, key), item)

    def _child(self, pointer: str, keyword: str, steps: tuple[str, ...], schema: JsonValue) -> None:
        if not isinstance(schema, dict | bool):
            return
        child = pointer + "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)
        if keyword in IN_PLACE:
            self.steps[pointer].append(child)
        self._visit(child, schema)

    def _words(self, pointer: str, schema: JsonObject) -> None:
        place = self._place(pointer)
        for word in REFUSED:
            if word in schema:
                raise InvalidDefinition(f"{place}.{word} is not supported: use a plain $ref")
        if pointer != "#" and "$id" in schema:
            raise InvalidDefinition(f"{place}.$id is not supported inside a schema: refer by '#/$defs/…'")
        if isinstance(anchor := schema.get("$anchor"), str):
            if anchor in self.anchors:
                raise InvalidDefinition(f"{place}.$anchor {anchor!r} is used twice")
            self.anchors[anchor] = pointer
        if isinstance(reference := schema.get("$ref"), str):
            if not reference.startswith("#"):
                raise InvalidDefinition(f"{place}.$ref {reference!r} leaves the schema: only '#…' is followed")
            self.references.append((pointer, reference))
        if isinstance(pattern := schema.get("pattern"), str):
            _compile(f"{place}.pattern", pattern)
        if isinstance(patterns := schema.get("patternProperties"), dict):
            for pattern in patterns:
                _compile(f"{place}.patternProperties", pattern)

    def _target(self, reference: str) -> str:
        if reference in ("#", "#/"):
            return reference
        if not reference.startswith("#/"):
            return self.anchors.get(_unquoted(reference[1:]), reference)
        return "#" + _unquoted(reference[1:])

    def _refuse_circles(self) -> None:
        """Follow the steps that consume no input: none may lead back, and no chain of them may be too long to follow."""
        depth: dict[str, int] = {}
        for start in self.steps:
            stack = [(start, False)]
            open_places: set[str] = set()
            while stack:
                pointer, done = stack.pop()
                if done:
                    open_places.discard(pointer)
                    depth[pointer] = 1 + max((depth[step] for step in self.steps[pointer]), default=0)
                    if depth[pointer] > MAX_CHAIN:
                        raise InvalidDefinition(f"{self._place(pointer)} refers on over more than {MAX_CHAIN} schemas")
                elif pointer in open_places:
                    raise InvalidDefinition(f"{self._place(pointer)} refers to itself without consuming input")
                elif pointer not in depth:
                    open_places.add(pointer)
                    stack.append((pointer, True))
                    stack.extend((step, False) for step in self.steps[pointer])

    def _place(self, pointer: str) -> str:
        keys = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
        return self.name + render(tuple(keys))[1:]


def _compile(place: str, pattern: str) -> None:
    try:
        compiled_pattern(pattern)
    except Exception as error:
        reason = str(error) if isinstance(error, regex.error) else type(error).__name__
        raise InvalidDefinition(f"{place} {pattern[:80]!r} is not a regular expression: {reason}") from None


def _unquoted(text: str) -> str:
    """Undo percent-encoding, as far as it is valid UTF-8."""
    parts = text.split("%")
    raw = parts[0].encode()
    for part in parts[1:]:
        try:
            raw += bytes.fromhex(part[:2]) + part[2:].encode() if len(part) > 1 else b"%" + part.encode()
        except ValueError:
            raw += b"%" + part.encode()
    return raw.decode(errors="replace")
