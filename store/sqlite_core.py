"""The synchronous core of the SQLite store: transactions, time and format, on one connection."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from ..actors.errors import StoreUnavailable
from . import base
from .base import Op, Reply
from .rules import OPERATIONS
from .sqlite_reads import SqliteReads

LAYOUT = ("schema", "conversations")  # what each format added to the one before it
FORMAT = len(LAYOUT)
OLDEST_SQLITE = (3, 37, 0)
BUSY_MS = 3_000
OPENINGS, OPENING_SECONDS = 100, 0.02
STATEMENTS = 512
READS = frozenset(
    {
        *(base.ReadMail, base.Find, base.Look, base.ReadHistory, base.ReadEvents, base.ReadReplies, base.Versions, base.Due),
        *(base.Expired, base.ListWaits, base.ListTurns, base.OpenTurn, base.ListNodes, base.ListQueue, base.ReadMemory),
        *(base.FindMemory, base.Relays, base.ReadRelay, base.ReadNote),
    }
)

QUEUED = frozenset({base.Create, base.Deliver, base.Claim, base.Save, base.Renew})  # look at no table of which rows may wait
UNPROMISED = READS | {base.Claim, base.Renew, base.Beat, base.Deliver}  # when the power has failed, nobody owns anything any more
FLUSHING = frozenset({"FULL", "EXTRA"})
NOTE_FLUSH = "INSERT INTO meta(key, value) VALUES ('flushes', 1) ON CONFLICT (key) DO UPDATE SET value = value + 1"


class SqliteCore(SqliteReads):
    """Applies operations to a database file, in transactions of its own.

    A commit is flushed to the disk, but for one that promises nobody anything: it only says who owns what, or delivers to turns
    that it gives to the sender's own node. The owner's next save speaks of that mail first, and flushes what lies before it.
    `unflushed`: there is such mail. Whoever uses this class calls `flush_log` after the next transaction, or soon if there is none.
    """

    def __init__(self, connection: sqlite3.Connection, synchronous: str = "FULL") -> None:
        super().__init__(connection)
        self._now = 0
        self._stored: int | None = None  # the time in the file, where it is known
        self._synchronous = self._level = synchronous
        self.unflushed = False
        self.version = 0  # changes where a transaction has seen that another connection has written

    @classmethod
    def open(cls, path: Path, *, synchronous: str = "FULL") -> SqliteCore:
        """Open a file, and lay out its tables if it is new, or those that its older format lacks.

        :raises StoreUnavailable: if it cannot be opened, is of an unknown format, or SQLite is too old.
        """
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise StoreUnavailable(f"SQLite {sqlite3.sqlite_version} is too old: 3.37 or later is needed")
        try:
            connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, timeout=BUSY_MS / 1000, cached_statements=STATEMENTS
            )
        except sqlite3.Error as fault:
            raise StoreUnavailable(f"cannot open {path}: {fault}") from fault
        try:
            _prepare(connection, synchronous)
        except (sqlite3.Error, StoreUnavailable) as fault:
            connection.close()
            raise StoreUnavailable(f"cannot use {path}: {fault}") from fault
        return cls(connection, synchronous)

    @property
    def latest(self) -> int:
        """The greatest time seen so far."""
        return self._now

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, for what is not an operation on turns."""
        return self._connection

    def apply(self, op: Op, now: int) -> Reply:
        """Apply one operation in its own transaction. :raises sqlite3.Error: if it could not be committed."""
        self.roused.clear()
        return self._transact((op,), now)[0]

    def apply_all(self, ops: Sequence[Op], now: int) -> list[Reply | Exception]:
        """Apply operations in one transaction; one that raises leaves no trace, the others stand.

        :raises sqlite3.Error: if nothing could be committed.
        """
        self.roused.clear()
        if not _promises_nothing(ops):
            return self._apply_all(ops, now)
        answers = self._apply_all(ops, now, flushed=False)
        if any(type(op) is base.Deliver and type(answer) is not base.Claimed for op, answer in zip(ops, answers, strict=True)):
            self.flush_log(now)  # a sender is answered now, or by another node
        return answers

    def flush_log(self, now: int) -> None:
        """Flush what was committed without that, if anything was. :raises sqlite3.Error: if that did not happen."""
        if self.unflushed:
            self._transact((), now)

    def _apply_all(self, ops: Sequence[Op], now: int, *, flushed: bool = True) -> list[Reply | Exception]:
        try:
            return list(self._transact(ops, now, flushed=flushed))
        except sqlite3.OperationalError:
            raise
        except Exception as fault:
            if len(ops) == 1:
                return [fault]
            # nothing was committed: find out which one it was
            return [self._apply_all((op,), now, flushed=flushed)[0] for op in ops]

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _transact(self, ops: Sequence[Op], now: int, *, flushed: bool = True) -> list[Reply]:
        run, reads = self._run, bool(ops) and all(type(op) in READS for op in ops)
        if not reads:
            self._flush_commits(self._synchronous if flushed else "NORMAL")
        run("BEGIN" if reads else "BEGIN IMMEDIATE")
        roused = len(self.roused)
        try:
            version: int = run("PRAGMA data_version").fetchone()[0]
            if version != self.version:
                self.version, self._stored = version, None
                self.others_wrote()
            if self._stored is None:
                self._stored = int(run("SELECT value FROM meta WHERE key = 'now'").fetchone()[0])
            self._now = now = max(now, self._stored, self._now)
            before = self._connection.total_changes
            replies: list[Reply] = []
            self.look_ahead(ops)
            for op in ops:
                if type(op) not in QUEUED:
                    self.flush()
                replies.append(getattr(self, OPERATIONS[type(op)])(op, now))
                self.next()
            self.flush()
            changed, flushes = self._connection.total_changes != before, flushed and self.unflushed and not reads
            if now > self._stored and (changed or flushes):
                run("UPDATE meta SET value = ? WHERE key = 'now'", (now,))
                self._stored = now
            elif flushes and not any(type(reply) is base.Saved and not reply.replayed for reply in replies):
                run(NOTE_FLUSH)  # what changes no byte of the file is not written, and then nothing is flushed; a save changes some
            run("COMMIT")
            if flushes:
                self.unflushed = False
            elif not flushed and any(type(op) is base.Deliver for op in ops):
                self.unflushed = self._synchronous in FLUSHING
        except BaseException:
            self._connection.rollback()
            self._stored = None
            del self.roused[roused:]
            self.forget()
            raise
        self.forget(stored=True)
        return replies

    def _flush_commits(self, level: str) -> None:
        """Let commits be flushed from here on, or (NORMAL) not."""
        if level != self._level and self._synchronous in FLUSHING:
            self._level = ""  # unknown, should this fail
            self._run(f"PRAGMA synchronous = {level}")
            self._level = level


