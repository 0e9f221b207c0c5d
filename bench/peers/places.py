"""The servers and files that peers keep their turns in: private, and gone at the end."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .. import servers
from . import postgres, restate_server
from .environments import Unavailable


class Places:
    """Opens what a store needs when it is first asked for."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._redis: servers.Server | None = None
        self._postgres: postgres.Postgres | None = None

    @contextlib.contextmanager
    def fresh(self, store: str) -> Iterator[str]:
        """Yield the path (of a file or folder that is not there yet) or the URL of an empty store."""
        if store == "memory":
            yield ""
        elif store.startswith("sqlite") or store == "files":
            with tempfile.TemporaryDirectory(prefix="turnhold-peers-", ignore_cleanup_errors=True) as folder:
                yield str(Path(folder) / "turns")
        elif store.startswith("redis"):
            yield self._redis_url(modules="modules" in store)
        elif store == "postgres":
            self._postgres = self._postgres or self._stack.enter_context(postgres.served())
            yield self._postgres.fresh()
        elif store == "restate server":
            with restate_server.served() as url:
                yield url
        else:
            raise Unavailable(f"no store {store!r}")

    def _redis_url(self, *, modules: bool) -> str:
        if servers.absent():
            raise Unavailable("no Redis server here")
        redis = self._redis = self._redis or self._stack.enter_context(servers.served())
        if modules and (missing := redis.lacks("FT.CREATE", "JSON.SET")):
            raise Unavailable(f"{servers.described()} here has no {' and no '.join(missing)} (RediSearch, RedisJSON)")
        return redis.fresh()
