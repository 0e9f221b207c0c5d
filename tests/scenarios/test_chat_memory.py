"""A chat memory of the application's own: everything said reaches it, in order, whatever happens to it or to the nodes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from turnhold import (
    ActionMessage,
    AiMessage,
    CardStatus,
    ChatMemory,
    InvalidDefinition,
    MemoryMessage,
    ResumeCommand,
    Runtime,
    Status,
    ToolMessage,
    UserMessage,
)
from turnhold.runtime.relay import together
from turnhold.store.base import MemoryEntry
from turnhold.testing import call

from .diary import Diary, stored, unpassed
from .lab import Desk, Lab, agent, approved, echo, model_of, talk, waiting

GATED = call("refund", amount=1)


# ---------------------------------------------------------------------------------------------------------- in good times


def test_shape() -> None:
    """What stands for a chat memory has its four methods."""
    assert isinstance(Diary(), ChatMemory)
    for wrong in (object(), "memory", [], type("Half", (), {"append": print})()):
        with pytest.raises(InvalidDefinition, match="chat_memory must be a ChatMemory"):
            Runtime(chat_memory=wrong)  # type: ignore[arg-type]


async def test_everything_reaches_it(lab: Lab, desk: Desk) -> None:
    """M256: messages and cards arrive in the order of the conversation, each once, and cards and edited replies are replaced."""
    diary = Diary()
    shop = agent(GATED, "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop, chat_memory=diary)
    turn, wait = await waiting(runtime, shop, "one", conversation="c")
    await lab.idle()
    assert diary.cards()[0].status is CardStatus.PENDING
    await approved(turn, wait, by="ann", arguments={"amount": 2})
    await lab.idle()

    assert diary.said() == ["user: one", "assistant -> refund", "call_1_0 = refunded", "assistant: done"]
    (card,) = diary.cards()
    assert (card.status, card.operator, card.version) == (CardStatus.APPROVED, "ann", 1)
    assert list(diary.rows["c"].values()) == await stored(runtime)
    assert await unpassed(runtime) == 0
    assert (runtime.statistics().relay_failures, runtime.statistics().unrelayed) == (0, 0)
    assert runtime.statistics().relayed >= 5


async def test_it_is_what_is_recalled(lab: Lab) -> None:
    """Turns recall from the own memory, and people read it: what the application put there, or took out, counts."""
    diary = Diary()
    shop = agent(echo)
    runtime = await lab.runtime(shop, chat_memory=diary)
    await runtime.run(shop, "one", conversation="c")
    await lab.idle()
    (first, *_) = diary.rows["c"].values()
    del diary.rows["c"][first.id]
    note = MemoryMessage(id="mine", at=first.at, message=UserMessage("from outside"))
    diary.rows["c"] = {"mine": note, **diary.rows["c"]}

    await runtime.run(shop, "two", conversation="c")

    assert talk(model_of(shop).requests[-1].messages) == ["user: from outside", "assistant: re one", "user: two"]
    assert (await runtime.conversation("c").messages())[0] == note
    assert [entry.id for entry in await runtime.conversation("c").messages(limit=1, before=list(diary.rows["c"])[1])] == ["mine"]


async def test_only_the_window_is_read(lab: Lab) -> None:
    """Of a long memory only the newest pages are read, cards do not count, and calls without results are not shown."""
    diary = Diary()
    shop = agent(echo)
    runtime = await lab.runtime(shop, chat_memory=diary)
    when = (await runtime.nodes())[0].seen_at
    rows: list[Any] = []
    for number in range(100):
        rows += [UserMessage(f"q{number}"), ActionMessage(message_id="x", turn_id="t", action_id="a"), AiMessage(f"a{number}")]
    rows += [AiMessage("", (msgspec.structs.replace(call("x"), id="c1"),)), ToolMessage("c2", "nobody asked")]
    diary.rows["c"] = {f"m{n}": MemoryMessage(id=f"m{n}", at=when, message=row) for n, row in enumerate(rows)}

    await runtime.run(shop, "now", conversation="c")

    assert diary.calls[: diary.calls.index("append")] == ["page"]
    assert talk(model_of(shop).requests[0].messages)[-3:] == ["user: q99", "assistant: a99", "user: now"]
    assert len(model_of(shop).requests[0].messages) == 19


async def test_without_conversations(lab: Lab) -> None:
    """Turns without a conversation never touch it."""
    diary = Diary()
    shop = agent(echo)
    runtime = await lab.runtime(shop, chat_memory=diary)

    await runtime.run(shop, "one")
    await lab.clock.advance(60)

    assert diary.calls == []


# ----------------------------------------------------------------------------------------------------------- in bad times


async def test_down_at_the_end(lab: Lab) -> None:
    """R30 (W-23): a memory that is down at the last save gets the answer later, and the next turn sees it."""
    diary = Diary()
    shop = agent(echo)
    runtime = await lab.runtime(shop, chat_memory=diary)
    await runtime.run(shop, "zero", conversation="c")
    await lab.idle()

    async def reply(request: Any) -> str:
        diary.down = ConnectionError("down")
        return echo(request)

    last = agent(reply, id="last")
    other = await lab.runtime(last, chat_memory=diary)
    view = await lab.during(other.run(last, "one", conversation="c"))
    assert view.status is Status.COMPLETED
    await lab.clock.advance(5)
    assert "assistant: re one" not in diary.said()
    assert other.statistics().relay_failures >= 2

    diary.down = None
    again = await other.start(last, "two", conversation="c")
    await lab.during(again.settle())
    assert talk(model_of(last).requests[-1].messages)[2:] == ["user: one", "assistant: re one", "user: two"]
    diary.down = None
    await lab.clock.advance(61)
    assert diary.said()[-1] == "assistant: re two"
    assert len(diary.said()) == 6


async def test_down_when_a_turn_begins(lab: Lab) -> None:
    """A turn that cannot read its conversation waits: counted, backed off up to 60 s, and never failed; it runs when it can."""
    diary = Diary()
    diary.down = RuntimeError("no such table")
    shop = agent(echo)
    runtime = await lab.runtime(shop, chat_memory=diary)
    turn = await runtime.start(shop, "one", conversation="c")
    view = await lab.during(turn.settle())

    assert view.status is Status.RETRY_SCHEDULED
    assert "no such table" in (view.suspensions[0].message or "")
    await lab.clock.advance(600)
    view = await turn.view()
    assert view.status is Status.RETRY_SCHEDULED
    assert 10 <= view.retry_count <= 20
    assert model_of(shop).requests == []
    with pytest.raises(Exception, match="not due"):
        await turn.submit(ResumeCommand.retry())
    diary.down = None

    await turn.submit(ResumeCommand.retry(force=True))
    assert (await lab.during(turn.settle())).final_output == "re one"


async def test_down_for_ever(lab: Lab, desk: Desk) -> None:
    """A turn that runs already does not care: it waits for people, is answered and completes; nothing of it is lost."""
    diary = Diary()
    shop = agent(GATED, "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop, chat_memory=diary)
    turn, wait = await waiting(runtime, shop, "one", conversation="c")
    await lab.idle()
    diary.down = ConnectionError("gone")
    assert (await approved(turn, wait)).status is Status.COMPLETED
    await lab.clock.advance(3600)

    failures = runtime.statistics().relay_failures
    assert 60 <= failures <= 120  # once a minute, not more
    assert runtime.statistics().unrelayed == 1
    assert await unpassed(runtime) == 3
    assert len(await stored(runtime)) == 5


async def test_cancel_while_it_is_down(lab: Lab) -> None:
    """A turn that waits for the memory can be cancelled, and lets the next one have its place."""
    diary = Diary()
    diary.down = ConnectionError("gone")
    shop = agent(echo)
    runtime = await lab.runtime(shop, chat_memory=diary)
    turn = await runtime.start(shop, "one", conversation="c")
    await lab.during(turn.settle())
    queued = await runtime.start(shop, "two", conversation="c", when_busy="queue")

    assert (await lab.during(turn.cancel())).status is Status.CANCELLED
    diary.down = None
    assert (await lab.during(queued.settle(through_retries=True))).final_output == "re two"
    assert talk(model_of(shop).requests[0].messages) == ["user: two"]


@pytest.mark.parametrize("when", ["append", "page"])
async def test_it_answers_late(lab: Lab, when: str) -> None:
    """A memory that does not answer within 30 s has failed; what it does later is the same as if it had been asked again."""
    diary = Diary()
    shop = agent(echo)
    runtime = await lab.runtime(shop, chat_memory=diary)
    if when == "append":
        await runtime.run(shop, "zero", conversation="c")
    diary.slow = asyncio.Event()
    turn = await runtime.start(shop, "one", conversation="c")
    await lab.clock.advance(29)
    assert (await turn.view()).status is Status.READY
    await lab.clock.advance(1.5)
    view = await turn.view()
    assert view.status is Status.RETRY_SCHEDULED
    assert "30 s" in (view.suspensions[0].message or "")

    diary.slow.set()
    diary.slow = None
    assert (await lab.during(turn.settle(through_retries=True))).final_output == "re one"
    await lab.idle()
    assert diary.said()[-2:] == ["user: one", "assistant: re one"]
    assert len(diary.said()) == len(set(diary.said()))


@pytest.mark.parametrize("found", [None, ["text"], [{"id": "x"}], [AiMessage("x")], 3])
async def test_nonsense(lab: Lab, found: Any) -> None:
    """What it gives out is checked: anything but a list of its messages is a failure like others."""
    diary = Diary()

    async def page(*_: Any) -> Any:
        return found

    diary.page = page  # type: ignore[method-assign]
    shop = agent(echo)
    runtime = await lab.runtime(shop, chat_memory=diary)
    turn = await runtime.start(shop, "one", conversation="c")

    assert (await lab.during(turn.settle())).status is Status.RETRY_SCHEDULED


@pytest.mark.parametrize("error", [asyncio.CancelledError(), TimeoutError(), ExceptionGroup("x", [ValueError("y")])])
async def test_what_it_raises(lab: Lab, error: BaseException) -> None:
    """Whatever it raises, a cancellation that nobody asked for, too, is a failure like others: no task of ours ends of it."""
    diary = Diary()
    shop = agent(echo)
    runtime = await lab.runtime(shop, chat_memory=diary)
    diary.down = error
    turn = await runtime.start(shop, "one", conversation="c")
    assert (await lab.during(turn.settle())).status is Status.RETRY_SCHEDULED
    assert runtime.healthy

    diary.down = None
    assert (await lab.during(turn.settle(through_retries=True))).status is Status.COMPLETED


async def test_replaced_by_others(lab: Lab, desk: Desk) -> None:
    """M257: a card is replaced in the version it was read in; where somebody else was faster with a newer one, that stays."""
    diary = Diary()
    shop = agent(GATED, "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop, chat_memory=diary)
    turn, wait = await waiting(runtime, shop, conversation="c")
    await lab.idle()
    (row,) = [row for row in diary.rows["c"].values() if not row.shown]
    newer = msgspec.structs.replace(row, version=5)
    diary.rows["c"][row.id] = newer

    await approved(turn, wait)
    await lab.idle()

    assert diary.rows["c"][row.id] == newer
    assert await unpassed(runtime) == 0


@pytest.mark.parametrize("at", range(1, 12))
async def test_one_failure_at_any_call(lab: Lab, desk: Desk, at: int) -> None:
    """Whichever of its calls fails once, in the end all is there, in order, and only once."""
    diary = Diary()
    diary.fail_at = at
    shop = agent(GATED, "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop, chat_memory=diary)
    turn = await runtime.start(shop, "one", conversation="c")
    (wait,) = (await lab.during(turn.settle(through_retries=True))).open_waits
    await lab.during(turn.resume(ResumeCommand.approve_tool(wait, arguments={"amount": 3})))
    await lab.clock.advance(10)

    assert diary.said() == ["user: one", "assistant -> refund", "call_1_0 = refunded", "assistant: done"]
    assert [card.status for card in diary.cards()] == [CardStatus.APPROVED]
    assert list(diary.rows["c"].values()) == await stored(runtime)


async def test_many_that_wait_come_in_their_order(lab: Lab, desk: Desk) -> None:
    """A reply that was edited while the memory was away stands before the results of its calls, however many there are."""
    diary = Diary()
    diary.down = ConnectionError("away")
    names = [f"look{number}" for number in range(70)]
    reply = [*map(call, names), GATED]
    shop = agent(reply, "done", tools=[*map(desk.tool, names), desk.tool(approval=True)])
    runtime = await lab.runtime(shop, chat_memory=diary)
    turn = await runtime.start(shop, "one", conversation="c", history=[])
    (wait,) = (await lab.during(turn.settle())).open_waits
    await lab.during(turn.resume(ResumeCommand.approve_tool(wait, arguments={"amount": 3})))

    diary.down = None
    await lab.clock.advance(70)

    assert list(diary.rows["c"].values()) == await stored(runtime)
    assert len(diary.said()) == 1 + 1 + 71 + 1


def test_what_is_passed_on_together() -> None:
    """Batches, in order of changes, end where nothing behind belongs before; what is far behind comes with what it waits for."""

    def sizes(*places: int) -> list[int]:
        left = [MemoryEntry(f"m{place}", b"", True, place, 0, change, 0) for change, place in enumerate(places)]
        found: list[int] = []
        while left:
            found.append(together(left))
            left = left[found[-1] :]
        return found

    assert sizes(*range(1, 151)) == [64, 64, 22]
    assert sizes(1, *range(3, 101), 2, *range(101, 201)) == [100, 64, 36]
    assert sizes(*range(2, 201), 1) == [200]


async def test_people_wait_no_longer_than_turns(lab: Lab) -> None:
    """Who reads the conversation is told of a memory that does not answer, or with something else than its messages."""
    diary = Diary()
    runtime = await lab.runtime(agent(echo), chat_memory=diary)
    diary.slow = asyncio.Event()
    with pytest.raises(TimeoutError, match="30 s"):
        await lab.during(runtime.conversation("c").messages(), most=40)

    diary.slow = None
    diary.rows["c"] = {"x": "no message"}  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="str in it"):
        await runtime.conversation("c").messages()
