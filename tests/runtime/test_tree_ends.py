"""Waiting for the end of a tree whose root has ended first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from turnhold import Agent, AiMessage, ModelRequest, Status

from .fleet import Bench, Fleet, Partitioned

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    fleet = Fleet()
    yield fleet
    await fleet.close_all()


class Slow:
    """A model that never answers."""

    async def complete(self, request: ModelRequest) -> AiMessage:
        answer: asyncio.Future[AiMessage] = asyncio.get_running_loop().create_future()
        return await answer


async def test_a_child_that_outlives_its_root(fleet: Fleet) -> None:
    """Who waits for the end of a tree hears of its last turn without bells, though its root has ended and changes no more."""
    leaf = Bench("leaf")
    shop = Agent("shop", model=Slow(), tools=[])
    api = await fleet.open("api", execute=False)
    a = await fleet.open("a", shop, leaf.agent, cancel_grace=60)
    await fleet.meet()
    turn = await a.start("shop", "hi")
    await fleet.clock.idle()
    child = await turn.start_child("leaf", "hi")
    await fleet.clock.idle()
    ended = asyncio.ensure_future(api.turn(turn.id).cancel("enough"))
    settled = asyncio.ensure_future(api.turn(turn.id).settle())
    await fleet.clock.advance(20)
    assert [(await ref.view()).status for ref in (turn, child)] == [Status.CANCELLED, Status.RUNNING]
    assert (ended.done(), settled.done()) == (False, False)

    assert isinstance(fleet.store, Partitioned)
    fleet.store.deaf = True
    leaf.opened.set()
    await fleet.clock.advance(1.1)

    assert (ended.done(), settled.done()) == (True, True)
    assert [(await task).status for task in (ended, settled)] == [Status.CANCELLED, Status.CANCELLED]
