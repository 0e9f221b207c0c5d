"""What an operator does to a parked turn, where a reply is lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from turnhold import Agent, AiMessage, ModelRequest, NotQuarantined, Runtime, Status, TurnNotFound
from turnhold.runtime.runtime import node_of
from turnhold.store import base
from turnhold.testing import ScriptedModel, VirtualClock, crash
from turnhold.testing.loop import run

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path


class Waiting:
    """A model that waits until it is let go."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def complete(self, request: ModelRequest) -> AiMessage:
        await self.opened.wait()
        return await ScriptedModel("done").complete(request)


@pytest.mark.parametrize("act", ["discard", "revive"])
def test_a_lost_reply_is_no_refusal(act: str) -> None:
    """The identical call finds its work done; a second order finds nothing parked."""
    run(lambda clock: ordered_twice(clock, act))


async def ordered_twice(clock: VirtualClock, act: str) -> None:
    model = Waiting()
    async with Runtime("memory://", agents=[Agent("shop", model=model)], clock=clock) as runtime:
        turn = await runtime.start("shop", "go")
        token = node_of(runtime).placement.actors[turn.id].token
        await node_of(runtime).call(base.Quarantine(turn=turn.id, token=token, reason="a test"))

        def order() -> Coroutine[object, object, None]:
            return turn.discard("a test") if act == "discard" else turn.revive()

        with crash(runtime, act, "lost_reply") as lost:
            await order()
        with pytest.raises(NotQuarantined):
            await order()
        model.opened.set()
        view = await turn.settle()

    assert lost.happened
    assert view.status is (Status.FAILED if act == "discard" else Status.COMPLETED)


@pytest.fixture(params=["memory", "sqlite", pytest.param("redis", marks=pytest.mark.redis)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of each kind."""
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/turns.db"


@pytest.mark.blocking("the first store of a process on Redis reads its scripts")
async def test_only_what_is_parked_is_revived_or_discarded(url: str) -> None:
    """The refusal tells what the turn is instead, and changes nothing; a turn that does not exist is another matter."""
    model = Waiting()
    async with Runtime(url, agents=[Agent("shop", model=model)]) as runtime:
        turn = await runtime.start("shop", "go")
        for order in (turn.revive, lambda: turn.discard("a test")):
            with pytest.raises(NotQuarantined, match=f"turn {turn.id} is not in quarantine; it is RUNNING"):
                await order()
        model.opened.set()
        assert (await turn.settle()).status is Status.COMPLETED
        for order in (turn.revive, lambda: turn.discard("a test")):
            with pytest.raises(NotQuarantined, match="it is COMPLETED") as refused:
                await order()
            assert (refused.value.turn_id, refused.value.status) == (turn.id, "COMPLETED")
        gone = runtime.turn(turn.id[:3] + "a" * (len(turn.id) - 3))
        for order in (gone.revive, lambda: gone.discard("a test")):
            with pytest.raises(TurnNotFound, match="no turn") as missing:
                await order()
            assert not isinstance(missing.value, NotQuarantined)
