"""The store in a SQLite file: one process or several on one machine, no server.

``sqlite:///turns.db`` is relative, ``sqlite:////var/turns.db`` absolute; ``?synchronous=normal`` may lose the last commits when the
power fails. The file must lie on a local disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias
from urllib.parse import parse_qsl, unquote

from ..actors.checks import shown
from ..actors.errors import InvalidDefinition, StoreUnavailable
from .base import Bell, Live, Op, Quiet, Reply, StoreConnection
from .bells import Rings, rings
from .node_names import with_key, with_name
from .sqlite_core import SqliteCore
from .sqlite_nodes import NodeLock
from .sqlite_writer import Answer, Writer

Future: TypeAlias = "asyncio.Future[Reply]"
SYNCHRONOUS = {"full": "FULL", "normal": "NORMAL", "extra": "EXTRA"}

_connections: dict[Path, list[SqliteConnection | InlineConnection]] = {}
_guard = threading.Lock()


class SqliteStore:
    """Turns in a SQLite file. `poll_seconds`: bells between processes may be missed."""

    poll_seconds: float | None = 1.0
    lease_seconds = 10.0
    partitioned = False
    proves_death = True

    def __init__(self, path: str | Path, *, synchronous: str = "full", namespace: str = "") -> None:
        if synchronous.lower() not in SYNCHRONOUS:
            raise InvalidDefinition(f"synchronous must be one of {', '.join(SYNCHRONOUS)}, not {shown(synchronous)}")
        self.path = Path(path).absolute()
        self.synchronous = SYNCHRONOUS[synchronous.lower()]
        self.namespace = namespace

    @classmethod
    def from_url(cls, url: str) -> SqliteStore:
        """Return the store of a ``sqlite:///`` URL. :raises InvalidDefinition: if it names no file, or an unknown option."""
        place, _, query = url.partition("?")
        path = unquote(place.removeprefix("sqlite:///"))
        named = place.startswith("sqlite:///") and path and path != ":memory:" and "\0" not in path
        if not named or path != path.encode(errors="replace").decode():
            raise InvalidDefinition(f"not a file: {shown(url)}; write sqlite:///turns.db, or memory:// for no file")
        options = dict(parse_qsl(query, keep_blank_values=True))
        if unknown := options.keys() - {"synchronous"}:
            raise InvalidDefinition(f"unknown option {min(unknown)!r} in {shown(url)}")
        return cls(path, synchronous=options.get("synchronous", "full"))

    async def connect(
        self, node: str, bell: Bell, clock: Callable[[], int], *, inline: bool = False, live: Live | None = None
    ) -> StoreConnection:
        """Connect a node.

        :raises StoreUnavailable: if the file cannot be opened, or is of a format that this release does not know.
        """
        if inline:
            return InlineConnection(self, node, bell, clock)
        connection = SqliteConnection(self, node, bell, clock)
        await connection.open()
        return connection

    def open(self, node: str) -> tuple[SqliteCore, NodeLock]:
        """Open the file for a node."""
        core = SqliteCore.open(self.path, synchronous=self.synchronous)
        try:
            return core, NodeLock(core, node)
        except (OSError, sqlite3.Error) as fault:
            core.close()
            raise StoreUnavailable(f"cannot lock a node's file beside {self.path}: {fault}") from fault


