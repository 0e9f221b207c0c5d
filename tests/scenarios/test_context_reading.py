"""How tokens are counted, and how much of a history is read for a window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turnhold import (
    AiMessage,
    Budget,
    ChatMessage,
    ExecutionPolicy,
    ModelRequest,
    Status,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
    compressors,
)
from turnhold.store import base
from turnhold.testing import ScriptedModel, call

from .lab import Desk, Lab, agent, approved, model_of, talk, waiting
from .test_context import SUMMARY, Noting, earlier, said, short


async def test_tokens_are_counted_or_estimated(lab: Lab) -> None:
    """A provider's count is taken; where it does not count, an estimate is, and the usage says so."""
    shop, silent = agent(AiMessage("x" * 400, usage=Usage(9, 3))), agent("x" * 400, id="silent")
    runtime = await lab.runtime(shop, silent)

    counted, estimate = await runtime.run(shop, "y" * 400), await runtime.run(silent, "y" * 400)

    assert counted.usage == Usage(9, 3)
    assert estimate.usage == Usage(104, 104, estimated=True)


async def test_a_budget_holds_without_a_count(lab: Lab, desk: Desk) -> None:
    """A limit on tokens binds also where the provider does not count."""
    shop = agent(
        call("refund"),
        "done",
        tools=[desk.tool()],
        policy=ExecutionPolicy(budget=Budget(max_total_tokens=100)),
        instructions="x" * 500,
    )
    runtime = await lab.runtime(shop)

    assert (await runtime.run(shop, "now")).status is Status.BUDGET_EXCEEDED


async def test_a_compressor_is_paid_for(lab: Lab) -> None:
    """What a compressor's model uses counts for the turn, also where the request itself fails."""
    paid = compressors.model(ScriptedModel(AiMessage("short", usage=Usage(30, 2))))
    shop = agent(AiMessage("done", usage=Usage(10, 1)), compressor=paid)
    fails = agent(RuntimeError("no"), id="fails", compressor=paid)
    runtime = await lab.runtime(shop, fails)

    assert (await runtime.run(shop, "now", history=earlier(said(1), said(2)))).usage == Usage(40, 3)
    assert (await runtime.run(fails, "now", history=earlier(said(1), said(2)))).usage == Usage(30, 2)


async def reopened(
    lab: Lab, desk: Desk, history: Sequence[ChatMessage], **options: Any
) -> tuple[list[tuple[int, int]], ModelRequest]:
    """Answer a turn on another node; return which parts of the history that node read, and what its model saw."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)], instructions="be kind", **options)
    one, two = await lab.runtime(shop), await lab.runtime(shop)
    turn, wait = await waiting(one, shop, "now", history=history)
    await lab.close(one)
    read: list[tuple[int, int]] = []

    class Spy:
        def before(self, op: base.Op) -> None:
            if isinstance(op, base.ReadHistory):
                read.append((op.start, op.limit))

        def after(self, op: base.Op, reply: base.Reply) -> None:
            pass

    two._node.fault = Spy()
    view = await approved(two.turn(turn.id), wait)
    two._node.fault = None
    assert view.status is Status.COMPLETED
    return read, model_of(shop).requests[-1]


async def test_activation_reads_what_the_window_needs(lab: Lab, desk: Desk) -> None:
    """Of a long history a node that takes a turn up reads the end and the instructions, and sees what the first node saw."""
    history = earlier(*(said(number) for number in range(500)))

    read, request = await reopened(lab, desk, history)

    assert read == [(0, 1)]
    numbers = range(491, 500)
    assert talk(request.messages) == [
        "system: be kind",
        *(line for number in numbers for line in short(number)),
        "user: now",
        "assistant -> refund",
        "call_1_0 = refunded",
    ]


async def test_activation_reads_further_back(lab: Lab, desk: Desk) -> None:
    """Where the end does not hold enough turns more is read, each time as much again; a compressor sees the same turns."""
    long = [UserMessage("question"), *[AiMessage("", (ToolCall("c", "refund"),)), ToolMessage("c", "r")] * 20, AiMessage("answer")]
    noting = Noting(*SUMMARY)

    read, request = await reopened(lab, desk, earlier(*[long] * 20), compressor=noting)

    assert len(read) == 4  # beside the 64 that came with the claim: each time as many as are there, and the instructions
    assert [limit for _, limit in read[:-1]] == [65, 130, 260]
    assert noting.got == [["user: question", "assistant: answer"] * 8] * 2
    assert talk(request.messages)[:3] == ["system: be kind", "user: before?", "assistant: a summary"]


async def test_a_short_history_is_not_read(lab: Lab, desk: Desk) -> None:
    """What came with the claim is enough for a short one."""
    read, request = await reopened(lab, desk, said(1))

    assert read == []
    assert talk(request.messages)[1:4] == [*short(1), "user: now"]
