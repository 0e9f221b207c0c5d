"""A chat memory of the application's own on several nodes, some of which die: what one has left another passes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from turnhold import (
    CardStatus,
    MemoryMessage,
    ResumeCommand,
    Status,
)
from turnhold.testing import call, crash
from turnhold.testing.crashes import POINTS

from .diary import Diary, stored, unpassed
from .lab import Desk, Lab, agent, echo, waiting

GATED = call("refund", amount=1)


@pytest.mark.parametrize("operation", ["read_relay", "relayed", "save", "read_memory"])
@pytest.mark.parametrize("nth", range(1, 4))
@pytest.mark.parametrize("point", POINTS)
async def test_replay_after_a_crash(lab: Lab, operation: str, point: Any, nth: int) -> None:
    """What a node that died had not passed on, or not noted, another one passes on: nothing is lost, nothing comes twice."""
    diary = Diary()
    shop = agent(echo)
    first = await lab.runtime(shop, chat_memory=diary)
    with crash(first, operation, point, nth=nth) as crashed:
        turn = await first.start(shop, "one", conversation="c", idempotency_key="k")
        await lab.idle()
    if crashed.happened and point != "lost_reply":
        await lab.kill(first)
    second = await lab.runtime(shop, chat_memory=diary)
    await lab.clock.advance(60)

    assert (await second.turn(turn.id).view()).final_output == "re one"
    assert diary.said() == ["user: one", "assistant: re one"]
    assert await unpassed(second) == 0


async def test_left_by_a_dead_node(lab: Lab) -> None:
    """A node that lives finds what a dead one has left, without a restart and without a turn in that conversation."""
    diary, broken = Diary(), Diary()
    broken.down = ConnectionError("only here")
    shop = agent(echo)
    second = await lab.runtime(chat_memory=diary, execute=False)
    first = await lab.runtime(shop, chat_memory=broken)
    view = await lab.during(first.run(shop, "one", conversation="c", history=[]))
    assert view.status is Status.COMPLETED
    await lab.kill(first)

    await lab.clock.advance(25)
    assert diary.said() == ["user: one", "assistant: re one"]
    assert await unpassed(second) == 0


async def test_two_nodes_at_once(lab: Lab, desk: Desk) -> None:
    """Two nodes that pass on one conversation at once write each message once, in its order."""
    diary = Diary()
    shop = agent(GATED, "done", tools=[desk.tool(approval=True)])
    first, second = [await lab.runtime(shop, chat_memory=diary) for _ in range(2)]
    diary.slow = asyncio.Event()
    turn = await first.start(shop, "one", conversation="c", history=[])
    (wait,) = (await turn.settle()).open_waits
    await lab.clock.advance(25)  # the other node has found it by now
    assert diary.calls.count("append") == 2
    await second.turn(turn.id).submit(ResumeCommand.approve_tool(wait))
    diary.slow.set()
    diary.slow = None
    await lab.clock.advance(30)

    assert diary.said() == ["user: one", "assistant -> refund", "call_1_0 = refunded", "assistant: done"]
    assert list(diary.rows["c"].values()) == await stored(first)
    assert await unpassed(first) == 0


async def test_api_node(lab: Lab, desk: Desk) -> None:
    """An answer that a node applies which runs nothing reaches the memory from there."""
    diary = Diary()
    shop = agent(GATED, "done", tools=[desk.tool(approval=True)])
    executor, api = await lab.runtime(shop, chat_memory=diary), await lab.runtime(execute=False, chat_memory=diary)
    turn, wait = await waiting(executor, shop, conversation="c")
    await lab.close(executor)

    await api.turn(turn.id).submit(ResumeCommand.approve_tool(wait, by="ann"))
    await lab.idle()

    assert [(card.status, card.operator) for card in diary.cards()] == [(CardStatus.APPROVED, "ann")]


async def test_leaving(lab: Lab) -> None:
    """A runtime that is left passes on what it has heard of before; what fails then is found by the next one."""
    diary = Diary()
    shop = agent(echo)
    runtime = await lab.runtime(shop, chat_memory=diary)
    await runtime.run(shop, "one", conversation="c")
    await lab.close(runtime)
    assert diary.said() == ["user: one", "assistant: re one"]

    runtime = await lab.runtime(shop, chat_memory=diary)
    turn = await runtime.start(shop, "two", conversation="c", history=[])
    diary.down = ConnectionError("down")
    await turn.settle()
    await lab.close(runtime)
    assert len(diary.said()) == 2
    diary.down = None
    await lab.runtime(chat_memory=diary, execute=False)
    await lab.idle()
    assert diary.said()[2:] == ["user: two", "assistant: re two"]


async def test_conversations_do_not_wait_for_each_other(lab: Lab) -> None:
    """A conversation whose messages are refused is backed off alone; others are passed on, many at once."""
    diary = Diary()
    append = diary.append

    async def picky(conversation_id: str, message: MemoryMessage) -> bool:
        if conversation_id == "c-0":
            raise ValueError("not this one")
        return await append(conversation_id, message)

    diary.append = picky  # type: ignore[method-assign]
    shop = agent(echo)
    runtime = await lab.runtime(shop, chat_memory=diary)
    for number in range(40):
        await runtime.start(shop, "hi", conversation=f"c-{number}", history=[])
    await lab.idle()

    assert len(diary.rows) == 39
    assert all(len(rows) == 2 for rows in diary.rows.values())
    assert runtime.statistics().unrelayed == 1


async def test_found_behind_others(lab: Lab) -> None:
    """What a dead node has left is found also behind more conversations than are looked at once, none of which can be passed on."""
    diary, broken = Diary(), Diary()
    broken.down = ConnectionError("only here")
    append = diary.append

    async def picky(conversation_id: str, message: MemoryMessage) -> bool:
        if conversation_id.startswith("bad"):
            raise ValueError("not this one")
        return await append(conversation_id, message)

    diary.append = picky  # type: ignore[method-assign]
    shop = agent(echo)
    first = await lab.runtime(shop, chat_memory=broken)
    for name in [*(f"bad {number}" for number in range(130)), "good"]:
        await first.start(shop, "hi", conversation=name, history=[])
        await lab.clock.advance(0.01)
    await lab.idle()
    await lab.kill(first)
    await lab.runtime(chat_memory=diary, execute=False)
    await lab.clock.advance(30)

    assert {name: len(rows) for name, rows in diary.rows.items()} == {"good": 2}
