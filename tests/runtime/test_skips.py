"""Due turns that a node cannot run stand in nobody's way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from turnhold import Agent, Runtime, Status
from turnhold.runtime.runtime import node_of
from turnhold.runtime.skips import Skips
from turnhold.store import base
from turnhold.store.memory import MemoryStore
from turnhold.testing import ScriptedModel

from .fleet import LEASE, Bench, Fleet, Partitioned

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OLD = 500


class Pages:
    """Notes how the nodes look for work."""

    def __init__(self) -> None:
        self.limits: list[int] = []

    def before(self, op: base.Op) -> None:
        if isinstance(op, base.Due):
            self.limits.append(op.limit)

    def after(self, op: base.Op, reply: base.Reply) -> None:
        pass


@pytest.fixture(params=[MemoryStore, Partitioned])
async def fleet(request: pytest.FixtureRequest) -> AsyncIterator[Fleet]:
    fleet = Fleet(request.param())
    yield fleet
    await fleet.close_all()


async def test_many_at_the_head(fleet: Fleet) -> None:
    """Turns of an agent that is not known here are passed over page by page; those behind them run; both kinds are counted."""
    old, new = Bench("old"), Bench("new")
    first = await fleet.open("first", old.agent, new.agent, max_active=1)
    await first.start("old", "go")
    for _ in range(OLD):
        await first.start("old", "go")
    wanted = [await first.start("new", "go") for _ in range(3)]
    await fleet.kill("first")
    second = await fleet.open("second", new.agent)
    pages = Pages()
    node_of(second).fault = pages
    await fleet.clock.advance(20)

    assert new.starts == 3
    assert max(pages.limits) <= 256
    numbers = second.statistics()
    assert (numbers.unclaimable, numbers.stranded) == (OLD, 0)  # the dead node is still on the list
    pages.limits.clear()
    await fleet.clock.advance(10)
    assert len(pages.limits) <= 80

    new.opened.set()
    await fleet.clock.advance(240)
    assert {(await second.turn(turn.id).view()).status for turn in wanted} == {Status.COMPLETED}
    assert (second.statistics().unclaimable, second.statistics().stranded) == (OLD + 1, OLD + 1)

    old.opened.set()
    await fleet.open("third", old.agent)
    await fleet.clock.advance(70)
    assert old.starts >= OLD
    assert (second.statistics().unclaimable, second.statistics().stranded) == (0, 0)


async def test_an_agent_that_comes_back(fleet: Fleet) -> None:
    """A loader that does not have an announced agent for a while is asked again: at the latest after a minute."""
    agent, missing = Agent("shop", model=ScriptedModel("done")), True
    asked = 0

    class Loader:
        def known(self) -> list[str]:
            return ["shop@1"]

        def load(self, id: str, version: str) -> Agent | None:
            nonlocal asked
            asked += 1
            return None if missing else agent

        def load_active(self, id: str) -> Agent | None:
            return agent

    api = await fleet.open("api", execute=False)
    runtime = fleet.runtimes["a"] = Runtime(fleet.store, agents=Loader(), node="a", clock=fleet.clock, lease=30)
    await runtime.__aenter__()
    turn = await api.start("shop", "go")
    await fleet.clock.advance(50)
    assert asked <= 2
    assert runtime.statistics().unclaimable == 1
    missing = False

    await fleet.clock.advance(15)

    assert (await turn.view()).status is Status.COMPLETED
    assert runtime.statistics().unclaimable == 0


async def test_a_loader_that_hangs(fleet: Fleet) -> None:
    """An agent that never comes holds up its own turns alone: others run, without bells, too, and the node can leave."""
    good, bad = Bench("good"), Bench("bad")
    opened = asyncio.Event()

    class Loader:
        def known(self) -> list[str]:
            return ["good@1", "bad@1"]

        async def load(self, id: str, version: str) -> Agent | None:
            if id == "bad":
                await opened.wait()
            return {"good": good.agent, "bad": bad.agent}[id]

        def load_active(self, id: str) -> Agent | None:
            return None

    api = await fleet.open("api", execute=False)
    runtime = fleet.runtimes["a"] = Runtime(fleet.store, agents=Loader(), node="a", clock=fleet.clock, lease=LEASE)
    await runtime.__aenter__()
    await fleet.clock.advance(LEASE / 3)
    if isinstance(fleet.store, Partitioned):
        fleet.store.deaf = True
    waiting = await api.start("bad", "go")
    await fleet.clock.advance(2)

    await api.start("good", "go")
    await fleet.clock.advance(LEASE / 3)
    assert good.starts == 1
    assert (await waiting.view()).quarantine is None

    opened.set()
    await fleet.clock.advance(61)
    assert (bad.starts, runtime.statistics().reaped) == (1, 0)


async def test_a_node_that_dies_while_a_loader_is_asked(fleet: Fleet) -> None:
    """What was claimed before a node died does not come to life on it: its task would end before it began, and never let go."""
    bench, opened = Bench("shop"), asyncio.Event()

    class Loader:
        def known(self) -> list[str]:
            return ["shop@1"]

        async def load(self, id: str, version: str) -> Agent | None:
            await opened.wait()
            return bench.agent

        def load_active(self, id: str) -> Agent | None:
            return None

    api = await fleet.open("api", execute=False)
    runtime = fleet.runtimes["a"] = Runtime(fleet.store, agents=Loader(), node="a", clock=fleet.clock, lease=LEASE)
    await runtime.__aenter__()
    await api.start("shop", "go")
    await fleet.clock.advance(1)
    placement = node_of(runtime).placement
    assert placement.claiming

    opened.set()
    await fleet.kill("a")

    assert (placement.claiming, placement.actors, placement.tasks) == (set(), {}, {})


def test_pauses() -> None:
    """Pauses grow from a minute to sixteen; a bell ends one, but not at once, as what was done with the turn rings itself."""
    now = 0.0
    skips = Skips(lambda: now)
    pauses: list[float] = []
    for _ in range(6):
        skips.add("t", "shop@1")
        began = now
        while skips.alone("t"):
            now += 1
        pauses.append(now - began)
    assert pauses == [60, 120, 240, 480, 960, 960]

    skips.add("t")
    assert not skips.rung("t")
    now += 3
    assert skips.rung("t")
    assert not skips.alone("t")
    assert not skips.still("t")
    assert not skips.rung("other")


def test_what_is_gone_is_forgotten() -> None:
    """A turn that a whole look has not found due is not counted any more, except in the moment behind giving it back."""
    now = 0.0
    skips = Skips(lambda: now)
    skips.add("stays")
    skips.add("goes")
    skips.scanned()
    assert skips.still("stays")
    skips.scanned()
    assert len(skips) == 2
    now = 3.0
    skips.still("stays")
    skips.scanned()

    assert len(skips) == 1
    assert skips.stranded(lambda agent: False) == 0
