"""The store in memory: ``memory://`` for one Runtime, ``memory://name`` for all of a process.

A shared one lives as long as the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ..actors.ids import root_of
from .base import Bell, Live, Op, Reply
from .bells import rings
from .memory_core import MemoryCore

Watcher = TypeVar("Watcher", Bell, Live)
_shared: dict[str, MemoryStore] = {}


class MemoryStore:
    """Turns in this process's memory.

    Operations are applied on the loop of the caller; a store belongs to one loop's thread.
    """

    poll_seconds: float | None = None
    lease_seconds = 10.0
    partitioned = False
    proves_death = True

    def __init__(self, *, namespace: str = "") -> None:
        self.namespace = namespace
        self.core = MemoryCore()
        self.bells: list[Bell] = []
        self.watched: dict[str, dict[Bell, int]] = {}  # by root: where "saved" is rung, and how often that was asked
        self.live: dict[str, dict[Live, int]] = {}  # the same of what is not stored

    @classmethod
    def shared(cls, name: str) -> MemoryStore:
        """Return the store of this name, made when nobody holds it yet."""
        store = _shared.get(name)
        if store is None:
            store = _shared[name] = cls(namespace=name)
        return store

    @classmethod
    def from_url(cls, url: str) -> MemoryStore:
        """Return the store of ``memory://`` (a new one) or ``memory://name`` (the shared one)."""
        name = url.removeprefix("memory://")
        return cls.shared(name) if name else cls()

    async def connect(
        self, node: str, bell: Bell, clock: Callable[[], int], *, inline: bool = False, live: Live | None = None
    ) -> MemoryConnection:
        """Connect a node; `inline` makes no difference here."""
        return MemoryConnection(self, bell, clock, live)


class MemoryConnection:
    """One node's use of a memory store."""

    def __init__(self, store: MemoryStore, bell: Bell, clock: Callable[[], int], live: Live | None) -> None:
        self._store = store
        self._apply = store.core.apply
        self._clock = clock
        self._bell = bell
        self._live = live
        store.bells.append(bell)

    async def call(self, op: Op) -> Reply:
        """Apply an operation; never suspends."""
        store = self._store
        reply = self._apply(op, self._clock())
        for kind, turn in rings(op, reply, store.core.roused):
            hearing = store.bells if kind != "saved" else store.watched.get(root_of(turn)) if store.watched else None
            for bell in list(hearing) if hearing else ():
                bell(kind, turn)
        return reply

    async def close(self) -> None:
        """Leave. A second time does nothing."""
        if self._bell in self._store.bells:
            self._store.bells.remove(self._bell)
        _forget(self._store.watched, self._bell)
        if self._live is not None:
            _forget(self._store.live, self._live)

    def now(self) -> int:
        """Return the store's time in milliseconds."""
        now, latest = self._clock(), self._store.core.latest
        if now < latest:
            return latest
        return now

    def dead_nodes(self) -> Sequence[str]:
        """Return nothing: in one process nobody dies alone."""
        return ()

    def watch(self, root: str, *, live: bool) -> None:
        """Ring "saved" for a tree from now on, and show what is published of it."""
        _add(self._store.watched, root, self._bell)
        if live and self._live is not None:
            _add(self._store.live, root, self._live)

    def unwatch(self, root: str, *, live: bool) -> None:
        """End one `watch`."""
        _drop(self._store.watched, root, self._bell)
        if live and self._live is not None:
            _drop(self._store.live, root, self._live)

    def publish(self, root: str, body: bytes) -> None:
        """Show a live event to the other nodes that watch the tree."""
        for watcher in list(self._store.live.get(root, ())):
            if watcher != self._live:
                watcher(root, body)

    def wants(self, root: str) -> bool:
        """Tell whether another node watches the tree with `live`."""
        return any(watcher != self._live for watcher in self._store.live.get(root, ()))


def _add(watched: dict[str, dict[Watcher, int]], root: str, watcher: Watcher) -> None:
    watchers = watched.setdefault(root, {})
    watchers[watcher] = watchers.get(watcher, 0) + 1


def _drop(watched: dict[str, dict[Watcher, int]], root: str, watcher: Watcher) -> None:
    watchers = watched.get(root, {})
    if watcher in watchers:
        watchers[watcher] -= 1
        if not watchers[watcher]:
            del watchers[watcher]
            if not watchers:
                del watched[root]


def _forget(watched: dict[str, dict[Watcher, int]], watcher: Watcher) -> None:
    for root in [root for root, watchers in watched.items() if watcher in watchers]:
        del watched[root][watcher]
        if not watched[root]:
            del watched[root]
