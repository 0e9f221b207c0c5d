"""A process of the tests: one Runtime on a store, driven by JSON lines on stdin.

A request is ``{"id": n, "do": name, ...}``; its answer ``{"id": n, "ok": value}`` or ``{"id": n, "error": {...}}``. What happens by
itself is told as ``{"event": name, ...}``. Requests run beside each other. When stdin ends, so does the process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import signal
import sys
import threading
import time
import traceback
from typing import Any

import shop
from spy import Point, SpyStore

from turnhold import Receipt, ResumeCommand, Runtime, TurnholdError, TurnRef, TurnView
from turnhold.runtime.world import SystemClock
from turnhold.store.urls import open_store

# What libraries print must not stand between the lines.
OUT = os.dup(1)
os.dup2(2, 1)
LINES = threading.Lock()


def say(**line: Any) -> None:
    """Write a line at once, whole, from any thread."""
    data = json.dumps(line, default=str).encode() + b"\n"
    with LINES:
        while data:
            data = data[os.write(OUT, data) :]


def event(name: str, **more: Any) -> None:
    say(event=name, pid=os.getpid(), at=time.time(), mono=time.monotonic(), **more)


class Log(logging.Formatter):
    """Names of events with all that is said of them."""

    plain = frozenset(vars(logging.makeLogRecord({})))

    def format(self, record: logging.LogRecord) -> str:
        more = {name: value for name, value in vars(record).items() if name not in self.plain and name != "message"}
        return f"{time.monotonic():.3f} {super().format(record)} {more}"


def told(receipt: Receipt) -> dict[str, Any]:
    """Return a receipt as JSON."""
    return {
        "command_id": receipt.command_id,
        "wait": receipt.suspension_id,
        "effect": receipt.effect.value,
        "by": receipt.by,
        "at": receipt.at.isoformat(),
        "replayed": receipt.replayed,
    }


def seen(view: TurnView) -> dict[str, Any]:
    """Return what the tests look at in a view."""
    return {
        "status": view.status.value,
        "final": view.final_output,
        "error": None if view.error is None else view.error.message,
        "waits": [{"id": wait.id, "type": wait.type.value, "call": wait.correlation_id} for wait in view.open_waits],
        "owner": None if view.owner is None else {"node": view.owner.node, "until": view.owner.until.timestamp()},
        "cancel_requested": view.cancel_requested,
        "quarantine": None if view.quarantine is None else view.quarantine.reason,
        "agent": view.agent_id,
        "tokens": view.usage.total_tokens,
        "tool_calls": view.tool_call_count,
    }


def failed(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON."""
    receipt = getattr(error, "receipt", None)
    return {
        "type": type(error).__name__,
        "message": str(error),
        "receipt": None if receipt is None else told(receipt),
        "agrees": getattr(error, "agrees", None),
    }


class WrongClock(SystemClock):
    """A clock that is some hours off."""

    def __init__(self, hours: float) -> None:
        self._off = hours * 3600

    def wall(self) -> float:
        return time.time() + self._off


def written_by(schema: int) -> None:
    """Make this process one of a release that writes snapshots of a schema of its own."""
    for name, module in list(sys.modules.items()):
        if name.startswith("turnhold.") and "SCHEMA" in vars(module):
            vars(module)["SCHEMA"] = schema


