"""The keywords of JSON Schema 2020-12, one function each, and the validator made of them.

A rule gets the check, the schema, the data, and where it stands; it tells whether the data fits and notes faults.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable
from typing import Any

import msgspec

from .record import JsonValue
from .validation import (
    FORMATS,
    KINDS,
    STEPS,
    At,
    Check,
    Enough,
    Fault,
    Rule,
    Rules,
    Schema,
    TooLong,
    is_format,
    is_kind,
    is_multiple,
    listed,
)


class Validator:
    """A schema ready for checks; safe to share between threads.

    :param targets: the schema behind each ``$ref`` text.
    """

    def __init__(self, schema: Schema, targets: dict[str, Schema]) -> None:
        self.schema = schema
        self.targets = targets
        self._constants: dict[int, frozenset[Hashable]] = {}

    def faults(self, data: JsonValue, size: int = 0) -> list[Fault]:
        """Return what is wrong with data of some size in bytes, at most 20 faults; a check that takes too long is a fault."""
        check = Check(RULES, self.targets, self._constants, STEPS + 4 * size)
        try:
            check.apply(self.schema, data, At(report=True))
        except Enough:
            pass
        except TooLong as error:
            check.found.append(("$", str(error)))
        except RecursionError:
            check.found.append(("$", "is nested too deep to be checked"))
        return check.found


def _number(keyword: str, holds: Callable[[Any, Any], bool], words: str) -> Rule:
    def rule(check: Check, schema: Any, data: Any, at: At) -> bool:
        if not is_kind("number", data) or holds(data, schema[keyword]):
            return True
        return check.fault(at, f"must be {words} {listed([schema[keyword]])}")

    return rule


def _size(keyword: str, kind: str, words: str) -> Rule:
    holds = operator.ge if keyword.startswith("min") else operator.le

    def rule(check: Check, schema: Any, data: Any, at: At) -> bool:
        if not is_kind(kind, data) or holds(len(data), schema[keyword]):
            return True
        return check.fault(at, f"must have {words.format(schema[keyword])}")

    return rule


def _type(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    kinds: list[str] = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if any(is_kind(kind, data) for kind in kinds):
        return True
    return check.fault(at, "must be " + " or ".join(KINDS.get(kind, kind) for kind in kinds))


def _enum(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    return check.among(schema["enum"], data) or check.fault(at, f"must be one of {listed(schema['enum'])}")


def _const(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    same = check.same(schema["const"]) == check.same(data)
    return same or check.fault(at, f"must be {listed([schema['const']])}")


def _pattern(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    if not isinstance(data, str) or check.matches_pattern(schema["pattern"], data):
        return True
    return check.fault(at, f"must match {schema['pattern'][:200]}")


def _format(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    name = schema["format"]
    if not isinstance(data, str) or name not in FORMATS or is_format(name, data):
        return True
    return check.fault(at, f"must be a {name}")


def _prefix_items(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    good = True
    if isinstance(data, list):
        for index, (part, item) in enumerate(zip(schema["prefixItems"], data, strict=False)):
            at.seen.items.add(index)
            good = check.apply(part, item, at.at(index)) and good
    return good


def _items(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    good = True
    if isinstance(data, list):
        for index in range(len(schema.get("prefixItems", ())), len(data)):
            at.seen.items.add(index)
            good = check.apply(schema["items"], data[index], at.at(index)) and good
    return good


def _contains(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    if not isinstance(data, list):
        return True
    found = [index for index, item in enumerate(data) if check.fits(schema["contains"], item)]
    at.seen.items.update(found)
    least, most = schema.get("minContains", 1), schema.get("maxContains")
    if len(found) < least:
        return check.fault(at, f"must have at least {least} fitting entries")
    if most is not None and len(found) > most:
        return check.fault(at, f"must have at most {most} fitting entries")
    return True


def _unique_items(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    if not schema["uniqueItems"] or not isinstance(data, list):
        return True
    return len({check.same(item) for item in data}) == len(data) or check.fault(at, "must not repeat an entry")


def _unevaluated_items(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    good = True
    if isinstance(data, list):
        for index, item in enumerate(data):
            if index not in at.seen.items:
                good = check.apply(schema["unevaluatedItems"], item, at.at(index)) and good
        at.seen.items.update(range(len(data)))
    return good


def _required(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    good = True
    if isinstance(data, dict):
        check.spend(len(schema["required"]))
        for key in schema["required"]:
            good = (key in data or check.fault(at.at(key), "is missing")) and good
    return good


def _dependent_required(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    good = True
    if isinstance(data, dict):
        for key, needed in schema["dependentRequired"].items():
            check.spend(1 + len(needed))
            for other in needed if key in data else ():
                good = (other in data or check.fault(at.at(other), f"is missing beside {key[:64]}")) and good
    return good


def _dependent_schemas(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    good = True
    if isinstance(data, dict):
        for key, part in schema["dependentSchemas"].items():
            check.spend()
            if key in data:
                good = check.also(part, data, at) and good
    return good


def _properties(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    good = True
    if isinstance(data, dict):
        parts = schema["properties"]
        check.spend(min(len(parts), len(data)))
        for key in [key for key in parts if key in data] if len(parts) < len(data) else [key for key in data if key in parts]:
            at.seen.keys.add(key)
            good = check.apply(parts[key], data[key], at.at(key)) and good
    return good


def _pattern_properties(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    good = True
    if isinstance(data, dict):
        for pattern, part in schema["patternProperties"].items():
            for key, item in data.items():
                if check.matches_pattern(pattern, key):
                    at.seen.keys.add(key)
                    good = check.apply(part, item, at.at(key)) and good
    return good


def _additional_properties(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    good = True
    if isinstance(data, dict):
        known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for key, item in data.items():
            if key not in known and not any(check.matches_pattern(pattern, key) for pattern in patterns):
                at.seen.keys.add(key)
                part = schema["additionalProperties"]
                good = check.apply(part, item, at.at(key)) and good
    return good


def _property_names(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    good = True
    if isinstance(data, dict):
        for key in data:
            fits = check.fits(schema["propertyNames"], key)
            good = (fits or check.fault(at.at(key), "is not an allowed name")) and good
    return good


def _unevaluated_properties(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    good = True
    if isinstance(data, dict):
        for key, item in data.items():
            if key not in at.seen.keys:
                part = schema["unevaluatedProperties"]
                good = check.apply(part, item, at.at(key)) and good
        at.seen.keys.update(data)
    return good


def _ref(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    return check.also(check.targets[schema["$ref"]], data, at)


def _all_of(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    return not [part for part in schema["allOf"] if not check.also(part, data, at)]


def _any_of(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    if [part for part in schema["anyOf"] if check.fits(part, data, at.seen)]:
        return True
    return _none_fits(check, schema["anyOf"], data, at)


def _one_of(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    count = len([part for part in schema["oneOf"] if check.fits(part, data, at.seen)])
    if count == 1:
        return True
    if count:
        return check.fault(at, f"must fit one of the alternatives only, not {count}")
    return _none_fits(check, schema["oneOf"], data, at)


def _none_fits(check: Check, parts: list[JsonValue], data: JsonValue, at: At) -> bool:
    """Note the faults of the one alternative whose type the data has, where there is one; always false."""
    if not at.report:
        return False
    meant = [part for part in parts if _has_kind(check, part, data)]
    if len(meant) == 1 and not check.apply(meant[0], data, At(at.place, report=True)):
        return False
    kinds = [str(part["type"]) for part in parts if isinstance(part, dict) and isinstance(part.get("type"), str)]
    if not meant and len(kinds) == len(parts):
        return check.fault(at, "must be " + " or ".join(KINDS.get(kind, kind) for kind in dict.fromkeys(kinds)))
    return check.fault(at, f"fits none of the {len(parts)} alternatives")


def _has_kind(check: Check, part: JsonValue, data: JsonValue) -> bool:
    while isinstance(part, dict):
        check.spend()
        if "type" in part:
            return _type(check, part, data, At())
        if not isinstance(part.get("$ref"), str):
            return True
        part = check.targets[str(part["$ref"])]
    return bool(part)


def _not(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    return not check.fits(schema["not"], data) or check.fault(at, "is excluded")


def _if(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    branch = "then" if check.fits(schema["if"], data, at.seen) else "else"
    return branch not in schema or check.also(schema[branch], data, at)


def _content_encoding(check: Check, schema: Any, data: JsonValue, at: At) -> bool:
    if schema["contentEncoding"] == "base64" and isinstance(data, str):
        try:
            msgspec.convert(data, bytes)
        except msgspec.ValidationError:
            return check.fault(at, "must be base64")
    return True


RULES: Rules = {
    "$ref": _ref,
    "additionalProperties": _additional_properties,
    "allOf": _all_of,
    "anyOf": _any_of,
    "const": _const,
    "contains": _contains,
    "contentEncoding": _content_encoding,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "enum": _enum,
    "exclusiveMaximum": _number("exclusiveMaximum", operator.lt, "less than"),
    "exclusiveMinimum": _number("exclusiveMinimum", operator.gt, "more than"),
    "format": _format,
    "if": _if,
    "items": _items,
    "maximum": _number("maximum", operator.le, "at most"),
    "maxItems": _size("maxItems", "array", "at most {} entries"),
    "maxLength": _size("maxLength", "string", "at most {} characters"),
    "maxProperties": _size("maxProperties", "object", "at most {} members"),
    "minimum": _number("minimum", operator.ge, "at least"),
    "minItems": _size("minItems", "array", "at least {} entries"),
    "minLength": _size("minLength", "string", "at least {} characters"),
    "minProperties": _size("minProperties", "object", "at least {} members"),
    "multipleOf": _number("multipleOf", is_multiple, "a multiple of"),
    "not": _not,
    "oneOf": _one_of,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "prefixItems": _prefix_items,
    "properties": _properties,
    "propertyNames": _property_names,
    "required": _required,
    "type": _type,
    "unevaluatedItems": _unevaluated_items,
    "unevaluatedProperties": _unevaluated_properties,
    "uniqueItems": _unique_items,
}
