"""The work that is measured: an agent with one gated no-op tool, the approve cycle, and what a cycle sends to its store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from turnhold import Agent, AiMessage, ExecutionPolicy, ResumeCommand, Runtime, ToolCall, TurnRef, TurnView, tool
from turnhold.actors.model import ModelRequest
from turnhold.store import base
from turnhold.store.memory import MemoryStore
from turnhold.store.memory_core import MemoryCore

from .harness import Clock, Sample, run

INPUT = "Please refund order O-1001, 25 dollars"
ANSWER = "The order is refunded."
WRITES = (base.Create, base.Deliver, base.Save)
Ops: TypeAlias = "Sequence[tuple[base.Op, int]]"


class Model:
    """Asks for the tool `rounds` times, then answers; keeps nothing."""

    def __init__(self, name: str, rounds: int = 1) -> None:
        self._call = ToolCall("", name, {"order_id": "O-1001", "amount": 25})
        self._rounds = rounds

    async def complete(self, request: ModelRequest) -> AiMessage:
        if request.iteration > self._rounds:
            return AiMessage(ANSWER)
        return AiMessage(tool_calls=(msgspec.structs.replace(self._call, id=f"call_{request.iteration}"),))


class Work:
    """An agent and the count of its tool's runs."""

    def __init__(self, *, approval: bool = True, rounds: int = 1) -> None:
        self.ran: dict[str, int] = {}

        @tool(approval=approval)
        async def refund_order(order_id: str, amount: int) -> str:
            """Refund an order."""
            key = f"{order_id}:{amount}"
            self.ran[key] = self.ran.get(key, 0) + 1
            return f"refunded {amount}"

        self.agent = Agent(
            "order-agent",
            model=Model("refund_order", rounds),
            tools=[refund_order],
            instructions="You refund orders.",
            policy=ExecutionPolicy(max_iterations=rounds + 2, max_steps=2 * rounds + 4),
        )

    @property
    def runs(self) -> int:
        return sum(self.ran.values())


async def suspended(runtime: Runtime, text: str = INPUT) -> tuple[TurnRef, TurnView]:
    """Start a turn and wait until its tool waits for a person."""
    turn = await runtime.start("order-agent", text)
    view = await turn.settle(60)
    assert len(view.open_waits) == 1, view.status
    return turn, view


async def answered(turn: TurnRef, view: TurnView) -> TurnView:
    """Approve, and wait until the turn has ended with its answer."""
    done = await turn.resume(ResumeCommand.approve_tool(view.open_waits[0], by="ann"), 60)
    assert done.final_output == ANSWER, done.status
    return done


async def cycle(runtime: Runtime) -> None:
    turn, view = await suspended(runtime)
    await answered(turn, view)


async def cycles(url: str, count: int, width: int) -> Sample:
    """Measure `count` approve cycles, `width` at once; every tool ran once, every answer is there.

    Thousands at once keep the loop busy for long; on a machine that has other things to do it would lose a lease of SQLite's 10 s.
    """
    work = Work()
    async with Runtime(url, agents=[work.agent], lease=60 if width > 1000 else None) as runtime:
        warm = min(max(8, width), 64)
        await asyncio.gather(*[cycle(runtime) for _ in range(warm)])
        each, clock = count // width, Clock()

        async def worker() -> None:
            for _ in range(each):
                await cycle(runtime)

        await asyncio.gather(*[worker() for _ in range(width)])
        sample = clock.sample(each * width)
    assert work.runs == warm + each * width, "every tool ran once"
    return sample


class Recorder(MemoryCore):
    """A memory core that keeps what it was asked, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[base.Op, int]] = []

    def apply(self, op: base.Op, now: int) -> base.Reply:
        reply = super().apply(op, now)
        self.asked.append((op, self.latest))
        return reply


async def _recorded(count: int, once: Callable[[Runtime], Awaitable[Any]]) -> list[tuple[base.Op, int]]:
    store, work = MemoryStore(), Work()
    store.core = recorder = Recorder()
    async with Runtime(store, agents=[work.agent]) as runtime:
        recorder.asked.clear()
        for _ in range(count):
            await once(runtime)
    return [(op, now) for op, now in recorder.asked if isinstance(op, WRITES)]


def recorded(count: int, once: Callable[[Runtime], Awaitable[Any]] = cycle) -> list[tuple[base.Op, int]]:
    """The writes of real cycles, each of another turn, one after the other, with their times."""
    return run(lambda: _recorded(count, once))


def payloads(ops: Ops) -> list[bytes]:
    """The bytes that the writes carry."""
    return [msgspec.msgpack.encode(op) for op, _ in ops]


def late(ops: Ops) -> list[bool]:
    """Which of the writes need not be flushed to a disk: the delivery, which the first save behind it flushes."""
    return [isinstance(op, base.Deliver) for op, _ in ops]
