"""Bends values that are well formed as bytes: fields changed, moved, doubled, left out, and what a store or a wire never holds."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec

CORPUS = Path(__file__).parent / "corpus"
TURNS: dict[str, dict[str, Any]] = {path.stem: msgspec.msgpack.decode(path.read_bytes()) for path in sorted(CORPUS.glob("*.turn"))}
LISTS: dict[str, list[bytes]] = {path.stem: msgspec.msgpack.decode(path.read_bytes()) for path in sorted(CORPUS.glob("*.list"))}
LEAVES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**53, 2**63, 2**64 - 1, -(2**63), 1e308, -0.0, float("nan"), float("inf")),
    *("", "x", "\0", "x" * 300, "/", "a/b/c", "RUNNING", "COMPLETED", "type", b"", b"x", [], {}, [[]], {"a": 1}, ["x"] * 3),
    *(253402300800000, -62135596800001, "2030-01-01T00:00:00Z", "9999-12-31T23:59:59.999999+23:59"),
)
FOREIGN: tuple[Any, ...] = (
    *(*LEAVES, 2**70, 10**400, "\ud800", "\udc00x", "a" * 10_000, "429", "error", "stop", "tool_use", "content_filter"),
    lambda: reduce(lambda inner, _: [inner], range(3000), 1),
    lambda: reduce(lambda inner, _: {"a": inner}, range(3000), 1),
)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each part of a value, down to a dozen levels."""
    yield at
    if len(at) > 12:
        return
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*at, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*at, index))


def bent(chance: random.Random, value: Any, leaves: tuple[Any, ...] = LEAVES) -> Any:
    """A copy of a value with one to three changes."""
    value = copy.deepcopy(value)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        every = list(places(value))
        *way, last = chance.choice(every) or (None,)
        if last is None:
            continue
        parent = reduce(lambda part, key: part[key], way, value)
        match chance.randrange(5):
            case 0 | 1:
                parent[last] = fresh(chance, leaves)
            case 2:
                other = reduce(lambda part, key: part[key], chance.choice(every), value)
                parent[last] = apart(other)
            case 3:
                del parent[last]
            case _ if isinstance(parent, list):
                parent.insert(last, fresh(chance, leaves))
            case _:
                parent[chance.choice(("type", "x", "", "a"))] = fresh(chance, leaves)
    return value


def apart(part: Any) -> Any:
    """A copy of a part, or nothing where it is too deep to be copied."""
    try:
        return copy.deepcopy(part)
    except RecursionError:
        return None


def fresh(chance: random.Random, leaves: tuple[Any, ...]) -> Any:
    """One of the leaves, made anew: it may be bent itself."""
    leaf = chance.choice(leaves)
    return leaf() if callable(leaf) else copy.deepcopy(leaf)


def packed(chance: random.Random, body: bytes) -> bytes:
    """Stored bytes, bent."""
    return msgspec.msgpack.encode(bent(chance, msgspec.msgpack.decode(body)))
