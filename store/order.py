"""A sorted index for the memory store: cheap at the end, cheap to remove from, pages from any key."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")
Key = tuple[int, str]


class SortedIndex(Generic[Value]):
    """Values by (number, id), in order. Keys mostly come in ascending order; a removed key is swept out later."""

    __slots__ = ("_keys", "_values")

    def __init__(self) -> None:
        self._keys: list[Key] = []
        self._values: dict[Key, Value] = {}

    def __len__(self) -> int:
        return len(self._values)

    def put(self, key: Key, value: Value) -> None:
        """Set the value of a key."""
        if key not in self._values:
            if not self._keys or key > self._keys[-1]:
                self._keys.append(key)
            else:
                place = bisect_left(self._keys, key)
                if self._keys[place] != key:  # else it was removed and still stands here
                    self._keys.insert(place, key)
        self._values[key] = value

    def drop(self, key: Key) -> None:
        """Remove a key; one that is absent is no fault."""
        if self._values.pop(key, None) is not None and len(self._keys) > 2 * len(self._values) + 64:
            self._sweep()

    def above(self, key: Key | None) -> Iterator[tuple[Key, Value]]:
        """Yield keys and values in order, those above `key`, or all. The index may not change meanwhile."""
        start = 0 if key is None else bisect_right(self._keys, key)
        for index in range(start, len(self._keys)):
            found = self._keys[index]
            value = self._values.get(found)
            if value is not None:
                yield found, value

    def _sweep(self) -> None:
        if len(self._keys) != len(self._values):
            self._keys = [key for key in self._keys if key in self._values]
