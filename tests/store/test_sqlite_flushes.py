"""Which commits of a SQLite file are flushed to its disk: all that somebody is told about before the next one."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from turnhold.store import base as b
from turnhold.store.sqlite import SqliteConnection, SqliteStore
from turnhold.store.sqlite_core import SqliteCore
from turnhold.store.sqlite_nodes import NodeLock
from turnhold.store.sqlite_writer import Writer
from turnhold.testing.conformance import make

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

NOW = make.START


class Watched:
    """A core, what SQLite was told, and how long its log was then."""

    def __init__(self, core: SqliteCore, level: str = "FULL") -> None:
        self.core = core
        self._level = level
        (self._file,) = (row[2] for row in core.connection.execute("PRAGMA database_list") if row[1] == "main")
        self._told: list[tuple[str, int]] = []
        core.connection.set_trace_callback(self._note)

    def commits(self) -> list[str]:
        """Return the level of each commit since the last look that has written to the log: no other one is flushed."""
        connection = self.core.connection
        connection.set_trace_callback(None)
        level, found = self._level, list[str]()
        ends = [*(length for _, length in self._told[1:]), self._length()]
        for (text, length), end in zip(self._told, ends, strict=True):
            if text.startswith("PRAGMA synchronous"):
                level = text.rpartition(" ")[2]
            if text == "COMMIT" and end > length:
                found.append(level)
        self._level = level
        assert {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}[connection.execute("PRAGMA synchronous").fetchone()[0]] == level
        self._told.clear()
        connection.set_trace_callback(self._note)
        return found

    def _note(self, text: str) -> None:
        self._told.append((text, self._length()))

    def _length(self) -> int:
        return Path(f"{self._file}-wal").stat().st_size


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    core = SqliteCore.open(tmp_path / "turns.db")
    yield Watched(core)
    core.close()


def created(core: SqliteCore) -> b.NewTurn:
    new = make.new()
    assert core.apply_all([b.Create(new=new)], NOW) == [b.Created(NOW)]
    return new


def delivered(new: b.NewTurn, claim: b.ClaimBy | None) -> b.Deliver:
    return b.Deliver(turn=new.turn, mail=make.mail(), claim=claim)


def test_mail_that_comes_with_the_turn_is_flushed_by_the_first_save(watched: Watched) -> None:
    """Its sender is answered when that save is done, and the disk is waited for once."""
    core, new, by = watched.core, created(watched.core), make.by()
    assert watched.commits() == ["FULL"]

    (claimed,) = core.apply_all([delivered(new, by)], NOW)
    assert isinstance(claimed, b.Claimed)
    assert (watched.commits(), core.unflushed) == (["NORMAL"], True)

    (saved,) = core.apply_all([make.save(new.turn, b.Token(by.activation, claimed.epoch), 0)], NOW)
    assert isinstance(saved, b.Saved)
    assert (watched.commits(), core.unflushed) == (["FULL"], False)


def test_mail_that_another_owner_gets_is_flushed_at_once(watched: Watched) -> None:
    """Its sender waits for that owner, who may answer any time."""
    core, new = watched.core, created(watched.core)
    assert isinstance(core.apply_all([b.Claim(turn=new.turn, by=make.by())], NOW)[0], b.Claimed)
    watched.commits()

    (reply,) = core.apply_all([delivered(new, make.by())], NOW)

    assert isinstance(reply, b.Delivered)
    assert (watched.commits(), core.unflushed) == (["NORMAL", "FULL"], False)


def test_mail_without_a_claim_is_flushed_with_its_commit(watched: Watched) -> None:
    """Nobody here takes the turn."""
    core, new = watched.core, created(watched.core)
    watched.commits()

    assert isinstance(core.apply_all([delivered(new, None)], NOW)[0], b.Delivered)

    assert watched.commits() == ["FULL"]


def test_mail_that_is_sent_again_is_flushed_though_nothing_changes(watched: Watched) -> None:
    """Who asks again is told that it is stored, so then it is."""
    core, new = watched.core, created(watched.core)
    op = delivered(new, make.by())
    core.apply_all([op], NOW)
    watched.commits()

    (again,) = core.apply_all([b.Deliver(turn=new.turn, mail=op.mail)], NOW)

    assert again == b.Delivered(NOW, "n1", fresh=False)
    assert (watched.commits(), core.unflushed) == (["FULL"], False)


def test_a_save_that_is_sent_again_flushes_though_nothing_changes(watched: Watched) -> None:
    """It is found there, and what was committed since waits for the disk all the same."""
    core, new, by = watched.core, created(watched.core), make.by()
    (claimed,) = core.apply_all([b.Claim(turn=new.turn, by=by)], NOW)
    assert isinstance(claimed, b.Claimed)
    save = make.save(new.turn, b.Token(by.activation, claimed.epoch), 0)
    core.apply_all([save], NOW)
    core.apply_all([delivered(created(core), make.by())], NOW)
    watched.commits()

    (again,) = core.apply_all([save], NOW)

    assert isinstance(again, b.Saved)
    assert again.replayed
    assert (watched.commits(), core.unflushed) == (["FULL"], False)


def test_with_anything_else_all_is_flushed(watched: Watched) -> None:
    """One commit for several who wait is flushed if it has to be for one of them."""
    core, new = watched.core, created(watched.core)
    watched.commits()

    core.apply_all([delivered(new, make.by()), b.Create(new=make.new())], NOW)

    assert (watched.commits(), core.unflushed) == (["FULL"], False)


def test_who_owns_what_is_not_flushed(watched: Watched) -> None:
    """When the power has failed nobody does any more."""
    core, new, by = watched.core, created(watched.core), make.by()
    watched.commits()

    (claimed,) = core.apply_all([b.Claim(turn=new.turn, by=by)], NOW)
    assert isinstance(claimed, b.Claimed)
    token = b.Token(by.activation, claimed.epoch)
    core.apply_all([b.Renew(leases=((new.turn, token),), lease_ms=1000)], NOW + 1)
    core.apply_all([b.Beat(node="n1", agents=("a@1",))], NOW + 2)
    assert (watched.commits(), core.unflushed) == (["NORMAL"] * 3, False)

    core.apply_all([b.Abandon(turn=new.turn, token=token)], NOW + 3)
    assert watched.commits() == ["FULL"]


def test_reading_flushes_nothing_and_ends_nothing(watched: Watched) -> None:
    """What is not flushed yet stays so."""
    core, new = watched.core, created(watched.core)
    core.apply_all([delivered(new, make.by())], NOW)
    watched.commits()

    core.apply_all([b.Look(turn=new.turn)], NOW)

    assert (watched.commits(), core.unflushed) == ([], True)


def test_a_flush_that_fails_is_still_to_be_done(watched: Watched) -> None:
    """The outcome is unknown to who is waiting, and the next try flushes."""
    core, new = watched.core, created(watched.core)
    core.apply_all([delivered(new, make.by())], NOW)
    core.connection.execute("CREATE TEMP TRIGGER full BEFORE INSERT ON meta BEGIN SELECT RAISE(ABORT, 'disk full'); END")
    with contextlib.suppress(Exception):
        core.flush_log(NOW)
    assert core.unflushed
    core.connection.execute("DROP TRIGGER full")
    watched.commits()

    core.flush_log(NOW)

    assert (watched.commits(), core.unflushed) == (["FULL"], False)


def test_what_was_committed_before_a_fault_is_still_to_be_flushed(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three is at fault, so each is done by itself, until the disk is full: the first was committed."""
    core = watched.core
    first, second, third = [created(core) for _ in range(3)]
    faults = {second.turn: ValueError("odd"), third.turn: sqlite3.OperationalError("disk full")}
    deliver = core.deliver

    def faulty(op: b.Deliver, now: int) -> b.Reply:
        if op.turn in faults:
            raise faults[op.turn]
        return deliver(op, now)

    monkeypatch.setattr(core, "deliver", faulty)
    watched.commits()
    with pytest.raises(sqlite3.OperationalError):
        core.apply_all([delivered(new, make.by()) for new in (first, second, third)], NOW)

    assert (watched.commits(), core.unflushed) == (["NORMAL"], True)


