"""A store core over the Redis store: its connection on a loop of its own, for tests that are not asynchronous."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from turnhold.store.redis import RedisStore
from turnhold.store.redis_keys import Keys

from .virtual_redis import VirtualRedisStore

if TYPE_CHECKING:
    import redis

    from turnhold.store.base import Op, Reply


class OnePartition(Keys):
    """All turns in one partition: for callers whose conversations do not keep to their own."""

    def __init__(self, namespace: str) -> None:
        super().__init__(namespace)
        self.tags = (self.tags[0],)
        self._tags = dict.fromkeys(self._tags, self.tags[0])
        self._heads = dict.fromkeys(self._heads, self._heads["00"])

    def of_conversation(self, conversation: str) -> str:
        return self.tags[0]


OPEN: list[RedisCore] = []  # closed by the fixture that gave the client


class RedisCore:
    """Applies operations to a Redis, at the time given (with `virtual`), or at the greatest time seen so far."""

    def __init__(self, client: redis.Redis, *, virtual: bool = True) -> None:
        self.client: Any = client
        place = self.client.connection_pool.connection_kwargs
        self._now = 0
        self._loop = asyncio.new_event_loop()
        kind = VirtualRedisStore if virtual else RedisStore
        store = kind(f"redis://{place['host']}:{place['port']}/{place['db']}?namespace=t")
        self.connection: Any = self._loop.run_until_complete(store.connect("n", lambda *_: None, lambda: self._now))
        self.connection.keys = self.keys = OnePartition("t")
        OPEN.append(self)

    def apply(self, op: Op, now: int) -> Reply:
        """Apply an operation; nodes are called by the names that it gives."""
        self._now = max(now, self._now)
        return self._loop.run_until_complete(self.connection.apply(op))

    def field(self, turn: str, name: str) -> Any:
        """Read one field of a record."""
        return self.client.hget(self.keys.turn(turn, "t")[0], name)

    def close(self) -> None:
        """Leave the Redis."""
        self._loop.run_until_complete(self.connection.close())
        self._loop.close()

    def take(self) -> dict[bytes, bytes]:
        """Return all that is stored."""
        return {key: self.client.dump(key) for key in self.client.scan_iter()}

    def clear(self) -> None:
        """Begin anew, at no time."""
        self.client.flushdb()
        self._now = self.connection.latest = 0

    def end(self) -> None:
        """Others may use it."""

    def put_back(self, state: dict[bytes, bytes]) -> None:
        """Make what is stored what it was when it was taken."""
        self.client.flushdb()
        for key, value in state.items():
            self.client.restore(key, 0, value)
