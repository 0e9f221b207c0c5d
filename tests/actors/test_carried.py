"""Structs beside JSON-like values: which types there may be, which values, and what is read back."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnhold import InvalidDefinition, ResumeCommand, Runtime, TurnOptions
from turnhold.actors.carried import StructTypes, carried, holds_struct

T = TypeVar("T")


class Point(msgspec.Struct):
    x: int
    y: float = 0.0


class Anything(msgspec.Struct):
    value: Any = None


class Strict(msgspec.Struct, forbid_unknown_fields=True, rename="camel", omit_defaults=True, tag="strict"):
    long_name: str = ""


class Box(msgspec.Struct, Generic[T]):
    inside: T


class Wild(msgspec.Struct):
    """Code of a class that raises, on purpose or by mistake."""

    calm: bool = True

    def __post_init__(self) -> None:
        if not self.calm:
            raise RuntimeError("wild")


class Same(msgspec.Struct):
    def __eq__(self, other: object) -> bool:
        raise KeyError("no idea")

    def __hash__(self) -> int:
        return 0


class Alone(msgspec.Struct, eq=False):
    x: int = 0


class Called(msgspec.Struct):
    function: Callable[[], None]


class Foreign:
    """Nothing that JSON knows."""


class Holding(msgspec.Struct):
    foreign: Foreign


class Mixed(msgspec.Struct):
    either: Point | Anything


class Lost(msgspec.Struct):
    what: "Nowhere"  # noqa: F821  # pyright: ignore[reportUndefinedVariable]


ALL = StructTypes([Point, Anything, Strict, Box, Wild, Same])


@pytest.mark.parametrize(
    ("types", "match"),
    [
        (5, "a list of Struct classes, not 5"),
        (Point, "a list of Struct classes"),
        ("Point", "a list of Struct classes"),
        ({"Point": Point}, "a list of Struct classes"),
        ([Point(1)], "must be Struct classes, not Point"),
        ([int], "must be Struct classes, not <class 'int'>"),
        ([dict], "must be Struct classes"),
        ([Foreign], "must be Struct classes"),
        ([msgspec.Struct], "must be Struct classes"),
        ([Box[int]], "must be Struct classes"),
        ([None], "must be Struct classes, not None"),
        ([Point, msgspec.defstruct("Point", [])], "test_carried.Point and .*Point have one name"),
        ([Alone], "Alone has eq=False"),
        ([Called], "types: Called has a type without a JSON form"),
        ([Holding], "types: Holding has a type without a JSON form.*Foreign"),
        ([Mixed], "types: Mixed"),
        ([Lost], "types: Lost has a type without a JSON form.*Nowhere"),
        ([msgspec.defstruct("P" * 200, [])], "types: a name has 200 bytes"),
    ],
)
def test_types_that_are_refused(types: Any, match: str) -> None:
    """What could not be stored and read back is found out when the Runtime is built."""
    with pytest.raises(InvalidDefinition, match=match):
        Runtime(types=types)


def test_types_that_are_taken() -> None:
    """A type may be given twice, and any iterable of types will do."""
    Runtime(types=(kind for kind in (Point, Strict, Point, Box)))


@pytest.mark.parametrize(
    "value",
    [
        Point(1, 2.5),
        [Point(1), {"a": [Point(2)]}],
        {"a": Strict("x"), "b": Strict(), "": Point(3), "~/.": {"0": [[Point(4)]]}},
        Anything({"a": [1, None]}),
        Box([1]),
        Wild(),
    ],
)
def test_a_round_trip(value: Any) -> None:
    """What is stored is JSON-like, and with its marks it is what was given; the value given is not touched."""
    before = msgspec.json.encode(value)
    plain, marks = ALL.plain("data", value)

    assert json.loads(json.dumps(plain)) == plain
    assert not holds_struct(plain)
    assert ALL.restored(plain, marks) == value == carried("data", value)
    assert StructTypes().restored(plain, marks) is plain
    assert not holds_struct(plain)
    assert msgspec.json.encode(value) == before


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
DEEP: list[Any] = []
for _ in range(60):
    DEEP = [DEEP, DEEP]


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ([Anything(Point(1))], r"data\[0\] is a .*Anything that is not read back as it is"),
        ({"a": Anything((1, 2))}, "Anything that is not read back"),
        (Anything(Foreign()), "data is a .*Anything without a JSON form.*Foreign"),
        (Anything(2**70), "64 bits"),
        (Anything(float("nan")), "not read back as it is"),
        (Anything("\ud800"), "without a JSON form"),
        (Point("x"), "Point that cannot be read back.*Expected `int`"),  # pyright: ignore[reportArgumentType]
        (Point(2**63), "outside 64 bits"),
        (Same(), "Same that cannot be read back"),
        ([Point(1), Foreign()], r"data\[1\] is a Foreign, which is not JSON-like"),
        ({1: Point(1)}, "a key that is not text"),
        ([Point(1), {1, 2}], "a set"),
        ((Point(1),), "a tuple"),
        (Point, "which is not JSON-like"),
        (Anything(CYCLE), "over the limit|without a JSON form"),
        (Anything(DEEP), "over the limit"),
        ([Point(1), DEEP], "over the limit|too deep"),
        ([Point(1), CYCLE], "over the limit|too deep"),
        ([Point(1)] * 40_000, "over the limit"),
        ([Anything("x" * 70_000)], "the limit is 65536"),
    ],
)
def test_values_that_are_refused(value: Any, match: str) -> None:
    """What would be lost, does not fit, or is over a limit is refused where it comes in, naming its place and its type."""
    types = StructTypes([Point, Anything, Same])
    with pytest.raises(InvalidDefinition, match=match):
        types.plain("data", value)
    with pytest.raises(InvalidDefinition, match=match):
        ResumeCommand.submit_form(None, value)


def test_places_are_bounded() -> None:
    """Each Struct has its place stored, so a long key above many of them is refused."""
    with pytest.raises(InvalidDefinition, match="data has too many Structs under long keys"):
        ALL.plain("data", {"k" * 1000: [Point(1)] * 66})

    ALL.plain("data", {"k" * 1000: [Point(1)] * 65})


def test_a_class_that_raises() -> None:
    """A value that was changed behind its own check is refused; a stored one is left plain, and whoever asks is told."""
    wild = Wild()
    wild.calm = False
    with pytest.raises(InvalidDefinition, match="Wild that cannot be read back: wild"):
        ALL.plain("data", wild)
    told: list[str] = []

    assert ALL.restored({"w": {"calm": False}}, ((("w",), "Wild"),), told.append) == {"w": {"calm": False}}
    assert told == ["w does not fit Wild: wild"]


@pytest.mark.parametrize(
    "marks",
    [
        ((("b",), "Point"),),
        ((("a", 0, "x"), "Point"),),
        ((("a", "x"), "Point"),),
        (((0,), "Point"),),
        ((("a", 7), "Point"),),
        (((), "Point"),),
        ((("a", 0), "Nothing"),),
    ],
)
def test_marks_that_do_not_fit(marks: Any) -> None:
    """Marks that point to nothing, as after damage to a snapshot, change nothing."""
    assert ALL.restored({"a": [{"x": "no"}]}, marks) == {"a": [{"x": "no"}]}


def test_options_are_values() -> None:
    """A Struct that is changed after it was put into options or a command changes neither."""
    point = Point(1)
    options, command = TurnOptions(metadata={"at": point}), ResumeCommand.give_result(None, [point])
    point.x = 9

    assert options.metadata == {"at": Point(1)}
    assert command.value == [Point(1)]
    with pytest.raises(InvalidDefinition, match="must be a dict, not Point"):
        TurnOptions(metadata=point)  # pyright: ignore[reportArgumentType]


class Color(enum.Enum):
    RED = "red"


class Full(msgspec.Struct):
    text: str
    number: float
    choice: Color | None
    table: dict[str, tuple[int, ...]]


LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5) | st.builds(Point, st.integers(0, 9))
FULL = st.builds(
    Full,
    st.text(max_size=5),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([None, Color.RED]),
    st.dictionaries(st.text(max_size=3), st.tuples(st.integers(0, 5)), max_size=2),
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)


VALUES = st.recursive(LEAVES | FULL, containers)


@given(VALUES)
def test_any_value(value: Any) -> None:
    """Whatever is taken comes back the same, and plain values are stored as they always were."""
    types = StructTypes([Point, Full])
    plain, marks = types.plain("data", value)

    assert types.restored(plain, marks) == value
    assert bool(marks) == holds_struct(value)
    if not marks:
        assert plain == value
