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
"""Entries times bytes, of all tables; the worst that fits has taken about 50 ms."""
NUMBERS = 16  # numbers are seldom equal, and soon compared
SECRET = (
    *(inspect.StrType, inspect.BytesType, inspect.ByteArrayType, inspect.MemoryViewType),
    *(inspect.DateType, inspect.NoneType),
)
NUMERIC = (
    *(*SECRET, inspect.AnyType, inspect.BoolType, inspect.IntType, inspect.FloatType, inspect.EnumType, inspect.LiteralType),
    *(inspect.DateTimeType, inspect.TimeType, inspect.TimeDeltaType),
)
Place: TypeAlias = tuple[str | int, ...]
Part: TypeAlias = tuple[str | int, inspect.Type, Any]


class Crowded(Exception):
    """A table has more entries than may be compared."""

    def __init__(self, place: Place, entries: int, most: int) -> None:
        super().__init__(f"has {entries} entries, the limit is {most} of this size: they are compared with each other")
        self.place = place


class Tables:
    """The sets and dicts of a type whose hashes are known to who writes the JSON."""

    def __init__(self, root: inspect.Type) -> None:
        self._root = root
        self._leading: dict[int, bool] = {}

    def fault(self, value: object, size: int) -> Fault | None:
        """Return what is wrong with JSON-like data that is to become a value of the type, if it has too much to compare.

        :param size: bytes of its JSON; whatever is in a few of them, each may be compared with each.
        """
        if size * size <= MAX_COMPARED:
            return None
        try:
            Count(self).cost(self._root, value, ())
        except Crowded as error:
            return render(error.place), str(error)
        except RecursionError:
            return "$", "is nested too deep to be checked"
        return None

    def lead(self, kind: inspect.Type) -> bool:
        """Tell whether there is such a table in a part of the type."""
        known = self._leading.get(id(kind))
        if known is None:
            known = self._leading[id(kind)] = any(weight(each) for each in reached(kind))
        return known


class Count:
    """What tables may still compare, in one look at a value."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._left = MAX_COMPARED

    def cost(self, kind: inspect.Type, value: Any, place: Place) -> int:
        """Return what it costs to compare a value with its like: about its bytes; where it has sets, what these cost to build.

        :raises Crowded: if the tables in it have too much to compare.
        """
        found = fitting(kind, value) if self._tables.lead(kind) else None
        if found is None:
            return len(msgspec.json.encode(value))
        if isinstance(found, inspect.CollectionType) and not self._tables.lead(found.item_type):
            inner = len(msgspec.json.encode(value))
        else:
            inner = 2 + sum([self.cost(part, item, (*place, step)) for step, part, item in parts(found, value)])
        share = weight(found)
        if not share:
            return inner
        entries = list(cast("list[Any] | dict[Any, Any]", value))
        compared = inner if isinstance(value, list) else len(msgspec.json.encode(entries))
        cost = len(entries) * compared // share
        if cost > self._left:
            raise Crowded(place, len(entries), isqrt(self._left * len(entries) * share // compared))
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
    if all(isinstance(each, SECRET) or inside(each) for each in reached(entry)):
        return 0
    return NUMBERS if all(isinstance(each, NUMERIC) for each in alternatives(entry)) else 1


def fitting(kind: inspect.Type, value: Any) -> inspect.Type | None:
    """Return which of the alternatives in a type a list or a dict is; None for anything else."""
    found = [each for each in alternatives(kind) if (shape := _shape(each)) is not None and isinstance(value, shape)]
    if len(found) > 1:  # Structs, told apart by tags
        structs = cast("list[inspect.StructType]", found)
        tag = _tag(value, structs[0].tag_field)
        found = [each for each in structs if each.tag == tag]
    return found[0] if found else None


def parts(kind: inspect.Type, value: Any) -> Iterator[Part]:
    """Yield the parts of a list or a dict that is of a type, each with its place and its type."""
    if isinstance(kind, inspect.CollectionType):
        yield from ((index, kind.item_type, item) for index, item in enumerate(value))
    elif isinstance(value, list):
        items = cast("list[Any]", value)
        first = int(getattr(kind, "tag", None) is not None)
        yield from zip(range(first, len(items)), inside(kind), items[first:], strict=False)
    elif (fields := _fields(kind)) is None:
        yield from ((str(key), inside(kind)[1], item) for key, item in cast("dict[Any, Any]", value).items())
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
