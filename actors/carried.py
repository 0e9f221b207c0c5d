"""Structs beside JSON-like values: what metadata and form data may carry, and what is stored of it.

Stored is plain data: a Struct as its JSON, and beside the value the places of the Structs in it, each with the name of its type. So
no key of a dict has a meaning of its own, and who does not know a type reads JSON-like data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias, cast, final

import msgspec

from .checks import MAX_DATA, MAX_ID, check_json, check_object, check_text, shown
from .errors import InvalidDefinition
from .record import JsonObject, JsonValue
from .typeschema import schema_of

Place: TypeAlias = tuple[str | int, ...]
Marks: TypeAlias = tuple[tuple[Place, str], ...]
"""Where Structs stand in a value (keys and indexes from the outside in), and the names of their types."""


class _Found(NamedTuple):
    """A Struct in a value: its place, also as messages show it, and its JSON."""

    place: Place
    path: str
    struct: msgspec.Struct
    body: bytes


def holds_struct(value: object) -> bool:
    """Tell whether there is a Struct in a value that has been checked."""
    if isinstance(value, dict):
        return any(map(holds_struct, cast("dict[str, object]", value).values()))
    if isinstance(value, list):
        return any(map(holds_struct, cast("list[object]", value)))
    return isinstance(value, msgspec.Struct)


def plain_of(value: object) -> JsonValue:
    """Return a value that has been checked as plain data."""
    return msgspec.json.decode(_json_of(value))


def carried(name: str, value: object) -> JsonValue:
    """Return a copy of a JSON-like value, in which Structs of any type may stand.

    :raises InvalidDefinition: if there is anything else in it, it is over a limit, or a Struct is not what its JSON gives back.
    """
    plain, found = _taken(name, value)
    for each in found:
        plain = _put(plain, each.place, _read_back(each))
    return plain


def carried_object(name: str, value: object) -> JsonObject:
    """Return a copy of a dict, or of another mapping, as `carried`. :raises InvalidDefinition: as there, or if it is none."""
    return cast("JsonObject", carried(name, _dict(name, value)))


@final
class StructTypes:
    """The Structs that a Runtime was given.

    :raises InvalidDefinition: if one is no Struct class, has no JSON form or no equality, or two have one name.
    """

    def __init__(self, types: object = ()) -> None:
        self._types: dict[str, type[msgspec.Struct]] = {}
        self._decoders: dict[str, msgspec.json.Decoder[msgspec.Struct]] = {}
        if isinstance(types, str | bytes | Mapping | type) or not isinstance(types, Iterable):
            raise InvalidDefinition(f"types must be a list of Struct classes, not {shown(cast('object', types))}")
        for each in cast("Iterable[object]", types):
            self._add(each)

    def _add(self, found: object) -> None:
        if not isinstance(found, type) or not issubclass(found, msgspec.Struct) or found is msgspec.Struct:
            raise InvalidDefinition(f"types must be Struct classes, not {shown(cast('object', found))}")
        name = found.__name__
        check_text("types: a name", name, MAX_ID, empty=False)
        if self._types.setdefault(name, found) is not found:
            raise InvalidDefinition(f"types: {_full(self._types[name])} and {_full(found)} have one name")
        schema_of(f"types: {name}", found)
        if not found.__struct_config__.eq:
            raise InvalidDefinition(f"types: {name} has eq=False, so nobody could tell whether it is read back as it was")
        try:
            self._decoders[name] = msgspec.json.Decoder(found)
        except (TypeError, ValueError, NameError, RecursionError) as error:
            raise InvalidDefinition(f"types: {name} cannot be read from JSON: {error}") from None

    def plain(self, name: str, value: object) -> tuple[JsonValue, Marks]:
        """Return what is stored of a value: plain data, a copy, and the places of the Structs.

        :raises InvalidDefinition: as `carried`, or if a Struct is none of these types.
        """
        plain, found = _taken(name, value)
        if sum(len(step) if isinstance(step, str) else 1 for each in found for step in each.place) > MAX_DATA:
            raise InvalidDefinition(
                f"{name} has too many Structs under long keys: their places have more than {MAX_DATA} characters"
            )
        for each in found:
            kind = type(each.struct)
            if self._types.get(kind.__name__) is not kind:
                raise InvalidDefinition(f"{each.path} is a {_full(kind)}, which is none of the types of this Runtime")
            _read_back(each)
        return plain, tuple((each.place, type(each.struct).__name__) for each in found)

    def plain_object(self, name: str, value: object) -> tuple[JsonObject, Marks]:
        """Return what is stored of a dict, or of another mapping, as `plain`. :raises InvalidDefinition: also if it is none."""
        plain, marks = self.plain(name, _dict(name, value))
        return cast("JsonObject", plain), marks

    def restored(self, value: JsonValue, marks: Marks, unfit: Callable[[str], None] | None = None) -> Any:
        """Return a value with its Structs again. One whose type is not here, or has changed so that it does not fit, stays plain.

        :param unfit: told why, of each that does not fit its type.
        """
        known = [(place, name) for place, name in marks if name in self._decoders]
        if not known:
            return value
        whole = msgspec.json.decode(msgspec.json.encode(value))
        for place, name in known:
            try:
                part = whole
                for step in place:
                    part = part[step]
                whole = _put(whole, place, self._decoders[name].decode(msgspec.json.encode(part)))
            except Exception as error:  # the class may check itself, and raise anything
                if unfit is not None:
                    unfit(f"{'.'.join(map(str, place)) or 'the value'} does not fit {name}: {error}")
        return whole


NO_TYPES = StructTypes()


def _dict(name: str, value: object) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        check_object(name, value)
    return dict(cast("Mapping[Any, Any]", value))


def _taken(name: str, value: object) -> tuple[JsonValue, list[_Found]]:
    """Return a value as plain data, and the Structs that were in it. Most have none: then this is one check and one copy."""
    try:
        return msgspec.json.decode(check_json(name, value)), []
    except InvalidDefinition as error:
        fault = error
    found: list[_Found] = []
    stripped = _stripped(name, value, (), iter(range(MAX_DATA)), found)
    if not found:
        raise fault
    return msgspec.json.decode(check_json(name, stripped)), found


def _stripped(path: str, value: object, place: Place, left: Iterator[int], found: list[_Found]) -> object:
    """Return a value with the JSON of each Struct in its place; every part takes one of what is `left`, as in `check_json`."""
    if next(left, None) is None or len(place) > 32:
        return None  # over a limit, as the check of the whole says
    if isinstance(value, dict):
        items = cast("dict[Any, object]", value).items()
        return {key: _stripped(f"{path}.{shown(key)[1:-1]}", item, (*place, key), left, found) for key, item in items}
    if isinstance(value, list):
        parts = enumerate(cast("list[object]", value))
        return [_stripped(f"{path}[{index}]", item, (*place, index), left, found) for index, item in parts]
    if not isinstance(value, msgspec.Struct):
        return value
    try:
        _counted(path, value, left)
        body = _json_of(value)
    except InvalidDefinition:
        raise
    except Exception as error:
        raise InvalidDefinition(f"{path} is a {_full(type(value))} without a JSON form: {error}") from None
    found.append(_Found(place, path, value, body))
    return msgspec.json.decode(body)


def _json_of(value: object) -> bytes:
    """Return the JSON of a value, that of sets in one order: the same command made again has the same digest."""
    return msgspec.json.encode(msgspec.to_builtins(value, str_keys=True, order="deterministic"))


def _counted(path: str, value: object, left: Iterator[int]) -> None:
    """Bound what is in a Struct before it is written: shared parts cost no eternity."""
    if next(left, None) is None:
        raise InvalidDefinition(f"{path} is over the limit")
    parts: Iterable[object] = ()
    if isinstance(value, msgspec.Struct):
        parts = [getattr(value, field, None) for field in value.__struct_fields__]
    elif isinstance(value, dict):
        parts = cast("dict[object, object]", value).values()
    elif isinstance(value, list | tuple | set | frozenset):
        parts = cast("Iterable[object]", value)
    for part in parts:
        _counted(path, part, left)


def _read_back(found: _Found) -> msgspec.Struct:
    """Return the Struct that its JSON gives. :raises InvalidDefinition: if that is another, or none: part of it would be lost."""
    kind = type(found.struct)
    try:
        again = msgspec.json.decode(found.body, type=kind)
        same = bool(again == found.struct)
    except Exception as error:
        raise InvalidDefinition(f"{found.path} is a {_full(kind)} that cannot be read back: {error}") from None
    if not same:
        raise InvalidDefinition(f"{found.path} is a {_full(kind)} that is not read back as it is")
    return again


def _put(whole: Any, place: Place, part: object) -> Any:
    """Put a part in its place; only the value with no way into it is the part itself."""
    if not place:
        return part
    inner = whole
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = part
    return whole


def _full(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"[:200]
