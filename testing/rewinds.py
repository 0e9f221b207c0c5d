"""Puts a whole store back to what it was, as a failover may that has lost its newest writes."""

from __future__ import annotations

import copy
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol, final

from ..store.base import TurnStore
from ..store.memory import MemoryStore
from ..store.sqlite import SqliteStore


class Past(Protocol):
    """What a store was at a moment."""

    def put_back(self) -> None:
        """Make the store what it was."""
        ...


@final
class PastMemory:
    """A memory store's past."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._kept: dict[str, Any] = copy.deepcopy(vars(store.core))

    def put_back(self) -> None:
        """Forget what came since, and let all nodes look."""
        vars(self._store.core).update(copy.deepcopy(self._kept))
        for bell in list(self._store.bells):
            bell("any", "")


@final
class PastFile:
    """The past of a file that is used inline: nobody is in the middle of a transaction."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept = sqlite3.connect(":memory:")
        with closing(sqlite3.connect(path)) as file:
            file.backup(self._kept)

    def put_back(self) -> None:
        """Forget what came since; nodes find out by their polls."""
        with closing(sqlite3.connect(self._path)) as file:
            self._kept.backup(file)


def past_of(store: TurnStore) -> Past | None:
    """Return what a store is now, if it is one that can be put back."""
    if isinstance(store, MemoryStore):
        return PastMemory(store)
    return PastFile(store.path) if isinstance(store, SqliteStore) else None
