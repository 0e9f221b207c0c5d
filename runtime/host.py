"""What all actors of a node share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..actors.carried import StructTypes
from ..store.base import Op, Reply
from .counters import Counters
from .settings import Settings
from .watch import Watch
from .world import World

if TYPE_CHECKING:
    from .relay import Relay


class Host(Protocol):
    """A node, as its actors see it. `term`: for how many seconds a lease is certainly held from when a call extended it."""

    world: World
    settings: Settings
    term: float
    watch: Watch
    counters: Counters
    relay: Relay
    services: object
    types: StructTypes
    node: str
    execute: bool
    draining: bool
    dead: bool

    async def call(self, op: Op) -> Reply:
        """Apply a store operation; an unknown outcome is repeated for as long as an operation may take."""
        ...

    def now(self) -> int:
        """Return the store's time in milliseconds."""
        ...

    def new_id(self) -> str:
        """Return a new random id."""
        ...

    async def announce(self) -> bool:
        """Announce the node to the others; tell whether the store took it."""
        ...

    def look_everywhere(self) -> None:
        """Bells may have been missed: look for everything they might have said."""
        ...
