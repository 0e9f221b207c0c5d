"""Nodes that share the partitions of a store: who claims what, and when."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from turnhold import Agent, ApprovalDecision, ResumeCommand, Status, tool
from turnhold.actors.ids import partition_of
from turnhold.runtime.homes import home_of
from turnhold.runtime.runtime import node_of
from turnhold.store import base
from turnhold.testing import ScriptedModel, call

from .fleet import Bench, Fleet, Partitioned

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from turnhold import Runtime


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    fleet = Fleet()
    yield fleet
    await fleet.close_all()


def lives(fleet: Fleet) -> dict[str, str]:
    """Return which node has each live turn."""
    return {turn: name for name, runtime in fleet.runtimes.items() for turn in node_of(runtime).placement.actors}


async def starts(api: Runtime, count: int, agent: str = "shop") -> list[str]:
    return [(await api.start(agent, "go")).id for _ in range(count)]


async def test_a_bell_is_for_the_home(fleet: Fleet) -> None:
    """The home of its partition claims a new turn at once and directly; nobody else asks for it, nobody looks for it."""
    bench = Bench()
    api = await fleet.open("api", execute=False)
    names = ["a", "b", "c"]
    for name in names:
        await fleet.open(name, bench.agent)
    await fleet.meet()

    turns = await starts(api, 30)
    await fleet.clock.idle()

    assert lives(fleet) == {turn: home_of(partition_of(turn), names) for turn in turns}
    assert bench.starts == 30
    asked = sum((fleet.lines[name].counts() for name in names), Counter())
    assert (asked["Claim"], asked["Due"]) == (30, 0)
    assert sum(fleet.runtimes[name].statistics().home_partitions for name in names) == 256
    assert api.statistics().home_partitions == 0


async def test_lost_bells(fleet: Fleet) -> None:
    """What no bell has told is found by its home within a period, which looks at its own partitions alone."""
    bench = Bench()
    api = await fleet.open("api", execute=False)
    for name in ("a", "b"):
        await fleet.open(name, bench.agent)
    await fleet.meet()
    for runtime in fleet.runtimes.values():
        node_of(runtime).placement.poller._wide_at += 100  # the look at everything would hide who looks where
    assert isinstance(fleet.store, Partitioned)
    fleet.store.deaf = True

    turns = await starts(api, 20)
    await fleet.clock.advance(1.1)

    assert lives(fleet) == {turn: home_of(partition_of(turn), ["a", "b"]) for turn in turns}
    looked = [op.partitions for name in ("a", "b") for op in fleet.lines[name].seen if isinstance(op, base.Due)]
    assert None not in looked
    assert sum(runtime.statistics().held for runtime in fleet.runtimes.values()) == 0


async def test_a_home_that_is_gone(fleet: Fleet) -> None:
    """What a dead node would have claimed is found by the others' look at everything; no node list has to be right for it."""
    bench = Bench()
    api = await fleet.open("api", execute=False)
    for name in ("a", "b"):
        await fleet.open(name, bench.agent)
    await fleet.meet()
    await fleet.kill("b")

    await starts(api, 20)
    await fleet.clock.advance(5.6)

    assert bench.starts == 20


async def test_mixed_agents(fleet: Fleet) -> None:
    """A turn is claimed at once by the home among those that run its agent, whoever is the home of all."""
    shop, desk = Bench("shop"), Bench("desk")
    api = await fleet.open("api", execute=False)
    await fleet.open("a", shop.agent)
    await fleet.open("b", desk.agent)
    await fleet.open("c", desk.agent, shop.agent)
    await fleet.meet()

    await starts(api, 12, "shop")
    await starts(api, 12, "desk")
    await fleet.clock.idle()

    assert (shop.starts, desk.starts) == (12, 12)
    assert fleet.lines["a"].counts()["Due"] == 0


async def test_an_offer_for_later(fleet: Fleet) -> None:
    """A wake that a bell has told is kept at the home and met on time, with one claim and no look at the store."""

    @tool(approval=ApprovalDecision.require(expires_in=0.35, on_expiry="reject"))
    async def refund() -> str:
        """Refund."""
        return "done"

    agent = Agent("shop", model=ScriptedModel(call("refund"), "done"), tools=[refund])
    api = await fleet.open("api", execute=False)
    await fleet.open("a", agent)
    await fleet.open("b", agent)
    await fleet.meet()
    for name in ("a", "b"):
        node_of(fleet.runtimes[name]).placement.poller._wide_at += 100
        fleet.lines[name].hanging = (base.Due,)
    [turn] = await starts(api, 1)
    await fleet.clock.idle()
    assert (await api.turn(turn).view()).status is Status.WAITING_FOR_APPROVAL

    await fleet.clock.advance(0.34)
    assert (await api.turn(turn).view()).status is Status.WAITING_FOR_APPROVAL
    await fleet.clock.advance(0.02)

    assert (await api.turn(turn).view()).status is Status.COMPLETED
    assert fleet.lines["a"].counts()["Claim"] + fleet.lines["b"].counts()["Claim"] == 2


