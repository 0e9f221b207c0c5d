"""The one thread that uses a SQLite connection: it takes all that is queued as one transaction.

A second, small thread watches the first: a disk that hangs must not hang those who wait.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..actors.errors import StoreUnavailable
from .base import Op, Renew, Reply
from .bells import Rings, rings
from .node_names import with_key, with_name
from .sqlite_core import SqliteCore
from .sqlite_nodes import NodeLock

IDLE_SECONDS = 0.02
TICK_SECONDS = 0.5
TICKS = 10
QUEUE = 10_000
BATCH = 256
LOCKS_MS = 250
RING_MS = 20

Answer: TypeAlias = "Reply | Exception"
Waiter: TypeAlias = Any


class Job:
    """An operation in the queue. `done` is set by whoever answers first: the writer, or the watch."""

    __slots__ = ("op", "tick", "waiter")

    def __init__(self, op: Op, waiter: Waiter, tick: int) -> None:
        self.op, self.waiter, self.tick = op, waiter, tick


class Writer:
    """Runs a core on a thread of its own.

    `answer` gets the answers of a batch with their waiters, and the bells of it; it is called on the threads of this class.
    """

    def __init__(
        self,
        make: Callable[[], tuple[SqliteCore, NodeLock]],
        clock: Callable[[], int],
        answer: Callable[[Sequence[tuple[Waiter, Answer]], Rings], None],
    ) -> None:
        self._make, self._clock, self._answer = make, clock, answer
        self._queue: deque[Job] = deque()
        self._under_way: list[Job] = []
        self._changed = threading.Condition()
        self._closing = False
        self._tick = 0
        self._started = threading.Event()
        self._fault: Exception | None = None
        self._version: int = 0
        self._looked: int = 0
        self._rang: int = 0
        self.dead: tuple[str, ...] = ()
        self.latest = 0
        self.key = ""
        self.core: SqliteCore | None = None
        self._thread = threading.Thread(target=self._run, name="turnhold-sqlite", daemon=True)
        self._stop_watch = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="turnhold-sqlite-watch", daemon=True)

    def start(self) -> None:
        """Start, and wait until the file is open. :raises StoreUnavailable: if it cannot be used."""
        self._thread.start()
        self._started.wait()
        if self._fault is not None:
            raise self._fault
        self._watcher.start()

    def put(self, asked: Sequence[tuple[Op, Waiter]]) -> tuple[Sequence[tuple[Op, Waiter]], str]:
        """Queue operations; return those that are not taken, and why.

        A renewal goes before all that waits: behind thousands of saves it would come too late for the leases under which they run.
        """
        with self._changed:
            if self._closing:
                return asked, "the connection is closed"
            room = max(0, QUEUE - len(self._queue))
            for op, waiter in asked[:room]:
                job = Job(op, waiter, self._tick)
                if type(op) is Renew:
                    self._queue.appendleft(job)
                else:
                    self._queue.append(job)
            self._changed.notify()
            return asked[room:], f"{QUEUE} operations are queued already"

    def stop(self) -> None:
        """Do what is queued, then let go of the file. Blocks."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._stop_watch.set()

    def _run(self) -> None:
        try:
            core, lock = self._make()
        except Exception as fault:
            self._fault = fault
            return
        else:
            self.core, self.key = core, lock.key
        finally:
            self._started.set()
        try:
            self._serve(core, lock)
        finally:
            lock.release()
            core.close()

    def _serve(self, core: SqliteCore, lock: NodeLock) -> None:
        self._version = _version(core)
        while jobs := self._take():
            now, late = self._clock(), core.unflushed
            done = jobs[0] is None or self._do(core, lock, [job for job in jobs if job is not None], now)
            try:
                if self._look_around(core, lock, now, used=jobs[0] is not None):
                    self._answer((), (("any", ""),))
                if late and done:  # else whoever waits behind would wait for the same fault twice
                    core.flush_log(now)
            except sqlite3.Error:
                pass  # busy: the next turn of the loop looks again
        with contextlib.suppress(sqlite3.Error):
            core.flush_log(self._clock())

    def _look_around(self, core: SqliteCore, lock: NodeLock, now: int, *, used: bool) -> bool:
        """Tell whether another connection has written, or a node has died. `used`: a transaction has just looked for the former."""
        if abs(now - self._looked) >= LOCKS_MS:
            self._looked, before, self.dead = now, self.dead, lock.dead()
            if not set(self.dead) <= set(before):
                return True
        if abs(now - self._rang) < RING_MS:
            return False  # others write all the time: look later
        version = core.version if used else _version(core)
        if version == self._version:
            return False
        self._rang, self._version = now, version
        return True

    def _take(self) -> list[Job | None]:
        """Return what is queued, [None] after an idle moment, and nothing at the end."""
        with self._changed:
            if not self._queue and not self._closing:
                self._changed.wait(IDLE_SECONDS)
            if not self._queue:
                return [] if self._closing else [None]
            count = min(len(self._queue), BATCH)
            self._under_way = [self._queue.popleft() for _ in range(count)]
            return list(self._under_way)

    def _do(self, core: SqliteCore, lock: NodeLock, jobs: list[Job], now: int) -> bool:
        """Do what was queued, and answer it; false where nothing of it is known to be done."""
        ops = [with_key(job.op, lock.key) for job in jobs]
        answers: list[Answer]
        done = False
        try:
            answers = list(core.apply_all(ops, now))
            done = True
        except Exception as fault:
            unknown = StoreUnavailable(f"SQLite: {fault}")
            unknown.__cause__ = fault
            answers = [unknown] * len(jobs)
        self.latest = core.latest
        rung = dict.fromkeys(
            bell for op, answer in zip(ops, answers, strict=True) if isinstance(answer, Reply) for bell in rings(op, answer)
        )
        rung |= dict.fromkeys(("work", turn) for turn in core.roused)
        pairs = [
            (job.waiter, with_name(answer) if isinstance(answer, Reply) else answer)
            for job, answer in zip(jobs, answers, strict=True)
        ]
        with self._changed:
            self._under_way = []
        self._answer(pairs, tuple(rung))
        return done

    def _watch(self) -> None:
        while not self._stop_watch.wait(TICK_SECONDS):
            with self._changed:
                self._tick += 1
                late = [job for job in (*self._under_way, *self._queue) if self._tick - job.tick > TICKS]
                if late:
                    # those not begun are never begun: their callers have been told
                    self._queue = deque(job for job in self._queue if job not in late)
            if late:
                fault = StoreUnavailable(f"SQLite did not answer within {TICKS * TICK_SECONDS:g} s")
                self._answer([(job.waiter, fault) for job in late], ())


def _version(core: SqliteCore) -> int:
    """Return a number that changes when another connection has written."""
    return int(core.connection.execute("PRAGMA data_version").fetchone()[0])
