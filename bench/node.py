"""A process of the bench: one Runtime, driven by JSON lines on stdin, one answer a line on stdout (`python -m bench.node`)."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from turnhold import Agent, ResumeCommand, Runtime, ToolContext, tool
from turnhold.actors.turn import SCHEMA
from turnhold.runtime.runtime import node_of
from turnhold.store import base, codec

from .harness import resident, run
from .work import ANSWER, INPUT, Model, suspended


class Shop:
    """Agents that note every start of their tools: turn, attempt, CLOCK_MONOTONIC seconds."""

    def __init__(self) -> None:
        self.starts: list[tuple[str, int, float]] = []
        self.held: asyncio.Event | None = None
        self.left = 0
        self.begun = asyncio.Event()

        @tool(approval=True)
        async def refund_order(order_id: str, amount: int, context: ToolContext) -> str:
            """Refund an order."""
            self.starts.append((context.turn_id, context.attempt, time.monotonic()))
            return f"refunded {amount}"

        @tool(effect="repeatable")
        async def fetch_parcel(order_id: str, amount: int, context: ToolContext) -> str:
            """Fetch a parcel, however long that takes."""
            self.starts.append((context.turn_id, context.attempt, time.monotonic()))
            self.left -= 1
            if self.left == 0:
                self.begun.set()
            if self.held is not None:
                await self.held.wait()
            return f"fetched {amount}"

        self.agents = [
            Agent("order-agent", model=Model("refund_order"), tools=[refund_order], instructions="You refund orders."),
            Agent("parcel-agent", model=Model("fetch_parcel"), tools=[fetch_parcel], instructions="You fetch parcels."),
        ]


async def many(count: int, width: int, work: Callable[[int], Awaitable[Any]]) -> list[Any]:
    """Do `work` for every number below `count`, `width` at once; return what it returned, in order."""
    found: list[Any] = [None] * count
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            found[number] = await work(number)

    await asyncio.gather(*[worker() for _ in range(min(count, width))])
    return found


class Process:
    """What the bench may ask for; a request names a method."""

    def __init__(self) -> None:
        self._shop = Shop()
        self._open: Runtime | None = None

    @property
    def _runtime(self) -> Runtime:
        assert self._open is not None, "not open"
        return self._open

    async def open(self, url: str, **options: Any) -> float:
        """Open a Runtime; return the milliseconds until it is ready."""
        self._shop = Shop()
        agents = self._shop.agents if options.get("execute", True) else ()
        self._open = Runtime(url, agents=agents, **options)
        begin = time.perf_counter()
        await self._open.__aenter__()
        return (time.perf_counter() - begin) * 1000

    async def close(self) -> None:
        runtime, self._open = self._runtime, None
        await runtime.__aexit__(None, None, None)

    async def start(self, count: int, width: int) -> list[tuple[str, str]]:
        """Start turns; return each with its wait when its tool waits for a person."""

        async def one(_: int) -> tuple[str, str]:
            turn, view = await suspended(self._runtime)
            return turn.id, view.open_waits[0].id

        return await many(count, width, one)

    async def answer(self, turns: list[tuple[str, str]], width: int) -> list[float]:
        """Approve each and see it end with its answer; return when each approval was given."""

        async def one(number: int) -> float:
            turn, wait = turns[number]
            sent = time.monotonic()
            view = await self._runtime.turn(turn).resume(ResumeCommand.approve_tool(wait, by="ann"), 60)
            assert view.final_output == ANSWER, view.status
            return sent

        return await many(len(turns), width, one)

    async def delays(self, turns: list[tuple[str, str]]) -> list[float]:
        """Approve one after the other; return how many milliseconds each took to end with its answer."""
        found: list[float] = []
        for turn in turns:
            (sent,) = await self.answer([turn], 1)
            found.append((time.monotonic() - sent) * 1000)
        return found

    async def weigh(self, count: int) -> float:
        """Return the bytes that the state and the history of a live actor take, without an actor around them."""
        node = node_of(self._runtime)
        actor = next(iter(node.placement.actors.values()))
        snapshot = codec.encode_state(actor.state, 1 << 20)
        history = await node.call(base.ReadHistory(turn=actor.turn_id))
        assert isinstance(history, base.Entries)
        gc.collect()
        before, kept = resident(), []
        for _ in range(count):
            state = codec.decode_state(actor.turn_id, SCHEMA, bytes(bytearray(snapshot)))
            kept.append((state, codec.decode_entries(actor.turn_id, history.bodies)))
        return (resident() - before) / count

    async def hold(self, count: int, width: int) -> list[str]:
        """Start turns whose tool does not end; return them when all tools have started."""
        self._shop.held = asyncio.Event()
        self._shop.left = count

        async def one(_: int) -> str:
            return (await self._runtime.start("parcel-agent", INPUT)).id

        turns = await many(count, width, one)
        await self._shop.begun.wait()
        return turns

    async def release(self) -> None:
        """Let the tools that are held end."""
        assert self._shop.held is not None
        self._shop.held.set()

    async def settle(self, turns: list[str], width: int) -> None:
        """See turns end with their answer."""

        async def one(number: int) -> None:
            view = await self._runtime.turn(turns[number]).settle(60)
            assert view.final_output == ANSWER, view.status

        await many(len(turns), width, one)

    async def starts(self) -> list[tuple[str, int, float]]:
        """Return all starts of tools so far."""
        return self._shop.starts

    async def used(self) -> dict[str, float]:
        """Return CPU seconds and memory of this process, and how many turns live here."""
        return {
            "cpu": time.process_time(),
            "memory": resident(),
            "live": self._runtime.statistics().live_turns if self._open else 0,
        }


async def main() -> None:
    """Serve until stdin ends."""
    logging.getLogger("turnhold").setLevel(logging.ERROR)
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    process, loop = Process(), asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        request = json.loads(line)
        do = request.pop("do")
        try:
            answer = {"ok": await getattr(process, do)(**request)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=out)


if __name__ == "__main__":
    run(main)
