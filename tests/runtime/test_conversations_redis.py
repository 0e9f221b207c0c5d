"""Conversations on a Redis, in real time: two nodes, the queue, the memory, the cards, a memory of the application's own."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from turnhold import (
    Agent,
    AiMessage,
    CardStatus,
    ConversationBusy,
    MemoryMessage,
    ResumeCommand,
    Runtime,
    Status,
    UserMessage,
    tool,
)
from turnhold.testing import ScriptedModel, call, crash
from turnhold.testing.crashes import POINTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

pytestmark = [pytest.mark.redis, pytest.mark.blocking("the first store of a process reads its scripts")]
NAMES = count()


class Diary:
    """A chat memory in this process."""

    def __init__(self) -> None:
        self.rows: dict[str, MemoryMessage] = {}
        self.down = False
        self.grown = asyncio.Event()

    async def append(self, conversation_id: str, message: MemoryMessage) -> bool:
        if self.down:
            raise ConnectionError("down")
        self.grown.set()
        return self.rows.setdefault(message.id, message) is message

    async def has(self, count: int) -> None:
        while len(self.rows) < count:
            self.grown.clear()
            await self.grown.wait()

    async def page(self, conversation_id: str, before: str | None = None, limit: int = 64) -> list[MemoryMessage]:
        return [] if before else [*self.rows.values()][-limit:]

    async def get(self, conversation_id: str, message_id: str) -> MemoryMessage | None:
        return self.rows.get(message_id)

    async def replace(self, conversation_id: str, message: MemoryMessage, expected_version: int) -> bool:
        self.rows[message.id] = message
        return True


@tool(approval=True)
async def refund(amount: int) -> str:
    """Refund an amount."""
    return f"{amount} refunded"


def echo(request: Any) -> str:
    return f"re {request.messages[-1].content}"


def agents() -> list[Agent]:
    child = Agent("child", model=ScriptedModel(call("refund", amount=1), "child done"), tools=[refund])
    return [
        Agent("plain", model=ScriptedModel(echo)),
        Agent("shop", model=ScriptedModel(call("refund", amount=7), "done"), tools=[refund]),
        Agent("lead", model=ScriptedModel(call("child", input="x"), "done"), tools=[child.as_tool()]),
        child,
    ]


@pytest.fixture
async def node(redis_url: str) -> AsyncIterator[Callable[..., Awaitable[Runtime]]]:
    """Opens nodes on a namespace of the test's own."""
    url = f"{redis_url}?namespace=conversations{next(NAMES)}"
    async with AsyncExitStack() as stack:

        async def opened(**options: Any) -> Runtime:
            options.setdefault("agents", agents())
            return await stack.enter_async_context(Runtime(url, lease=1, drain=1, **options))

        yield opened


def spoken(entries: list[MemoryMessage]) -> list[str]:
    said = [entry.message.content for entry in entries if isinstance(entry.message, UserMessage | AiMessage)]
    return [text for text in said if text]


async def test_queue_and_memory(node: Callable[..., Awaitable[Runtime]]) -> None:
    """Turns queued on two nodes run in their order, each sees what was said before, and a late queue is refused or replaced."""
    first, second = await node(), await node()
    turn = await first.start("shop", "one", conversation="c")
    (wait,) = (await turn.settle(10)).open_waits
    with pytest.raises(ConversationBusy, match=turn.id):
        await second.start("plain", "x", conversation="c")
    queued = [await (first, second)[n % 2].start("plain", f"n{n}", conversation="c", when_busy="queue") for n in range(4)]
    assert await second.conversation("c").queued() == queued
    await queued[2].cancel(timeout=10)
    assert await second.conversation("c").queued() == [queued[0], queued[1], queued[3]]

    await second.turn(turn.id).submit(ResumeCommand.approve_tool(wait, by="ann", arguments={"amount": 8}))
    outputs = [(await each.settle(10)).final_output for each in queued]

    assert outputs == ["re n0", "re n1", None, "re n3"]
    entries = await second.conversation("c").messages()
    assert spoken(entries) == ["one", "done", "n0", "re n0", "n1", "re n1", "n3", "re n3"]
    assert isinstance(entries[1].message, AiMessage)
    assert (entries[1].version, entries[1].message.tool_calls[0].edited_by) == (1, "ann")
    assert [getattr(each.message, "status", None) for each in entries if not each.shown] == [CardStatus.APPROVED]
    assert [entry.id for entry in await first.conversation("c").messages(limit=2, before=entries[3].id)] == [
        entry.id for entry in entries[1:3]
    ]
    await second.conversation("c").clear()
    assert await first.conversation("c").messages() == []


async def test_supersede_with_a_child(node: Callable[..., Awaitable[Runtime]]) -> None:
    """A conversation that moves on closes the wait and the card of a child, and the new turn runs on whichever node has room."""
    first, second = await node(), await node(execute=False, agents=())
    turn = await first.start("lead", "one", conversation="c")
    (wait,) = (await turn.settle(10)).open_waits
    entries = await second.conversation("c").messages()
    assert [(getattr(each.message, "turn_id", ""), each.turn_id) for each in entries if not each.shown] == [(wait.turn_id,) * 2]

    newest = await second.start("plain", "two", conversation="c", when_busy="supersede")

    assert (await newest.settle(10)).status is Status.COMPLETED
    assert (await turn.settle(10)).status is Status.CANCELLED
    assert (await first.turn(wait.turn_id).settle(10)).status is Status.CANCELLED
    entries = await second.conversation("c").messages()
    assert [getattr(each.message, "status", None) for each in entries if not each.shown] == [CardStatus.SUPERSEDED]


@pytest.mark.parametrize("point", POINTS)
async def test_crash_at_the_end_of_the_open_turn(node: Callable[..., Awaitable[Runtime]], point: Any) -> None:
    """Wherever the node dies around the save that ends the open turn, the queue goes on elsewhere, once, knowing what was said."""
    first = await node()
    turn = await first.start("shop", "one", conversation="c")
    (wait,) = (await turn.settle(10)).open_waits
    second = await node()
    queued = await second.start("plain", "two", conversation="c", when_busy="queue")
    with crash(first, "save", point, nth=3) as crashed:  # the answer, the result, the end
        answering = asyncio.ensure_future(first.turn(turn.id).submit(ResumeCommand.approve_tool(wait)))
        await asyncio.wait([answering])
        await crashed.wait()
        if point == "lost_reply":
            await turn.settle(10)

    view = await second.turn(queued.id).settle(30)

    assert view.final_output == "re two"
    assert spoken(await second.conversation("c").messages()) == ["one", "done", "two", "re two"]


async def test_own_memory(node: Callable[..., Awaitable[Runtime]]) -> None:
    """What was said while the own memory was away reaches it when it is back, from whichever node lives then."""
    diary = Diary()
    first = await node(chat_memory=diary)
    assert (await first.run("plain", "one", conversation="c", timeout=10)).status is Status.COMPLETED
    await diary.has(2)
    diary.down = True
    await first.run("plain", "two", conversation="c", history=[], timeout=10)
    second = await node(chat_memory=diary, execute=False, agents=())
    diary.down = False
    await diary.has(4)

    assert spoken([*diary.rows.values()]) == ["one", "re one", "two", "re two"]
    assert spoken(await second.conversation("c").messages()) == ["one", "re one", "two", "re two"]
