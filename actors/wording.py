"""What the `jsonschema` package has found wrong, in our words, which never repeat the data (it may be a secret)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from .definition import Place

KINDS = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "text",
}
WORDS = {
    "const": "must be {}",
    "contains": "must have at least {} fitting entries",
    "contentEncoding": "must be {}",
    "enum": "must be one of {}",
    "exclusiveMaximum": "must be less than {}",
    "exclusiveMinimum": "must be more than {}",
    "format": "must be a {}",
    "maxContains": "must have at most {} fitting entries",
    "maxItems": "must have at most {} entries",
    "maxLength": "must have at most {} characters",
    "maxProperties": "must have at most {} members",
    "maximum": "must be at most {}",
    "minContains": "must have at least {} fitting entries",
    "minItems": "must have at least {} entries",
    "minLength": "must have at least {} characters",
    "minProperties": "must have at least {} members",
    "minimum": "must be at least {}",
    "multipleOf": "must be a multiple of {}",
    "not": "is excluded",
    "oneOf": "must fit only one of the alternatives",
    "pattern": "must match {}",
    "propertyNames": "is not an allowed name",
    "uniqueItems": "must not repeat an entry",
}


def told(error: Any) -> Iterator[tuple[Place, str]]:
    """Say in our words what the library has found."""
    place: Place = tuple(error.absolute_path)
    keyword, value, data = error.validator, error.validator_value, error.instance
    if keyword == "required":
        yield from (((*place, key), "is missing") for key in value if key not in data)
    elif keyword == "dependentRequired":
        for key in (key for key in value if key in data):
            yield from (((*place, other), f"is missing beside {key[:64]}") for other in value[key] if other not in data)
    elif keyword in {"anyOf", "oneOf"} and error.context:
        yield from _alternatives(place, error.context)
    elif keyword == "type":
        yield place, _kinds([value] if isinstance(value, str) else value)
    elif keyword == "enum" and not value:
        yield place, "is not allowed"
    else:
        shown = error.schema.get("minContains", 1) if keyword == "contains" else value
        text = shown[:200] if keyword in {"pattern", "format", "contentEncoding"} else _listed(shown, many=keyword == "enum")
        yield place, WORDS[keyword].format(text)


def _alternatives(place: Place, errors: list[Any]) -> Iterator[tuple[Place, str]]:
    """Tell the faults of the one alternative whose type the data has, where there is one."""
    parts: dict[int, list[Any]] = {}
    for error in errors:
        parts.setdefault(error.schema_path[0], []).append(error)
    wrong = {index: each.validator_value for index in parts for each in parts[index] if each.validator == "type" and not each.path}
    meant = parts.keys() - wrong.keys()
    if len(meant) == 1:
        for error in parts[meant.pop()]:
            yield from told(error)
    elif meant:
        yield place, f"fits none of the {len(parts)} alternatives"
    else:
        yield place, _kinds(kind for kinds in wrong.values() for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _kinds(kinds: Iterable[str]) -> str:
    return "must be " + " or ".join(KINDS[kind] for kind in dict.fromkeys(kinds))


def _listed(value: Any, *, many: bool) -> str:
    text = ", ".join(msgspec.json.encode(each).decode() for each in (value if many else [value]))
    return text if len(text) <= 200 else text[:199] + "…"
