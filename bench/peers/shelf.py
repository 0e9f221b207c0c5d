"""Where the states of libraries are kept that leave this to their users: one put and one get by key, plainly."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from .worker import Place


class Shelf(Protocol):
    """Text by key; a `put` returns when the text is stored."""

    async def put(self, key: str, text: str) -> None: ...
    async def get(self, key: str) -> str: ...
    async def close(self) -> None: ...


class DictShelf:
    """In this process's memory."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    async def put(self, key: str, text: str) -> None:
        self._texts[key] = text

    async def get(self, key: str) -> str:
        return self._texts[key]

    async def close(self) -> None:
        self._texts.clear()


class SqliteShelf:
    """A table in a file: WAL, `synchronous=FULL`, one commit a put, on a thread of its own."""

    def __init__(self, path: str) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._db = sqlite3.connect(path, timeout=10, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute("CREATE TABLE IF NOT EXISTS states (key TEXT PRIMARY KEY, text TEXT NOT NULL)")

    async def put(self, key: str, text: str) -> None:
        await self._do("INSERT INTO states VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET text = excluded.text", key, text)

    async def get(self, key: str) -> str:
        return (await self._do("SELECT text FROM states WHERE key = ?", key))[0][0]

    async def close(self) -> None:
        self._thread.shutdown()
        self._db.close()

    async def _do(self, sql: str, *values: str) -> list[Any]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: self._db.execute(sql, values).fetchall())


class RedisShelf:
    """SET and GET."""

    def __init__(self, url: str) -> None:
        from redis.asyncio import Redis

        self._redis: Any = Redis.from_url(url, decode_responses=True)

    async def put(self, key: str, text: str) -> None:
        await self._redis.set(f"state:{key}", text)

    async def get(self, key: str) -> str:
        return await self._redis.get(f"state:{key}")

    async def close(self) -> None:
        await self._redis.aclose()


def shelf(place: Place) -> Shelf:
    """Return the shelf for a place."""
    if place.store == "redis":
        return RedisShelf(place.url)
    return SqliteShelf(place.url) if place.store == "sqlite" else DictShelf()
