"""JSON Schema 2020-12 for forms and tool parameters: what a definition may contain, and whether data fits it.

The `jsonschema` package decides, within bounds that neither a schema nor data can break (see `validation`). It is imported at the
first use: importing it takes about as long as importing all of us.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, cast

import msgspec

from .checks import MAX_DATA, check_json
from .errors import InvalidDefinition
from .record import JsonObject

Fault: TypeAlias = tuple[str, str]

MAX_LEVELS = 32
MAX_FAULTS = 20
MAX_TEXT = 300


def check_schema(name: str, schema: Any, *, kind: str | None = None) -> JsonObject:
    """Check a schema object and return a copy of it.

    :param name: what the schema belongs to; messages begin with it and go on with the place, like ``form.schema.properties.age``.
    :param kind: "object" if only a schema of objects will do.
    :raises InvalidDefinition: if it is not a non-empty object, has more than 64 KiB or 32 levels, is not valid 2020-12, refers
        outside itself or in a circle, or has a pattern that does not compile.
    """
    from .validation import WrongSchema, compiled

    if not isinstance(schema, Mapping) or not schema:
        found = "{}" if isinstance(schema, Mapping) else type(cast("object", schema)).__name__
        raise InvalidDefinition(f"{name} must be a non-empty JSON Schema object, not {found}")
    raw = check_json(name, dict(cast("Mapping[str, Any]", schema)), MAX_DATA, MAX_LEVELS)
    try:
        compiled(raw)
    except WrongSchema as error:
        raise InvalidDefinition(f"{name}{render(error.place)[1:]} {error}") from None
    copy = cast("JsonObject", msgspec.json.decode(raw))
    if kind is not None and copy.get("type") != kind:
        raise InvalidDefinition(f"{name}.type must be {kind!r}, not {copy.get('type')!r}")
    return copy


def faults(schema: Mapping[str, Any], data: object, *, limit: int = MAX_DATA, levels: int = MAX_LEVELS) -> list[Fault]:
    """Return what is wrong with data as (path, message) pairs like ``("$.items[0].age", "must be a whole number")``; at most 20.

    Messages do not repeat the data. Data over `limit` bytes of JSON or over `levels` is one fault; so is a check that takes too
    long, and a schema that `check_schema` would have refused.
    """
    from .validation import WrongSchema, check

    try:
        size = len(check_json("$", data, limit, levels))
    except InvalidDefinition as error:
        place, _, message = str(error).partition(" ")
        return [(place[:MAX_TEXT], message[:MAX_TEXT])]
    try:
        return check(msgspec.json.encode(schema), data, size)
    except WrongSchema as error:
        return [("$", f"cannot be checked: schema{render(error.place)[1:]} {error}")]
    except RecursionError:
        return [("$", "is nested too deep to be checked")]


def render(place: Iterable[str | int]) -> str:
    """Return a place as a path: ``$.items[0].age``."""
    text = "$"
    for step in place:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.isidentifier() or step.startswith("$"):
            text += f".{step[:64]}"
        else:
            text += f"[{msgspec.json.encode(step[:64]).decode()}]"
    return text
