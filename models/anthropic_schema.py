"""Output schemas as Anthropic's structured outputs take them: a part of JSON Schema. No I/O."""

from __future__ import annotations

import json
from typing import Any, Final, cast

_FORMATS: Final = {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
_LITERAL: Final = (str, int, float, bool, type(None))
_DEPTH: Final = 32


class _Inexpressible(Exception):
    pass


def expressible(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return a schema that says as much of this one as the provider can promise, or None if it cannot promise its shape.

    Objects are closed. Bounds that the provider does not know are told in words; replies are checked against the whole anyway.
    Not expressible are objects with keys of any name, values of any type, tuples, and types that contain themselves.
    """
    definitions = cast("dict[str, Any]", schema.get("$defs", {}))
    try:
        _refuse_cycles(schema, definitions, ())
        found = _converted(schema)
        if definitions:
            found["$defs"] = {name: _converted(each) for name, each in definitions.items()}
    except (_Inexpressible, RecursionError, AttributeError, TypeError):
        return None
    return found


def _refuse_cycles(schema: object, definitions: dict[str, Any], path: tuple[str, ...]) -> None:
    if len(path) > _DEPTH:
        raise _Inexpressible
    if isinstance(schema, list):
        for each in cast("list[object]", schema):
            _refuse_cycles(each, definitions, path)
    elif isinstance(schema, dict):
        fields = cast("dict[str, Any]", schema)
        name = str(fields.get("$ref", "")).removeprefix("#/$defs/")
        if name:
            if name in path or name not in definitions:
                raise _Inexpressible
            _refuse_cycles(definitions[name], definitions, (*path, name))
        for key, each in fields.items():
            if key not in {"$defs", "enum", "const", "default", "examples"}:
                _refuse_cycles(each, definitions, path)


def _converted(schema: object) -> dict[str, Any]:
    if not isinstance(schema, dict):
        raise _Inexpressible
    left: dict[str, Any] = dict(cast("dict[str, Any]", schema))
    for key in ("$defs", "$schema", "$id", "default", "examples", "discriminator", "title"):
        left.pop(key, None)
    description = left.pop("description", None)
    if "$ref" in left:
        return {"$ref": left["$ref"]}
    found = _shape(left)
    words = [description] if isinstance(description, str) and description else []
    if left:
        words.append(json.dumps(left, ensure_ascii=False))
    return found | ({"description": " ".join(words)} if words else {})


def _shape(left: dict[str, Any]) -> dict[str, Any]:
    """Take out of a schema what the provider promises, and return it."""
    type_ = left.pop("type", None)
    if isinstance(type_, list):
        whole, types = dict(left), cast("list[Any]", type_)
        left.clear()
        return {"anyOf": [_converted({**whole, "type": each}) for each in types]}
    for key in ("enum", "const"):
        if key in left:
            value = left.pop(key)
            if not all(isinstance(each, _LITERAL) for each in (value if key == "enum" else [value])):
                raise _Inexpressible
            return {key: value}
    if type_ is None:
        key = next((key for key in ("anyOf", "oneOf", "allOf") if key in left), "")
        if not key:
            raise _Inexpressible
        return {"allOf" if key == "allOf" else "anyOf": [_converted(each) for each in left.pop(key)]}
    match type_:
        case "object":
            return _object(left)
        case "array":
            return _array(left)
        case "string" if left.get("format") in _FORMATS:
            return {"type": type_, "format": left.pop("format")}
        case _:
            return {"type": type_}


def _object(left: dict[str, Any]) -> dict[str, Any]:
    properties, more = left.pop("properties", {}), left.pop("additionalProperties", None)
    if not properties and more is not False:
        raise _Inexpressible
    if more not in (None, True, False) or "patternProperties" in left:
        raise _Inexpressible
    found: dict[str, Any] = {
        "type": "object",
        "properties": {key: _converted(each) for key, each in properties.items()},
        "additionalProperties": False,
    }
    required = left.pop("required", None)
    return found | ({"required": list(required)} if required else {})


def _array(left: dict[str, Any]) -> dict[str, Any]:
    if "prefixItems" in left or "items" not in left:
        raise _Inexpressible
    found: dict[str, Any] = {"type": "array", "items": _converted(left.pop("items"))}
    if left.get("minItems") in (0, 1):
        found["minItems"] = left.pop("minItems")
    return found
