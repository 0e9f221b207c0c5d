"""Whether data fits a JSON Schema 2020-12: an evaluator with a budget of steps and a time limit for patterns.

It differs from a general library on purpose: the work for one check is bounded whatever the schema and the data are, and its
messages never repeat the data (which may be a secret). It expects a schema whose references are resolved (see `schema`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, TypeAlias, cast

import msgspec
import regex

from .record import JsonObject, JsonValue

Fault: TypeAlias = tuple[str, str]
Schema: TypeAlias = JsonObject | bool
Place: TypeAlias = tuple[str | int, ...]

MAX_FAULTS = 20
STEPS = 300_000
MATCHES = 10_000
MATCH_SECONDS = 0.05
SLOW_MATCHES = 16
FORMATS: dict[str, Any] = {
    "date": date,
    "date-time": datetime,
    "time": time,
    "duration": timedelta,
    "uuid": Annotated[str, msgspec.Meta(pattern=r"^[0-9a-fA-F]{8}(-?)([0-9a-fA-F]{4}\1){3}[0-9a-fA-F]{12}\Z")],
    "decimal": Decimal,
}
UNEVALUATED = frozenset({"unevaluatedItems", "unevaluatedProperties"})  # these look at what the others have left
KINDS = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "text",
}


class Enough(Exception):
    """As many faults as are reported."""


class TooLong(Exception):
    """The budget is used up."""


class Seen:
    """Which members of one value a schema has looked at; what is left is for `unevaluated…`."""

    __slots__ = ("items", "keys")

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.items: set[int] = set()

    def add(self, other: Seen) -> None:
        """Take over what another schema has looked at."""
        self.keys |= other.keys
        self.items |= other.items


class At:
    """Where a check stands: the place in the data, what was looked at there, and whether faults are noted."""

    __slots__ = ("place", "report", "seen")

    def __init__(self, place: Place = (), *, report: bool = False) -> None:
        self.place = place
        self.report = report
        self.seen = Seen()

    def at(self, step: str | int) -> At:
        """Go to a member."""
        return At((*self.place, step), report=self.report)


Rule: TypeAlias = "Callable[[Check, Any, JsonValue, At], bool]"
Rules: TypeAlias = dict[str, Rule]


class Check:
    """One run of a schema over one piece of data.

    :param targets: the schema behind each ``$ref`` text.
    :param constants: a cache of comparable forms of the schema's enums.
    :param steps: how much work the check may be; about what one keyword, member or comparison takes is one step.
    """

    def __init__(
        self, rules: Rules, targets: dict[str, Schema], constants: dict[int, frozenset[Hashable]], steps: int = STEPS
    ) -> None:
        self.rules = rules
        self.targets = targets
        self.constants = constants
        self.found: list[Fault] = []
        self.steps = steps
        self.matches = MATCHES
        self.slow = SLOW_MATCHES

    def spend(self, steps: int = 1) -> None:
        """Use up some of the budget."""
        self.steps -= steps
        if self.steps < 0:
            raise TooLong("takes too long to check")

    def fault(self, at: At, message: str) -> bool:
        """Note a fault, where faults are noted; always false."""
        if at.report:
            self.found.append((render(at.place), message))
            if len(self.found) >= MAX_FAULTS:
                raise Enough
        return False

    def fits(self, schema: JsonValue, data: JsonValue, seen: Seen | None = None) -> bool:
        """Tell whether data fits, without noting faults; what a fitting schema has looked at goes to `seen`."""
        at = At()
        good = self.apply(schema, data, at)
        if good and seen is not None:
            seen.add(at.seen)
        return good

    def also(self, schema: JsonValue, data: JsonValue, at: At) -> bool:
        """Check data against one more schema at the same place: it does not see what others have looked at, they see its own."""
        own = At(at.place, report=at.report)
        good = self.apply(schema, data, own)
        at.seen.add(own.seen)
        return good

    def apply(self, schema: JsonValue, data: JsonValue, at: At) -> bool:
        """Check data against a schema; stop at the first fault unless faults are noted."""
        self.spend()
        if isinstance(schema, bool):
            return schema or self.fault(at, "is not allowed")
        schema = cast("JsonObject", schema)
        self.spend(len(schema))
        good = True
        last: list[str] = []
        for keyword in schema:
            if keyword in UNEVALUATED:
                last.append(keyword)
            elif (rule := self.rules.get(keyword)) and not rule(self, schema, data, at):
                good = False
                if not at.report:
                    return False
        for keyword in last:
            good = self.rules[keyword](self, schema, data, at) and good
        return good

    def same(self, value: JsonValue) -> Hashable:
        """Return a key that is equal for equal JSON values (1 and 1.0 are, 1 and true are not)."""
        self.spend()
        if isinstance(value, bool):
            return ("bool", value)
        if isinstance(value, list):
            return ("list", tuple(self.same(item) for item in value))
        if isinstance(value, dict):
            return ("dict", frozenset((key, self.same(item)) for key, item in value.items()))
        return value

    def among(self, values: list[JsonValue], data: JsonValue) -> bool:
        """Tell whether data equals one of the values, which belong to the schema."""
        keys = self.constants.get(id(values))
        if keys is None:
            keys = self.constants[id(values)] = frozenset(self.same(value) for value in values)
        return self.same(data) in keys

    def matches_pattern(self, pattern: str, text: str) -> bool:
        """Search a pattern in a text. A match may be slow only a few times in one check.

        A first look is short; what does not end in it gets the full time, a limited number of times.
        """
        self.spend(1 + len(text) // 64)
        self.matches -= 1
        compiled = compiled_pattern(pattern)
        try:
            return compiled.search(text, timeout=MATCH_SECONDS / 50) is not None
        except TimeoutError:
            self.slow -= 1
        try:
            if self.slow >= 0 and self.matches >= 0:
                return compiled.search(text, timeout=MATCH_SECONDS) is not None
        except TimeoutError:
            pass
        raise TooLong("takes too long to match against a pattern")


@lru_cache(maxsize=1024)
def compiled_pattern(pattern: str) -> regex.Pattern[str]:
    """Compile a pattern.

    :raises regex.error: if it is not one; the compiler has other errors too for absurd ones.
    """
    return regex.compile(pattern)


def render(place: Place) -> str:
    """Return a place as a path: ``$.items[0].age``."""
    text = "$"
    for step in place:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.isidentifier() or step.startswith("$"):
            text += f".{step[:64]}"
        elif step.isdecimal():
            text += f"[{step[:20]}]"
        else:
            text += f"[{json.dumps(step[:64])}]"
    return text


def is_kind(kind: str, data: JsonValue) -> bool:
    """Tell whether data is of a JSON type."""
    if kind == "null":
        return data is None
    if kind == "boolean":
        return isinstance(data, bool)
    if kind == "string":
        return isinstance(data, str)
    if kind == "array":
        return isinstance(data, list)
    if kind == "object":
        return isinstance(data, dict)
    if isinstance(data, bool) or not isinstance(data, int | float):
        return False
    return kind == "number" or isinstance(data, int) or data.is_integer()


def is_multiple(data: float, of: float) -> bool:
    """Tell whether a number is a multiple of another, as decimals."""
    return (Fraction(str(data)) / Fraction(str(of))).denominator == 1


def is_format(name: str, text: str) -> bool:
    """Tell whether text is of a format, as far as we know it."""
    try:
        msgspec.convert(text, FORMATS[name])
    except msgspec.ValidationError:
        return False
    return True


def listed(values: Iterable[JsonValue]) -> str:
    """Return values of a schema as short text."""
    text = ", ".join(msgspec.json.encode(value).decode() for value in values)
    return text if len(text) <= 200 else text[:199] + "…"
