"""A store around a store: counts what is answered, and kills or stops this process at a chosen call."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence

from turnhold.store.base import Bell, Live, Op, Reply, StoreConnection, TurnStore
from turnhold.store.rules import OPERATIONS


class SpyStore:
    """Looks like the store it is around. One node connects to it; a `deaf` one hears no bell."""

    def __init__(self, inner: TurnStore, event: Callable[..., None], *, deaf: bool = False) -> None:
        self.namespace = inner.namespace
        self.poll_seconds = inner.poll_seconds
        self.lease_seconds = inner.lease_seconds
        self.partitioned = inner.partitioned
        self.proves_death = inner.proves_death
        self.counts: Counter[str] = Counter()
        self._inner = inner
        self._event = event
        self._deaf = deaf
        self._connection: SpyConnection | None = None
        self._points: list[Point] = []
        self._rung = asyncio.Event()

    async def connect(
        self, node: str, bell: Bell, clock: Callable[[], int], *, inline: bool = False, live: Live | None = None
    ) -> StoreConnection:
        def heard(kind: str, turn: str) -> None:
            if not self._deaf:
                bell(kind, turn)
                self._rung.set()

        inner = await self._inner.connect(node, heard, clock, inline=inline, live=live)
        self._connection = SpyConnection(self, inner)
        return self._connection

    def arm(self, point: Point) -> None:
        self._points.append(point)

    async def stop(self) -> None:
        """Stop this process while no store call is under way: it must not take the file's lock along."""
        assert self._connection is not None
        await self._connection.stop()

    async def strike(self, when: str, op: Op) -> None:
        """Do what is armed at this point."""
        for point in self._points:
            if not point.fits(when, op):
                continue
            if point.how == "stop":
                await self.stop()
            elif point.pid is None:
                os.kill(os.getpid(), signal.SIGKILL)
            else:
                await self._kill(point.pid)

    async def _kill(self, pid: int) -> None:
        """Kill another process, and go on when its death is known here."""
        assert self._connection is not None
        known = set(self._connection.dead_nodes())
        os.kill(pid, signal.SIGKILL)
        while known >= set(self._connection.dead_nodes()):
            self._rung.clear()
            await self._rung.wait()

    def told(self, op: Op, reply: Reply) -> None:
        self.counts[f"{OPERATIONS[type(op)]} {type(reply).__name__}"] += 1

    def freezing(self) -> None:
        self._event("freezing")


class Point:
    """A place where something happens once: this process is stopped, or it (or the one with that pid) is killed.

    `version` counts the saves of a turn whoever makes them; of all processes with the same `mark`, a file, one is struck.
    """

    def __init__(
        self,
        how: str,
        op: str,
        when: str,
        nth: int = 1,
        turn: str | None = None,
        pid: int | None = None,
        version: int | None = None,
        mark: str = "",
    ) -> None:
        self.how, self.pid = how, pid
        self._op, self._when, self._left, self._turn = op, when, nth, turn
        self._version, self._mark = version, mark

    def fits(self, when: str, op: Op) -> bool:
        """Tell whether this call is the one."""
        if when != self._when or self._op not in {"*", OPERATIONS[type(op)]}:
            return False
        if self._turn is not None and getattr(op, "turn", None) != self._turn:
            return False
        if self._version is not None and getattr(op, "version", None) != self._version:
            return False
        self._left -= 1
        return self._left == 0 and self._first()

    def _first(self) -> bool:
        """Tell whether no other process was struck before."""
        if not self._mark:
            return True
        try:
            os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        return True


class SpyConnection:
    """Looks like the connection it is around."""

    def __init__(self, store: SpyStore, inner: StoreConnection) -> None:
        self._store, self._inner = store, inner
        self.watch, self.unwatch = inner.watch, inner.unwatch
        self.publish, self.wants = inner.publish, inner.wants
        self._under_way = 0
        self._quiet = asyncio.Event()
        self._thawed = asyncio.Event()
        self._thawed.set()

    async def call(self, op: Op) -> Reply:
        await self._thawed.wait()
        await self._store.strike("before", op)
        self._under_way += 1
        try:
            reply = await self._inner.call(op)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._quiet.set()
        self._store.told(op, reply)
        await self._store.strike("after", op)
        return reply

    async def stop(self) -> None:
        """Hold back new calls, wait for the end of those under way, stop the process; go on when it is continued."""
        if not self._thawed.is_set():
            await self._thawed.wait()
            return
        self._thawed.clear()
        try:
            while self._under_way:
                self._quiet.clear()
                await self._quiet.wait()
            self._store.freezing()
            os.kill(os.getpid(), signal.SIGSTOP)
        finally:
            self._thawed.set()

    async def close(self) -> None:
        await self._inner.close()

    def now(self) -> int:
        return self._inner.now()

    def dead_nodes(self) -> Sequence[str]:
        return self._inner.dead_nodes()
