"""What only the SQLite store has: a file, threads, other processes."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from turnhold.actors.errors import InvalidDefinition, StoreUnavailable
from turnhold.store import base as b
from turnhold.store.sqlite import SqliteStore
from turnhold.store.sqlite_core import FORMAT, SqliteCore
from turnhold.testing.conformance import make

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

INLINE = pytest.mark.blocking("inline is meant to use the file on the loop")


def wall() -> int:
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def connected(path: Path, node: str = "n1", *, inline: bool = False) -> AsyncIterator[tuple[Any, list[tuple[str, str]]]]:
    bells: list[tuple[str, str]] = []
    connection = await SqliteStore(path).connect(node, lambda kind, turn: bells.append((kind, turn)), wall, inline=inline)
    try:
        yield connection, bells
    finally:
        await connection.close()


async def until(truth: Any, seconds: float = 5) -> None:
    for _ in range(int(seconds * 100)):
        if truth():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not in time")


@pytest.mark.parametrize(
    ("url", "path", "synchronous"),
    [
        ("sqlite:///turns.db", "turns.db", "FULL"),
        ("sqlite:////var/lib/a%20b.db", "/var/lib/a b.db", "FULL"),
        ("sqlite:///turns.db?synchronous=normal", "turns.db", "NORMAL"),
    ],
)
def test_urls(url: str, path: str, synchronous: str) -> None:
    """Three slashes: relative; four: absolute."""
    store = SqliteStore.from_url(url)

    assert (store.path, store.synchronous) == (Path(path).absolute(), synchronous)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite://turns.db",
        "sqlite:///:memory:",
        "sqlite:///a.db?mode=ro",
        "sqlite:///a.db?synchronous=off",
    ],
)
def test_wrong_urls(url: str) -> None:
    """Said when the store is made, not when it is used."""
    with pytest.raises(InvalidDefinition):
        SqliteStore.from_url(url)


@pytest.mark.parametrize("inline", [False, pytest.param(True, marks=INLINE)])
async def test_an_unknown_format_is_named(tmp_path: Path, inline: bool) -> None:
    """A file of a later release is left alone."""
    await asyncio.to_thread(lambda: SqliteCore.open(tmp_path / "turns.db").close())
    with sqlite3.connect(tmp_path / "turns.db") as raw:
        raw.execute("UPDATE meta SET value = 99 WHERE key = 'format'")
    raw.close()

    with pytest.raises(StoreUnavailable, match=f"format is 99, this release knows {FORMAT}"):
        async with connected(tmp_path / "turns.db", inline=inline):
            pass


async def test_a_file_of_an_older_format_goes_on(tmp_path: Path) -> None:
    """It gets the tables that it lacks, once, and keeps what it holds: a turn that was open there opens the next one."""
    path = tmp_path / "turns.db"
    first, claim = make.new(conversation="talk"), make.by()
    owned = await asyncio.to_thread(older_file, path, b.Create(new=first, claim=claim))
    for _ in range(2):
        async with connected(path) as (connection, _):
            assert (await connection.call(b.Look(turn=first.turn))).activation == claim.activation
    async with connected(path) as (connection, bells):
        after = make.new(conversation="talk")
        assert isinstance(await connection.call(b.Create(new=after, when_busy="queue")), b.Queued)
        memory = (b.MemoryRow("a", b"body"),)
        end = make.save(first.turn, b.Token(claim.activation, owned.epoch), 0, b.Mode.END, conversation="talk", memory=memory)
        assert isinstance(await connection.call(end), b.Saved)
        assert (await connection.call(b.OpenTurn(conversation="talk"))).turn == after.turn
        assert len((await connection.call(b.ReadMemory(conversation="talk"))).entries) == 1
        assert ("work", after.turn) in bells


def older_file(path: Path, op: b.Op) -> Any:
    """Make a file of format 1, in which one operation was applied."""
    core = SqliteCore.open(path)
    reply = core.apply(op, wall())
    for table in ("queue", "shelves", "memory", "notes"):
        core.connection.execute(f"DROP TABLE {table}")
    core.connection.execute("UPDATE meta SET value = 1 WHERE key = 'format'")
    core.close()
    return reply


async def test_a_file_that_is_none_of_ours(tmp_path: Path) -> None:
    """Another program's database, no database at all, and a folder that is not there."""
    with sqlite3.connect(tmp_path / "other.db") as raw:
        raw.execute("CREATE TABLE theirs(a)")
    raw.close()
    (tmp_path / "text.db").write_text("no database" * 100)

    for name in ("other.db", "text.db", "absent/turns.db"):
        with pytest.raises(StoreUnavailable):
            async with connected(tmp_path / name):
                pass
    with sqlite3.connect(tmp_path / "other.db") as raw:
        assert raw.execute("SELECT name FROM sqlite_schema").fetchall() == [("theirs",)]
    raw.close()


