"""Processes of the bench, as the bench sees them."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 120.0


class Node:
    """A process that runs `bench.node`; asked one thing at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.node"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, do: str, **request: Any) -> None:
        """Ask, without waiting for the answer."""
        assert self._process.stdin is not None
        print(json.dumps({"do": do, **request}), file=self._process.stdin, flush=True)

    def get(self) -> Any:
        """Wait for the answer."""
        pipe = self._process.stdout
        assert pipe is not None
        ready, _, _ = select.select([pipe], [], [], PATIENCE)  # nothing is read ahead: there is one answer at a time
        line = pipe.readline() if ready else ""
        if not line:
            raise RuntimeError(f"a process of the bench {'has ended' if ready else 'does not answer'}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"in a process of the bench: {answer['error']}")
        return answer["ok"]

    def __call__(self, do: str, **request: Any) -> Any:
        """Ask, and wait for the answer."""
        self.ask(do, **request)
        return self.get()

    def kill(self) -> None:
        """End it with -9, without waiting for that."""
        self._process.kill()

    def close(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def together(nodes: list[Node], do: str, requests: list[dict[str, Any]]) -> list[Any]:
    """Ask all at once, and wait for all answers."""
    for node, request in zip(nodes, requests, strict=True):
        node.ask(do, **request)
    return [node.get() for node in nodes]


@contextlib.contextmanager
def crew(count: int) -> Iterator[list[Node]]:
    """Run processes that have opened nothing yet."""
    nodes: list[Node] = []
    try:
        nodes += [Node() for _ in range(count)]
        yield nodes
    finally:
        for node in nodes:
            node.close()
