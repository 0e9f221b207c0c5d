"""The base of every record of the face: frozen, JSON-like, usable as a FastAPI response type."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import msgspec

from .errors import InvalidDefinition

if TYPE_CHECKING:
    JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
else:
    JsonValue = Any

JsonObject: TypeAlias = dict[str, JsonValue]
Seconds: TypeAlias = timedelta | float | int


class Record(msgspec.Struct, gc=False, frozen=True):
    """A frozen value that knows its JSON form."""

    def to_dict(self) -> JsonObject:
        """Return the record as JSON-like builtins; times become ISO 8601 text in UTC."""
        return msgspec.to_builtins(self)

    def to_json(self) -> bytes:
        """Return the record as UTF-8 JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """Rebuild a record from what `to_dict` gave.

        :raises InvalidDefinition: if a field is missing, of a wrong type or out of bounds (the message names its path).
        """
        try:
            return msgspec.convert(data, cls, strict=False)
        except (msgspec.ValidationError, UnicodeError, OverflowError, RecursionError) as error:
            raise InvalidDefinition(f"{cls.__name__}: {error}") from None

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> object:
        """Let Pydantic (and so FastAPI) validate and write this record; imported only when asked."""
        from pydantic_core import core_schema

        def validate(value: object) -> Record:
            return value if isinstance(value, cls) else cls.from_dict(value)

        def dump(value: Record) -> JsonObject:
            return value.to_dict()

        return core_schema.no_info_plain_validator_function(
            validate, serialization=core_schema.plain_serializer_function_ser_schema(dump)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: object, handler: object) -> JsonObject:
        """Describe the record to OpenAPI by name; its fields are listed in our reference."""
        return {"type": "object", "title": cls.__name__, "description": (cls.__doc__ or "").partition("\n")[0]}


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
