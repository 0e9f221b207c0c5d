"""Checks of single values that come in at the face. Each mistake is an `InvalidDefinition` that names the place and the limit."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, TypeAlias, cast

import msgspec

from .errors import InvalidDefinition
from .record import duration

MAX_ID = 128
MAX_KEY = 256
MAX_NAME = 512
MAX_TEXT = 65_536
MAX_DATA = 65_536
MAX_NUMBER = (1 << 63) - 1
LONGEST = timedelta(days=36_525)
"""A century: a time that is counted from now on stays within the calendar."""

Place: TypeAlias = "str | tuple[Place, str | int]"
"""Where a value stands: a name, or a key or an index in another place; it becomes text only where somebody is told of it."""

_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = 100
_PATH = 200


def shown(value: object) -> str:
    """Return a value as a message may show it: short, whatever it is."""
    try:
        return _shown.repr(value).encode(errors="backslashreplace").decode()
    except Exception:
        return f"a {type(value).__name__}"


def check_text(name: str, value: object, limit: int, *, optional: bool = False, empty: bool = True) -> None:
    """Check one text argument of the face; up to `MAX_NAME` it is a name, which may hold no NUL.

    :raises InvalidDefinition: if it is not text, is empty where it must not be, has lone surrogates or is over the limit (bytes).
    """
    if value is None and optional:
        return
    if not isinstance(value, str):
        raise InvalidDefinition(f"{name} must be text, not {type(value).__name__}")
    if not empty and not value.strip():
        raise InvalidDefinition(f"{name} must not be blank")
    if len(value) <= limit and value.isascii() and (limit > MAX_NAME or "\0" not in value):
        return
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidDefinition(f"{name} is not valid Unicode: {error.reason}") from None
    if size > limit:
        raise InvalidDefinition(f"{name} has {size} bytes, the limit is {limit}")
    if limit <= MAX_NAME and "\0" in value:
        raise InvalidDefinition(f"{name} must not contain a NUL")


def check_flag(name: str, value: object, *, optional: bool = False) -> None:
    """Check a flag. :raises InvalidDefinition: if it is neither True nor False."""
    if not isinstance(value, bool) and not (value is None and optional):
        raise InvalidDefinition(f"{name} must be True or False, not {shown(value)}")


def check_whole(name: str, value: object, least: int = 0, most: int = MAX_NUMBER) -> None:
    """Check a whole number. :raises InvalidDefinition: if it is none, or out of bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidDefinition(f"{name} must be a whole number of at least {least}, not {shown(value)}")
    if value > most:
        raise InvalidDefinition(f"{name} must be at most {most}, not {shown(value)}")


def check_span(name: str, value: object, *, positive: bool = False) -> timedelta:
    """Return a duration (a timedelta, or seconds).

    :raises InvalidDefinition: if it is none, negative (with `positive`, or 0), or longer than a century.
    """
    if isinstance(value, bool) or not isinstance(value, timedelta | int | float):
        raise InvalidDefinition(f"{name} must be a timedelta or seconds, not {shown(value)}")
    try:
        span = duration(value)
    except (OverflowError, ValueError):
        raise InvalidDefinition(f"{name} is not a possible duration: {shown(value)}") from None
    if positive and span <= timedelta(0):
        raise InvalidDefinition(f"{name} must be more than 0, not {shown(value)}")
    if span < timedelta(0):
        raise InvalidDefinition(f"{name} must not be negative, not {shown(value)}")
    if span > LONGEST:
        raise InvalidDefinition(f"{name} must be at most {LONGEST.days} days, not {shown(value)}")
    return span


def check_json(name: str, value: object, limit: int = MAX_DATA, levels: int = 32) -> bytes:
    """Check that a value is JSON-like (None, bool, numbers, text, lists, dicts with text keys) and within bounds.

    :return: the value as JSON.
    :raises InvalidDefinition: if it is not, naming the place.
    """
    _walk(name, value, levels, iter(range(limit)))
    try:
        body = msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:  # a str that is a class of its own, say
        raise InvalidDefinition(f"{name} is not JSON-like: {error}") from None
    if len(body) > limit:
        raise InvalidDefinition(f"{name} has {len(body)} bytes as JSON, the limit is {limit}")
    return body


def check_object(name: str, value: object, limit: int = MAX_DATA, levels: int = 32) -> bytes:
    """Check that a value is a JSON-like dict, or another mapping with what JSON has. :raises InvalidDefinition: as `check_json`."""
    if type(value) is dict:
        return check_json(name, cast("object", value), limit, levels)
    if not isinstance(value, Mapping):
        raise InvalidDefinition(f"{name} must be a dict, not {type(value).__name__}")
    return check_json(name, dict(cast("Mapping[Any, Any]", value)), limit, levels)


def _walk(place: Place, value: object, levels: int, left: Iterator[int]) -> None:
    """Check one value and what is in it; each takes one of what is `left` (at least one byte), so shared parts cost no eternity."""
    if next(left, None) is None:
        raise InvalidDefinition(f"{_path(place)} is over the limit")
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        if not value.isascii() and (reason := _broken(value)):
            raise InvalidDefinition(f"{_path(place)} is not valid Unicode: {reason}")
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise InvalidDefinition(f"{_path(place)} is a whole number outside 64 bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidDefinition(f"{_path(place)} is {value}, which JSON does not have")
    elif isinstance(value, dict):
        _deeper(place, levels)
        for key, item in cast("dict[Any, Any]", value).items():
            if not isinstance(key, str):
                raise InvalidDefinition(f"{_path(place)} has a key that is not text: {shown(key)}")
            if not key.isascii() and (reason := _broken(key)):
                raise InvalidDefinition(f"{_path(place)}: a key is not valid Unicode: {reason}")
            _walk((place, key), item, levels - 1, left)
    elif isinstance(value, list):
        _deeper(place, levels)
        for index, item in enumerate(cast("list[Any]", value)):
            _walk((place, index), item, levels - 1, left)
    else:
        raise InvalidDefinition(f"{_path(place)} is a {type(value).__name__}, which is not JSON-like")


def _broken(text: str) -> str | None:
    """Tell why a text has no bytes, if it has none."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.reason
    return None


def _deeper(place: Place, levels: int) -> None:
    if levels <= 0:
        raise InvalidDefinition(f"{_path(place)} is nested too deep")


def _path(place: Place) -> str:
    if isinstance(place, str):
        return place
    above, step = place
    return f"{_path(above)}[{step}]" if isinstance(step, int) else f"{_path(above)}.{step}"[:_PATH]
