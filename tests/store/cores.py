"""The cores that the tests drive, with what it takes to put each back in time."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from turnhold.store.memory_core import MemoryCore

if TYPE_CHECKING:
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
