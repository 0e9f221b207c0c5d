"""What bells have told a node of wakes to come is bounded, and forgotten when it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from turnhold import Agent, ApprovalDecision, ExecutionPolicy, ResumeCommand, Status, tool
from turnhold.runtime.runtime import node_of
from turnhold.testing import ScriptedModel, call

from .fleet import Fleet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

WEEK = 7 * 86_400
ROUNDS = 200


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    fleet = Fleet()
    yield fleet
    await fleet.close_all()


async def test_wakes_that_nobody_sleeps_for(fleet: Fleet) -> None:
    """Waits that would expire in a week but are answered at once leave nothing behind for that week, though others sleep on."""

    @tool(approval=ApprovalDecision.require(expires_in=WEEK, on_expiry="reject"))
    async def refund() -> str:
        """Refund."""
        return "done"

    policy = ExecutionPolicy(max_iterations=4 * ROUNDS, max_steps=4 * ROUNDS)
    agent = Agent("shop", model=ScriptedModel(*[call("refund")] * ROUNDS, "done"), tools=[refund], policy=policy)
    api = await fleet.open("api", execute=False)
    a = await fleet.open("a", agent)
    await fleet.meet()
    await api.start("shop", "go")  # nobody answers this one: it is the first to wake
    await fleet.clock.advance(1)
    turn = await api.start("shop", "go")
    await fleet.clock.idle()
    for _ in range(ROUNDS):
        await fleet.clock.advance(0.01)
        await turn.submit(ResumeCommand.approve_tool((await turn.view()).open_waits[0], by="ann"))
        await fleet.clock.idle()
    assert (await turn.view()).status is Status.COMPLETED

    offers = node_of(a).placement.offers
    assert len(offers) == 1
    assert len(offers._heap) <= 70