class Worker:
    """The requests, by name."""

    def __init__(self) -> None:
        self.spy: SpyStore | None = None
        self._runtime: Runtime | None = None

    @property
    def runtime(self) -> Runtime:
        assert self._runtime is not None, "open first"
        return self._runtime

    def ref(self, turn: str) -> TurnRef:
        return self.runtime.turn(turn)

    async def open(
        self,
        url: str,
        ledger: str,
        gate: str = "",
        die: str = "",
        agents: bool | list[str] = True,
        version: str = "1",
        schema: int = 0,
        deaf: bool = False,
        hours: float = 0,
        **options: Any,
    ) -> str:
        """Open the runtime. `gate` names the point where functions wait in this process, `die` the one that kills it.

        `agents` may be the ids of some, all of one `version`. A `deaf` process hears no bell. `hours`: its clock is that far off.
        """
        shop.setup(ledger, gate, die, event)
        if schema:
            written_by(schema)
        self.spy = SpyStore(open_store(url), event, deaf=deaf)
        known = [agent for agent in shop.agents(version) if agents is True or agent.id in agents] if agents else []
        clock = WrongClock(hours) if hours else None
        self._runtime = Runtime(self.spy, agents=known, clock=clock, **options)
        await self._runtime.__aenter__()
        return self._runtime.node

    async def serve(self) -> str:
        """Run until a signal, then drain, leave and end."""
        ended = asyncio.create_task(self._served())
        await asyncio.sleep(0)  # the signal handlers are installed now
        assert not ended.done()
        return "serving"

    async def _served(self) -> None:
        await self.runtime.serve()
        event("draining")
        await self.runtime.__aexit__(None, None, None)
        event("left")
        END.set()

    async def leave(self) -> None:
        """Leave the runtime; the process goes on."""
        await self.runtime.__aexit__(None, None, None)

    async def release(self) -> None:
        """Let everybody pass who waits, or will wait, at the gate."""
        shop.release()

    async def gate(self, point: str) -> None:
        """Let everybody who comes to a point from now on wait there."""
        shop.close(point)

    async def exit(self, code: int = 7) -> None:
        """End the process without leaving anything."""
        os._exit(code)

    async def arm(self, **point: Any) -> None:
        """Let the process be killed, or stopped, before or after its n-th store call of a kind."""
        assert self.spy is not None
        self.spy.arm(Point(**point))

    async def freeze(self) -> None:
        """Stop the process, between two store calls."""
        assert self.spy is not None
        await self.spy.stop()

    async def counts(self) -> dict[str, int]:
        """Return how often each store reply has come, as ``save Fenced``."""
        assert self.spy is not None
        return dict(self.spy.counts)

    async def statistics(self) -> dict[str, Any]:
        found = self.runtime.statistics()
        names = ("claims", "lost", "reaped", "fenced", "unclaimable", "stranded", "home_partitions", "renewals_failed", "bells")
        more = {name: getattr(found, name) for name in names}
        return {"live": found.live_turns, "healthy": self.runtime.healthy, "mono": time.monotonic(), "at": time.time(), **more}

    async def name(self) -> str:
        return self.runtime.node

    async def nodes(self) -> list[str]:
        return [row.node for row in await self.runtime.nodes()]

    async def start(self, agent: str, input: str = "please", **options: Any) -> str:
        return (await self.runtime.start(agent, input, **options)).id

    async def do_all(self, items: list[dict[str, Any]]) -> list[Any]:
        """Do what several requests ask, at once; return the answer, or the error, of each."""

        async def one(item: dict[str, Any]) -> Any:
            try:
                return await getattr(self, item.pop("do"))(**item)
            except (TurnholdError, TimeoutError) as error:
                return failed(error)

        return list(await asyncio.gather(*(one(item) for item in items)))

    async def timed(self, **command: Any) -> float:
        """Submit a command; return when it was sent, on the clock of all processes."""
        sent = time.monotonic()
        await self.answer(**command)
        return sent

    async def quarantined(self) -> list[str]:
        return [view.id for view in (await self.runtime.turns(quarantined=True)).items]

    async def start_all(self, agent: str, count: int) -> list[list[str]]:
        """Start turns and return [turn, wait] of each, once all wait."""
        turns = await asyncio.gather(*(self.runtime.start(agent, f"turn {number}") for number in range(count)))
        views = await asyncio.gather(*(turn.settle(30) for turn in turns))
        return [[view.id, *(wait.id for wait in view.open_waits)] for view in views]

    async def view(self, turn: str) -> dict[str, Any]:
        return seen(await self.ref(turn).view())

    async def settle(self, turn: str, timeout: float = 20) -> dict[str, Any]:
        return seen(await self.ref(turn).settle(timeout))

    async def settle_all(self, turns: list[str]) -> list[dict[str, Any]]:
        return [seen(view) for view in await asyncio.gather(*(self.ref(turn).settle(30) for turn in turns))]

    async def answer(self, turn: str, kind: str, timeout: float = 20, **command: Any) -> dict[str, Any]:
        """Submit a command and return its receipt."""
        return told(await self.ref(turn).submit(getattr(ResumeCommand, kind)(**command), timeout))

    async def answer_all(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Submit commands at once; return a receipt or an error for each."""

        async def one(item: dict[str, Any]) -> dict[str, Any]:
            try:
                return await self.answer(**item)
            except TurnholdError as error:
                return failed(error)

        return list(await asyncio.gather(*(one(item) for item in items)))

    async def cancel(self, turn: str, timeout: float = 20) -> dict[str, Any]:
        return seen(await self.ref(turn).cancel("no longer wanted", timeout))

    async def history(self, turn: str) -> list[list[str]]:
        return [[type(message).__name__, getattr(message, "content", "")] for message in await self.ref(turn).history()]

    async def children(self, turn: str) -> list[dict[str, Any]]:
        """Return the direct children as they are seen, each with its id."""
        return [{"id": ref.id, **seen(await ref.view())} for ref in await self.ref(turn).children()]

    async def inbox(self) -> list[str]:
        """Return the ids of all open waits, page by page."""
        found: list[str] = []
        after = None
        while True:
            page = await self.runtime.inbox(limit=50, after=after)
            found += [wait.id for wait in page.items]
            if (after := page.next) is None:
                return found

    async def events(self, turn: str, after: int = 0, follow: bool = True) -> list[list[Any]]:
        """Read a turn's events; each is told as it comes, and all at the end."""
        found: list[list[Any]] = []
        async for item in self.ref(turn).events(after, follow=follow):
            found.append([item.sequence, item.type.value])
            event("seen", turn=turn, sequence=item.sequence, type=item.type.value)
        return found

    async def fork(self, turn: str) -> str:
        """Use the runtime in a forked child; return how that ended."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(self.ref(turn).view())
                os.write(write, b"it worked")
            except BaseException as error:
                os.write(write, f"{type(error).__name__}: {error}".encode())
            os._exit(0)
        os.close(write)
        text = os.read(read, 1 << 16).decode()
        os.waitpid(child, 0)
        return text

    async def fork_on(self) -> None:
        """Fork a child that does nothing and lives on until the test closes stdin."""
        if os.fork() == 0:
            os.close(OUT)
            closed = select.poll()
            closed.register(0, 0)
            closed.poll()
            os._exit(0)


END = asyncio.Event()


async def answered(worker: Worker, request: dict[str, Any]) -> None:
    """Do what a request asks and tell what came of it."""
    number, name = request.pop("id"), request.pop("do")
    try:
        say(id=number, ok=await getattr(worker, name)(**request))
    except Exception as error:
        if not isinstance(error, TurnholdError | TimeoutError):
            traceback.print_exc()
        say(id=number, error=failed(error))


async def listen(worker: Worker) -> None:
    """Take requests until stdin ends."""
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks: set[asyncio.Task[None]] = set()
    while line := await reader.readline():
        task = asyncio.create_task(answered(worker, json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    os._exit(0)


async def main() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(Log())
    logging.getLogger("turnhold").addHandler(handler)
    listening = asyncio.create_task(listen(Worker()))
    event("ready")
    await END.wait()
    listening.cancel()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    asyncio.run(main())
