"""The floors: the same round trips with the same bytes, and no runtime around them."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from turnhold.store import base
from turnhold.store.memory_core import MemoryCore

from .harness import Clock, Sample


def replayed(ops: Sequence[tuple[base.Op, int]], count: int) -> Sample:
    """The store operations of real cycles once more, on a fresh core."""
    core = MemoryCore()
    clock = Clock()
    replies = [core.apply(op, now) for op, now in ops]
    sample = clock.sample(count)
    wanted = (base.Claimed, base.Saved)
    assert all(isinstance(reply, wanted) for reply in replies), "every operation did what it did the first time"
    return sample


def stored(bodies: Sequence[bytes], count: int) -> Sample:
    """The same bytes into a dictionary."""
    clock = Clock()
    kept: dict[int, bytes] = {}
    for key, body in enumerate(bodies):
        kept[key] = bytes(memoryview(body))
    sample = clock.sample(count)
    assert len(kept) == len(bodies)
    return sample


class PlainWriter:
    """A thread that puts rows into a table, all that are queued in one commit; no more than that.

    A commit is flushed to the disk unless all of its rows may be `late`.
    """

    def __init__(self, path: Path, level: str = "full") -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[int, bytes | None, bool, asyncio.Future[bytes | None]]] = deque()
        self._changed = threading.Condition()
        self._open = True
        self._path = path
        self._level = level
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def put(self, key: int, body: bytes, *, late: bool = False) -> asyncio.Future[bytes | None]:
        return self._ask(key, body, late)

    def get(self, key: int) -> asyncio.Future[bytes | None]:
        return self._ask(key, None)

    def _ask(self, key: int, body: bytes | None, late: bool = False) -> asyncio.Future[bytes | None]:
        waiter: asyncio.Future[bytes | None] = self._loop.create_future()
        with self._changed:
            self._queue.append((key, body, late, waiter))
            self._changed.notify()
        return waiter

    def close(self) -> None:
        with self._changed:
            self._open = False
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        connection = sqlite3.connect(self._path, isolation_level=None)
        for setting in ("journal_mode = WAL", "wal_autocheckpoint = 4000"):
            connection.execute(f"PRAGMA {setting}")
        level = ""
        connection.execute("CREATE TABLE kept(key INTEGER PRIMARY KEY, body BLOB NOT NULL)")
        while True:
            with self._changed:
                while not self._queue and self._open:
                    self._changed.wait()
                if not self._queue:
                    break
                jobs = list(self._queue)
                self._queue.clear()
            if writes := [(key, body) for key, body, _, _ in jobs if body is not None]:
                wanted = "normal" if all(late for _, _, late, _ in jobs) else self._level
                if wanted != level:
                    connection.execute(f"PRAGMA synchronous = {wanted}")
                    level = wanted
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany("INSERT INTO kept VALUES (?, ?)", writes)
                connection.execute("COMMIT")
            done = [(waiter, None if body is not None else self._read(connection, key)) for key, body, _, waiter in jobs]
            self._loop.call_soon_threadsafe(self._settle, done)
        connection.close()

    @staticmethod
    def _read(connection: sqlite3.Connection, key: int) -> bytes:
        return connection.execute("SELECT body FROM kept WHERE key = ?", (key,)).fetchone()[0]

    @staticmethod
    def _settle(done: Sequence[tuple[asyncio.Future[bytes | None], bytes | None]]) -> None:
        for waiter, body in done:
            waiter.set_result(body)


async def committed(
    path: Path, bodies: Sequence[bytes], count: int, width: int, level: str, late: Sequence[bool] = (False,)
) -> Sample:
    """The same bytes in as many round trips of a plain writer with the same group commit, `width` cycles at once.

    `late`: of the trips of a cycle, those whose commit need not be flushed.
    """
    writer = PlainWriter(path, level)
    trips, each = len(bodies) // count, count // width
    try:
        await writer.put(-1, b"")
        clock = Clock()

        async def worker(first: int) -> None:
            for key in range(first * trips, (first + each) * trips):
                await writer.put(key, bodies[key], late=late[key % len(late)])

        await asyncio.gather(*[worker(at * each) for at in range(width)])
        sample = clock.sample(each * width)
    finally:
        writer.close()
    return sample