async def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """STRICT tables need 3.37."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))

    with pytest.raises(StoreUnavailable, match=r"3\.37"):
        async with connected(tmp_path / "turns.db"):
            pass


async def test_what_was_answered_is_in_the_file(tmp_path: Path) -> None:
    """Closed and opened again, everything is there, and time has not gone back."""
    new = make.new()
    async with connected(tmp_path / "turns.db") as (one, _):
        created = await one.call(b.Create(new=new))
    async with connected(tmp_path / "turns.db") as (two, _):
        seen = await two.call(b.Look(turn=new.turn))
        assert (seen.snapshot, seen.created) == (b"first", created.now)
        assert two.now() >= created.now


async def test_many_at_once_share_commits(tmp_path: Path) -> None:
    """Operations queued together are one transaction, and each gets its own reply, in order."""
    commits: list[str] = []
    async with connected(tmp_path / "turns.db") as (connection, _):
        (await connection.call(b.ListNodes()))
        core = connection._writer.core
        core.connection.set_trace_callback(lambda text: commits.append(text) if text == "COMMIT" else None)
        news = [make.new() for _ in range(200)]
        replies = await asyncio.gather(*[connection.call(b.Create(new=new, claim=make.by())) for new in news])
        core.connection.set_trace_callback(None)

    assert all(isinstance(reply, b.Claimed) for reply in replies)
    assert len(commits) < 20


@pytest.mark.parametrize("inline", [False, pytest.param(True, marks=INLINE)])
async def test_one_that_raises_leaves_the_others(tmp_path: Path, inline: bool) -> None:
    """A value that no database takes fails its own operation only, wholly."""
    async with connected(tmp_path / "turns.db", inline=inline) as (connection, _):
        good, bad = make.new(), make.new(make.root(), conversation="\ud800")
        outcomes = await asyncio.gather(
            *[connection.call(b.Create(new=new)) for new in (good, bad, make.new())], return_exceptions=True
        )

        assert [type(outcome) for outcome in outcomes] == [b.Created, UnicodeEncodeError, b.Created]
        assert await connection.call(b.Look(turn=bad.turn)) == b.Gone()
        assert isinstance(await connection.call(b.Look(turn=good.turn)), b.Looked)


async def test_a_locked_file_is_unavailable_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program that holds the write lock: StoreUnavailable, nothing was done; afterwards all is well."""
    monkeypatch.setattr("turnhold.store.sqlite_core.BUSY_MS", 100)
    async with connected(tmp_path / "turns.db") as (connection, _):
        other = sqlite3.connect(tmp_path / "turns.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        new = make.new()
        with pytest.raises(StoreUnavailable, match="locked"):
            await connection.call(b.Create(new=new))
        assert isinstance(await connection.call(b.ListNodes()), b.Nodes)
        other.execute("ROLLBACK")
        other.close()
        assert isinstance(await connection.call(b.Create(new=new)), b.Created)


async def test_a_disk_that_hangs_is_unavailable_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch answers for a writer that does not come back; a late answer is dropped."""
    monkeypatch.setattr("turnhold.store.sqlite_writer.TICK_SECONDS", 0.02)
    async with connected(tmp_path / "turns.db") as (connection, _):
        core = connection._writer.core
        core.connection.create_function("hang", 0, lambda: time.sleep(1))
        core.connection.execute("CREATE TEMP TRIGGER slow BEFORE INSERT ON turns BEGIN SELECT hang(); END")
        begin = time.monotonic()
        calls = [connection.call(b.Create(new=make.new())) for _ in range(2)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)

        assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 2
        assert time.monotonic() - begin < 0.9


async def test_the_queue_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the queue holds is refused at once."""
    monkeypatch.setattr("turnhold.store.sqlite_writer.QUEUE", 5)
    async with connected(tmp_path / "turns.db") as (connection, _):
        calls = [connection.call(b.Create(new=make.new())) for _ in range(50)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)

    refused = [outcome for outcome in outcomes if isinstance(outcome, StoreUnavailable)]
    assert refused
    assert "queued" in str(refused[0])


async def test_a_renewal_does_not_wait_behind_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is queued, a renewal is the next to be done: the leases under which the rest runs hang on it."""
    monkeypatch.setattr("turnhold.store.sqlite_writer.BATCH", 1)
    async with connected(tmp_path / "turns.db") as (connection, _):
        done: list[str] = []

        async def call(op: b.Op) -> None:
            await connection.call(op)
            done.append(type(op).__name__)

        renewal = b.Renew(leases=((make.root(), b.Token("nobody", 1)),), lease_ms=1000)
        await asyncio.gather(*[call(b.Create(new=make.new())) for _ in range(30)], call(renewal))
        assert done.index("Renew") < 3, done


async def test_close_does_what_is_queued(tmp_path: Path) -> None:
    """Calls made before are answered; calls made after are refused."""
    async with connected(tmp_path / "turns.db") as (connection, _):
        calls = [asyncio.ensure_future(connection.call(b.Create(new=make.new()))) for _ in range(20)]
        await asyncio.sleep(0)
        await connection.close()
        assert {type(reply) for reply in await asyncio.gather(*calls)} == {b.Created}
        with pytest.raises(StoreUnavailable, match="closed"):
            await connection.call(b.ListNodes())


async def test_a_cancelled_call_is_still_done(tmp_path: Path) -> None:
    """Cancellation ends the waiting, not the operation, and disturbs nobody else."""
    async with connected(tmp_path / "turns.db") as (connection, _):
        new = make.new()
        task = asyncio.ensure_future(connection.call(b.Create(new=new)))
        await asyncio.sleep(0)
        task.cancel()
        other = await connection.call(b.Create(new=make.new()))

        assert isinstance(other, b.Created)
        assert isinstance(await connection.call(b.Look(turn=new.turn)), b.Looked)


async def test_nodes_of_one_process_ring_each_other(tmp_path: Path) -> None:
    """Directly, with the turn's name."""
    async with connected(tmp_path / "turns.db") as (one, _), connected(tmp_path / "turns.db", "n2") as (_, bells):
        new = make.new()
        await one.call(b.Create(new=new))
        await until(lambda: ("work", new.turn) in bells)


@pytest.mark.process
async def test_another_process_rings_any(tmp_path: Path) -> None:
    """Somebody else has written to the file: look everywhere."""
    async with connected(tmp_path / "turns.db") as (_, bells):
        run_child(tmp_path, "await connection.call(b.Beat(node='child'))")
        await until(lambda: ("any", "") in bells)


@pytest.mark.parametrize("inline", [False, pytest.param(True, marks=INLINE)])
async def test_a_living_node_is_not_dead(tmp_path: Path, inline: bool) -> None:
    """Not to itself, not to another of the same process, not under the same name; owners are shown by their names."""
    path = tmp_path / "turns.db"
    async with connected(path, inline=inline) as (one, _), connected(path, inline=inline) as (two, _):
        turn = make.new()
        await one.call(b.Create(new=turn, claim=make.by(node="n1")))
        await asyncio.sleep(0.6)

        assert (tuple(one.dead_nodes()), tuple(two.dead_nodes())) == ((), ())
        assert one.key != two.key
        assert await two.call(b.Claim(turn=turn.turn, by=make.by())) == b.Held("n1")
        assert (await two.call(b.Look(turn=turn.turn))).node == "n1"
        assert (await two.call(b.ListTurns())).turns[0].node == "n1"


@pytest.mark.process
async def test_a_killed_process_is_dead_at_once(tmp_path: Path) -> None:
    """Its turns are taken long before their leases end, by a node of the same name too; then its file is cleared away."""
    path = tmp_path / "turns.db"
    new = make.new()
    started = msgspec.msgpack.encode(b.Create(new=new, claim=make.by(lease_ms=60_000)))
    run_child(tmp_path, f"await connection.call(msgspec.msgpack.decode({started!r}, type=b.Create)); os.kill(os.getpid(), 9)")

    async with connected(path) as (connection, bells):
        await until(connection.dead_nodes)
        (dead,) = connection.dead_nodes()
        assert ("any", "") in bells
        assert (await connection.call(b.Expired(grace_ms=0, dead_nodes=(dead,)))).turns == (new.turn,)
        assert await connection.call(b.Reap(turn=new.turn, grace_ms=0, dead_node=dead)) == b.Reaped(1)
        assert isinstance(await connection.call(b.Claim(turn=new.turn, by=make.by())), b.Claimed)
        await until(lambda: not connection.dead_nodes())
        await until(lambda: len(list(Path(f"{path}.nodes").iterdir())) == 1)


async def test_a_node_that_leaves_its_turns_behind_is_not_dead_yet(tmp_path: Path) -> None:
    """Something of it still runs in this process (a thread that cannot be killed): its leases decide."""
    path = tmp_path / "turns.db"
    async with connected(path) as (one, _):
        await one.call(b.Create(new=make.new(), claim=make.by()))
    async with connected(path, "n2") as (two, _):
        await asyncio.sleep(0.5)
        assert tuple(two.dead_nodes()) == ()


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_not_across_a_fork(tmp_path: Path) -> None:
    """A child of fork is told, instead of both writing through one handle."""
    async with connected(tmp_path / "turns.db") as (connection, _):
        child = os.fork()
        if child == 0:
            try:
                connection.call(b.ListNodes()).send(None)
            except StoreUnavailable as fault:
                os._exit(7 if "fork" in str(fault) else 1)
            os._exit(2)
        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) == 7


