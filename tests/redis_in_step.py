"""A Redis whose every call is over when it returns, at the time of its caller: as memory, and SQLite on the loop, work.

So what is written for virtual time runs on the scripts, too. Their bells are rung when the script has ended, within this process.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from turnhold.store import base
from turnhold.store.memory import MemoryConnection, MemoryStore
from turnhold.store.redis_keys import Keys
from turnhold.store.redis_scripts import Scripts

from .store.virtual_redis import CLOCK, VirtualConnection, VirtualRedisStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Bells are put down, not sent.
RUNG = """
  if command == 'SPUBLISH' then return server.call('RPUSH', 'rung', select(2, ...)) end
  return server.call(command, ...)
"""
READS = (base.Look, base.Due, base.Expired, base.Versions, base.Find, base.ReadHistory, base.ReadEvents, base.ReadReplies)


class Line:
    """A connection on a loop and a thread of its own; other threads wait for its answers."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="redis in step")
        self._thread.start()
        self._now = 0
        self._connection: VirtualConnection = self._done(self._opened(url))

    async def _opened(self, url: str) -> VirtualConnection:
        store = VirtualRedisStore(url)
        store.scripts = Scripts(CLOCK.replace("  return server.call(command, ...)\n", RUNG))
        connection = store.connection("in step", lambda *_: None, lambda: self._now, None)
        await connection.servers.learn()
        return connection

    def _done(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _applied(self, op: base.Op) -> tuple[base.Reply, list[bytes]]:
        reply = await self._connection.apply(op)
        if isinstance(op, READS):
            return reply, []
        (rung,) = await self._connection.ask([("LPOP", "rung", 1000)])
        return reply, rung or []

    def apply(self, namespace: str, op: base.Op, now: int) -> tuple[base.Reply, list[tuple[str, str]]]:
        """Apply an operation to a namespace; return the reply and the bells, as `base.StoreConnection` has them."""
        self._now = self._connection.latest = now
        self._connection.keys = Keys(namespace)
        reply, rung = self._done(self._applied(op))
        words = [each.decode().split(" ") for each in rung]
        return reply, [("work" if kind == "due" else kind, turn) for kind, turn, *_ in words]

    def close(self) -> None:
        """End both."""
        self._done(self._connection.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def line_to(url: str) -> Iterator[Line]:
    """Hold a connection for a while."""
    found = Line(url)
    try:
        yield found
    finally:
        found.close()


class StoreInStep(MemoryStore):
    """A namespace as a store for the nodes of this process."""

    def __init__(self, line: Line, namespace: str) -> None:
        super().__init__(namespace=namespace)
        self.line = line
        self.latest = 0

    async def connect(
        self, node: str, bell: base.Bell, clock: Callable[[], int], *, inline: bool = False, live: base.Live | None = None
    ) -> Connection:
        """Connect a node."""
        return Connection(self, bell, clock, live)


class Connection(MemoryConnection):
    """One node's use of it; live events take memory's way."""

    _store: StoreInStep

    async def call(self, op: base.Op) -> base.Reply:
        """Apply an operation; never suspends."""
        self._store.latest = self.now()
        reply, rung = self._store.line.apply(self._store.namespace, op, self._store.latest)
        for kind, turn in rung:
            for bell in list(self._store.bells):
                bell(kind, turn)
        return reply

    def now(self) -> int:
        """Return the store's time in milliseconds."""
        return max(self._clock(), self._store.latest)