@pytest.mark.parametrize(("level", "levels"), [("NORMAL", ["NORMAL"] * 2), ("EXTRA", ["NORMAL", "EXTRA"])])
def test_other_levels(tmp_path: Path, level: str, levels: list[str]) -> None:
    """Where commits are not flushed anyway there is nothing to make up for; EXTRA stays EXTRA."""
    core = SqliteCore.open(tmp_path / "turns.db", synchronous=level)
    watched = Watched(core, level)
    new, by = created(core), make.by()
    (claimed,) = core.apply_all([delivered(new, by)], NOW)
    assert isinstance(claimed, b.Claimed)
    assert core.unflushed == (level == "EXTRA")
    core.apply_all([make.save(new.turn, b.Token(by.activation, claimed.epoch), 0)], NOW)
    found = watched.commits()
    core.close()

    assert found == [level, *levels]


@contextlib.asynccontextmanager
async def connected(path: Path) -> AsyncGenerator[tuple[SqliteConnection, SqliteCore]]:
    connection = await SqliteStore(path).connect("n1", lambda kind, turn: None, lambda: NOW)
    assert isinstance(connection, SqliteConnection)
    core = connection._writer.core
    assert core is not None
    try:
        yield connection, core
    finally:
        await connection.close()


async def test_an_idle_writer_flushes(tmp_path: Path) -> None:
    """Mail is flushed soon, whatever becomes of who got it."""
    async with connected(tmp_path / "turns.db") as (connection, core):
        new, flushed = make.new(), threading.Event()
        await connection.call(b.Create(new=new))
        assert isinstance(await connection.call(delivered(new, make.by())), b.Claimed)
        core.connection.set_trace_callback(lambda text: flushed.set() if text == "COMMIT" else None)
        assert await asyncio.to_thread(flushed.wait, 10)
        core.connection.set_trace_callback(None)
        await connection.call(b.ListNodes())

        assert not core.unflushed


