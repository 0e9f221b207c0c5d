"""Connections to one server: what is asked in one tick of the loop, and all that waits, leaves as one pipeline.

A link has three lanes, so that a slow or large save holds up no renewal: one for most operations (a few connections), one for
renewals and heartbeats, one for saves that wait for a replica.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import hiredis
from redis import exceptions
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import AuthenticationError, AuthorizationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as Broken
from redis.exceptions import TimeoutError as TimedOut

OPERATION = 3.0  # seconds: for a pipeline, connecting included; and from the first sending of a call to its last repetition
BATCH = 128
BATCH_BYTES = 1 << 20
LANES = {"main": 3, "renew": 1, "confirm": 1}
Answer: TypeAlias = "Any"  # what the server said, or the exception that stands for it


def packed(*command: str | int | bytes) -> bytes:
    """Return a command as it is sent. :raises UnicodeEncodeError: if it holds text that is no Unicode."""
    return cast("bytes", hiredis.pack_command(command))  # pyright: ignore[reportUnknownMemberType,reportArgumentType] - its types name one argument only


class Lost(Exception):
    """The connection broke, or was silent for too long: what was asked may or may not have happened.

    `refused`: the server lets nobody in with these credentials.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class Refusal(Exception):
    """The server's own answer: an error. `kind` is its first word."""

    def __init__(self, fault: ResponseError) -> None:
        text = str(fault)
        self.kind = next((word for kind, word in _KINDS.items() if isinstance(fault, kind)), text.partition(" ")[0])
        super().__init__(text if text.startswith(self.kind) else f"{self.kind} {text}")


# redis-py takes the first word off the text of those that it knows
_KINDS: dict[type[ResponseError], str] = {
    exceptions.NoScriptError: "NOSCRIPT",
    exceptions.MovedError: "MOVED",
    exceptions.AskError: "ASK",
    exceptions.TryAgainError: "TRYAGAIN",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.ClusterCrossSlotError: "CROSSSLOT",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.OutOfMemoryError: "OOM",
    exceptions.NoPermissionError: "NOPERM",
}


class Call:
    """One command, ready to be sent; `waiter` gets its answer, an error as a value.

    `confirm`: milliseconds to wait for a replica; the answer is a pair then, with the number of replicas.
    """

    __slots__ = ("asking", "confirm", "data", "waiter")

    def __init__(self, data: bytes, waiter: asyncio.Future[Answer], *, asking: bool = False, confirm: int = 0) -> None:
        self.data = data
        self.waiter = waiter
        self.asking = asking
        self.confirm = confirm

    def answer(self, found: Answer) -> None:
        """Hand over the answer, if anybody still waits for it."""
        if not self.waiter.done():
            self.waiter.set_result(found)


ASKING = packed("ASKING")


