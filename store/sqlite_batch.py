"""Rows that are written at the end of a transaction: many with one statement, whichever operations of the transaction they are of.

A statement costs more than its row: it is looked up and bound, and gives Python's lock away, for which a busy loop makes it wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeAlias

Row: TypeAlias = "tuple[Any, ...]"
MOST = 64  # rows of a statement


class Kind:
    """A statement that takes any number of rows: `row` stands in it once for each, between `head` and `tail`.

    `one` is the statement for a single row, where there is a simpler one.
    """

    __slots__ = ("_head", "_row", "_tail", "_texts")

    def __init__(self, head: str, row: str, tail: str = "", *, one: str | None = None) -> None:
        self._head, self._row, self._tail = head, row, tail
        self._texts: dict[int, str] = {} if one is None else {1: one}

    def text(self, count: int) -> str:
        """Return the statement for a number of rows."""
        text = self._texts.get(count)
        if text is None:
            text = self._texts[count] = f"{self._head} {', '.join([self._row] * count)} {self._tail}"
        return text


def write(run: Callable[[str, Row | list[Any]], Any], kind: Kind, rows: Sequence[Row]) -> None:
    """Write rows, by numbers of rows for which there are few statements: each is compiled once."""
    at, left = 0, len(rows)
    while left:
        count = min(MOST, 1 << left.bit_length() - 1)
        some = rows[at : at + count]
        run(kind.text(count), some[0] if count == 1 else list(chain.from_iterable(some)))
        at, left = at + count, left - count
