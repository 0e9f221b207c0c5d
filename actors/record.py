"""The base of every record of the face: frozen, JSON-like, usable as a FastAPI response type."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias, cast

import msgspec

from .errors import InvalidDefinition

if TYPE_CHECKING:
    JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
else:
    JsonValue = Any

JsonObject: TypeAlias = dict[str, JsonValue]
Metadata: TypeAlias = dict[str, Any]
"""A JSON-like dict in which Structs may stand, as the application reads it."""
Seconds: TypeAlias = timedelta | float | int
Time: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]


class Record(msgspec.Struct, gc=False, frozen=True):
    """A frozen value that knows its JSON form."""

    def to_dict(self) -> JsonObject:
        """Return the record as what its JSON holds: dicts, lists, text, numbers; times and durations are ISO 8601 text."""
        return msgspec.json.decode(msgspec.json.encode(self))

    def to_json(self) -> bytes:
        """Return the record as UTF-8 JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """Rebuild a record from what `to_dict` gave.

        :raises InvalidDefinition: if a field is missing, of a wrong type or out of bounds (the message names its path).
        """
        return cls._converted(data, cls)

    @classmethod
    def _converted(cls, data: object, target: Any) -> Self:
        try:
            return msgspec.convert(data, target, strict=False)
        except (msgspec.ValidationError, UnicodeError, OverflowError, RecursionError) as error:
            raise InvalidDefinition(f"{cls.__name__}: {error}") from None

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> object:
        """Let Pydantic (and so FastAPI) validate and write this record; imported only when asked.

        A record is a response type as it is, and a request body as ``Annotated[ResumeCommand, Body()]``. Unlike `from_dict`, which
        reads what any release has written, this takes no field that is not known.
        """
        from pydantic_core import core_schema

        def validate(value: object) -> Record:
            if isinstance(value, cls):
                return value
            if unknown := _unknown(cls, value):
                raise InvalidDefinition(f"{cls.__name__} has no field {unknown[0]!r:.100}")
            return cls._converted(value, source)

        def dump(value: Record) -> JsonObject:
            return value.to_dict()

        return core_schema.no_info_plain_validator_function(
            validate,
            serialization=core_schema.plain_serializer_function_ser_schema(dump),
            metadata={"turnhold": source},
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: dict[str, Any], handler: object) -> JsonObject:
        """Describe the record to OpenAPI, field by field."""
        source = schema["metadata"]["turnhold"]
        (found,), parts = msgspec.json.schema_components([source], ref_template="{name}")
        return _inlined(found, parts)


def _unknown(cls: type[Record], value: object) -> list[str]:
    """Return the keys of a dict that are no fields of a record."""
    if not isinstance(value, dict):
        return []
    known = {field.encode_name for field in msgspec.structs.fields(cls)} | {cls.__struct_config__.tag_field}
    return [key for key in cast("dict[str, object]", value) if key not in known]


def _inlined(schema: Any, parts: dict[str, Any]) -> Any:
    """Return a schema with its references resolved; records are not recursive."""
    if isinstance(schema, list):
        return [_inlined(item, parts) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    found = cast("dict[str, Any]", schema)
    if isinstance(name := found.get("$ref"), str):
        return _inlined(parts[name], parts)
    return {key: _inlined(item, parts) for key, item in found.items() if not (key == "discriminator" and "mapping" in item)}


@lru_cache(1024)
def utc(ms: int) -> datetime:
    """Return store milliseconds as an aware UTC time."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def milliseconds(value: Seconds) -> int:
    """Return a duration (a timedelta, or a number of seconds) in whole milliseconds."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    return round(seconds * 1000)


def duration(value: Seconds) -> timedelta:
    """Return a duration given as a timedelta or a number of seconds as a timedelta."""
    return value if isinstance(value, timedelta) else timedelta(seconds=value)
