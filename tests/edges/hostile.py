"""Values that no caller should pass, by what is wrong with them."""

from __future__ import annotations

from functools import reduce
from typing import Any

MEGABYTES = "x" * 10_000_000
DEEP = reduce(lambda inner, _: [inner], range(10_000), 1)
DEEP_DICT = reduce(lambda inner, _: {"a": inner}, range(10_000), 1)


class Rude:
    """Refuses to be shown."""

    def __repr__(self) -> str:
        raise KeyError("no")


class Word(str):
    """Text of a class of its own, which has no JSON form."""

    __slots__ = ()


def cyclic() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["again"] = found
    return found


NO_TEXT: dict[str, Any] = {"a number": 5, "bytes": b"x", "a list": ["x"], "a flag": True, "rude": Rude()}

# case -> (value, words of the error); for texts that name something
BAD_NAMES: dict[str, tuple[Any, str]] = {
    **{name: (value, "must be text") for name, value in NO_TEXT.items()},
    "empty": ("", "must not be blank"),
    "blank": (" \t\n", "must not be blank"),
    "a lone surrogate": ("x\ud800", "not valid Unicode"),
    "a NUL": ("a\0b", "NUL"),
    "10 MB": (MEGABYTES, "bytes, the limit is"),
}

# for dicts that are stored as JSON
BAD_OBJECTS: dict[str, tuple[Any, str]] = {
    "a list": ([1], "must be a dict"),
    "text": ("x", "must be a dict"),
    "rude": (Rude(), "must be a dict"),
    "a key of another type": ({1: "x"}, "has a key that is not text"),
    "a rude key": ({Rude(): "x"}, "has a key that is not text"),
    "a surrogate in a key": ({"\ud800": 1}, "not valid Unicode"),
    "a surrogate": ({"a": ["\udfff"]}, r"\.a\[0\] is not valid Unicode"),
    "NaN": ({"a": float("nan")}, "is nan"),
    "infinity": ({"a": {"b": float("-inf")}}, r"\.a\.b is -inf"),
    "a set": ({"a": {1}}, "is a set"),
    "bytes": ({"a": b"x"}, "is a bytes"),
    "a tuple": ({"a": (1,)}, "is a tuple"),
    "an object": ({"a": Rude()}, "is a Rude"),
    "text of an own class": ({"a": Word("x")}, "not JSON-like"),
    "2**70": ({"a": 2**70}, "outside 64 bits"),
    "cyclic": (cyclic(), "nested too deep"),
    "10,000 levels of lists": ({"a": DEEP}, "nested too deep"),
    "10,000 levels of dicts": (DEEP_DICT, "nested too deep"),
    "10 MB": ({"a": MEGABYTES}, "bytes as JSON, the limit is 65536"),
    "many": ({str(number): 0 for number in range(70_000)}, "over the limit"),
}

# for whole numbers
BAD_NUMBERS: dict[str, Any] = {
    "a flag": True,
    "half": 1.5,
    "text": "5",
    "infinity": float("inf"),
    "a huge one": 10**5000,
    "rude": Rude(),
}

# for durations
BAD_DURATIONS: dict[str, tuple[Any, str]] = {
    "a flag": (True, "timedelta or seconds"),
    "text": ("5", "timedelta or seconds"),
    "rude": (Rude(), "timedelta or seconds"),
    "negative": (-1, "at least|must not be negative|more than 0"),
    "NaN": (float("nan"), "not a possible duration"),
    "infinity": (float("inf"), "not a possible duration"),
    "a huge number": (10**5000, "not a possible duration"),
    "beyond a timedelta": (1e300, "not a possible duration"),
    "two centuries": (200 * 366 * 86_400, "at most 36525 days"),
}


def cases(table: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a parametrization over a table."""
    return {"argvalues": list(table.values()), "ids": list(table)}
