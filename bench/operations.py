"""The store's operations alone: create, claim, save and load of turns with snapshots of several sizes, 64 at once."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from turnhold.store import base
from turnhold.store.urls import open_store

from . import servers
from .floors import PlainWriter
from .harness import Clock, Options, Row, Sample, folder, median_rate, rate_row, run
from .node import many
from .plain_redis import DIGEST, command, loaded
from .servers import Server

TITLE = "store operations alone, 64 at once"
SIZES = (1, 8, 64)
WIDTH = 64
KINDS = ("create", "claim", "save", "load")
LEASE_ROW = b"x" * 100  # what a claim writes, about; its floor is a small write
Found = dict[str, Sample]


def measure(options: Options) -> list[Row]:
    """Measure each store at each size; floors are writes of the same bytes, and reads of them."""
    count = options.pick(2048, 64)
    with contextlib.ExitStack() as stack:
        server = None if servers.absent() else stack.enter_context(servers.served())
        samples: dict[tuple[str, int], list[Found]] = {}
        for _ in range(options.pick(3, 1)):
            for size in SIZES:
                for name, found in measured(server, size * 1024, count // 2 if size == SIZES[-1] else count):
                    samples.setdefault((name, size), []).append(found)
    rows: list[Row] = []
    for (name, size), found in samples.items():
        below = samples.get((f"{name} floor", size))
        if name.endswith(" floor"):
            continue
        for kind in KINDS:
            floor = None if below is None else median_rate([each[kind] for each in below])
            rows.append(rate_row(TITLE, f"{name}, {kind}, {size} KiB", [each[kind] for each in found], "/s", floor=floor))
    return rows


def measured(server: Server | None, size: int, count: int) -> list[tuple[str, Found]]:
    found = [("memory", run(lambda: operations("memory://", size, count)))]
    with folder() as path:
        found.append(("sqlite full", run(lambda: operations(f"sqlite:///{path}/turns.db?synchronous=full", size, count))))
        found.append(("sqlite full floor", run(lambda: plain_on_disk(path / "plain.db", size, count))))
    if server is not None:
        found.append(("redis", run(lambda: operations(server.fresh(), size, count))))
        server.fresh()
        found.append(("redis floor", run(lambda: plain_on_redis(server, size, count))))
    return found


async def timed(count: int, work: Callable[[int], Awaitable[Any]]) -> tuple[Sample, list[Any]]:
    clock = Clock()
    replies = await many(count, WIDTH, work)
    return clock.sample(count), replies


async def operations(url: str, size: int, count: int) -> Found:
    """Create turns, claim, save and load each; what comes back are the bytes that were put there."""
    connection = await open_store(url).connect("bench", lambda *_: None, lambda: int(time.time() * 1000))
    first, second = os.urandom(size), os.urandom(size)
    turns = [f"{number % 256:02x}-{number:026d}" for number in range(count)]
    by = base.ClaimBy(activation="activation", node="bench", lease_ms=60_000, schema=1)

    def create(at: int) -> Awaitable[base.Reply]:
        new = base.NewTurn(
            turn=turns[at],
            agent="agent",
            agent_version="1",
            digest="digest",
            schema=1,
            status="READY",
            snapshot=first,
            messages=base.Messages(0, (b"message",)),
            events=base.Events(0, 1, b"event"),
        )
        return connection.call(base.Create(new=new))

    created, made = await timed(count, create)
    claimed, owned = await timed(count, lambda at: connection.call(base.Claim(turn=turns[at], by=by)))
    assert all(isinstance(reply, base.Created) for reply in made)
    assert all(isinstance(reply, base.Claimed) and reply.snapshot == first for reply in owned)

    def save(at: int) -> Awaitable[base.Reply]:
        token = base.Token(by.activation, owned[at].epoch)
        return connection.call(
            base.Save(
                turn=turns[at],
                token=token,
                version=owned[at].version,
                save_id=f"save {at}",
                mode=base.Mode.KEEP,
                lease_ms=60_000,
                schema=1,
                status="READY",
                snapshot=second,
                messages=base.Messages(1, (b"message",)),
                events=base.Events(1, 1, b"event"),
            )
        )

    saved, kept = await timed(count, save)
    loaded, seen = await timed(count, lambda at: connection.call(base.Look(turn=turns[at])))
    assert all(isinstance(reply, base.Saved) for reply in kept)
    assert all(isinstance(reply, base.Looked) and reply.snapshot == second for reply in seen)
    await connection.close()
    return {"create": created, "claim": claimed, "save": saved, "load": loaded}


async def plain_on_disk(path: Path, size: int, count: int) -> Found:
    writer, body = PlainWriter(path), os.urandom(size)
    try:
        created, _ = await timed(count, lambda at: writer.put(at, body))
        claimed, _ = await timed(count, lambda at: writer.put(count + at, LEASE_ROW))
        saved, _ = await timed(count, lambda at: writer.put(2 * count + at, body))
        loaded, seen = await timed(count, writer.get)
    finally:
        writer.close()
    assert seen == [body] * count
    return {"create": created, "claim": claimed, "save": saved, "load": loaded}


async def plain_on_redis(server: Server, size: int, count: int) -> Found:
    pipe, body = await loaded(server), os.urandom(size)

    def put(at: int, what: bytes) -> Awaitable[Any]:
        return pipe.put(command("EVALSHA", DIGEST, 1, f"{{th:{at % 256:02x}}}:{at:026d}", what))

    created, _ = await timed(count, lambda at: put(at, body))
    claimed, _ = await timed(count, lambda at: put(count + at, LEASE_ROW))
    saved, _ = await timed(count, lambda at: put(at, body))
    found, seen = await timed(count, lambda at: pipe.put(command("GET", f"{{th:{at % 256:02x}}}:{at:026d}")))
    pipe.close()
    assert seen == [body] * count
    return {"create": created, "claim": claimed, "save": saved, "load": found}
