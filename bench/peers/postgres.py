"""A private Postgres for the peers that want one: own port, own folder, gone at the end; durable as it comes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .environments import Unavailable

USER = "postgres"  # as whom it runs where this runs as root, which Postgres refuses
PATIENCE = 60.0


def programs() -> Path:
    """Return the folder that has `initdb` and `postgres`: of PATH, else of Debian's newest version."""
    places = [Path(found).resolve().parent] if (found := shutil.which("postgres")) else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    for place in places:
        if (place / "initdb").exists():
            return place
    raise Unavailable("no Postgres here (Debian: apt install postgresql)")


def version() -> str:
    said = subprocess.run([str(programs() / "postgres"), "--version"], capture_output=True, text=True, check=True).stdout
    return said.split()[2]


class Postgres:
    """A running server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._made = 0

    def fresh(self) -> str:
        """Make an empty database and return its URL."""
        self._made += 1
        name = f"peers_{self._made}"
        do([str(programs() / "createdb"), "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, name])
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{name}"


@contextlib.contextmanager
def served() -> Iterator[Postgres]:
    """Run a server."""
    folder = Path(tempfile.mkdtemp(prefix="turnhold-postgres-"))
    process: subprocess.Popen[bytes] | None = None
    try:
        prefix = lower(folder)
        data, log = folder / "data", folder / "log"
        do([*prefix, str(programs() / "initdb"), "-D", str(data), "-A", "trust", "-U", USER, "-E", "UTF8", "--locale=C"])
        port = free_port()
        words = [str(programs() / "postgres"), "-D", str(data), "-h", "127.0.0.1", "-p", str(port), "-k", "", "-N", "200"]
        with log.open("wb") as file:
            process = subprocess.Popen([*prefix, *words], stdout=file, stderr=file, cwd="/")
        wait(process, port, log)
        yield Postgres(port)
    finally:
        if process is not None:
            process.send_signal(signal.SIGINT)  # at once: whoever is still connected is cut off
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def lower(folder: Path) -> list[str]:
    """Return the words that run a command as another user where this one is root, and give that one the folder."""
    if os.geteuid() != 0:
        return []
    import pwd  # not on Windows

    try:
        user = pwd.getpwnam(USER)
    except KeyError:
        raise Unavailable(f"Postgres does not run as root, and there is no user {USER!r}") from None
    if shutil.which("setpriv") is None:
        raise Unavailable("Postgres does not run as root, and there is no `setpriv`")
    os.chown(folder, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def do(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, cwd="/")
    if done.returncode:
        raise Unavailable(f"{words[0]}: {done.stderr.strip()}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until it says on its log that it is ready."""
    end = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < end:
        if b"ready to accept connections" in log.read_bytes():
            return
        time.sleep(0.05)
    raise Unavailable(f"Postgres did not start on port {port}: {log.read_text()[-500:]}")
