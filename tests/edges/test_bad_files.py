"""SQLite files that are none of ours, or not ours any more: a typed error that names the file, and not a byte of it changed."""

from __future__ import annotations

import os
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from turnhold import Runtime, StoreUnavailable
from turnhold.testing import VirtualClock

from .place import gated, waiting


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(8192))


def text(path: Path) -> None:
    path.write_text("These are my notes.\n" * 100)


def headed(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + random.Random(2).randbytes(8192))


def another_program(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE notes (text)")
    connection.close()


def another_meta(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE meta (words)")
    connection.close()


def newer_format(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value)")
        connection.execute("INSERT INTO meta VALUES ('format', 99), ('now', 0)")
    connection.close()


def no_format(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value)")
    connection.close()


def a_directory(path: Path) -> None:
    path.mkdir()


def nowhere(path: Path) -> None:
    path.symlink_to(path.parent / "missing" / "turns.db")


def a_pipe(path: Path) -> None:
    path.symlink_to("/dev/null")


def contents(folder: Path) -> dict[str, Any]:
    """Return what lies in a folder, but for files that SQLite makes beside a database and empty ones."""
    names = [path.name for path in folder.iterdir()]
    found = {name: (folder / name) for name in names if not name.endswith(("-wal", "-shm", "-journal"))}
    return {name: path.read_bytes() if path.is_file() else None for name, path in found.items() if path.exists()}


@pytest.mark.parametrize(
    "make", [garbage, text, headed, another_program, another_meta, newer_format, no_format, a_directory, nowhere, a_pipe]
)
@pytest.mark.parametrize("inline", [True, False], ids=["on the loop", "in a thread"])
@pytest.mark.blocking("SQLite works on the loop where time is virtual")
async def test_files_of_others(tmp_path: Path, make: Any, inline: bool) -> None:
    """A file that is not ours is refused and left alone; the runtime stays closed and may be opened later."""
    path = tmp_path / "turns.db"
    make(path)
    before = contents(tmp_path)
    runtime = Runtime(f"sqlite:///{path}", agents=[gated()], clock=VirtualClock() if inline else None)

    with pytest.raises(StoreUnavailable, match=r"turns\.db"):
        await runtime.__aenter__()

    assert not runtime.healthy
    assert contents(tmp_path) == before
    with pytest.raises(StoreUnavailable, match="not open"):
        await runtime.turns()


async def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """A file is made, a folder is not."""
    with pytest.raises(StoreUnavailable, match="no/where"):
        await Runtime(f"sqlite:///{tmp_path}/no/where/turns.db").__aenter__()

    assert contents(tmp_path) == {}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    """Where nothing may be written, nothing can be kept."""
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreUnavailable, match=r"turns\.db"):
            await Runtime(f"sqlite:///{tmp_path}/turns.db").__aenter__()
    finally:
        tmp_path.chmod(0o700)


async def test_a_file_that_breaks_later(tmp_path: Path) -> None:
    """A file that is damaged while it is closed is refused when it is next used, with a typed error."""
    path = tmp_path / "turns.db"
    runtime = Runtime(f"sqlite:///{path}", agents=[gated()])
    async with runtime:
        turn, _ = await waiting(runtime)
    body = bytearray(path.read_bytes())
    body[4096:] = bytes(len(body) - 4096)
    path.write_bytes(bytes(body))

    with pytest.raises(StoreUnavailable):
        async with runtime:
            await turn.view()
