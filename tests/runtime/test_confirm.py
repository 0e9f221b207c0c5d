"""`confirm`: a `once` tool starts only behind a save that a replica has."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from turnhold import Agent, InvalidDefinition, ResumeCommand, Runtime, Status, StoreUnavailable, ToolContext, tool
from turnhold.runtime.runtime import node_of
from turnhold.store import base
from turnhold.testing import ScriptedModel, call
from turnhold.testing.loop import run

from .failover import Failover

if TYPE_CHECKING:
    from turnhold.actors.tools import ToolEffect
    from turnhold.testing import VirtualClock

LEASE = 10.0


class Shop:
    """One node on a store with replicas; each start of its tool is noted with the time."""

    def __init__(self, clock: VirtualClock, effect: ToolEffect = "once", *, gated: bool = False, **options: Any) -> None:
        self.store = Failover()
        self.started: list[tuple[int, float]] = []

        @tool(effect=effect, approval=gated)
        async def pay() -> str:
            """Pay."""
            self.started.append((ToolContext.current().attempt, clock.monotonic()))
            await asyncio.sleep(0.1)
            return "paid"

        agent = Agent("shop", model=ScriptedModel(call("pay"), "done"), tools=[pay])
        self.runtime = Runtime(self.store, agents=[agent], clock=clock, lease=LEASE, **options)

    @property
    def unconfirmed(self) -> int:
        return node_of(self.runtime).counters.unconfirmed


def test_a_start_waits_for_a_replica() -> None:
    """Without a replica no attempt begins; each try has a new number, later each time; when one is back, the tool runs, once."""

    async def program(clock: VirtualClock) -> None:
        shop = Shop(clock, confirm="once")
        async with shop.runtime as runtime:
            shop.store.replicas = False
            turn = await runtime.start("shop", "go")
            await asyncio.sleep(300)
            tries = [op.status for op, _ in shop.store.saves if op.confirm]
            assert shop.started == []
            assert 6 <= len(tries) <= 12
            assert shop.unconfirmed == len(tries)
            assert (await turn.view()).status is Status.RETRY_SCHEDULED
            shop.store.replicas = True
            view = await turn.settle(through_retries=True)
            assert view.final_output == "done"
            assert [attempt for attempt, _ in shop.started] == [len(tries) + 1]
            assert shop.started[0][1] <= 300 + 61

    run(program)


def test_a_person_need_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for a replica is a retry like others: a person may force it."""

    async def program(clock: VirtualClock) -> None:
        shop = Shop(clock, gated=True, confirm="once")
        async with shop.runtime as runtime:
            turn = await runtime.start("shop", "go")
            shop.store.replicas = False
            view = await turn.resume(ResumeCommand.approve_tool((await turn.settle()).open_waits[0]))
            assert (view.status, shop.started) == (Status.RETRY_SCHEDULED, [])
            shop.store.replicas = True
            view = await turn.resume(ResumeCommand.retry(force=True))
            assert view.final_output == "done"
            assert [attempt for attempt, _ in shop.started] == [2]

    run(program)


@pytest.mark.parametrize(("confirm", "effect", "asked"), [("once", "repeatable", 0), ("all", "repeatable", 3), ("once", "once", 1)])
def test_which_saves_ask(confirm: Any, effect: ToolEffect, asked: int) -> None:
    """`once` asks for the starts of `once` tools, `all` for every save; a `repeatable` tool starts in any case."""

    async def program(clock: VirtualClock) -> None:
        shop = Shop(clock, effect, confirm=confirm)
        shop.store.replicas = effect == "once"
        async with shop.runtime as runtime:
            view = await (await runtime.start("shop", "go")).settle()
            assert view.final_output == "done"
            assert sum(op.confirm for op, _ in shop.store.saves) == asked
            assert [attempt for attempt, _ in shop.started] == [1]

    run(program)


def test_cancelled_while_no_replica_confirms() -> None:
    """A cancel ends the turn; the attempt that never began is no outcome that is unknown."""

    async def program(clock: VirtualClock) -> None:
        shop = Shop(clock, confirm="all")
        shop.store.replicas = False
        async with shop.runtime as runtime:
            turn = await runtime.start("shop", "go")
            await asyncio.sleep(5)
            view = await turn.cancel()
            assert (view.status, shop.started) == (Status.CANCELLED, [])

    run(program)


def test_without_replicas_it_means_nothing() -> None:
    """A memory store takes it as given; another value is refused."""

    async def program(clock: VirtualClock) -> None:
        agent = Agent("shop", model=ScriptedModel("done"))
        async with Runtime(agents=[agent], clock=clock, confirm="all") as runtime:
            assert (await runtime.run("shop", "go")).final_output == "done"

    run(program)
    with pytest.raises(InvalidDefinition, match="confirm"):
        Runtime(confirm="twice")  # type: ignore[arg-type]


def test_a_save_is_repeated_while_the_lease_is_ours() -> None:
    """A store that is away for less than a lease costs nothing: the same save goes again, and the result is kept."""

    async def program(clock: VirtualClock) -> None:
        shop = Shop(clock)
        async with shop.runtime as runtime:
            turn = await runtime.start("shop", "go")
            await asyncio.sleep(0.05)
            assert [attempt for attempt, _ in shop.started] == [1]
            shop.store.down = StoreUnavailable("away")
            await asyncio.sleep(4)
            shop.store.down = None
            view = await turn.settle()
            assert (view.status, len(shop.started)) == (Status.COMPLETED, 1)
            assert runtime.statistics().lost == 0
            assert len({op.save_id for op, _ in shop.store.saves}) == len(shop.store.saves)

    run(program)


def test_a_store_away_for_longer_than_the_lease() -> None:
    """Behind the deadline nothing is saved any more: the call is in doubt."""

    async def program(clock: VirtualClock) -> None:
        shop = Shop(clock)
        async with shop.runtime as runtime:
            turn = await runtime.start("shop", "go")
            await asyncio.sleep(0.05)
            shop.store.down = StoreUnavailable("away")
            await asyncio.sleep(2 * LEASE)
            shop.store.down = None
            await asyncio.sleep(2 * LEASE)
            assert ((await turn.settle()).status, len(shop.started)) == (Status.IN_DOUBT, 1)

    run(program)


def test_a_store_that_refuses(caplog: pytest.LogCaptureFixture) -> None:
    """A full store is not asked again: the activation ends at once, and says so."""

    async def program(clock: VirtualClock) -> None:
        shop = Shop(clock)
        async with shop.runtime as runtime:
            await runtime.start("shop", "go")
            await asyncio.sleep(0.05)
            shop.store.down = StoreUnavailable("OOM", refused=True)
            await asyncio.sleep(0.5)
            assert runtime.statistics().live_turns == 0
            shop.store.down = None

    run(program)
    assert "store_refused" in caplog.text


def test_drained_while_the_store_is_away() -> None:
    """A node that leaves does not wait for a store that is gone."""

    async def program(clock: VirtualClock) -> None:
        shop = Shop(clock, drain=1)
        async with shop.runtime as runtime:
            await runtime.start("shop", "go")
            await asyncio.sleep(0.05)
            shop.store.down = StoreUnavailable("away")
            left = clock.monotonic()
        assert clock.monotonic() - left < LEASE
        assert not isinstance(shop.store.saves[-1][1], base.Behind)

    run(program)