async def test_a_writer_that_is_asked_other_things_flushes(tmp_path: Path) -> None:
    """Mail does not wait for a moment in which nobody wants anything."""
    async with connected(tmp_path / "turns.db") as (connection, core):
        new = make.new()
        await connection.call(b.Create(new=new))
        await connection.call(delivered(new, make.by()))
        for _ in range(2):
            await connection.call(b.ListNodes())

        assert not core.unflushed


async def test_a_writer_that_ends_flushes(tmp_path: Path) -> None:
    """What was taken is flushed when the store is closed."""
    new = make.new()
    async with connected(tmp_path / "turns.db") as (connection, core):
        await connection.call(b.Create(new=new))
        await connection.call(delivered(new, make.by()))

    assert not core.unflushed


class Failing(SqliteCore):
    """Mail is not flushed yet, and the disk is full."""

    def __init__(self, connection: sqlite3.Connection, synchronous: str = "FULL") -> None:
        super().__init__(connection, synchronous)
        self.unflushed = True
        self.tried: list[str] = []

    def apply_all(self, ops: Sequence[b.Op], now: int) -> list[b.Reply | Exception]:
        self.tried += [type(op).__name__ for op in ops]
        raise sqlite3.OperationalError("disk full")

    def flush_log(self, now: int) -> None:
        self.tried.append("flush")
        raise sqlite3.OperationalError("disk full")


def test_what_waits_behind_a_fault_does_not_wait_for_a_flush(tmp_path: Path) -> None:
    """Where a lock is waited for in vain, the next one in the queue is done next."""
    core = Failing.open(tmp_path / "turns.db")
    assert isinstance(core, Failing)
    late: list[b.Op] = [b.ListNodes()]
    done = threading.Event()

    def answer(answers: Sequence[tuple[object, object]], bells: object) -> None:
        if late:
            writer.put([(late.pop(), None)])
        else:
            done.set()

    writer = Writer(lambda: (core, NodeLock(core, "n1")), lambda: NOW, answer)
    writer.put([(b.Create(new=make.new()), None)])
    writer.start()
    assert done.wait(10)
    writer.stop()

    assert core.tried[:2] == ["Create", "ListNodes"]


async def test_a_flush_that_fails_hides_no_bells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others who write are heard, whatever this node's disk does."""
    heard = asyncio.Event()
    path = tmp_path / "turns.db"
    connection = await SqliteStore(path).connect("n1", lambda kind, turn: heard.set(), lambda: NOW)
    assert isinstance(connection, SqliteConnection)
    core = connection._writer.core
    assert core is not None

    def full(now: int) -> None:
        raise sqlite3.OperationalError("disk full")

    def write() -> None:
        other = SqliteCore.open(path)
        created(other)
        other.close()

    monkeypatch.setattr(core, "flush_log", full)
    core.unflushed = True
    await asyncio.to_thread(write)
    async with asyncio.timeout(10):
        await heard.wait()
    await connection.close()
