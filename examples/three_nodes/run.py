"""Three processes on one Redis: a turn is started on A, answered on B, B is killed, and the turn goes on at C.

    python examples/three_nodes/run.py                              # on a Redis of its own
    python examples/three_nodes/run.py redis://localhost:6379/0     # on yours, in a namespace of its own

A, this process, is API-only as a web process would be: it starts the turn and follows it, but runs nothing. B and C run agents.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from server import private_redis
from story import BEGAN, LEASE, say

from turnhold import Event, EventType, Runtime, TurnRef

NODE = Path(__file__).with_name("node.py")
QUIET = {EventType.STEP_STARTED, EventType.STEP_COMPLETED, EventType.MODEL_STARTED, EventType.TURN_RESUMED}  # not shown


class Executor:
    """A process that runs agents."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self._process = subprocess.Popen([sys.executable, str(NODE), name, url], stdin=subprocess.PIPE, text=True)

    def approve(self, turn_id: str) -> None:
        """Let the process answer what a turn waits for."""
        assert self._process.stdin is not None
        print(turn_id, file=self._process.stdin, flush=True)

    def kill(self) -> None:
        """End the process as a power cut would."""
        self._process.kill()
        self._process.wait()

    def leave(self) -> None:
        """Let the process drain and end."""
        self._process.communicate()


@contextmanager
def executors(url: str) -> Iterator[dict[str, Executor]]:
    """Start B and C; both are gone at the end."""
    found = {name: Executor(name, url) for name in ("B", "C")}
    try:
        yield found
    finally:
        for each in found.values():
            each.leave()


def told(event: Event) -> str:
    """Return an event as text."""
    about = [event.data[name] for name in ("toolName", "effect", "message", "content") if event.data.get(name)]
    return f"{event.type.value:<24} {', '.join(map(str, about))}".rstrip()


async def announced(runtime: Runtime, names: set[str]) -> None:
    """Wait until executors have told the store that they are there, and what they run."""
    while not names <= {node.node for node in await runtime.nodes() if node.agents}:  # noqa: ASYNC110 - the list rings no bell
        await asyncio.sleep(0.05)


async def follow(turn: TurnRef, nodes: dict[str, Executor]) -> None:
    """Show what happens to the turn, wherever it lives; let B approve, and kill whoever sends the mail, the first time."""
    alive = True
    async for event in turn.events():
        if event.type not in QUIET:
            say("A", f"reads {event.sequence or 'live'}", told(event))
        if event.type is EventType.TURN_SUSPENDED:
            nodes["B"].approve(turn.id)
        if event.type is EventType.TOOL_PROGRESS and alive:
            alive = False
            owner = (await turn.view()).owner
            assert owner is not None
            nodes[owner.node].kill()
            say("", "kill -9", f"{owner.node} is gone; its lease of {LEASE} s runs out")


async def main(url: str) -> None:
    with executors(url) as nodes:
        async with Runtime(url, execute=False, node="A", lease=LEASE) as runtime:
            say("A", "opens", f"API-only, process {os.getpid()}")
            await announced(runtime, set(nodes))
            turn = await runtime.start("refunds", "Please refund order O-1001, 25 dollars")
            say("A", "starts", f"turn {turn.id}")
            view = await turn.settle()
            say("A", "sees", f"{view.status.value}; it sleeps in the store, no process has it")
            await follow(turn, nodes)
            view = await turn.view()
            say("A", "sees", f"{view.status.value}: {view.final_output}")


if __name__ == "__main__":
    os.environ[BEGAN] = str(time.time())
    if len(sys.argv) > 1:
        given = sys.argv[1]
        asyncio.run(main(given if "?" in given else f"{given}?namespace=three-nodes"))
    else:
        with private_redis() as own:
            asyncio.run(main(own))
