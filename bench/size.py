"""Bytes on disk, or in the server's memory, per suspended turn with a conversation of 600 bytes, everything counted."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

from turnhold import Runtime

from . import servers
from .harness import Bar, Options, Row, folder, run
from .plain_redis import Pipe, command
from .servers import Server
from .work import Work, suspended

TITLE = "stored per suspended turn"
TEXT = "x" * 400


def measure(options: Options) -> list[Row]:
    """Measure a store of suspended turns against their messages alone."""
    count = options.pick(2000, 200)
    note = "a conversation of 600 bytes"
    with folder() as path:
        file = path / "turns.db"
        bytes_each, messages = run(lambda: on_disk(file, count))
        floor = plain(path / "plain.db", messages)
    rows = [Row(TITLE, "sqlite", bytes_each, "bytes", floor=floor, bar=Bar(most=2500), note=note)]
    if not servers.absent():
        with servers.served() as server:
            bytes_each, messages = run(lambda: on_redis(server, options.pick(5000, 200)))
            floor = run(lambda: plain_on_redis(server, messages))
        rows.append(
            Row(
                TITLE,
                "redis",
                bytes_each,
                "bytes",
                floor=floor,
                bar=Bar(most=3000),
                note=f"{note}; see the suspended turns in the store for more",
            )
        )
    return rows


async def on_disk(path: Path, count: int) -> tuple[float, list[bytes]]:
    url = f"sqlite:///{path}?synchronous=normal"
    async with Runtime(url):
        empty = size(path)
    messages = await filled(url, count)
    return (size(path) - empty) / len(messages), messages


async def on_redis(server: Server, count: int) -> tuple[float, list[bytes]]:
    """Used memory behind against before: 50 turns there already, the scripts loaded; no client is connected at either time."""
    url = server.fresh()
    await filled(url, 50)
    empty = server.memory()
    messages = await filled(url, count)
    return (server.memory() - empty) / len(messages), messages


async def filled(url: str, count: int) -> list[bytes]:
    """Fill a store with suspended turns; return the messages of each."""
    work = Work()
    async with Runtime(url, agents=[work.agent]) as runtime:

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
    return [b"".join(messages)] * (count // 50 * 50)


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


async def plain_on_redis(server: Server, bodies: list[bytes]) -> float:
    """The messages alone, one key a turn."""
    server.fresh()
    empty = server.memory()
    pipe = await Pipe.open(server)
    for number, body in enumerate(bodies):
        await pipe.put(command("SET", f"{{th:{number % 256:02x}}}:{number:024d}", body))
    pipe.close()
    await asyncio.sleep(0.1)
    return (server.memory() - empty) / len(bodies)
