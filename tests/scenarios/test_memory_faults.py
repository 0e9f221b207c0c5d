"""What becomes of a conversation's memory when nodes die, records are lost, and entries cannot be read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from turnhold import (
    AiMessage,
    MemoryMessage,
    ResumeCommand,
    Runtime,
    Status,
    ToolError,
    ToolMessage,
    UserMessage,
)
from turnhold.actors.history import answered
from turnhold.runtime.runtime import node_of
from turnhold.store import base
from turnhold.testing import call, crash
from turnhold.testing.crashes import POINTS

from .lab import Desk, Lab, agent, echo, model_of, open_calls, park, said, talk, waiting

GATED = call("refund", amount=1)


async def entries(runtime: Runtime, conversation: str = "c", **options: Any) -> list[MemoryMessage]:
    return await runtime.conversation(conversation).messages(**options)


async def write(runtime: Runtime, *messages: Any, conversation: str = "c", **options: Any) -> None:
    """Put messages into the memory, as somebody else's turns would have done."""
    for number, message in enumerate(messages):
        body = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
        row = base.MemoryRow(f"m{number}", body, **options)
        await node_of(runtime).call(base.WriteMemory(conversation=conversation, row=row))


async def test_restoring_changes_nothing(lab: Lab, desk: Desk) -> None:
    """M251: a turn that comes to life again, here or elsewhere, adds nothing to the memory that is there."""
    shop = agent(GATED, "done", tools=[desk.tool(approval=True)])
    first = await lab.runtime(shop)
    turn, wait = await waiting(first, shop, conversation="c")
    before = await entries(first)
    await lab.kill(first)
    second = await lab.runtime(shop)
    there = second.turn(turn.id)
    await there.suspend("one more thing?")
    await lab.take_over()

    assert await entries(second) == before
    await there.submit(ResumeCommand.approve_tool(wait))
    await lab.during(there.settle())
    assert len({entry.id for entry in await entries(second)}) == len(await entries(second)) == 4


@pytest.mark.parametrize("nth", range(1, 8))
@pytest.mark.parametrize("point", POINTS)
async def test_crash_at_any_store_call(lab: Lab, desk: Desk, point: Any, nth: int) -> None:
    """At whatever store call a node dies, each message is remembered once, and the next turn sees all of them."""
    shop = agent(call("refund"), echo, tools=[desk.tool(effect="repeatable")])
    plain = agent(echo, id="plain")
    first = await lab.runtime(shop, plain)
    with crash(first, "*", point, nth=nth) as crashed:
        try:
            await first.start(shop, "one", conversation="c", idempotency_key="k")
        except Exception:
            assert crashed.happened
        await lab.idle()
    if crashed.happened and point != "lost_reply":
        await lab.kill(first)
    second = await lab.runtime(shop, plain)
    await lab.take_over()
    turn = await second.start(shop, "one", conversation="c", idempotency_key="k")
    assert (await lab.during(turn.settle())).status is Status.COMPLETED

    whole = ["user: one", "assistant -> refund", "call_1_0 = refunded", "assistant: re refunded"]
    assert await said(second) == whole
    next_turn = await second.start(plain, "two", conversation="c")
    await lab.during(next_turn.settle())
    assert talk(model_of(plain).requests[-1].messages) == [*whole, "user: two"]


async def test_unreadable_entries(lab: Lab) -> None:
    """An entry that cannot be read hides no other, and stops no turn; a call whose result is lost is not shown."""
    shop = agent(echo)
    runtime = await lab.runtime(shop)
    reply = AiMessage("", (msgspec.structs.replace(call("refund"), id="c1"),))
    await write(runtime, UserMessage("zero"), reply, b"\xc1 broken", AiMessage("null"))

    view = await runtime.run(shop, "one", conversation="c")

    assert view.status is Status.COMPLETED
    assert talk(model_of(shop).requests[0].messages) == ["user: zero", "assistant: null", "user: one"]
    assert len(await entries(runtime)) == 5


def test_answered_messages() -> None:
    """Of messages of several turns, whose call ids may be the same, no reply is left without its results, and no result alone."""

    def reply(*ids: str) -> AiMessage:
        return AiMessage("", tuple(msgspec.structs.replace(call("x"), id=each) for each in ids))

    def result(name: str) -> ToolMessage:
        return ToolMessage(name, "ok")

    ask, answer = UserMessage("q"), AiMessage("a")
    whole = [ask, reply("1", "2"), result("1"), result("2"), answer]
    assert answered(whole) == whole
    assert answered([*whole[:3], answer]) == [ask, answer]
    assert answered([*whole[:3], *whole]) == [ask, *whole]
    assert answered([result("0"), *whole]) == whole
    assert answered([*whole, result("1")]) == whole
    assert answered([ask, reply("1")]) == [ask]
    assert answered([ask, reply("1"), ask, result("1"), answer]) == [ask, ask, answer]


async def test_discarded_turns(lab: Lab, desk: Desk) -> None:
    """A turn whose record was discarded leaves a call without a result in the memory; no model is shown it."""
    shop = agent(GATED, tools=[desk.tool(approval=True)])
    plain = agent(echo, id="plain")
    runtime = await lab.runtime(shop, plain)
    turn, _ = await waiting(runtime, shop, "one", conversation="c")
    await park(runtime, turn)
    await turn.discard("broken")

    await runtime.run(plain, "two", conversation="c")

    assert talk(model_of(plain).requests[0].messages) == ["user: one", "user: two"]
    assert open_calls(model_of(plain).requests[0].messages) == []


async def test_failing_tools_are_remembered_as_told(lab: Lab, desk: Desk) -> None:
    """What a model was told of a tool that failed is what the next turn sees of it."""
    shop = agent(call("refund"), echo, tools=[desk.tool(errors=[ToolError("no such order")])])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "one", conversation="c")
    await turn.settle()

    assert await said(runtime) == talk(await turn.history())
