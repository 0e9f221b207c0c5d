"""What every peer's process does: serve one library on one store, driven by JSON lines on stdin, one answer a line on stdout.

It runs in the library's own environment, so it needs nothing but the standard library.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any, Protocol

ANSWER = "The order is refunded."
INSTRUCTIONS = "You refund orders."


def asked_for(order: str) -> str:
    return f"Please refund order {order}"


def order_in(text: str) -> str:
    """Find the order in what the user wrote; the fake models have nothing else to go by."""
    return text.rsplit(" ", 1)[1]


@dataclass(frozen=True)
class Place:
    """Where turns are kept: a file's path for SQLite, a URL for a server."""

    store: str
    url: str = ""
    serves: bool = True  # else this process only sends answers; for engines that run the tool elsewhere


@dataclass
class Refunds:
    """The gated tool: does nothing but count, and take the time it is told to; the ledger is for all processes."""

    ledger: Path | None = None
    seconds: float = 0.0
    runs: Counter[str] = field(default_factory=Counter)

    async def run(self, order: str) -> str:
        self.runs[order] += 1
        if self.ledger is not None:
            with self.ledger.open("a") as file:  # one small write in append mode: lines of two processes do not mix
                file.write(f"{order} {os.getpid()}\n")
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return f"refunded {order}"


class Peer(Protocol):
    """One library. What `start` returns is all that another process needs for `approve`."""

    package: str

    def __init__(self, place: Place, refunds: Refunds) -> None: ...
    async def open(self) -> None: ...
    async def start(self, order: str) -> str: ...  # returns when the turn waits for its approval, and that is stored
    async def approve(self, handle: str, by: str) -> str: ...  # returns the final answer, when that is stored
    async def close(self) -> None: ...


class Service:
    """What the driver may ask for; a request names a method."""

    def __init__(self, peer: type[Peer]) -> None:
        self._kind = peer
        self._open: Peer | None = None
        self._refunds = Refunds()
        self._numbers = count(1)

    @property
    def _peer(self) -> Peer:
        assert self._open is not None, "not open"
        return self._open

    async def open(self, store: str, url: str = "", ledger: str | None = None, seconds: float = 0.0, serves: bool = True) -> str:
        """Open the store; return the version of what is measured."""
        self._refunds = Refunds(Path(ledger) if ledger else None, seconds)
        self._open = self._kind(Place(store, url, serves), self._refunds)
        await self._open.open()
        return metadata.version(self._kind.package)

    async def close(self) -> None:
        await self._peer.close()

    async def cycles(self, seconds: float, width: int) -> dict[str, Any]:
        """Do approve cycles, `width` at once, for so long; check that each tool ran once and each answer is there."""
        await asyncio.gather(*[self._cycle() for _ in range(max(4, width))])
        waited: list[float] = []
        end, wall, cpu = time.monotonic() + seconds, time.perf_counter(), time.process_time()

        async def one_after_the_other() -> None:
            while True:
                waited.append(await self._cycle())
                if time.monotonic() >= end:
                    return

        await asyncio.gather(*[one_after_the_other() for _ in range(width)])
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        assert set(self._refunds.runs.values()) == {1}, "every tool ran once"
        return {"count": len(waited), "wall": wall, "cpu": cpu, "resume_ms": waited}

    async def _cycle(self) -> float:
        order = f"O-{next(self._numbers)}"
        handle = await self._peer.start(order)
        assert order not in self._refunds.runs, "no tool runs before its approval"
        begin = time.perf_counter()
        answer = await self._peer.approve(handle, "ann")
        assert answer == ANSWER, answer
        assert order in self._refunds.runs, "the tool ran"
        return (time.perf_counter() - begin) * 1000

    async def start(self, order: str) -> str:
        return await self._peer.start(order)

    async def approve(self, handle: str, by: str, at: float = 0.0) -> str:
        """Approve at this time of CLOCK_MONOTONIC, and say what came of it."""
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        try:
            return await self._peer.approve(handle, by)
        except Exception as error:
            traceback.print_exc()
            return type(error).__name__

    async def approve_twice(self, handle: str) -> list[str]:
        """Approve from two tasks of this process at once."""
        return list(await asyncio.gather(*[self.approve(handle, by) for by in ("ann", "ben")]))


async def serve(peer: type[Peer]) -> None:
    """Serve until stdin ends."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print
    service, loop = Service(peer), asyncio.get_running_loop()
    reader = ThreadPoolExecutor(1)  # the loop's own threads are for the library
    while line := await loop.run_in_executor(reader, sys.stdin.readline):
        request = json.loads(line)
        do = request.pop("do")
        try:
            answer = {"ok": await getattr(service, do)(**request)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=out)
    os._exit(0)  # what a library has left running is not waited for


def main(peer: type[Peer]) -> None:
    """Run a worker process."""
    asyncio.run(serve(peer))
