"""Renewals that fail, hang, or come late; and who may take over then."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from turnhold import Agent, AiMessage, ExecutionPolicy, ModelRequest, Runtime, Status, StoreUnavailable, tool
from turnhold.runtime.leases import BATCH
from turnhold.runtime.runtime import node_of
from turnhold.store import base
from turnhold.testing import ScriptedModel, VirtualClock, call

from .fleet import LEASE, Bench, Fleet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

RENEW, GRACE, MARGIN, POLLS = LEASE / 3, LEASE / 6, 3.0, 5.6


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    fleet = Fleet()
    yield fleet
    await fleet.close_all()


class Mute:
    """A model that never answers."""

    async def complete(self, request: ModelRequest) -> AiMessage:
        answer: asyncio.Future[AiMessage] = asyncio.get_running_loop().create_future()
        return await answer


def renewals(fleet: Fleet, name: str) -> list[base.Renew]:
    return [op for op in fleet.lines[name].seen if isinstance(op, base.Renew)]


async def test_one_round_at_once(fleet: Fleet) -> None:
    """All partitions are renewed together, in batches; one that hangs holds up no other, over many periods."""
    bench = Bench()
    a = await fleet.open("a", bench.agent)
    await fleet.meet()
    for number in range(BATCH + 10):
        await a.start("shop", "go", conversation=str(number))
    many = [await a.start("shop", "go", conversation=f"more {number}") for number in range(3)]
    await fleet.clock.idle()
    fleet.lines["a"].seen.clear()
    await fleet.clock.advance(RENEW)
    sizes = [len(op.leases) for op in renewals(fleet, "a")]
    assert sum(sizes) == BATCH + 13
    assert max(sizes) <= BATCH

    stuck, call = many[0].id, fleet.lines["a"].call

    async def hanging(op: base.Op) -> base.Reply:
        if isinstance(op, base.Renew) and any(turn == stuck for turn, _ in op.leases):
            await asyncio.get_running_loop().create_future()
        return await call(op)

    fleet.lines["a"].call = hanging  # type: ignore[method-assign] - a line that is broken for one partition
    await fleet.clock.advance(LEASE + 1)

    assert 1 <= a.statistics().lost < 10
    left = [turn for turn in node_of(a).placement.actors if turn[:2] != stuck[:2]]
    assert a.statistics().live_turns == len(left) == BATCH + 13 - a.statistics().lost
    assert a.healthy


async def test_a_renewal_that_hangs(fleet: Fleet) -> None:
    """An activation ends at its own deadline, although the call that should extend it never returns."""
    bench = Bench()
    a = await fleet.open("a", bench.agent)
    await fleet.meet()
    await a.start("shop", "go")
    await fleet.clock.idle()
    fleet.lines["a"].hanging = (base.Renew,)

    await fleet.clock.advance(LEASE - MARGIN - 0.01)
    assert (a.statistics().live_turns, a.statistics().lost) == (1, 0)
    await fleet.clock.advance(0.02)

    assert (a.statistics().live_turns, a.statistics().lost) == (0, 1)


async def test_renewals_are_tried_again(fleet: Fleet) -> None:
    """A failed renewal is repeated within a second, with growing pauses, and what it renews in time is not lost."""
    bench = Bench()
    a = await fleet.open("a", bench.agent)
    await fleet.meet()
    await a.start("shop", "go")
    await fleet.clock.idle()
    fleet.lines["a"].broken = (base.Renew,)
    fleet.lines["a"].seen.clear()

    await fleet.clock.advance(20)
    failed = a.statistics().renewals_failed
    assert 12 <= failed <= 20
    assert len(renewals(fleet, "a")) == 3 * failed  # each is repeated at once, as after any unknown outcome
    fleet.lines["a"].broken = ()
    await fleet.clock.advance(3 * LEASE)

    assert (a.statistics().live_turns, a.statistics().lost) == (1, 0)


async def test_a_node_that_is_cut_off(fleet: Fleet) -> None:
    """While nothing can be renewed it takes nothing new and is not healthy; it comes back by itself, and works on."""
    bench = Bench()
    a = await fleet.open("a", bench.agent)
    await fleet.meet()
    await a.start("shop", "go")
    await fleet.clock.idle()
    fleet.lines["a"].broken = (base.Renew,)
    await fleet.clock.advance(RENEW)
    assert not a.healthy

    turn = await a.start("shop", "go")
    await fleet.clock.advance(7)
    assert (await turn.view()).status is Status.READY
    assert (bench.starts, fleet.lines["a"].counts()["Claim"]) == (1, 0)

    fleet.lines["a"].broken = ()
    await fleet.clock.advance(1.1)

    assert a.healthy
    assert bench.starts == 2
    assert (a.statistics().live_turns, a.statistics().lost) == (2, 0)


async def test_a_node_that_has_lost_all(fleet: Fleet) -> None:
    """With nothing left to renew it asks once a second whether the store is back; then it takes up work again."""
    bench = Bench()
    a = await fleet.open("a", bench.agent)
    await fleet.meet()
    turn = await a.start("shop", "go")
    await fleet.clock.idle()
    fleet.lines["a"].broken = (base.Op,)
    await fleet.clock.advance(2 * LEASE)
    assert (a.statistics().live_turns, a.statistics().lost, a.healthy) == (0, 1, False)

    fleet.lines["a"].broken = ()
    await fleet.clock.advance(1.1)
    assert a.healthy
    bench.opened.set()
    await fleet.clock.advance(RENEW + GRACE + LEASE / 6 + POLLS)

    assert (await turn.view()).status is Status.COMPLETED
    assert bench.starts == 2


async def test_a_process_that_stood_still(fleet: Fleet) -> None:
    """What it owned over a stall past its deadlines is asked about once, and kept where nobody else has taken it."""
    bench = Bench()
    a = await fleet.open("a", bench.agent)
    await fleet.meet()
    await a.start("shop", "go")
    await fleet.clock.idle()

    fleet.clock.time.now += round((LEASE + 4) * 1e6)
    await fleet.clock.advance(0)
    assert (a.statistics().live_turns, a.statistics().lost) == (1, 0)
    await fleet.clock.advance(3 * LEASE)
    assert (a.statistics().live_turns, a.statistics().lost) == (1, 0)

    fleet.lines["a"].hanging = (base.Renew,)
    fleet.clock.time.now += round((LEASE + 4) * 1e6)
    await fleet.clock.advance(3.1)
    assert (a.statistics().live_turns, a.statistics().lost) == (0, 1)


async def test_a_renewal_behind_the_last_save(fleet: Fleet) -> None:
    """A turn that its own save has just ended is not lost, though a renewal on its way finds no lease any more."""
    bench = Bench()
    a = await fleet.open("a", bench.agent)
    await fleet.meet()
    turn = await a.start("shop", "go")
    await fleet.clock.idle()
    line, call, answered = fleet.lines["a"], fleet.lines["a"].call, asyncio.Event()

    async def slow(op: base.Op) -> base.Reply:
        reply = await call(op)
        if isinstance(op, base.Save) and op.mode is base.Mode.END:
            await answered.wait()
        return reply

    line.call = slow  # type: ignore[method-assign] - a line whose answers are late
    bench.opened.set()
    await fleet.clock.advance(RENEW + 1)
    assert a.statistics().live_turns == 1
    answered.set()
    await fleet.clock.idle()

    assert (await turn.view()).status is Status.COMPLETED
    assert (a.statistics().live_turns, a.statistics().lost) == (0, 0)


async def test_what_is_parked_is_not_lost(fleet: Fleet) -> None:
    """An activation that puts its turn into quarantine ends by its own wish."""
    agent = Agent("shop", model=Mute(), policy=ExecutionPolicy(max_crashes=1))
    a = await fleet.open("a", agent)
    b = await fleet.open("b", agent)
    await fleet.meet()
    turn = await a.start("shop", "go")
    await fleet.clock.idle()
    await fleet.kill("a")

    await fleet.clock.advance(LEASE + GRACE + LEASE / 6 + POLLS)

    assert (await b.turn(turn.id).view()).quarantine is not None
    assert (b.statistics().quarantined, b.statistics().lost) == (1, 0)


async def test_what_the_log_hears_of_failed_renewals(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """Each partition has a renewal of its own; where all fail, the log hears of it once a second, not once for each."""
    bench = Bench()
    a = await fleet.open("a", bench.agent)
    await fleet.meet()
    for number in range(200):
        await a.start("shop", "go", conversation=str(number))
    await fleet.clock.idle()
    fleet.lines["a"].broken = (base.Renew,)

    await fleet.clock.advance(20)

    assert a.statistics().renewals_failed > 500
    assert 5 <= sum("renewal_failed" in record.getMessage() for record in caplog.records) <= 12


@pytest.mark.parametrize("trouble", ["renewals", "reading", "reconnect", "stall"])
async def test_no_reaping_behind_a_trouble(fleet: Fleet, trouble: str) -> None:
    """A node that was in trouble gives the others a renewal period and the grace before it takes anything over."""
    bench = Bench()
    a = await fleet.open("a", bench.agent)
    b = await fleet.open("b", bench.agent)
    await fleet.meet()
    await b.start("shop", "go")
    await a.start("shop", "go")
    await fleet.kill("a")
    line = fleet.lines["b"]
    if trouble == "renewals":
        await fleet.clock.advance(LEASE - RENEW)
        line.broken = (base.Renew,)
        await fleet.clock.advance(RENEW + GRACE)  # a's turn could be taken over now
    elif trouble == "reading":
        line.broken = (base.Expired,)
        await fleet.clock.advance(LEASE + GRACE)
        line.seen.clear()
        while not line.counts()["Expired"]:
            await fleet.clock.advance(0.5)
    else:
        await fleet.clock.advance(LEASE + 1)
        if trouble == "reconnect":
            node_of(b).look_everywhere()
        else:
            fleet.clock.time.now += round((RENEW + 1) * 1e6)
    line.broken = ()

    await fleet.clock.advance(RENEW + GRACE - 1)
    assert b.statistics().reaped == 0
    await fleet.clock.advance(LEASE / 6 + 2)

    assert b.statistics().reaped == 1
    assert b.statistics().lost == 0


async def test_a_refusal_is_final(fleet: Fleet) -> None:
    """What the store says it will not do is not asked again; what it left open is, twice."""
    a = await fleet.open("a", Bench().agent)
    line = fleet.lines["a"]
    line.broken, line.refused = (base.Look,), True
    turn = a.turn("00-" + "a" * 26)

    for refused, times in ((True, 1), (False, 3)):
        line.refused = refused
        line.seen.clear()
        with pytest.raises(StoreUnavailable):
            await turn.view()
        assert line.counts()["Look"] == times


async def test_an_idle_node_without_a_store(fleet: Fleet) -> None:
    """With nothing to renew, its polls tell that the store is away; one answer is enough to be healthy again."""
    a = await fleet.open("a", Bench().agent)
    await fleet.meet()
    fleet.lines["a"].broken = (base.Op,)
    await fleet.clock.advance(POLLS)
    assert not a.healthy

    fleet.lines["a"].broken = ()
    await fleet.clock.advance(POLLS)
    assert a.healthy


async def test_a_lost_activation_that_takes_long_to_end() -> None:
    """Who waits where a turn was lost hears what its next owner does, however long a call there takes to end."""
    ending, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def stubborn() -> str:
        """Take long to end, the first time."""
        if not ending.is_set():
            try:
                await asyncio.Event().wait()
            finally:
                ending.set()
                await ended.wait()
        return "done"

    shop, clock = Agent("shop", model=ScriptedModel(call("stubborn"), "done"), tools=[stubborn]), VirtualClock()
    url = "memory://a-lost-activation"
    async with Runtime(url, agents=[shop], clock=clock) as first, Runtime(url, agents=[shop], clock=clock) as second:
        turn = await first.start(shop, "go")
        settled = asyncio.ensure_future(turn.settle())
        await clock.idle()
        lost = node_of(first).placement.actors[turn.id]
        await node_of(first).call(base.Abandon(turn=turn.id, token=lost.token, delay_ms=0))
        lost.lose()
        await clock.idle()

        assert (await second.turn(turn.id).view()).status is Status.COMPLETED
        assert settled.done()
        ended.set()