def _promises_nothing(ops: Sequence[Op]) -> bool:
    """Tell whether nobody is told anything that must outlast the power, unless a delivery finds its turn with another owner."""
    return all(type(op) in UNPROMISED and (type(op) is not base.Deliver or op.claim is not None) for op in ops)


def _prepare(connection: sqlite3.Connection, synchronous: str) -> None:
    run = connection.execute
    _format(connection)  # before a byte of the file is changed
    mode = _with_log(connection)
    if mode != "wal":
        raise StoreUnavailable(f"needs a local disk: journal mode {mode} instead of WAL")
    for setting in (f"synchronous = {synchronous}", "wal_autocheckpoint = 4000", "cache_size = -16000", "temp_store = MEMORY"):
        run(f"PRAGMA {setting}")
    run("BEGIN IMMEDIATE")
    try:
        for name in LAYOUT[_format(connection) :]:
            _lay_out(connection, name)
        run("COMMIT")
    except BaseException:
        connection.rollback()
        raise


def _with_log(connection: sqlite3.Connection) -> str:
    """Let a file have a write-ahead log, and return its mode.

    Where others open a new file at the same moment SQLite says that it is locked, at once: here it does not wait by itself.
    """
    for left in reversed(range(OPENINGS)):
        try:
            return connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as fault:
            if not left or "locked" not in str(fault):
                raise
        threading.Event().wait(OPENING_SECONDS)
    raise AssertionError("unreachable")


def _format(connection: sqlite3.Connection) -> int:
    """Return the format of a file's tables, 0 where it is empty.

    :raises StoreUnavailable: if it has others, or ours of a format that is not known here.
    """
    run = connection.execute
    if not run("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        return 0
    try:
        row = run("SELECT value FROM meta WHERE key = 'format'").fetchone()
    except sqlite3.OperationalError as fault:
        if "no such" not in str(fault):
            raise
        raise StoreUnavailable("it is another program's database") from fault
    if row is None or not 0 < row[0] <= FORMAT:
        raise StoreUnavailable(f"its format is {'none' if row is None else row[0]}, this release knows {FORMAT}")
    return int(row[0])


def _lay_out(connection: sqlite3.Connection, name: str) -> None:
    schema = resources.files(__package__ or "").joinpath(f"sql/{name}.sql").read_text(encoding="utf-8")
    text = "\n".join(line.partition("--")[0] for line in schema.splitlines())
    for statement in text.split(";"):
        if statement.strip():
            connection.execute(statement)
    connection.execute("INSERT OR IGNORE INTO meta(key, value) VALUES ('now', 0)")
    connection.execute("INSERT OR REPLACE INTO meta(key, value) VALUES ('format', ?)", (LAYOUT.index(name) + 1,))
