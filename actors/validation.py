"""Data against JSON Schemas, by `jsonschema`: in bounded time, and without the data in a message.

What we change of the library: patterns are matched by `regex` under a time limit, and every keyword takes steps from a budget. A
few keywords are our own, since the library's match patterns with `re`, take quadratic time or do not tell which member is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache, partial
from itertools import islice
from typing import Annotated, Any, TypeAlias, cast

import msgspec
from jsonschema import Draft202012Validator, FormatChecker, SchemaError, ValidationError, validators
from referencing import Registry

from .definition import Definition, WrongSchema, compiled_pattern
from .record import JsonValue
from .schema import MAX_FAULTS, Fault, render
from .wording import told

Keyword: TypeAlias = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]

STEPS = 100_000
MATCHES = 10_000
MATCH_SECONDS = 0.05
SLOW_MATCHES = 16
TYPES: dict[str, Any] = {
    "date": date,
    "date-time": datetime,
    "time": time,
    "duration": timedelta,
    "uuid": Annotated[str, msgspec.Meta(pattern=r"^[0-9a-fA-F]{8}(-?)([0-9a-fA-F]{4}\1){3}[0-9a-fA-F]{12}\Z")],
    "decimal": Decimal,
}
COMPARED = {"const", "enum", "uniqueItems"}  # these look at all that is in it
MEMBERS = {  # these look at every member of the data
    *("additionalProperties", "contains", "items", "patternProperties", "propertyNames", "unevaluatedItems"),
    *("unevaluatedProperties", "uniqueItems"),
}


class TooLong(Exception):
    """The budget is used up."""


class Check(FormatChecker):
    """What one check of a piece of data may still cost.

    It rides on the validator as its format checker, the one thing of ours that the library hands on to every part of a schema.
    """

    def __init__(self, targets: dict[str, JsonValue], steps: int) -> None:
        super().__init__(())
        self.checkers = {name: (partial(_converts, TYPES[name]), ()) for name in TYPES}
        self.targets = targets
        self.steps = steps
        self.matches = MATCHES
        self.slow = SLOW_MATCHES

    def spend(self, steps: int) -> None:
        """Use up some of the budget; about what the library does for a keyword is one step."""
        self.steps -= steps
        if self.steps < 0:
            raise TooLong("takes too long to check")

    def search(self, pattern: str, text: str) -> bool:
        """Search a pattern in a text.

        A first look is short; what does not end in it gets the full time, a limited number of times.
        """
        self.spend(1 + len(text) // 64)
        self.matches -= 1
        compiled = compiled_pattern(pattern)
        try:
            return compiled.search(text, timeout=MATCH_SECONDS / 50) is not None
        except TimeoutError:
            self.slow -= 1
        try:
            if self.slow >= 0 and self.matches >= 0:
                return compiled.search(text, timeout=MATCH_SECONDS) is not None
        except TimeoutError:
            pass
        raise TooLong("takes too long to match against a pattern")


def check(raw: bytes, data: object, size: int) -> list[Fault]:
    """Return what is wrong with data of some size in bytes, at most 20 faults; a check that takes too long is a fault.

    :param raw: the schema as JSON.
    :raises WrongSchema: if the schema is not valid, or not one that we support.
    """
    found: dict[Fault, None] = {}
    validator, targets = compiled(raw)
    try:
        for error in validator.evolve(format_checker=Check(targets, STEPS + 4 * size)).iter_errors(data):
            for place, message in told(error):
                found[render(place), message] = None
                if len(found) >= MAX_FAULTS:
                    return list(found)
    except TooLong as error:
        found["$", str(error)] = None
    return list(found)


@lru_cache(maxsize=256)
def compiled(raw: bytes) -> tuple[Any, dict[str, JsonValue]]:
    """Return the library's validator of a schema, safe to share between threads, and what the references in it mean.

    :raises WrongSchema: if it is not valid, or not one that we support.
    """
    definition = Definition(msgspec.json.decode(raw))
    try:
        Draft202012Validator.check_schema(definition.schema, format_checker=FormatChecker(()))
    except SchemaError as error:
        raise WrongSchema(*next(told(error))) from None
    for word in ("$id", "$schema"):  # the library would take another base, or its own validator in place of ours
        definition.schema.pop(word, None)
    return VALIDATOR(definition.schema, registry=Registry[Any]()), definition.targets()


def _converts(type_: Any, data: object) -> bool:
    try:
        msgspec.convert(data, type_)
    except msgspec.ValidationError:
        return not isinstance(data, str)
    return True


def _has_members(value: object) -> bool:
    return isinstance(value, list | dict)


def _fits(validator: Any, schema: Any, data: Any) -> bool:
    return validator.evolve(schema=schema).is_valid(data)


def _reference(validator: Any, reference: str, data: Any, schema: Any) -> Iterator[ValidationError]:
    return validator.descend(data, validator.format_checker.targets[reference])


def _pattern(validator: Any, pattern: str, data: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(data, str) and not validator.format_checker.search(pattern, data):
        yield ValidationError("")


def _pattern_properties(validator: Any, parts: dict[str, Any], data: Any, schema: Any) -> Iterator[ValidationError]:
    for pattern, part in parts.items() if validator.is_type(data, "object") else ():
        for key, item in data.items():
            if validator.format_checker.search(pattern, key):
                yield from validator.descend(item, part, path=key)


def _additional_properties(validator: Any, part: Any, data: Any, schema: Any) -> Iterator[ValidationError]:
    for key, item in data.items() if validator.is_type(data, "object") else ():
        if not _known(validator, key, schema):
            yield from validator.descend(item, part, path=key)


def _known(validator: Any, key: str, schema: Any) -> bool:
    search = validator.format_checker.search
    return key in schema.get("properties", ()) or any(search(pattern, key) for pattern in schema.get("patternProperties", ()))


def _property_names(validator: Any, part: Any, data: Any, schema: Any) -> Iterator[ValidationError]:
    for key in data if validator.is_type(data, "object") else ():
        if not _fits(validator, part, key):
            yield ValidationError("", path=[key])


def _unevaluated(kind: str, validator: Any, part: Any, data: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(data, kind):
        seen = _seen(validator, data, {key: value for key, value in schema.items() if not key.startswith("unevaluated")})
        for key in data if kind == "object" else range(len(data)):
            if key not in seen:
                yield from validator.descend(data[key], part, path=key)


def _seen(validator: Any, data: Any, schema: Any) -> set[str | int]:
    """Return the members that a schema has looked at, itself or by one that fits at the same place."""
    validator.format_checker.spend(1 + len(data))
    if schema is True:
        return set()
    parts = [part for keyword in ("allOf", "anyOf", "oneOf") for part in schema.get(keyword, ())]
    if validator.is_type(data, "object"):
        if schema.keys() & {"additionalProperties", "unevaluatedProperties"}:
            return set(data)
        seen = {key for key in data if _known(validator, key, schema)}
        parts += [part for key, part in schema.get("dependentSchemas", {}).items() if key in data]
    else:
        if schema.keys() & {"items", "unevaluatedItems"}:
            return set(range(len(data)))
        seen = {*range(len(schema.get("prefixItems", ())))}
        seen |= {index for index, item in enumerate(data) if "contains" in schema and _fits(validator, schema["contains"], item)}
    if "$ref" in schema:
        parts.append(validator.format_checker.targets[schema["$ref"]])
    if "if" in schema:
        parts += [schema["if"], schema.get("then" if _fits(validator, schema["if"], data) else "else", True)]
    return seen.union(*(_seen(validator, data, part) for part in parts if _fits(validator, part, data)))


def _multiple_of(validator: Any, of: float, data: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(data, "number") and (Fraction(str(data)) / Fraction(str(of))).denominator != 1:
        yield ValidationError("")


def _unique_items(validator: Any, wanted: Any, data: Any, schema: Any) -> Iterator[ValidationError]:
    if wanted and validator.is_type(data, "array") and len({_same(item) for item in data}) < len(data):
        yield ValidationError("")


def _same(value: Any) -> Hashable:
    """Return a key that is equal for equal JSON values (1 and 1.0 are, 1 and true are not).

    It is made of texts alone: whoever writes the data knows the hashes of numbers, and could give all entries the same one.
    """
    kind: object = cast("object", type(value))
    if kind is dict:
        return frozenset((key, _same(item)) for key, item in value.items())
    if kind is list:
        return ("list", *map(_same, value))
    if kind is float and value.is_integer():
        value = int(value)
    return f"text {value}" if kind is str else repr(value)


def _content_encoding(validator: Any, name: str, data: Any, schema: Any) -> Iterator[ValidationError]:
    if name == "base64" and not _converts(bytes, data):
        yield ValidationError("")


def _counted(name: str, function: Keyword) -> Keyword:
    """Let a keyword take steps: for itself, for what it looks at, and for each message that the library makes and we drop.

    More faults of one keyword than are reported are not looked for: alternatives would hoard them.
    """

    def counted(validator: Any, value: Any, data: Any, schema: Any) -> Iterator[ValidationError]:
        check: Check = validator.format_checker
        steps = 1 + (len(value) // 4 if _has_members(value) else 0)
        if _has_members(data):
            steps += len(data) if name in MEMBERS else 0
            steps += len(msgspec.json.encode((value, data))) // 16 if name in COMPARED else 0
        check.spend(steps)
        for error in islice(function(validator, value, data, schema) or (), MAX_FAULTS):
            if error.message:
                check.spend(4 + len(msgspec.json.encode((value, data))) // 64)
                error.message = ""
            yield error

    return counted


OWN: dict[str, Keyword] = {
    "$ref": _reference,
    "additionalProperties": _additional_properties,
    "contentEncoding": _content_encoding,
    "multipleOf": _multiple_of,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "propertyNames": _property_names,
    "unevaluatedItems": partial(_unevaluated, "array"),
    "unevaluatedProperties": partial(_unevaluated, "object"),
    "uniqueItems": _unique_items,
}
VALIDATOR = cast("Any", validators).extend(
    Draft202012Validator, {name: _counted(name, each) for name, each in {**Draft202012Validator.VALIDATORS, **OWN}.items()}
)
