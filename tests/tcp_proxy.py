"""A line between a client and a server that a test can cut, close, stall, and cut in the middle of a message."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from typing import Literal, Self, TypeVar

Towards = Literal["server", "client"]
Answer = TypeVar("Answer")

HOST = "127.0.0.1"
CHUNK = 65_536
PATIENCE = 10.0
BOTH: tuple[Towards, Towards] = ("server", "client")
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset and not the rest


class TcpProxy:
    """Forwards what comes to `port` to the target's port, from `with` to its end.

    It lives in a thread of its own, so a test may use it beside its own loop, from threads and for other processes. Every
    method blocks for a moment, until what it says is so. `target` may be changed: the next connection goes there.
    """

    def __init__(self, port: int, host: str = HOST) -> None:
        self.target = (host, port)
        self.port = 0
        self.connections = 0  # taken so far
        self.passed: dict[Towards, int] = {"server": 0, "client": 0}  # bytes so far, by where they went
        self.held: dict[Towards, int] = {"server": 0, "client": 0}  # bytes held back now; more may wait with the sender
        self.cuts = 0  # connections cut so far
        self._lines: set[_Line] = set()
        self._gates: dict[Towards, asyncio.Event] = {}
        self._orders: dict[Towards, _Order] = {}
        self._changed = threading.Condition()
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Take connections on a port of its own."""
        # Bound but never listening: the port stays ours while new connections are refused.
        self._place = _bound(0)
        self.port = self._place.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)
        self._thread.start()
        self._do(self._open)

    def close(self) -> None:
        """Reset all connections and end the thread."""
        self._do(self._finish)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()
        self._place.close()

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    @property
    def open(self) -> int:
        """How many connections there are now."""
        return len(self._lines)

    def cut(self) -> None:
        """Reset all connections; what was held back is lost."""
        self._do(self._cut)

    def refuse(self, refused: bool = True) -> None:
        """Refuse new connections, or take them again; those that are open stay."""
        self._do(self._close if refused else self._listen)

    def stall(self, towards: Towards | None = None) -> None:
        """Hold back what goes to the server, to the client or, by default, both ways; connections stay open."""
        self._do(lambda: self._set_gates(towards, passable=False))

    def resume(self) -> None:
        """Let all go on that was held back."""
        self._do(lambda: self._set_gates(None, passable=True))

    def cut_after(self, count: int, towards: Towards, *, marker: bytes = b"", all_lines: bool = False) -> None:
        """Pass `count` more bytes this way, over whatever connection, then cut the one that brought the last of them.

        The receiver gets the bytes and then the end of the connection, the sender a reset. With 0 it is the next bytes
        that cut, and none of them pass: `cut_after(0, "client")` lets a command be done and its reply be lost. With a marker
        the count starts with the piece that holds it, so that `marker=b"EVALSHA"` is about the next script; the marker must
        come in one piece, as a short command does. One order for each way: a new one takes the old one's place.
        """
        self._do(lambda: self._order(towards, _Order(count, marker, all_lines)))

    def wait(self, condition: Callable[[TcpProxy], bool], seconds: float = PATIENCE) -> None:
        """Block until the condition holds, looked at whenever a number of this proxy changes."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), seconds):
                raise TimeoutError(f"not within {seconds} s; passed {self.passed}, held {self.held}, {self.open} open")

    async def reached(self, condition: Callable[[TcpProxy], bool], seconds: float = PATIENCE) -> None:
        """Wait like `wait`, for a test whose loop has to go on."""
        await asyncio.to_thread(self.wait, condition, seconds)

    def _do(self, act: Callable[[], Awaitable[Answer]]) -> Answer:
        async def done() -> Answer:
            return await act()

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(PATIENCE)

    # What follows runs in the proxy's thread.

    async def _open(self) -> None:
        for way in BOTH:
            self._gates[way] = asyncio.Event()
            self._gates[way].set()
        await self._listen()

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, sock=_bound(self.port))

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _finish(self) -> None:
        await self._close()
        await self._cut()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _set_gates(self, towards: Towards | None, *, passable: bool) -> None:
        for way in (towards,) if towards else BOTH:
            gate = self._gates[way]
            gate.set() if passable else gate.clear()

    async def _order(self, towards: Towards, order: _Order) -> None:
        self._orders[towards] = order

    async def _cut(self) -> None:
        lines = list(self._lines)
        for line in lines:
            self._cut_line(line)
        for line in lines:
            await line.over.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = _Line(writer)
        self._lines.add(line)
        self.connections += 1
        self._tell()
        try:
            await line.run(self, reader)
        finally:
            self._lines.discard(line)
            self._tell()
            line.over.set()

    async def pump(self, line: _Line, towards: Towards, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry bytes one way until there are no more."""
        while data := await reader.read(CHUNK):
            self._count(self.held, towards, len(data))
            try:
                await self._gates[towards].wait()
            finally:
                self._count(self.held, towards, -len(data))
            order = self._orders.get(towards)
            allowed = order.allowance(data) if order else None
            writer.write(data[:allowed])
            self._count(self.passed, towards, len(data[:allowed]))
            if order and order.spent:
                del self._orders[towards]
                for other in self._lines if order.all_lines else {line}:
                    self._cut_line(other, spared=writer)
                return
            await writer.drain()

    def _cut_line(self, line: _Line, spared: asyncio.StreamWriter | None = None) -> None:
        self.cuts += 1  # known before either end can notice
        self._tell()
        line.cut(spared)

    def _count(self, what: dict[Towards, int], towards: Towards, more: int) -> None:
        what[towards] += more
        self._tell()

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()


class _Order:
    """What `cut_after` was told, counted down."""

    def __init__(self, count: int, marker: bytes, all_lines: bool) -> None:
        self.count = count
        self.all_lines = all_lines
        self.spent = False
        self._marker = marker

    def allowance(self, data: bytes) -> int | None:
        """How much of this may pass; None is all."""
        if self._marker not in data:
            return None
        self._marker = b""
        allowed = min(self.count, len(data))
        self.count -= allowed
        self.spent = self.count == 0
        return allowed


class _Line:
    """One connection with its two ends."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.over = asyncio.Event()
        self._ends = [client]
        self._pumps: list[asyncio.Task[None]] = []

    async def run(self, proxy: TcpProxy, reader: asyncio.StreamReader) -> None:
        client = self._ends[0]
        try:
            back, server = await asyncio.open_connection(*proxy.target)
            self._ends.append(server)
            ways = (proxy.pump(self, "server", reader, server), proxy.pump(self, "client", back, client))
            self._pumps = [asyncio.ensure_future(way) for way in ways]
            await asyncio.wait(self._pumps, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            _reset(client)
        finally:
            for pump in self._pumps:
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)
            for end in self._ends:
                end.close()
                with contextlib.suppress(OSError):
                    await end.wait_closed()

    def cut(self, spared: asyncio.StreamWriter | None) -> None:
        """Reset both ends; the spared one gets what was written to it, and then its end."""
        for end in self._ends:
            end.close() if end is spared else _reset(end)
        for pump in self._pumps:
            pump.cancel()


def _reset(end: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    end.transport.abort()


def _bound(port: int) -> socket.socket:
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    place.bind((HOST, port))
    return place
