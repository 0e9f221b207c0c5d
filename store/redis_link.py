"""Connections to one server: what is asked in one tick of the loop leaves in one piece, and waits for no earlier answer.

redis-py opens a connection, with all that takes (TLS, names and passwords, sockets), and then hands it over: a pipe, and hiredis to
read what comes. Its own reading and writing costs several times as much as all the rest.

A link has three lanes, so that a slow or large save holds up no renewal: one for most operations, one for renewals and heartbeats,
one for saves that wait for a replica.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import hiredis
import msgspec
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import AuthenticationError, AuthorizationError, RedisError

OPERATION = 3.0  # seconds: for connecting; for an answer; and from the first sending of a call to its last repetition
BATCH = 128
BATCH_BYTES = 1 << 20
LANES = ("main", "renew", "confirm")
Answer: TypeAlias = "Any"  # what the server said, or the exception that stands for it


pack = cast("Callable[[tuple[str | int | bytes, ...]], bytes]", hiredis.pack_command)  # its own types name one argument only


def packed(*command: str | int | bytes) -> bytes:
    """Return a command as it is sent. :raises UnicodeEncodeError: if it holds text that is no Unicode."""
    return pack(command)


class Lost(Exception):
    """The connection broke, or was silent for too long: what was asked may or may not have happened.

    `refused`: the server lets nobody in with these credentials.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class Refusal(Exception):
    """The server's own answer: an error. `kind` is its first word."""

    def __init__(self, text: str) -> None:
        self.kind = text.partition(" ")[0]
        super().__init__(text)


class Call(msgspec.Struct, eq=False):
    """One command, ready to be sent; `waiter` gets its answer, an error as a value.

    `confirm`: milliseconds to wait for a replica; the answer is a pair then, with the number of replicas. `due`: when the answer
    has to be there (seconds of the loop's clock), once it was sent.
    """

    data: bytes
    waiter: asyncio.Future[Answer] = cast("asyncio.Future[Answer]", None)
    asking: bool = False
    confirm: int = 0
    due: float = 0.0

    def answer(self, found: Answer) -> None:
        """Hand over the answer, if anybody still waits for it."""
        if not self.waiter.done():
            self.waiter.set_result(found)


class Covering(Call):
    """The WAIT behind a batch: what it says goes with the answers to all before it."""


ASKING = packed("ASKING")


