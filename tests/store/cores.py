"""The cores that the tests drive, with what it takes to put each back in time."""

from __future__ import annotations

import copy
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

from turnhold.store.memory_core import MemoryCore
from turnhold.store.sqlite_core import SqliteCore

if TYPE_CHECKING:
    from pathlib import Path

    from turnhold.store import base as b


class Memory:
    """A memory core (or a mutant of it) in a box, so that it can be swapped for an earlier one."""

    def __init__(self, kind: type[Any] = MemoryCore) -> None:
        self.core = kind()

    def apply(self, op: b.Op, now: int) -> b.Reply:
        return self.core.apply(op, now)

    def take(self) -> Any:
        return copy.deepcopy(self.core)

    def put_back(self, taken: Any) -> None:
        self.core = copy.deepcopy(taken)

    def end(self) -> None:
        """Nothing is left."""


class Copy:
    """A copy of a database, closed when nobody has it any more."""

    def __init__(self, core: SqliteCore) -> None:
        self.connection = sqlite3.connect(":memory:")
        core.connection.backup(self.connection)

    def __del__(self) -> None:
        self.connection.close()


class Sqlite:
    """A SQLite core on a file; put back in time by copying the whole database."""

    def __init__(self, path: Path) -> None:
        self.path, self.core = path, SqliteCore.open(path, synchronous="OFF")

    def apply(self, op: b.Op, now: int) -> b.Reply:
        return self.core.apply(op, now)

    def take(self) -> Any:
        return Copy(self.core)

    def put_back(self, taken: Any) -> None:
        with closing(sqlite3.connect(self.path)) as other:  # the core would not notice it on its own connection
            taken.connection.backup(other)

    def end(self) -> None:
        """Close the file."""
        self.core.close()
        self.core.forget()
