"""Starts of which the store knows nothing any more: where nobody could be asked, the operator is told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from turnhold import Agent, Runtime, TurnNotFound, tool
from turnhold.store.memory import MemoryStore
from turnhold.store.memory_core import MemoryCore
from turnhold.testing import ScriptedModel, VirtualClock, call

if TYPE_CHECKING:
    from turnhold.actors.tools import ToolEffect


@pytest.mark.parametrize("effect", ["once", "repeatable"])
async def test_a_store_that_has_lost_the_turn(effect: ToolEffect, caplog: pytest.LogCaptureFixture) -> None:
    """A `once` call that had started is named in the log and counted, once; one that may be repeated is not."""
    clock, store, entered = VirtualClock(), MemoryStore(), asyncio.Event()

    @tool(effect=effect)
    async def pay() -> None:
        """Pay, and do not come to an end."""
        entered.set()
        await asyncio.get_running_loop().create_future()

    async with Runtime(store, agents=[Agent("shop", model=ScriptedModel(call("pay")), tools=[pay])], clock=clock) as runtime:
        turn = await runtime.start("shop", "go")
        await clock.idle()
        assert entered.is_set()
        vars(store.core).update(vars(MemoryCore()))
        await clock.advance(30)

        with pytest.raises(TurnNotFound):
            await turn.view()
        found = runtime.statistics()

    told = [record for record in caplog.records if record.message == "once_call_forgotten"]
    assert (found.live_turns, found.lost, found.forgotten) == (0, 1, int(effect == "once"))
    assert [(record.turn, record.call) for record in told] == [(turn.id, "call_1_0")] * (effect == "once")  # type: ignore[attr-defined]
