"""Which nodes on a SQLite file are dead: each holds an OS lock on a file beside the database, and the OS lets go of it.

A node owns turns, and announces itself, under a key that is its name and something unique, so that a node that was started again
under its old name is not taken for its earlier self, and of two nodes with one name each leaves for itself.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path

from .node_names import MARK, name_of
from .sqlite_core import SqliteCore

_held: set[int] = set()


def drop(descriptor: int) -> None:
    """Release a lock."""
    _held.remove(descriptor)
    os.close(descriptor)


def _let_go() -> None:
    """In a forked child: close what was inherited, so that the locks end with the parent; closing alone does not release them."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if sys.platform == "win32":

    def take(path: Path, *, create: bool) -> int | None:
        """There are no locks of this kind: dead nodes are found by their leases."""
        return None

else:
    from fcntl import LOCK_EX, LOCK_NB, flock

    def take(path: Path, *, create: bool) -> int | None:
        """Lock a file and return its descriptor, or None if somebody else has the lock.

        :raises FileNotFoundError: if there is no such file, and `create` is false.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
        _held.add(descriptor)
        try:
            flock(descriptor, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            drop(descriptor)
            return None
        return descriptor

    os.register_at_fork(after_in_child=_let_go)

# What a dead node has announced stays for a while (somebody may start it again), but not beside what its successor announces.
SUCCEEDED = """
    DELETE FROM nodes WHERE node = :key AND EXISTS (
        SELECT 1 FROM nodes WHERE node <> :key AND instr(node, :name) = 1 AND length(node) = length(:key)
    )
"""


class NodeLock:
    """The lock of one connection. All calls are made by whoever uses the core."""

    def __init__(self, core: SqliteCore, node: str) -> None:
        self._core = core
        (path,) = (row[2] for row in core.connection.execute("PRAGMA database_list") if row[1] == "main")
        self._folder = Path(f"{path}.nodes")
        self.key = node + MARK + core.connection.execute("SELECT lower(hex(randomblob(6)))").fetchone()[0]
        self._name = self.key.rpartition(MARK)[2]
        self._folder.mkdir(exist_ok=True)
        self._descriptor = take(self._folder / self._name, create=True)
        if self._descriptor is not None:
            # only now: whoever finds the row may take it that the lock is held
            core.connection.execute("INSERT INTO locks(name, node) VALUES (?, ?)", (self._name, self.key))

    def dead(self) -> tuple[str, ...]:
        """Return the keys of nodes whose lock can be taken, and forget those that own nothing any more."""
        run = self._core.connection.execute
        found: list[str] = []
        for name, key in run("SELECT name, node FROM locks WHERE name <> ?", (self._name,)).fetchall():
            if not self._gone(name):
                continue
            if run("SELECT 1 FROM turns WHERE node = ? LIMIT 1", (key,)).fetchone():
                found.append(key)
            else:
                run("DELETE FROM locks WHERE name = ?", (name,))
                run(SUCCEEDED, {"key": key, "name": name_of(key) + MARK})
                (self._folder / name).unlink(missing_ok=True)
        return tuple(found)

    def release(self) -> None:
        """Leave. A node that still owns turns keeps its lock until its process ends: something of it still runs."""
        if self._descriptor is None or self._descriptor not in _held:
            return  # there is none, it was released, or it was the parent's
        run = self._core.connection.execute
        try:
            if run("SELECT 1 FROM turns WHERE node = ? LIMIT 1", (self.key,)).fetchone():
                return
            run("DELETE FROM locks WHERE name = ?", (self._name,))
            (self._folder / self._name).unlink(missing_ok=True)
        except sqlite3.Error:
            pass  # the row stays, its file unlocked: another node clears both away
        drop(self._descriptor)
        self._descriptor = None

    def _gone(self, name: str) -> bool:
        try:
            descriptor = take(self._folder / name, create=False)
        except FileNotFoundError:
            return True
        if descriptor is None:
            return False
        drop(descriptor)
        return True
