"""The schema of schemas: JSON Schema 2020-12 in one piece, without dynamic references, as far as we support it."""

from __future__ import annotations

from .record import JsonObject, JsonValue

SUBSCHEMA = frozenset(
    {
        *("additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then"),
        *("unevaluatedItems", "unevaluatedProperties"),
    }
)
SUBSCHEMAS_IN_A_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
SUBSCHEMAS_BY_NAME = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})

_TYPES: JsonValue = ["array", "boolean", "integer", "null", "number", "object", "string"]
_SCHEMA: JsonValue = {"$ref": "#"}
_SCHEMAS: JsonValue = {"type": "array", "minItems": 1, "items": _SCHEMA}
_SCHEMAS_BY_NAME: JsonValue = {"type": "object", "additionalProperties": _SCHEMA}
_COUNT: JsonValue = {"type": "integer", "minimum": 0}
_NUMBER: JsonValue = {"type": "number"}
_TEXT: JsonValue = {"type": "string"}
_FLAG: JsonValue = {"type": "boolean"}
_NAMES: JsonValue = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}

_PROPERTIES: dict[str, JsonValue] = {
    **dict.fromkeys(("$id", "$schema", "$ref", "$anchor", "$comment", "title", "description", "pattern", "format"), _TEXT),
    **dict.fromkeys(("contentEncoding", "contentMediaType", "$dynamicRef", "$dynamicAnchor"), _TEXT),
    **dict.fromkeys(("deprecated", "readOnly", "writeOnly", "uniqueItems"), _FLAG),
    **dict.fromkeys(("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum"), _NUMBER),
    **dict.fromkeys(("maxLength", "minLength", "maxItems", "minItems", "maxContains", "minContains"), _COUNT),
    **dict.fromkeys(("maxProperties", "minProperties"), _COUNT),
    **dict.fromkeys(sorted(SUBSCHEMA), _SCHEMA),
    **dict.fromkeys(sorted(SUBSCHEMAS_IN_A_LIST), _SCHEMAS),
    **dict.fromkeys(sorted(SUBSCHEMAS_BY_NAME), _SCHEMAS_BY_NAME),
    "$vocabulary": {"type": "object", "additionalProperties": _FLAG},
    "dependentRequired": {"type": "object", "additionalProperties": _NAMES},
    "enum": {"type": "array"},
    "examples": {"type": "array"},
    "multipleOf": {"type": "number", "exclusiveMinimum": 0},
    "required": _NAMES,
    "type": {"anyOf": [{"enum": _TYPES}, {"type": "array", "items": {"enum": _TYPES}, "minItems": 1, "uniqueItems": True}]},
}

METASCHEMA: JsonObject = {"type": ["object", "boolean"], "properties": dict(_PROPERTIES)}
