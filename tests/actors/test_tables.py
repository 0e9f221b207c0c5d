"""What sets and keys of dicts may compare, where whoever writes the JSON knows the hashes."""

from __future__ import annotations

import enum
import uuid
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from sys import hash_info
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest

from turnhold.actors import tables as module
from turnhold.actors.errors import ArgumentsInvalid, OutputInvalid
from turnhold.actors.output import output_of
from turnhold.actors.tables import tables_of
from turnhold.actors.tools import tool

Key = uuid.UUID


def same(count: int) -> list[str]:
    """UUIDs with one hash."""
    return [str(Key(int=7 + hash_info.modulus * (each + 1))) for each in range(count)]


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = -1
    HIGH = -2


class Point(msgspec.Struct, frozen=True):
    x: int
    y: int


class Tall(msgspec.Struct, frozen=True, array_like=True, tag=True):
    keys: frozenset[Key]


class Wide(msgspec.Struct, frozen=True, array_like=True, tag=True):
    keys: list[Key]


class Chain(msgspec.Struct, tag="chain", rename="camel"):
    own_keys: set[Key] = set()
    next: Chain | Lone | None = None


class Lone(msgspec.Struct, tag="lone", rename="camel"):
    own_keys: list[Key] = []


@dataclass
class Held:
    keys: set[Key]


class Named(TypedDict):
    keys: dict[Key, int]


class Pair(NamedTuple):
    first: int
    keys: set[Key]


KEYS, FEW = same(2000), same(900)
HOSTILE: list[tuple[Any, Any, str]] = [
    (set[Key], KEYS, "$.it"),
    (frozenset[Key], KEYS, "$.it"),
    (set[Key] | None, KEYS, "$.it"),
    (set[int | Key], KEYS, "$.it"),
    (set[Decimal], [str(hash_info.modulus * each) for each in range(3000)], "$.it"),
    (set[tuple[int, int]], [[each, each] for each in range(3000)], "$.it"),
    (set[tuple[str, int]], [["a", each] for each in range(3000)], "$.it"),
    (set[tuple[int, ...]], [[each] * 100 for each in range(1000)], "$.it"),
    (set[tuple[Level, ...]], [[-1 - (each >> bit & 1) for bit in range(11)] for each in range(2048)], "$.it"),
    (set[tuple[Literal[-1, -2], ...]], [[-1 - (each >> bit & 1) for bit in range(11)] for each in range(2048)], "$.it"),
    (set[Point], [{"x": each, "y": 1} for each in range(2000)], "$.it"),
    (dict[Key, int], dict.fromkeys(KEYS, 1), "$.it"),
    (dict[Key, list[int]], {key: [1] * 100 for key in KEYS}, "$.it"),
    (dict[int, int], {str(each): each for each in range(20_000)}, "$.it"),
    (set[int], list(range(20_000)), "$.it"),
    (set[float], [each / 7 for each in range(20_000)], "$.it"),
    (set[Any], list(range(20_000)), "$.it"),
    (set[datetime], ["2026-01-01T00:00:00.123456Z"] * 20_000, "$.it"),
    (list[set[Key]], [[], KEYS], "$.it[1]"),
    (list[set[Key]], [FEW, FEW], "$.it[1]"),
    (list[set[Key]], [same(60)] * 300, "$.it[284]"),
    (dict[str, set[Key]], {"a b": KEYS}, '$.it["a b"]'),
    (tuple[int, set[Key]], [1, KEYS], "$.it[1]"),
    (Held, {"keys": KEYS}, "$.it.keys"),
    (Named, {"keys": dict.fromkeys(KEYS, 1)}, "$.it.keys"),
    (Pair, [1, KEYS], "$.it[1]"),
    (Chain, {"next": {"type": "chain", "ownKeys": KEYS}}, "$.it.next.ownKeys"),
    (list[Chain | Lone], [{"type": "chain", "next": {"type": "chain", "ownKeys": KEYS}}], "$.it[0].next.ownKeys"),
    (Tall, ["Tall", KEYS], "$.it[1]"),
    (list[Tall | Wide], [["Wide", KEYS], ["Tall", KEYS]], "$.it[1][1]"),
    (set[frozenset[Key]], [same(60)] * 100, "$.it"),
    (set[frozenset[int]], [[each] for each in range(5000)], "$.it"),
    (set[Tall], [["Tall", same(60)]] * 100, "$.it"),
]
HARMLESS: list[tuple[Any, Any]] = [
    (set[str], [f"{each}" for each in range(50_000)]),
    (set[tuple[str, str | None]], [["a", f"{each}"] for each in range(20_000)]),
    (dict[str, int], {f"{each}": each for each in range(50_000)}),
    (dict[date, int], {"2026-01-01": 1}),
    (list[Key], KEYS),
    (list[Tall | Wide], [["Wide", KEYS]]),
    (list[Chain | Lone], [{"type": "lone", "ownKeys": KEYS}]),
    (Chain, {"next": {"type": "lone", "ownKeys": KEYS}}),
    (set[Key], same(1000)),
    (list[set[Key]], [same(20)] * 1000),
    (set[int], list(range(8000))),
    (dict[int, str], {str(each): "a" * 100 for each in range(6000)}),
    (set[Literal["a", "b"]], ["a", "b"]),
    (set[tuple[Literal["a", "b"], Color, str]], [["a", "red", f"{each}"] for each in range(20_000)]),
    (set[Tall], [["Tall", [KEYS[each]]] for each in range(500)]),
]