@pytest.mark.process
def test_processes_that_claim_one_turn_at_once(tmp_path: Path) -> None:
    """Of several processes on one file exactly one owns each turn."""
    path, turns = tmp_path / "turns.db", [make.new() for _ in range(60)]
    core = SqliteCore.open(path)
    core.apply_all([b.Create(new=new) for new in turns], wall())
    core.close()
    names = [new.turn for new in turns]
    body = f"""
        import uuid
        while not os.path.exists({str(tmp_path / "go")!r}): pass
        for turn in {names!r}:
            by = b.ClaimBy(activation=uuid.uuid4().hex, node="x", lease_ms=60000, schema=1)
            reply = await connection.call(b.Claim(turn=turn, by=by))
            print(turn, type(reply).__name__)
"""
    children = [start_child(tmp_path, body) for _ in range(3)]
    time.sleep(0.5)
    (tmp_path / "go").touch()
    lines = [line.split() for child in children for line in child.communicate(timeout=50)[0].splitlines()]

    assert [child.returncode for child in children] == [0] * 3
    assert sorted(turn for turn, reply in lines if reply == "Claimed") == sorted(names)
    assert {reply for _, reply in lines} == {"Claimed", "Held"}


CHILD = """
import asyncio, os, sys, time
import msgspec
from turnhold.store import base as b
from turnhold.store.sqlite import SqliteStore
async def main():
    connection = await SqliteStore(sys.argv[1]).connect("n1", lambda kind, turn: None, lambda: time.time_ns() // 1000000)
    try:
        {body}
    finally:
        await connection.close()
asyncio.run(main())
"""


def start_child(folder: Path, body: str) -> subprocess.Popen[str]:
    text = CHILD.replace("{body}", body.strip())
    return subprocess.Popen([sys.executable, "-c", text, str(folder / "turns.db")], stdout=subprocess.PIPE, text=True)


def run_child(folder: Path, body: str) -> None:
    start_child(folder, body).communicate(timeout=30)


def test_a_new_file_that_many_open_at_once(tmp_path: Path) -> None:
    """Nobody is told that it is locked: all lay it out, or find it laid out."""
    for number in range(40):
        start, faults = threading.Barrier(4), list[Exception]()

        def opened(number: int = number, start: threading.Barrier = start, faults: list[Exception] = faults) -> None:
            start.wait()
            try:
                SqliteCore.open(tmp_path / f"{number}.db", synchronous="OFF").close()
            except StoreUnavailable as fault:
                faults.append(fault)

        threads = [threading.Thread(target=opened) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults == []
