"""Nodes whose clocks disagree."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

import pytest

from turnhold import Agent, ResumeCommand, Runtime, Status, ToolContext, tool
from turnhold.testing import ScriptedModel, VirtualClock, call

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.blocking("SQLite is inline under a virtual clock")
@pytest.mark.parametrize("hours", [1, -1])
@pytest.mark.parametrize("effect", ["once", "repeatable"])
@pytest.mark.parametrize("file", [False, True], ids=["memory", "sqlite"])
async def test_a_node_whose_clock_is_an_hour_off(
    tmp_path: Path, hours: int, effect: Literal["once", "repeatable"], *, file: bool
) -> None:
    """It may take a living owner for dead; even so no attempt starts twice, and `once` starts again only where a person says so."""
    clock, starts, gate = VirtualClock(), list[int](), asyncio.Event()

    @tool(effect=effect)
    async def work() -> str:
        """Work."""
        starts.append(ToolContext.current().attempt)
        await gate.wait()
        return "worked"

    agent = Agent("a", model=ScriptedModel(call("work"), "done"), tools=[work])
    url = f"sqlite:///{tmp_path}/turns.db" if file else f"memory://clocks-{effect}-{hours}"
    async with Runtime(url, agents=[agent], clock=clock) as here:
        turn = await here.start(agent, "go")
        await clock.idle()
        async with Runtime(url, agents=[agent], clock=clock.skewed(hours=hours)) as there:
            await clock.advance(60)
            assert starts == [*range(1, len(starts) + 1)]
            assert effect == "repeatable" or starts == [1]

            gate.set()
            await clock.advance(60)
            view = await there.turn(turn.id).settle()
            if view.status is Status.IN_DOUBT:
                view = await there.turn(turn.id).resume(ResumeCommand.give_result(view.open_waits[0], "seen"))

    assert view.status is Status.COMPLETED
    assert starts == [*range(1, len(starts) + 1)]
    assert effect == "repeatable" or starts == [1]
