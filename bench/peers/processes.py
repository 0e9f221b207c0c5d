"""A peer's worker process, as the driver sees it."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from .environments import ROOT, Failed, bare_environment, python_for

PATIENCE = 180.0


class Worker:
    """A process of one peer; requests are answered in their order."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [str(python_for(peer)), "-m", f"bench.peers.{peer}"],
            cwd=ROOT,
            env=bare_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            bufsize=1,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, do: str, **request: Any) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: `receive` says so
            self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")

    def receive(self) -> Any:
        """Return the next answer; what went wrong there is `Failed` here."""
        try:
            line = self._lines.get(timeout=PATIENCE)
        except queue.Empty:
            raise Failed(f"{self.peer} has not answered within {PATIENCE:.0f} s") from None
        if not line:
            raise Failed(f"{self.peer} has ended: {self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(f"{self.peer}: {answer['error']}")
        return answer["ok"]

    def ask(self, do: str, **request: Any) -> Any:
        self.send(do, **request)
        return self.receive()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _last_words(self) -> str:
        self._errors.seek(0)
        return " / ".join(self._errors.read().strip().splitlines()[-3:])


@contextlib.contextmanager
def worker(peer: str) -> Iterator[Worker]:
    """Run a worker process."""
    process = Worker(peer)
    try:
        yield process
    finally:
        process.close()
