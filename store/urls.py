"""From a URL to a store."""

from __future__ import annotations

from typing import cast

from ..actors.checks import shown
from ..actors.errors import InvalidDefinition
from .base import TurnStore
from .memory import MemoryStore


def open_store(store: object) -> TurnStore:
    """Return the store that a URL names, or the store itself.

    :raises InvalidDefinition: if it is neither, or the URL is of no known kind.
    """
    if not isinstance(store, str):
        if not callable(getattr(store, "connect", None)):
            raise InvalidDefinition(f"store must be a URL or a TurnStore, not {type(store).__name__}")
        return cast("TurnStore", store)
    if store.startswith("memory://"):
        return MemoryStore.from_url(store)
    if store.startswith("sqlite:"):
        from .sqlite import SqliteStore

        return SqliteStore.from_url(store)
    if store.startswith(("redis:", "rediss:", "redis+cluster:", "rediss+cluster:", "unix:")):
        from .redis import RedisStore

        return RedisStore.from_url(store)
    known = "memory://, memory://name, sqlite:///file, redis://, rediss://, redis+cluster:// or unix://"
    scheme, colon, rest = store.partition("://")
    named = f"{scheme}://{rest.rpartition('@')[2]}" if colon else store  # an error shows no password
    raise InvalidDefinition(f"store must be {known}, not {shown(named)}")
