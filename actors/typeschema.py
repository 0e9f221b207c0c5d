"""JSON Schemas of Python types, as msgspec understands types."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from .errors import InvalidDefinition
from .record import JsonObject, JsonValue


def schema_of(name: str, type_: Any) -> JsonObject:
    """Return the JSON Schema of a type; what it refers to is in its ``$defs``.

    :raises InvalidDefinition: if msgspec has no JSON form for the type, or for one inside it.
    """
    try:
        (root,), parts = msgspec.json.schema_components([type_], ref_template="#/$defs/{name}")
    except (TypeError, ValueError, NameError, AttributeError, RecursionError) as error:
        raise InvalidDefinition(f"{name} has a type without a JSON form: {_first_lines(error)}") from None
    schema = cast("JsonObject", dict(root))
    if isinstance(reference := schema.get("$ref"), str):
        own = reference.removeprefix("#/$defs/")
        schema = cast("JsonObject", dict(parts[own]))
    needed = _needed(schema, cast("dict[str, JsonValue]", parts))
    if needed:
        schema["$defs"] = {key: parts[key] for key in parts if key in needed}
    return schema


def _needed(schema: JsonObject, parts: dict[str, JsonValue]) -> set[str]:
    """Return the names of the parts that a schema refers to, directly or through others."""
    needed: set[str] = set()
    left: list[JsonValue] = [schema]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left.extend(value)
        elif isinstance(value, dict):
            left.extend(value.values())
            reference = value.get("$ref")
            key = reference.removeprefix("#/$defs/") if isinstance(reference, str) else None
            if key in parts and key not in needed:
                needed.add(key)
                left.append(parts[key])
    return needed


def _first_lines(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if line.startswith("type ")] or lines[:1]
    return " ".join(kept)[:300]