class Lane:
    """A queue of commands, and the connections that take them from it, each a whole pipeline at a time."""

    def __init__(self, connect: Callable[[], AbstractConnection], size: int, name: str) -> None:
        self._connect = connect
        self._queue: deque[Call] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._workers: set[asyncio.Task[None]] = set()
        self._size, self._name = size, name
        self._closed = False

    def put(self, call: Call) -> None:
        """Send a command with what else there is to send."""
        if self._closed:
            call.answer(Lost("the connection is closed"))
            return
        self._queue.append(call)
        while self._idle:
            waiter = self._idle.pop()
            if not waiter.done():
                waiter.set_result(None)
                return
        if len(self._workers) < self._size:
            worker = asyncio.get_running_loop().create_task(self._work(), name=f"{self._name} {len(self._workers)}")
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    def end(self) -> None:
        """End what is under way, and take nothing more."""
        self._closed = True
        for worker in self._workers:
            worker.cancel()
        self._fail("the connection is closed")

    async def close(self) -> None:
        """End what is under way, and wait until the connections are closed."""
        self.end()
        if workers := list(self._workers):
            await asyncio.wait(workers)

    def _fail(self, why: str) -> None:
        while self._queue:
            self._queue.popleft().answer(Lost(why))

    async def _work(self) -> None:
        connection: AbstractConnection | None = None
        try:
            connection = self._connect()
            while True:
                batch = self._take()
                if not batch:
                    waiter = asyncio.get_running_loop().create_future()
                    self._idle.append(waiter)
                    await waiter
                    continue
                await self._exchange(connection, batch)
        except Exception as fault:  # a defect, here or in redis-py: who waits must not wait for ever
            self._fail(f"{type(fault).__name__}: {fault}")
            raise
        finally:
            if connection is not None:
                await _drop(connection)

    def _take(self) -> list[Call]:
        """Take what leaves as one pipeline; who no longer waits is left out."""
        batch: list[Call] = []
        size = 0
        queue = self._queue
        while queue and len(batch) < BATCH and size < BATCH_BYTES:
            call = queue.popleft()
            if not call.waiter.done():
                batch.append(call)
                size += len(call.data)
        return batch

    async def _exchange(self, connection: AbstractConnection, batch: list[Call]) -> None:
        place, stale = 0, False
        unconfirmed: list[tuple[Call, Answer]] = []
        try:
            async with asyncio.timeout(OPERATION):
                if not connection.is_connected:
                    await connection.connect()
                await connection.send_packed_command(self._packed(batch), check_health=False)
                for call in batch:
                    if call.asking:
                        await _read(connection)
                    answer = await _read(connection)
                    place += 1
                    stale = stale or (isinstance(answer, Refusal) and answer.kind == "READONLY")
                    if call.confirm:
                        unconfirmed.append((call, answer))
                    else:
                        call.answer(answer)
                if unconfirmed:
                    replicas = await _read(connection)
                    for call, answer in unconfirmed:
                        call.answer((answer, replicas))
            if stale:  # the name may lead to another server by now, which only a new connection finds
                await _drop(connection)
        except (RedisError, OSError, EOFError) as fault:  # asyncio's TimeoutError is an OSError
            await _drop(connection)
            why = "no answer in time" if isinstance(fault, TimeoutError) and not str(fault) else str(fault)
            lost = Lost(f"{type(fault).__name__}: {why}", refused=isinstance(fault, AuthenticationError | AuthorizationError))
            for call in (*(call for call, _ in unconfirmed), *batch[place:]):
                call.answer(lost)
            if isinstance(fault, TimeoutError | TimedOut):
                self._fail(str(lost))  # who is behind has waited as long: batch after batch would make that a multiple
        except BaseException:
            for call in (*(call for call, _ in unconfirmed), *batch[place:]):
                call.answer(Lost("the connection is closed"))
            raise

    @staticmethod
    def _packed(batch: list[Call]) -> list[bytes]:
        """Return a batch as it is sent. One WAIT behind it covers all that is to be confirmed: each would take the whole time."""
        parts: list[bytes] = []
        for call in batch:
            if call.asking:
                parts.append(ASKING)
            parts.append(call.data)
        if confirm := max(call.confirm for call in batch):
            parts.append(packed("WAIT", 1, confirm))
        return parts


async def _read(connection: AbstractConnection) -> Answer:
    """Read one answer; an error of the server's is a value, one of the connection's is raised."""
    try:
        return cast("Answer", await connection.read_response(disable_decoding=True, disconnect_on_error=False))
    except Broken:
        raise
    except ResponseError as refusal:
        return Refusal(refusal)


async def _drop(connection: AbstractConnection) -> None:
    with contextlib.suppress(RedisError, OSError):
        await connection.disconnect(nowait=True)


class Link:
    """All connections of a node to one server. `connect` gives a connection that is not open yet."""

    def __init__(self, connect: Callable[[], AbstractConnection], name: str) -> None:
        self._lanes = {lane: Lane(connect, size, f"redis {lane} {name}") for lane, size in LANES.items()}

    def put(self, call: Call, lane: str = "main") -> None:
        """Send a command on a lane."""
        self._lanes[lane].put(call)

    async def close(self) -> None:
        """Close all lanes; all have ended where the caller is cancelled meanwhile."""
        for lane in self._lanes.values():
            lane.end()
        for lane in self._lanes.values():
            await lane.close()