async def test_mail_for_a_live_turn(fleet: Fleet) -> None:
    """A "work" bell rings the owner's mailbox and makes nobody look for work."""
    bench = Bench()
    a = await fleet.open("a", bench.agent)
    b = await fleet.open("b", bench.agent)
    await fleet.meet()
    turn = await a.start("shop", "go")
    await fleet.clock.idle()
    for line in fleet.lines.values():
        line.seen.clear()

    cancelling = asyncio.ensure_future(b.turn(turn.id).cancel("enough"))
    await fleet.clock.idle()
    bench.opened.set()
    await fleet.clock.idle()

    assert (await cancelling).status is Status.CANCELLED
    assert fleet.lines["a"].counts()["Due"] + fleet.lines["b"].counts()["Due"] == 0


async def test_a_claim_that_fails_does_not_spin(fleet: Fleet) -> None:
    """A bell whose claim the store does not answer is tried once, however often it rings meanwhile; the poll goes on with it."""
    bench = Bench()
    api = await fleet.open("api", execute=False)
    a = await fleet.open("a", bench.agent)
    await fleet.meet()
    fleet.lines["a"].broken = (base.Claim,)
    [turn] = await starts(api, 1)
    for _ in range(3):
        node_of(a).placement.due(turn, 0, "shop@1")
    await fleet.clock.idle()
    assert 3 <= fleet.lines["a"].counts()["Claim"] <= 12  # three repeats a claim

    fleet.lines["a"].seen.clear()
    await fleet.clock.advance(10)
    assert fleet.lines["a"].counts()["Claim"] <= 3 * 13
    fleet.lines["a"].broken = ()
    await fleet.clock.advance(1.1)
    assert bench.starts == 1


async def test_no_room(fleet: Fleet) -> None:
    """A node that has all it may have claims nothing; when an activation ends it takes the next."""
    bench = Bench()
    api = await fleet.open("api", execute=False)
    await fleet.open("a", bench.agent, max_active=2)
    await fleet.meet()

    await starts(api, 5)
    await fleet.clock.advance(6)
    assert bench.starts == 2
    bench.opened.set()
    await fleet.clock.idle()

    assert bench.starts == 5
    assert fleet.lines["a"].counts()["Claim"] == 5


async def test_a_node_that_leaves(fleet: Fleet) -> None:
    """While it drains it renews, claims nothing, and is nobody's home any more; what it hands over goes on elsewhere."""
    bench = Bench()
    api = await fleet.open("api", execute=False)
    a = await fleet.open("a", bench.agent, drain=60)
    turn = (await starts(api, 1))[0]
    await fleet.clock.idle()
    b = await fleet.open("b", bench.agent)
    await fleet.meet()

    leaving = asyncio.ensure_future(a.__aexit__(None, None, None))
    await fleet.clock.advance(11)
    assert [(info.node, info.agents) for info in await api.nodes() if info.node == "a"] == [("a", ())]
    assert b.statistics().home_partitions == 256
    later = await starts(api, 10)
    await fleet.clock.advance(40)
    assert lives(fleet) == {turn: "a", **dict.fromkeys(later, "b")}
    assert b.statistics().reaped == 0

    bench.opened.set()
    await fleet.clock.advance(1)
    await leaving
    del fleet.runtimes["a"]
    assert {(await api.turn(one).view()).status for one in [turn, *later]} == {Status.COMPLETED}


async def test_a_node_that_leaves_while_a_turn_ends(fleet: Fleet) -> None:
    """A turn that waits for a tool to take in its cancel ends with the drain, as of unknown outcome; it is not left to a reaper."""
    bench = Bench()
    api = await fleet.open("api", execute=False)
    await fleet.open("a", bench.agent, drain=5)
    await fleet.meet()
    turn = api.turn((await starts(api, 1))[0])
    await fleet.clock.idle()
    cancelling = asyncio.ensure_future(turn.cancel("enough"))
    await fleet.clock.advance(1)
    assert not cancelling.done()

    await fleet.close("a")

    assert cancelling.done()
    assert (await cancelling).status is Status.CANCELLED
    assert "outcome is unknown" in (await turn.history())[-2].content


async def test_an_answer_while_its_owner_lets_go(fleet: Fleet) -> None:
    """A cycle of approvals through a node that runs nothing, on bells alone."""

    @tool(approval=True)
    async def refund() -> str:
        """Refund."""
        return "done"

    agent = Agent("shop", model=ScriptedModel(call("refund"), "done"), tools=[refund])
    api = await fleet.open("api", execute=False)
    await fleet.open("a", agent)
    await fleet.open("b", agent)
    await fleet.meet()
    for name in ("a", "b"):
        fleet.lines[name].hanging = (base.Due,)

    turns = await starts(api, 10)
    await fleet.clock.idle()
    for turn in turns:
        view = await api.turn(turn).view()
        await api.turn(turn).submit(ResumeCommand.approve_tool(view.open_waits[0], by="ann"))
    await fleet.clock.idle()

    assert {(await api.turn(turn).view()).status for turn in turns} == {Status.COMPLETED}
