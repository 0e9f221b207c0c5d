"""Other processes, as the tests see them. Nothing here sleeps: it waits for a line, or for an end, at most `STEP` seconds."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEP = 20.0
PACE = 0.02  # seconds between two looks at what tells nobody
WORKER = Path(__file__).with_name("worker.py")


class Refused(Exception):
    """The worker answered with an error of the face."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['type']}: {error['message']}")
        self.type: str = error["type"]
        self.receipt: dict[str, Any] | None = error["receipt"]
        self.agrees: bool | None = error["agrees"]


class Gone(Exception):
    """The worker ended before it answered."""


class Request:
    """A question that a worker has been asked."""

    def __init__(self, worker: Worker, number: int) -> None:
        self._worker, self._number = worker, number

    def get(self, timeout: float = STEP) -> Any:
        """Wait for the answer. Raises `Refused`, or `Gone`."""
        line = self._worker._wait(lambda _: self._worker._answers.get(self._number), timeout)
        if "error" in line:
            raise Refused(line["error"])
        return line["ok"]


class Worker:
    """One process that runs worker.py."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._folder = folder
        self._lines: list[dict[str, Any]] = []
        self._answers: dict[int, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._ended = False
        self._count = 0
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, do: str, **request: Any) -> Request:
        """Ask, without waiting for the answer."""
        self._count += 1
        line = json.dumps({"id": self._count, "do": do, **request}).encode() + b"\n"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Gone(self._tail()) from None
        return Request(self, self._count)

    def __call__(self, do: str, **request: Any) -> Any:
        """Ask, and wait for the answer."""
        return self.ask(do, **request).get()

    def until(self, found: Callable[[Any], bool], do: str, **request: Any) -> Any:
        """Ask, over and over, until the answer is right."""
        end = time.monotonic() + STEP
        while not found(answer := self(do, **request)):
            assert time.monotonic() < end, f"{self.name}: {do} is still {answer}"
            self.lull()
        return answer

    def lull(self) -> None:
        """Wait for whatever this process says next, at most `PACE` seconds: who asks again at once takes a core from the others."""
        with self._changed:
            self._changed.wait(PACE)

    def event(self, name: str, *, after: int = 0, **fields: Any) -> dict[str, Any]:
        """Wait for an event with these fields, and behind a number of others like it."""

        def find(lines: list[dict[str, Any]]) -> dict[str, Any] | None:
            fits = [line for line in lines if line.get("event") == name and fields.items() <= line.items()]
            return fits[after] if len(fits) > after else None

        return self._wait(find, STEP)

    def events(self, name: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the events that have come so far."""
        with self._changed:
            return [line for line in self._lines if line.get("event") == name and fields.items() <= line.items()]

    def kill(self) -> None:
        """Kill it with -9 and wait for its end."""
        self._process.kill()
        self.ended()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def freeze(self) -> None:
        """Stop the process between two store calls, and wait until it stands still."""
        self.ask("freeze")
        self.frozen()

    def frozen(self) -> None:
        """Wait until the process, which is about to be stopped, stands still."""
        end = time.monotonic() + STEP
        while os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG) is None:
            assert time.monotonic() < end, f"{self.name} is not stopped"
            with self._changed:
                self._changed.wait(PACE)

    def ended(self) -> int:
        """Wait for the end of the process; return its exit code, -9 if it was killed."""
        try:
            code = self._process.wait(STEP)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} does not end: {self._tail()}") from None
        self._reader.join(STEP)
        return code

    def close(self) -> None:
        """End the process in whatever state it is, and let go of its pipes."""
        if self.alive:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line = json.loads(text)
            with self._changed:
                if "id" in line:
                    self._answers[line["id"]] = line
                else:
                    self._lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _wait(self, find: Any, timeout: float) -> dict[str, Any]:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or find(self._lines) is not None, timeout)
            found = find(self._lines)
            if found is not None:
                return found
            if self._ended:
                raise Gone(self._tail())
            raise TimeoutError(
                f"{self.name} has not said it within {timeout:g} s; its last lines: {self._lines[-5:]}; {self._tail()}"
            )

    def _tail(self) -> str:
        return f"{self.name}, stderr:\n{self._log.read_text()[-3000:]}"


class Crew:
    """The processes of a test, on one store (by default a SQLite file) and one ledger.

    `ahead`: the next process starts while the last one works, where one follows the other.
    """

    def __init__(self, folder: Path, url: str = "", *, ahead: bool = False) -> None:
        self.folder = folder
        self.url = url or f"sqlite:///{folder}/turns.db"
        self._ledger = folder / "ledger"
        self.workers: list[Worker] = []
        self._ahead = ahead
        self.spare: Worker | None = None

    def spawn(self, name: str = "") -> Worker:
        """Start a process that has opened nothing yet."""
        worker = self.spare or self._new()
        self.spare = self._new() if self._ahead else None
        worker.name = name or worker.name
        return worker

    def _new(self) -> Worker:
        worker = Worker(self.folder, f"worker-{len(self.workers)}")
        self.workers.append(worker)
        return worker

    def ask_open(self, worker: Worker, **options: Any) -> Request:
        return worker.ask("open", **{"url": self.url, "ledger": str(self._ledger), **options})

    def executor(self, name: str = "", **options: Any) -> Worker:
        """Start a process that runs the agents."""
        worker = self.spawn(name)
        self.ask_open(worker, **options).get()
        return worker

    def executors(self, *names: str, **options: Any) -> list[Worker]:
        """Start several of them at once."""
        workers = [self.spawn(name) for name in names]
        for request in [self.ask_open(worker, **options) for worker in workers]:
            request.get()
        return workers

    def api(self, name: str = "", **options: Any) -> Worker:
        """Start a process that runs nothing and knows no agents."""
        return self.executor(name, execute=False, agents=False, **options)

    def starts(self, turn: str | None = None) -> list[tuple[str, int, int]]:
        """Return (idempotency key, attempt, pid) of every start of a tool, in order."""
        if not self._ledger.exists():
            return []
        rows = [line.split() for line in self._ledger.read_text().splitlines()]
        return [(key, int(attempt), int(pid)) for key, attempt, pid in rows if turn is None or key.startswith(f"{turn}:")]

    def attempts(self, turn: str) -> list[int]:
        return [attempt for _, attempt, _ in self.starts(turn)]

    def twice(self) -> list[tuple[str, int]]:
        """Return each (call, attempt) that was started more than once."""
        return [found for found, count in Counter((key, attempt) for key, attempt, _ in self.starts()).items() if count > 1]

    def check(self) -> None:
        """No (call, attempt) was started twice."""
        assert not self.twice(), f"started twice: {self.twice()}"

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