class SqliteConnection(Quiet):
    """One node's use of a file, through a thread of its own."""

    def __init__(self, store: SqliteStore, node: str, bell: Bell, clock: Callable[[], int]) -> None:
        self._path, self._bell, self._clock = store.path, bell, clock
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._writer = Writer(lambda: store.open(node), clock, self._answered)
        self._asked: list[tuple[Op, Future]] = []

    async def open(self) -> None:
        """Start the thread. :raises StoreUnavailable: if the file cannot be used."""
        await _blocking(self._loop, self._writer.start)
        _enter(self._path, self)

    @property
    def key(self) -> str:
        """The name under which this node owns turns in the file: its own, and something unique."""
        return self._writer.key

    async def call(self, op: Op) -> Reply:
        """Apply an operation; all of one tick of the loop, and all others that wait, are one commit.

        :raises StoreUnavailable: if it failed, or its outcome is not known in time.
        """
        if os.getpid() != self._pid:
            raise StoreUnavailable("this connection was opened before a fork; open the store in the child process")
        waiter: Future = self._loop.create_future()
        self._asked.append((op, waiter))
        if len(self._asked) == 1:
            self._loop.call_soon(self._hand_over)
        return await waiter

    async def close(self) -> None:
        """Leave; what is queued is done first. A second time does nothing."""
        if not _leave(self._path, self):
            return
        if os.getpid() == self._pid:
            self._hand_over()
            await _blocking(self._loop, self._writer.stop)

    def now(self) -> int:
        """Return the store's time in milliseconds."""
        return max(self._clock(), self._writer.latest)

    def dead_nodes(self) -> Sequence[str]:
        """Return nodes whose lock could be taken lately and that still own turns."""
        return self._writer.dead

    def ring(self, bells: Rings) -> None:
        """Ring the bells on the loop of this connection, from any thread."""
        _on(self._loop, self._settle, (), bells)

    def _hand_over(self) -> None:
        asked, self._asked = self._asked, []
        refused, why = self._writer.put(asked)
        if refused:
            self._settle([(waiter, StoreUnavailable(f"{why}; nothing was done")) for _, waiter in refused], ())

    def _answered(self, answers: Sequence[tuple[Future, Answer]], bells: Rings) -> None:
        _on(self._loop, self._settle, answers, bells)
        if answers and bells:
            for other in _others(self._path, self):
                other.ring(bells)

    def _settle(self, answers: Sequence[tuple[Future, Answer]], bells: Rings) -> None:
        for waiter, answer in answers:
            if waiter.done():
                continue  # cancelled, or answered by the watch
            if isinstance(answer, Reply):
                waiter.set_result(answer)
            else:
                waiter.set_exception(answer)
        for kind, turn in bells:
            self._bell(kind, turn)


class InlineConnection(Quiet):
    """One node's use of a file on the loop itself, one commit an operation: for virtual time."""

    def __init__(self, store: SqliteStore, node: str, bell: Bell, clock: Callable[[], int]) -> None:
        self._path, self._bell, self._clock = store.path, bell, clock
        self._core, self._lock = store.open(node)
        _enter(self._path, self)

    @property
    def key(self) -> str:
        """The name under which this node owns turns in the file: its own, and something unique."""
        return self._lock.key

    async def call(self, op: Op) -> Reply:
        """Apply an operation; never suspends. :raises StoreUnavailable: if it could not be committed."""
        try:
            reply = self._core.apply(with_key(op, self._lock.key), self._clock())
        except sqlite3.Error as fault:
            raise StoreUnavailable(f"SQLite: {fault}") from fault
        if bells := rings(op, reply, self._core.roused):
            self.ring(bells)
            for other in _others(self._path, self):
                other.ring(bells)
        return with_name(reply)

    async def close(self) -> None:
        """Leave. A second time does nothing."""
        if not _leave(self._path, self):
            return
        self._lock.release()
        self._core.close()

    def now(self) -> int:
        """Return the store's time in milliseconds."""
        return max(self._clock(), self._core.latest)

    def dead_nodes(self) -> Sequence[str]:
        """Return nodes whose lock can be taken and that still own turns."""
        return self._lock.dead()

    def ring(self, bells: Rings) -> None:
        """Ring the bells."""
        for kind, turn in bells:
            self._bell(kind, turn)


def _enter(path: Path, connection: SqliteConnection | InlineConnection) -> None:
    with _guard:
        _connections.setdefault(path, []).append(connection)


def _leave(path: Path, connection: SqliteConnection | InlineConnection) -> bool:
    """Take a connection off the list; False where it has left before."""
    with _guard:
        mine = _connections.get(path, [])
        if connection not in mine:
            return False
        mine.remove(connection)
        if not mine:
            del _connections[path]
    return True


def _others(path: Path, me: object) -> list[SqliteConnection | InlineConnection]:
    with _guard:
        return [connection for connection in _connections.get(path, []) if connection is not me]


def _on(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: object) -> None:
    # a loop that ends meanwhile has nobody left to tell
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)


async def _blocking(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    """Run a function that waits for the thread, without the loop's own threads, which users may have used up."""
    done: asyncio.Future[None] = loop.create_future()

    def tell(fault: BaseException | None) -> None:
        if done.done():
            return
        if fault is None:
            done.set_result(None)
        else:
            done.set_exception(fault)

    def run() -> None:
        fault: BaseException | None = None
        try:
            function()
        except Exception as raised:
            fault = raised
        _on(loop, tell, fault)

    threading.Thread(target=run, name="turnhold-sqlite-wait", daemon=True).start()
    await done
