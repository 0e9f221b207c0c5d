"""The store on Redis or Valkey: one server, one with replicas, or a Cluster.

``redis://host:6379/0``, ``rediss://`` (TLS), ``unix:///path/to.sock``, ``redis+cluster://host:7000,host:7001``. All decisions
are Lua scripts (`store/lua`), one call an operation, each in one slot; only the server's time counts.
"""

from __future__ import annotations

from collections.abc import Callable

from ..actors.errors import InvalidDefinition
from .base import Bell, Live, StoreConnection
from .redis_connection import RedisConnection
from .redis_place import Place
from .redis_scripts import Scripts


class RedisStore:
    """Turns on Redis or Valkey."""

    poll_seconds: float | None = 1.0
    lease_seconds = 30.0
    partitioned = True
    proves_death = False

    def __init__(self, url: str) -> None:
        self.place = Place(url)
        self.namespace = self.place.namespace
        self.scripts = Scripts()

    @classmethod
    def from_url(cls, url: str) -> RedisStore:
        """Return the store of a URL. :raises InvalidDefinition: if it cannot be read, or has an unknown option."""
        return cls(url)

    async def connect(
        self, node: str, bell: Bell, clock: Callable[[], int], *, inline: bool = False, live: Live | None = None
    ) -> StoreConnection:
        """Connect a node; the server's time counts, not the node's `clock`.

        :raises InvalidDefinition: if time is to be virtual.
        :raises StoreUnavailable: if no server answers, it is too old, or what is stored is of an unknown format.
        """
        if inline:
            raise InvalidDefinition("a virtual clock cannot drive a Redis, which has its own time; use memory:// or sqlite:///")
        connection = self.connection(node, bell, clock, live)
        try:
            await connection.open()
        except BaseException:
            await connection.close()
            raise
        return connection

    def connection(self, node: str, bell: Bell, clock: Callable[[], int], live: Live | None) -> RedisConnection:
        """Return a connection that is not open yet."""
        del clock
        return RedisConnection(self.place, self.scripts, node, bell, live)

    def __repr__(self) -> str:
        return f"<RedisStore {self.place.shown} namespace={self.namespace!r}>"