class Line(asyncio.Protocol):
    """An open connection. `told` is called with each answer, `ready` when more may be sent, `ended` when it has broken."""

    def __init__(
        self,
        connection: AbstractConnection,
        told: Callable[[Any], None],
        ready: Callable[[], None],
        ended: Callable[[Line, str], None],
    ) -> None:
        self._connection = connection
        self._told, self._ready, self._ended = told, ready, ended
        self._reader = hiredis.Reader()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.full = False
        stream = connection._writer  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - there is no other way to take it over
        assert stream is not None
        self._transport = stream.transport
        self._transport.set_protocol(self)

    def write(self, data: bytes) -> None:
        """Send."""
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Hand on each answer that is whole."""
        reader = self._reader
        try:
            reader.feed(data)
            while (found := reader.gets()) is not False:
                self._told(found)
        except hiredis.ProtocolError as fault:
            self.end(f"ProtocolError: {fault}")

    def pause_writing(self) -> None:
        """The server takes no more for now."""
        self.full = True

    def resume_writing(self) -> None:
        """It does again."""
        self.full = False
        self._ready()

    def end(self, why: str) -> None:
        """Break it off."""
        if not self._transport.is_closing():
            self._transport.abort()
            self._ended(self, why)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._connection._close()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - what `disconnect` does, but at once
        if not self.gone.done():
            self.gone.set_result(None)
        self._ended(self, f"{type(exc).__name__}: {exc}" if exc else "ConnectionError: the server closed the connection")


class Lane:
    """A queue of commands, and the connection on which they leave. With `alone` a batch waits for the answers to the one before."""

    def __init__(self, connect: Callable[[], AbstractConnection], name: str, *, alone: bool = False) -> None:
        self._connect, self._name, self._alone = connect, name, alone
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Call] = deque()
        self._asked: deque[Call] = deque()  # to what the next answers are
        self._unconfirmed: list[tuple[Call, Answer]] = []
        self._line: Line | None = None
        self._leaving: set[asyncio.Future[None]] = set()
        self._opening: asyncio.Task[None] | None = None
        self._sending = self._stale = self._closed = False
        self._watch: asyncio.TimerHandle | None = None

    def put(self, call: Call) -> None:
        """Send a command with what else there is to send."""
        if self._closed:
            call.answer(Lost("the connection is closed"))
            return
        self._queue.append(call)
        if not self._sending:
            self._sending = True
            self._loop.call_soon(self._send)

    def end(self) -> None:
        """End what is under way, and take nothing more."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
        if self._line is not None:
            self._line.end("the connection is closed")
        if self._watch is not None:
            self._watch.cancel()
        self._fail("the connection is closed")

    async def close(self) -> None:
        """End what is under way, and wait until the connection is closed."""
        self.end()
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._leaving:
            await asyncio.wait(self._leaving)

    def _fail(self, why: str, *, refused: bool = False) -> None:
        while self._queue:
            self._queue.popleft().answer(Lost(why, refused=refused))

    # ------------------------------------------------------------------------------------------------------------ send

    def _send(self) -> None:
        """Send what is there, if there is somewhere to send it."""
        self._sending = False
        if not self._queue or self._stale or self._closed:
            return
        line = self._line
        if line is None:
            if self._opening is None:
                self._opening = self._loop.create_task(self._open(), name=self._name)
                self._opening.add_done_callback(self._opened)
            return
        if line.full or (self._alone and self._asked):
            return  # what is under way first; its answers send the rest
        due = self._loop.time() + OPERATION
        line.write(b"".join(self._taken(due)))
        if self._watch is None:
            self._watch = self._loop.call_at(due, self._look)
        if self._queue:
            self._sending = True
            self._loop.call_soon(self._send)

    def _taken(self, due: float) -> list[bytes]:
        """Take what leaves in one piece; who no longer waits is left out."""
        parts: list[bytes] = []
        queue, asked = self._queue, self._asked
        size = confirm = 0
        while queue and len(parts) < BATCH and size < BATCH_BYTES:
            call = queue.popleft()
            if call.waiter.done():
                continue
            if call.asking:
                parts.append(ASKING)
                asked.append(self._unheard(Call(ASKING), due))
            data, call.due = call.data, due
            parts.append(data)
            asked.append(call)
            size += len(data)
            if call.confirm:
                confirm = max(confirm, call.confirm)
        if confirm:  # one covers all: each would take the whole time
            covering = Covering(packed("WAIT", 1, confirm), confirm=confirm)
            parts.append(covering.data)
            asked.append(self._unheard(covering, due))
        return parts

    def _unheard(self, call: Call, due: float) -> Call:
        """Return a call for whose answer nobody waits."""
        call.waiter, call.due = self._loop.create_future(), due
        return call

    async def _open(self) -> None:
        connection = self._connect()
        try:
            async with asyncio.timeout(OPERATION):
                await connection.connect()
            self._line = Line(connection, self._told, self._send, self._ended)
        except (RedisError, OSError, EOFError) as fault:  # asyncio's TimeoutError is an OSError
            why = "no answer in time" if isinstance(fault, TimeoutError) and not str(fault) else str(fault)
            refused = isinstance(fault, AuthenticationError | AuthorizationError)
            self._fail(f"{type(fault).__name__}: {why}", refused=refused)
        except Exception as fault:  # a defect, here or in redis-py: who waits must not wait for ever
            self._fail(f"{type(fault).__name__}: {fault}")
            raise
        finally:
            if self._line is None:
                with contextlib.suppress(RedisError, OSError):
                    await connection.disconnect(nowait=True)

    def _opened(self, _: asyncio.Task[None]) -> None:
        self._opening = None
        if self._closed and self._line is not None:
            self._line.end("the connection is closed")
        self._send()

    # ---------------------------------------------------------------------------------------------------------- answer

    def _told(self, found: Answer) -> None:
        """Hand an answer over to who has asked; an error of the server's is a value."""
        asked = self._asked
        if not asked:
            if self._line is not None:
                self._line.end("ProtocolError: an answer to nothing")
            return
        call = asked.popleft()
        if type(found) is hiredis.ReplyError:
            found = Refusal(str(found))
            # the name may lead to another server by now, which only a new connection finds
            self._stale = self._stale or found.kind == "READONLY"
        if call.confirm:
            self._confirm(call, found)
        else:
            call.answer(found)
        if not asked:
            if self._stale and self._line is not None:
                self._line.end("READONLY")
            elif self._queue:
                self._send()

    def _confirm(self, call: Call, found: Answer) -> None:
        """Keep an answer until it is known how many replicas have what was asked."""
        if type(call) is not Covering:
            self._unconfirmed.append((call, found))
            return
        confirmed, self._unconfirmed = self._unconfirmed, []
        for each, answer in confirmed:
            each.answer((answer, found))

    def _look(self) -> None:
        """See that no answer is overdue."""
        self._watch = None
        if not self._asked:
            return
        due = self._asked[0].due
        if due > self._loop.time():
            self._watch = self._loop.call_at(due, self._look)
        elif self._line is not None:
            self._fail("TimeoutError: no answer in time")  # who is behind has waited as long
            self._line.end("TimeoutError: no answer in time")

    def _ended(self, line: Line, why: str) -> None:
        """The connection has broken: what was asked on it may or may not have happened."""
        if line is not self._line:
            return
        if not line.gone.done():
            self._leaving.add(line.gone)
            line.gone.add_done_callback(self._leaving.discard)
        self._line, self._stale = None, False
        asked, self._asked = self._asked, deque()
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        for call in (*(call for call, _ in unconfirmed), *asked):
            call.answer(Lost(why))
        self._send()


class Link:
    """All connections of a node to one server. `connect` gives a connection that is not open yet."""

    def __init__(self, connect: Callable[[], AbstractConnection], name: str) -> None:
        self._lanes = {lane: Lane(connect, f"redis {lane} {name}", alone=lane == "confirm") for lane in LANES}

    def put(self, call: Call, lane: str = "main") -> None:
        """Send a command on a lane."""
        self._lanes[lane].put(call)

    async def close(self) -> None:
        """Close all lanes; all have ended where the caller is cancelled meanwhile."""
        for lane in self._lanes.values():
            lane.end()
        for lane in self._lanes.values():
            await lane.close()
