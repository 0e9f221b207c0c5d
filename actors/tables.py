"""A bound on what sets and keys of dicts compare while JSON becomes a value of a type.

Who writes JSON knows the hashes of numbers, of UUIDs, and of tuples and Structs of them. A megabyte can be full of values with one
hash, or with one way through a table, and then each is compared with all before it. The hash of a text is a secret of the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt
from typing import Any, TypeAlias, cast

import msgspec
from msgspec import inspect

from .schema import Fault, render

MAX_COMPARED = 40_000_000
"""Entries times bytes, of all tables; the worst that fits has taken about 50 ms, of dataclasses of 11 fields 0.2 s."""
NUMBERS = 16  # numbers are seldom equal, and soon compared
SECRET = (
    *(inspect.StrType, inspect.BytesType, inspect.ByteArrayType, inspect.MemoryViewType),
    *(inspect.DateType, inspect.NoneType),
)
NUMERIC = (
    *(*SECRET, inspect.AnyType, inspect.BoolType, inspect.IntType, inspect.FloatType, inspect.EnumType, inspect.LiteralType),
    *(inspect.DateTimeType, inspect.TimeType, inspect.TimeDeltaType),
)
Part: TypeAlias = tuple[str | int, inspect.Type, Any]


class Crowded(Exception):
    """A table has more entries than may be compared; its place is put together on the way out."""

    def __init__(self, entries: int, most: int) -> None:
        super().__init__(f"has {entries} entries, the limit is {most} of this size: they are compared with each other")
        self.way: list[str | int] = []


class Known(msgspec.Struct, frozen=True):
    """What is known of a type: what a list or a dict of it may be, if there are tables in it; its parts; its own weight."""

    lists: tuple[inspect.Type, ...]
    dicts: tuple[inspect.Type, ...]
    parts: tuple[inspect.Type, ...]
    share: int


class Tables:
    """The sets and dicts of a type whose hashes are known to who writes the JSON."""

    def __init__(self, root: inspect.Type) -> None:
        self._root = root
        self._known: dict[int, Known] = {}
        self._weights: dict[int, int] = {}

    def fault(self, value: object, size: int) -> Fault | None:
        """Return what is wrong with JSON-like data that is to become a value of the type, if it has too much to compare.

        :param size: bytes of its JSON; whatever is in a few of them, each may be compared with each.
        """
        if size * size <= MAX_COMPARED:
            return None
        try:
            Count(self).cost(self._root, value)
        except Crowded as error:
            return render(reversed(error.way)), str(error)
        except RecursionError:
            return "$", "is nested too deep to be checked"
        return None

    def known(self, kind: inspect.Type) -> Known:
        """Return what is known of a part of the type."""
        found = self._known.get(id(kind))
        if found is None:
            shapes = [(each, _shape(each)) for each in alternatives(kind)] if self.lead(kind) else []
            lists = tuple(each for each, shape in shapes if shape is list)
            dicts = tuple(each for each, shape in shapes if shape is dict)
            found = self._known[id(kind)] = Known(lists, dicts, inside(kind), self._weight(kind))
        return found

    def lead(self, kind: inspect.Type) -> bool:
        """Tell whether there is such a table in a part of the type."""
        return any(self._weight(each) for each in reached(kind))

    def _weight(self, kind: inspect.Type) -> int:
        found = self._weights.get(id(kind))
        if found is None:
            found = self._weights[id(kind)] = weight(kind)
        return found


class Count:
    """What tables may still compare, in one look at a value."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._left = MAX_COMPARED

    def cost(self, kind: inspect.Type, value: Any, *, entry: bool = False) -> int:
        """Return what it costs to compare a value with its like: about its bytes; where it has sets, what these cost to build.

        :param entry: whether it stands in a table; of what does not, nobody asks for the cost.
        :raises Crowded: if the tables in it have too much to compare.
        """
        found = fitting(self._tables.known(kind), value) if value else None
        if found is None:
            return len(msgspec.json.encode(value)) if entry else 0
        known = self._tables.known(found)
        share = known.share
        entry = entry or share > 0
        if isinstance(found, inspect.CollectionType) and not self._leads(found.item_type):
            inner = len(msgspec.json.encode(value)) if entry else 0
        else:
            inner = self._inner(found, known.parts, value, entry=entry)
        return self._table(value, inner, share) if share and len(value) > 1 else inner

    def _leads(self, kind: inspect.Type) -> bool:
        known = self._tables.known(kind)
        return bool(known.lists or known.dicts)

    def _inner(self, kind: inspect.Type, types: tuple[inspect.Type, ...], value: Any, *, entry: bool) -> int:
        inner = 2
        for step, part, item in parts(kind, types, value):
            try:
                inner += self.cost(part, item, entry=entry)
            except Crowded as error:
                error.way.append(step)
                raise
        return inner

    def _table(self, value: list[Any] | dict[Any, Any], inner: int, share: int) -> int:
        entries = len(value)
        compared = inner if isinstance(value, list) else len(msgspec.json.encode(list(value)))
        cost = entries * compared // share
        if cost > self._left:
            raise Crowded(entries, isqrt(self._left * entries * share // compared))
        self._left -= cost
        return max(cost, inner)


def tables_of(type_: Any) -> Tables | None:
    """Return the tables of a type that has a JSON form; None, if it has none."""
    tables = Tables(root := inspect.type_info(type_))
    return tables if tables.lead(root) else None


def weight(kind: inspect.Type) -> int:
    """Return by what the cost of a table's entries is divided; 0 for what is no table, or one whose hashes nobody knows."""
    if isinstance(kind, inspect.SetType | inspect.FrozenSetType):
        entry = kind.item_type
    elif (entry := _keys(kind)) is None:
        return 0
    if all(_secret(each) or inside(each) for each in reached(entry)):
        return 0
    return NUMBERS if all(isinstance(each, NUMERIC) for each in alternatives(entry)) else 1


def fitting(known: Known, value: Any) -> inspect.Type | None:
    """Return which of the alternatives in a type a list or a dict is; None for anything else, and where there are no tables."""
    found = known.lists if isinstance(value, list) else known.dicts if isinstance(value, dict) else ()
    if len(found) > 1:  # Structs, told apart by tags
        structs = cast("tuple[inspect.StructType, ...]", found)
        tag = _tag(value, structs[0].tag_field)
        found = [each for each in structs if each.tag == tag]
    return found[0] if found else None


def parts(kind: inspect.Type, types: tuple[inspect.Type, ...], value: Any) -> Iterator[Part]:
    """Yield the parts of a list or a dict that is of a type, each with its place and its type."""
    if isinstance(kind, inspect.CollectionType):
        yield from ((index, kind.item_type, item) for index, item in enumerate(value))
    elif isinstance(value, list):
        items = cast("list[Any]", value)
        first = int(getattr(kind, "tag", None) is not None)
        yield from zip(range(first, len(items)), types, items[first:], strict=False)
    elif (fields := _fields(kind)) is None:
        yield from ((str(key), types[1], item) for key, item in cast("dict[Any, Any]", value).items())
    else:
        yield from ((field.encode_name, field.type, value[field.encode_name]) for field in fields if field.encode_name in value)


def reached(kind: inspect.Type) -> list[inspect.Type]:
    """Return a type and all that is in it."""
    found = {id(kind): kind}
    left = [kind]
    while left:
        for each in inside(left.pop()):
            if id(each) not in found:
                found[id(each)] = each
                left.append(each)
    return list(found.values())


def alternatives(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    """Return the types that a value may have."""
    if isinstance(kind, inspect.Metadata):
        return alternatives(kind.type)
    return sum(map(alternatives, kind.types), ()) if isinstance(kind, inspect.UnionType) else (kind,)


def inside(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    """Return the types that a type is made of."""
    match kind:
        case inspect.Metadata():
            return (kind.type,)
        case inspect.UnionType():
            return kind.types
        case inspect.CollectionType():
            return (kind.item_type,)
        case inspect.TupleType():
            return kind.item_types
        case _ if (keys := _keys(kind)) is not None:
            return (keys, cast("inspect.DictType", kind).value_type)
        case _:
            return tuple(field.type for field in _fields(kind) or ())


def _secret(kind: inspect.Type) -> bool:
    """Tell whether the hashes of a type's values come from text."""
    if isinstance(kind, inspect.LiteralType):
        return all(isinstance(value, str) for value in kind.values)
    if isinstance(kind, inspect.EnumType):  # else from the member's name
        return not issubclass(kind.cls, int)
    return isinstance(kind, SECRET)


def _tag(value: Any, field: str | None) -> object:
    return next(iter(cast("list[object]", value)), None) if isinstance(value, list) else value.get(field)


def _keys(kind: inspect.Type) -> inspect.Type | None:
    return getattr(kind, "key_type", None)  # of a dict, or of a frozendict, which not every release knows


def _fields(kind: inspect.Type) -> tuple[inspect.Field, ...] | None:
    return getattr(kind, "fields", None)


def _shape(kind: inspect.Type) -> type | None:
    if isinstance(kind, inspect.CollectionType | inspect.TupleType | inspect.NamedTupleType) or getattr(kind, "array_like", False):
        return list
    return dict if _keys(kind) is not None or _fields(kind) is not None else None
