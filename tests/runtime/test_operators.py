"""What an operator does to a parked turn, where a reply is lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from turnhold import Agent, AiMessage, ModelRequest, Runtime, Status, TurnNotFound
from turnhold.runtime.runtime import node_of
from turnhold.store import base
from turnhold.testing import ScriptedModel, VirtualClock, crash
from turnhold.testing.loop import run

if TYPE_CHECKING:
    from collections.abc import Coroutine


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
        with pytest.raises(TurnNotFound):
            await order()
        model.opened.set()
        view = await turn.settle()

    assert lost.happened
    assert view.status is (Status.FAILED if act == "discard" else Status.COMPLETED)
