"""Bytes on disk per suspended turn with a conversation of 600 bytes, everything counted."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

from turnhold import Runtime

from .harness import Options, Row, folder, run
from .work import Work, suspended

TITLE = "stored per suspended turn"
TEXT = "x" * 400


def measure(options: Options) -> list[Row]:
    """Measure a file of suspended turns against one of their messages alone."""
    count = options.pick(2000, 200)
    with folder() as path:
        bytes_each, messages = run(lambda: filled(path / "turns.db", count))
        floor = plain(path / "plain.db", messages)
    return [Row(TITLE, "sqlite", bytes_each, "bytes", floor=floor, bar="2,500", note="a conversation of 600 bytes")]


async def filled(path: Path, count: int) -> tuple[float, list[bytes]]:
    work = Work()
    async with Runtime(f"sqlite:///{path}?synchronous=normal", agents=[work.agent]) as runtime:
        empty = size(path)

        async def worker(share: int) -> None:
            for _ in range(share):
                await suspended(runtime, TEXT)

        await asyncio.gather(*[worker(count // 50) for _ in range(50)])
        page = await runtime.inbox(limit=1)
        assert page.items
        history = await runtime.turn(page.items[0].turn_id).history()
    assert work.runs == 0, "nothing runs before somebody says so"
    messages = [entry.to_json() for entry in history]
    assert 500 <= sum(map(len, messages)) <= 700, sum(map(len, messages))
    full = size(path)
    return (full - empty) / (count // 50 * 50), [b"".join(messages)] * count


def size(path: Path) -> int:
    """The size of the file, with what still lies in its log brought over."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path.stat().st_size


def plain(path: Path, bodies: list[bytes]) -> float:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE kept(key INTEGER PRIMARY KEY, body BLOB)")
    empty = path.stat().st_size
    connection.executemany("INSERT INTO kept VALUES (?, ?)", list(enumerate(bodies)))
    connection.commit()
    connection.close()
    return (path.stat().st_size - empty) / len(bodies)
