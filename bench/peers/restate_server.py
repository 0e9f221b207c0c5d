"""A private Restate server, from its npm package: own ports, own folder, gone at the end; durable as it comes."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from .environments import Unavailable, npm
from .postgres import free_port

PACKAGE, VERSION = "@restatedev/restate-server", "1.7.12"
PATIENCE = 60.0


@contextlib.contextmanager
def served() -> Iterator[str]:
    """Run a server and yield the URLs of its ingress and of its admin API, a space between."""
    program = npm(PACKAGE, VERSION, "restate-server")
    folder = Path(tempfile.mkdtemp(prefix="turnhold-restate-"))
    ingress, admin, node = free_port(), free_port(), free_port()
    places = {"INGRESS__BIND_ADDRESS": ingress, "ADMIN__BIND_ADDRESS": admin, "BIND_ADDRESS": node}
    own = {f"RESTATE_{name}": f"127.0.0.1:{port}" for name, port in places.items()}
    try:
        with (folder / "log").open("wb") as log:
            words = [str(program), "--no-logo", "--listen-mode", "tcp", "--base-dir", str(folder / "data")]
            process = subprocess.Popen(words, env=os.environ | own | {"DO_NOT_TRACK": "1"}, stdout=log, stderr=log, cwd=folder)
        try:
            wait(process, [f"http://127.0.0.1:{ingress}/restate/health", f"http://127.0.0.1:{admin}/health"], folder / "log")
            yield f"http://127.0.0.1:{ingress} http://127.0.0.1:{admin}"
        finally:
            process.terminate()
            process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wait(process: subprocess.Popen[bytes], urls: list[str], log: Path) -> None:
    """Wait until every URL answers."""
    end = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            for url in urls:
                urllib.request.urlopen(url, timeout=5).close()
            return
        time.sleep(0.1)
    raise Unavailable(f"the Restate server did not start: {log.read_text()[-500:]}")
