"""Crash points: what a dead node leaves, and what those hear who wait for it."""

from __future__ import annotations

import asyncio

import pytest

from turnhold import Agent, ResumeCommand, Runtime, Status, StoreUnavailable, tool
from turnhold.runtime.runtime import node_of
from turnhold.store.memory import MemoryStore
from turnhold.testing import ScriptedModel, VirtualClock, call, crash
from turnhold.testing.crashes import POINTS


class Shop:
    """An agent with one gated tool that waits until it is let go, on a store of its own."""

    def __init__(self) -> None:
        self.store, self.clock = MemoryStore(), VirtualClock()
        self.started = 0
        self.go = asyncio.Event()

        @tool(approval=True)
        async def refund() -> str:
            """Refund."""
            self.started += 1
            await self.go.wait()
            return "refunded"

        self.agent = Agent("a", model=ScriptedModel(call("refund"), "done"), tools=[refund])

    def runtime(self) -> Runtime:
        return Runtime(self.store, agents=[self.agent], clock=self.clock, lease=10, drain=0)


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def test_before_apply_nothing_is_stored(shop: Shop) -> None:
    """The store never sees the call, and no call behind it."""
    async with shop.runtime() as runtime:
        with crash(runtime, "create", "before_apply") as crashed:
            with pytest.raises(StoreUnavailable):
                await runtime.start("a", "go")
            await crashed.wait()
        assert crashed.happened
        assert not runtime.healthy
    async with shop.runtime() as other:
        assert (await other.turns()).items == ()


async def test_after_apply_it_is_stored_and_goes_on_elsewhere(shop: Shop) -> None:
    """The store has done it; the dead node gives nothing back, so the next one waits for the lease."""
    async with shop.runtime() as runtime:
        with crash(runtime, "create"), pytest.raises(StoreUnavailable):
            await runtime.start("a", "go")
    async with shop.runtime() as other:
        (view,) = (await other.turns()).items
        turn = other.turn(view.id)
        await shop.clock.advance(1)
        early = (await turn.view()).status
        await shop.clock.advance(20)
        assert early is Status.RUNNING
        assert (await turn.view()).status is Status.WAITING_FOR_APPROVAL


async def test_a_lost_reply_is_asked_for_again(shop: Shop) -> None:
    """The node lives, repeats the identical call, and gets what the first one did."""
    async with shop.runtime() as runtime:
        with crash(runtime, "*", "lost_reply") as crashed:
            turn = await runtime.start("a", "go")
        assert crashed.happened
        assert (await turn.settle()).status is Status.WAITING_FOR_APPROVAL
        assert len((await runtime.turns()).items) == 1


async def test_the_nth_call_of_a_kind_strikes(shop: Shop) -> None:
    """Only calls of the kind count, from the start of the block."""
    async with shop.runtime() as runtime:
        with crash(runtime, "create", "before_apply", nth=2) as crashed:
            await runtime.start("a", "go")
            with pytest.raises(StoreUnavailable):
                await runtime.start("a", "go")
        assert (crashed.happened, crashed.seen) == (True, 2)


async def test_whoever_waits_for_a_dead_node_is_told(shop: Shop) -> None:
    """settle, submit, events: all end with StoreUnavailable, none hangs; tools end where they stand."""
    async with shop.runtime() as runtime:
        turn = await runtime.start("a", "go")
        await turn.settle()
        await turn.submit(ResumeCommand.approve_tool())
        await shop.clock.idle()

        async def watch() -> None:
            async for _ in turn.events():
                pass

        waiting = [asyncio.ensure_future(work) for work in (turn.settle(), watch(), turn.cancel())]
        with crash(runtime, "save", "before_apply") as crashed:
            shop.go.set()
            ended = await asyncio.gather(*waiting, return_exceptions=True)
            await crashed.wait()
        assert all(isinstance(error, StoreUnavailable) for error in ended)
        with pytest.raises(StoreUnavailable):
            await turn.submit(ResumeCommand.approve_tool(), 0)
    assert shop.started == 1


async def test_a_sender_whose_node_dies_in_the_same_moment_is_told(shop: Shop) -> None:
    """An answer that was delivered and claimed, on a node that dies before the activation has saved anything."""
    async with shop.runtime() as runtime:
        turn = await runtime.start("a", "go")
        await turn.settle()
        sender = asyncio.ensure_future(turn.submit(ResumeCommand.approve_tool()))
        for _ in range(4):
            await asyncio.sleep(0)
            if node_of(runtime).placement.actors:
                break
        await node_of(runtime).kill()
        with pytest.raises(StoreUnavailable):
            await sender


async def test_a_node_that_crashes_while_it_drains_is_left_quietly(shop: Shop) -> None:
    """Leaving a Runtime whose node dies on the way raises nothing."""
    async with shop.runtime() as runtime:
        await (await runtime.start("a", "go")).settle()
        with crash(runtime, "beat", "before_apply") as crashed:
            await runtime.__aexit__(None, None, None)
    assert crashed.happened


async def test_a_crashed_runtime_may_be_opened_again(shop: Shop) -> None:
    """The same object can come back, as a new node would."""
    runtime = shop.runtime()
    async with runtime:
        with crash(runtime, "create", "before_apply"), pytest.raises(StoreUnavailable):
            await runtime.start("a", "go")
    async with runtime:
        assert (await runtime.run("a", "go")).status is Status.WAITING_FOR_APPROVAL


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [(("sav",), {}, "no store operation"), (("save", "later"), {}, ", ".join(POINTS)), (("save",), {"nth": 0}, "from 1")],
)
async def test_a_wrong_crash_point_is_refused(shop: Shop, arguments: tuple, options: dict, words: str) -> None:
    """Names and numbers are checked, so that a crash that never happens is no typing mistake."""
    with pytest.raises(ValueError, match=words), crash(shop.runtime(), *arguments, **options):
        pass
