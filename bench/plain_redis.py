"""The floors on Redis: the very commands of real cycles, to a script that only puts their arguments into one key.

The lower one: the commands of one tick of the loop leave as one write of one connection, as the store sends them, packed before the
clock starts; what comes back is read by hiredis. There is no runtime, no record, no check, and no error but the end of the bench.
Beside it: the same commands by redis-py and its pool, as a program would send them that has no link of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from hashlib import sha1
from typing import Any, cast

import hiredis
from redis.asyncio import Redis

from turnhold.store import base, redis_pack
from turnhold.store.redis_keys import Keys

from .harness import Clock, Sample
from .servers import Server

SCRIPT = "return redis.call('SET', KEYS[#KEYS], table.concat(ARGV))"
DIGEST = sha1(SCRIPT.encode()).hexdigest()


def command(*parts: str | bytes | int) -> bytes:
    return cast("bytes", hiredis.pack_command(cast("Any", parts)))


def parts_of(op: base.Op, digest: str | None = None) -> tuple[str | bytes | int, ...]:
    """The command that the store would send for a write, by default to the plain script."""
    keys = Keys("th")
    if isinstance(op, base.Save):
        _, names, args = redis_pack.save(keys, op)
    elif isinstance(op, base.Create):
        _, names, args = redis_pack.create(keys, op)
    else:
        _, names, args = redis_pack.PACKERS[type(op)](keys, op)
    return ("EVALSHA", digest or DIGEST, len(names), *names, *args)


def packed(op: base.Op, digest: str | None = None) -> bytes:
    """The same as it goes over the wire."""
    return command(*parts_of(op, digest))


class Pipe(asyncio.Protocol):
    """One connection; all commands of a tick in one write."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        self._transport: asyncio.WriteTransport | None = None
        self._outgoing: list[bytes] = []
        self._waiters: deque[asyncio.Future[Any]] = deque()

    @classmethod
    async def open(cls, server: Server) -> Pipe:
        _, pipe = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", server.port)
        return pipe

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (found := self._reader.gets()) is not False:
            waiter = self._waiters.popleft()
            if isinstance(found, Exception):
                waiter.set_exception(found)
            else:
                waiter.set_result(found)

    def put(self, data: bytes) -> asyncio.Future[Any]:
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        if not self._outgoing:
            self._loop.call_soon(self._send)
        self._outgoing.append(data)
        return waiter

    def _send(self) -> None:
        assert self._transport is not None
        self._transport.write(b"".join(self._outgoing))
        self._outgoing.clear()

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


async def loaded(server: Server) -> Pipe:
    """A connection to a server that has the plain script."""
    pipe = await Pipe.open(server)
    await pipe.put(command("SCRIPT", "LOAD", SCRIPT))
    return pipe


async def piped(server: Server, commands: Sequence[bytes], count: int, width: int) -> Sample:
    """`count` cycles of these commands, `width` at once."""
    trips, each = len(commands) // count, count // width
    pipe = await loaded(server)
    clock = Clock()

    async def worker(first: int) -> None:
        for at in range(first * trips, (first + each) * trips):
            assert await pipe.put(commands[at]) == b"OK"

    await asyncio.gather(*[worker(at * each) for at in range(width)])
    sample = clock.sample(each * width)
    pipe.close()
    return sample


async def pooled(server: Server, commands: Sequence[tuple[str | bytes | int, ...]], count: int, width: int) -> Sample:
    """The same by redis-py, with as many connections as there are cycles at once."""
    trips, each = len(commands) // count, count // width
    client = Redis(host="127.0.0.1", port=server.port, max_connections=width)
    await client.script_load(SCRIPT)
    clock = Clock()

    async def worker(first: int) -> None:
        for at in range(first * trips, (first + each) * trips):
            assert await client.execute_command(*commands[at]) in (True, b"OK")

    await asyncio.gather(*[worker(at * each) for at in range(width)])
    sample = clock.sample(each * width)
    await client.aclose()
    return sample