def holder(type_: Any) -> type[msgspec.Struct]:
    return msgspec.defstruct("holder", [("it", type_)])


@pytest.mark.parametrize(("type_", "value", "path"), HOSTILE)
def test_too_much_to_compare_is_named(type_: Any, value: Any, path: str) -> None:
    """Whatever the table is in, its place and its limit are told, before anything is compared."""
    tables = tables_of(holder(type_))

    assert tables is not None
    fault = tables.fault({"it": value}, 1 << 20)
    assert fault is not None
    assert fault[0] == path
    assert "entries, the limit is" in fault[1]


@pytest.mark.parametrize(("type_", "value"), HARMLESS)
def test_what_takes_no_time_is_taken(type_: Any, value: Any) -> None:
    """Text has no hash that a writer knows, a list compares nothing, and a table may have hundreds of entries."""
    struct = holder(type_)
    tables = tables_of(struct)

    assert tables is None or tables.fault({"it": value}, 1 << 20) is None
    msgspec.json.decode(msgspec.json.encode({"it": value}), type=struct)


def test_the_worst_that_is_taken_compares_no_more_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of UUIDs with one hash, as many as are taken are under a million comparisons, in one set or in many."""
    compared = 0
    plain = Key.__eq__

    def counted(one: Key, other: object) -> bool:
        nonlocal compared
        compared += 1
        return plain(one, other)

    @tool
    def forget(keys: list[set[Key]]) -> str:
        return ""

    monkeypatch.setattr(Key, "__eq__", counted)
    cases: list[list[Any]] = [[same(1000)], [same(100)] * 100]
    for value in cases:
        compared = 0
        forget.bind({"keys": value})
        assert 0 < compared < 1_000_000
        with pytest.raises(ArgumentsInvalid, match=r"\$\.keys\[\d+\] has \d+ entries, the limit is \d+"):
            forget.bind({"keys": [*value, *value]})


def test_a_tool_without_such_tables_looks_for_none() -> None:
    """Most tools pay nothing."""
    assert tables_of(holder(list[dict[str, set[str] | Point | Key]])) is None


def test_a_type_is_looked_at_once_whatever_the_value_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for tables is not to cost more than they would: a megabyte has 300,000 empty sets."""
    wide = msgspec.defstruct("wide", [(f"field{each}", int, 0) for each in range(100)], frozen=True)
    tables = tables_of(holder(list[set[wide] | None]))
    looks = 0
    plain = module.reached

    def counted(kind: Any) -> Any:
        nonlocal looks
        looks += 1
        return plain(kind)

    monkeypatch.setattr(module, "reached", counted)

    assert tables is not None
    for _ in range(2):
        assert tables.fault({"it": [[{"field1": 1}], [], None] * 1000}, 1 << 20) is None
        assert looks < 1000  # of the first time, hardly more than one for each of 110 types
    looks = 0
    assert tables.fault({"it": [[{}], []] * 1000}, 1 << 20) is None
    assert looks == 0


@pytest.mark.parametrize("type_", [set[Key], Held])
def test_a_reply_of_a_type_is_bounded_too(type_: Any) -> None:
    """What a model says at the end becomes a value in the same way."""
    value = KEYS if type_ is not Held else {"keys": KEYS}

    with pytest.raises(OutputInvalid, match="2000 entries, the limit is 1012"):
        output_of("agent", type_).read(msgspec.json.encode(value).decode())


def test_deep_data_is_no_fault_of_ours() -> None:
    """Levels without end are told, as everywhere."""
    inner: Any = {}
    for _ in range(5000):
        inner = {"type": "chain", "next": inner}
    tables = tables_of(Chain)

    assert tables is not None
    assert tables.fault(inner, 1 << 20) == ("$", "is nested too deep to be checked")
