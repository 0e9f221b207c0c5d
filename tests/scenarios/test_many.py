"""Many turns at once, and several nodes that take a few each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from turnhold import Status
from turnhold.testing import call

from .lab import agent

if TYPE_CHECKING:
    from .lab import Desk, Lab

MANY, AT_ONCE = 90, 20


async def test_each_of_many_is_handled_once(lab: Lab, desk: Desk) -> None:
    """J202, J203: many turns are created, nodes take 20 at a time, end and release each; all once; then all are read at once."""
    shop = agent(call("refund"), "done", tools=[desk.tool()])
    nodes = [await lab.runtime(execute=False)]
    nodes += [await lab.runtime(shop, node=f"worker{number}", max_active=AT_ONCE) for number in range(3)]
    turns = await asyncio.gather(*(nodes[0].start("shop", f"number {number}") for number in range(MANY)))
    views = await lab.during(asyncio.gather(*(turn.settle() for turn in turns)))

    assert {view.status for view in views} == {Status.COMPLETED}
    assert sorted(desk.keys) == sorted(f"{turn.id}:call_1_0" for turn in turns)
    assert [node.statistics().live_turns for node in nodes] == [0, 0, 0, 0]
    assert {node.statistics().claims > 0 for node in nodes[1:]} == {True}
    again = await asyncio.gather(*(nodes[at % len(nodes)].turn(turn.id).view() for at, turn in enumerate(turns)))
    assert [view.version for view in again] == [view.version for view in views]
