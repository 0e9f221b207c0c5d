"""The context window, from the outside: what a model sees of a long history, and what compressors make of its older part."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest

from turnhold import (
    AiMessage,
    ChatMessage,
    CompressionContext,
    ContextWindow,
    InvalidDefinition,
    ModelRequest,
    ResumeCommand,
    Status,
    SystemMessage,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
    compressors,
)
from turnhold.testing import ScriptedModel, call

from .lab import Desk, Gate, Lab, agent, model_of, talk

BAD = [
    lambda older, context: 1 / 0,
    lambda older, context: [],
    lambda older, context: older[1:],
    lambda older, context: [*older[:1], ToolMessage("other", "x")],
]


def said(number: int) -> list[ChatMessage]:
    return [UserMessage(f"question {number}"), AiMessage(f"answer {number}")]


def looked(number: int, *, answered: bool = True) -> list[ChatMessage]:
    """A turn with tool traffic."""
    calls = AiMessage("I look.", (ToolCall(f"c{number}", "refund"),))
    turn = [UserMessage(f"question {number}"), calls, ToolMessage(f"c{number}", f"found {number}")]
    return [*turn, AiMessage(f"answer {number}")] if answered else turn


def earlier(*turns: Sequence[ChatMessage]) -> list[ChatMessage]:
    return [message for turn in turns for message in turn]


async def seen(lab: Lab, history: Sequence[ChatMessage], **options: Any) -> list[str]:
    """Run one turn behind a history and return in short what the model saw."""
    shop = agent("done", **options)
    runtime = await lab.runtime(shop)
    view = await runtime.run(shop, "now", history=history)
    assert view.status is Status.COMPLETED
    (request,) = model_of(shop).requests
    return talk(request.messages)


def whole(number: int) -> list[str]:
    return [f"user: question {number}", "assistant -> refund", f"c{number} = found {number}", f"assistant: answer {number}"]


def short(number: int) -> list[str]:
    return [f"user: question {number}", f"assistant: answer {number}"]


# -------------------------------------------------------------------------------------------------------- the window


def test_defaults() -> None:
    """A01, A02: ten turns, a hundred messages, two protected turns, compaction on."""
    window = agent("x").window

    assert (window.max_turns, window.max_messages) == (10, 100)
    assert (window.keep_recent_turns, window.compact_completed_tool_turns) == (2, True)
    assert agent("x").compressor is None


@pytest.mark.parametrize(
    "options", [{"max_turns": 0}, {"max_messages": 0}, {"keep_recent_turns": -1}], ids=["turns", "messages", "recent"]
)
def test_wrong_windows(options: dict[str, Any]) -> None:
    """A08, A09, A10: a wrong limit is refused when it is set."""
    with pytest.raises(InvalidDefinition, match="ContextWindow"):
        ContextWindow(**options)


@pytest.mark.parametrize(
    "options", [{"window": 10}, {"window": None}, {"compressor": "x"}, {"compressor": compressors.identity}, {"compressor": len}]
)
def test_wrong_agents(options: dict[str, Any]) -> None:
    """What is no window, and what cannot be called as a compressor, is refused when the agent is built."""
    with pytest.raises(InvalidDefinition, match="agent shop: "):
        agent("x", **options)


def test_replaced() -> None:
    """Window and compressor are fields like others."""
    same = compressors.identity()
    shop = agent("x", window=ContextWindow(max_turns=3), compressor=same).replace(version="2")

    assert (shop.window.max_turns, shop.compressor) == (3, same)


async def test_old_tool_turns_are_compacted(lab: Lab) -> None:
    """N261, N300: an old tool turn is question and answer, the newest two are whole, and the first message is a user's."""
    history = earlier(*(looked(number) for number in range(1, 4)))

    assert await seen(lab, history) == [*short(1), *short(2), *whole(3), "user: now"]


async def test_without_compaction(lab: Lab) -> None:
    """N276: with compaction off an old tool turn keeps its calls and results."""
    history = earlier(*(looked(number) for number in range(1, 4)))

    assert await seen(lab, history, window=ContextWindow(compact_completed_tool_turns=False)) == [
        *whole(1),
        *whole(2),
        *whole(3),
        "user: now",
    ]


async def test_unfinished_turns_stay(lab: Lab) -> None:
    """N266: an old tool turn without an answer is kept whole."""
    history = earlier(looked(1, answered=False), looked(2), looked(3))

    assert await seen(lab, history) == [*whole(1)[:-1], *short(2), *whole(3), "user: now"]


async def test_max_turns(lab: Lab) -> None:
    """N263: the oldest turns are left out, whole."""
    history = earlier(*(looked(number) for number in range(1, 4)))

    assert await seen(lab, history, window=ContextWindow(max_turns=2)) == [*whole(3), "user: now"]
    assert len(await seen(lab, earlier(*map(said, range(20))), id="ten")) == 9 * 2 + 1


async def test_nothing_before_the_first_question(lab: Lab) -> None:
    """N267: what stands before the first user message is left out."""
    history = [AiMessage("hello"), *looked(1)]

    assert await seen(lab, history) == [*whole(1), "user: now"]


async def test_the_system_message_comes_first(lab: Lab) -> None:
    """N265, I153: the instructions stand before the window, are not counted, and only the last messages follow."""
    history = [*said(1), UserMessage("and?")]

    found = await seen(lab, history, window=ContextWindow(max_messages=2), instructions="be kind")

    assert found == ["system: be kind", "user: and?", "user: now"]


async def test_the_history_stays_whole(lab: Lab) -> None:
    """I154: what the model does not see is still in the history."""
    shop = agent("done", window=ContextWindow(max_messages=2), instructions="be kind", compressor=compressors.text_excerpt(5))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "now", history=[*looked(1), UserMessage("and?")])
    await turn.settle()

    assert talk(await turn.history()) == ["system: be kind", *whole(1), "user: and?", "user: now", "assistant: done"]


async def test_the_turn_that_runs_is_whole(lab: Lab, desk: Desk) -> None:
    """N262, N277: with a limit of one message the running turn still has its request and all its tool traffic."""
    shop = agent(
        *(call("refund", amount=number) for number in range(3)), "done", tools=[desk.tool()], window=ContextWindow(max_messages=1)
    )
    runtime = await lab.runtime(shop)
    await runtime.run(shop, "now", history=said(1))

    assert [len(request.messages) for request in model_of(shop).requests] == [1, 3, 5, 7]
    assert talk(model_of(shop).requests[-1].messages)[0] == "user: now"


async def test_older_turns_make_room(lab: Lab, desk: Desk) -> None:
    """The turn that runs grows, and the oldest turns go, each whole."""
    shop = agent(*(call("refund") for _ in range(3)), "done", tools=[desk.tool()], window=ContextWindow(max_messages=6))
    runtime = await lab.runtime(shop)
    await runtime.run(shop, "now", history=earlier(said(1), said(2)))

    assert [talk(request.messages)[:2] for request in model_of(shop).requests] == [
        short(1),
        short(2),
        ["user: now", "assistant -> refund"],
        ["user: now", "assistant -> refund"],
    ]


async def test_answers_push_nothing_out(lab: Lab) -> None:
    """Answers to its questions belong to the turn that asked: its request stays in sight."""
    gate = Gate()

    async def slow(request: ModelRequest) -> str:
        await gate.passing()
        return "done"

    shop = agent(slow, window=ContextWindow(max_turns=2, max_messages=3))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "now", history=said(1))
    for number in range(3):
        await turn.suspend(f"what about {number}?")
        await turn.settle()
        await turn.submit(ResumeCommand.user_input(f"this about {number}"))
    gate.open()
    await turn.settle()

    assert talk(model_of(shop).requests[-1].messages) == ["user: now", *(f"user: this about {number}" for number in range(3))]
    kinds = [message.kind for message in await turn.history() if isinstance(message, UserMessage)]
    assert kinds == ["input", "input", "answer", "answer", "answer"]


async def test_children_push_nothing_out(lab: Lab) -> None:
    """Outcomes of children belong to the turn that waited for them, too."""
    helper, shop = agent("I helped", id="helper"), agent("done", window=ContextWindow(max_turns=2, max_messages=3))
    runtime = await lab.runtime(shop, helper)
    turn = await runtime.start(shop, "now", history=said(1))
    for number in range(3):
        await turn.start_child(helper, f"help {number}")
    await turn.settle()

    shown = model_of(shop).requests[-1].messages
    assert talk(shown)[0] == "user: now"
    assert [message.kind for message in shown if isinstance(message, UserMessage)] == ["input", "child", "child", "child"]


# ------------------------------------------------------------------------------------------------------- compressors


class Noting:
    """A compressor that notes what it got, and gives something else."""

    def __init__(self, *given: ChatMessage) -> None:
        self.got: list[list[str]] = []
        self.contexts: list[CompressionContext] = []
        self._given = given

    async def __call__(self, older: tuple[ChatMessage, ...], context: CompressionContext, /) -> Sequence[ChatMessage]:
        self.got.append(talk(older))
        self.contexts.append(context)
        return self._given


SUMMARY = (UserMessage("before?"), AiMessage("a summary"))


async def test_the_compressor_gets_the_older_turns(lab: Lab) -> None:
    """N268, N269, N272: it gets the turns that are not protected, reduced; what it gives stands before those, which are whole."""
    noting = Noting(*SUMMARY)

    found = await seen(lab, earlier(*(looked(number) for number in range(1, 4))), compressor=noting)

    assert noting.got == [[*short(1), *short(2)]]
    assert found == ["user: before?", "assistant: a summary", *whole(3), "user: now"]
    (context,) = noting.contexts
    assert (context.agent_id, context.tokens > 10) == ("shop", True)


async def test_a_system_message_may_come_first(lab: Lab) -> None:
    """N271: what it gives may begin with a system message, then a user's."""
    noting = Noting(SystemMessage("of old:"), *SUMMARY)

    found = await seen(lab, earlier(said(1), said(2)), compressor=noting)

    assert found == ["system: of old:", "user: before?", "assistant: a summary", *short(2), "user: now"]


@pytest.mark.parametrize("bad", BAD, ids=["raises", "nothing", "no user first", "an orphan"])
async def test_a_wrong_compressor_hurts_nobody(lab: Lab, bad: Any, caplog: pytest.LogCaptureFixture) -> None:
    """N270, N274: what it raises, or gives wrongly, is logged, and the model sees the turns as they are."""
    found = await seen(lab, earlier(said(1), said(2)), compressor=bad)

    assert found == [*short(1), *short(2), "user: now"]
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == ["compressor_failed"]


async def test_a_compressor_that_hangs(lab: Lab) -> None:
    """Where it takes longer than a model request may, the model sees the turns as they are."""
    gate = Gate()

    async def hang(older: Sequence[ChatMessage], context: CompressionContext) -> Sequence[ChatMessage]:
        await gate.passing()
        return older

    shop = agent("done", compressor=hang)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "now", history=earlier(said(1), said(2)))
    await gate.entered.wait()

    view = await lab.during(turn.settle(), most=600)

    assert (view.status, gate.left) == (Status.COMPLETED, 1)


async def test_cancel_stops_a_compressor(lab: Lab) -> None:
    """Compressing is part of the model request: cancel ends both at once, and what it has spent is counted."""
    gate = Gate()

    async def hang(older: Sequence[ChatMessage], context: CompressionContext) -> Sequence[ChatMessage]:
        context.spend(Usage(7, 1))
        await gate.passing()
        return older

    shop = agent("done", compressor=hang)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "now", history=earlier(said(1), said(2)))
    await gate.entered.wait()

    view = await turn.cancel()

    assert (view.status, model_of(shop).requests, view.usage) == (Status.CANCELLED, [], Usage(7, 1))


async def test_not_asked_while_a_turn_is_unfinished(lab: Lab) -> None:
    """N278: with an older turn that has no answer the compressor is not asked."""
    noting = Noting(*SUMMARY)

    found = await seen(lab, earlier(looked(1, answered=False), said(2), said(3)), compressor=noting)

    assert noting.got == []
    assert found == [*whole(1)[:-1], *short(2), *short(3), "user: now"]


async def test_a_summary_goes_before_protected_turns(lab: Lab) -> None:
    """N275: what has no room is the summary first."""
    noting = Noting(*SUMMARY)

    found = await seen(lab, earlier(*map(said, range(4))), compressor=noting, window=ContextWindow(max_messages=4))

    assert len(noting.got) == 1
    assert found == [*short(3), "user: now"]


async def test_asked_once_for_a_turn(lab: Lab, desk: Desk) -> None:
    """T73: an activation asks the compressor once, whatever the number of its requests, and nothing is saved for it."""
    noting = Noting(*SUMMARY)
    shop = agent(call("refund"), call("refund"), "done", tools=[desk.tool()], compressor=noting)
    plain = agent(call("refund"), call("refund"), "done", tools=[desk.tool()], id="plain")
    runtime = await lab.runtime(shop, plain)

    view = await runtime.run(shop, "now", history=earlier(said(1), said(2)))
    other = await runtime.run(plain, "now", history=earlier(said(1), said(2)))

    assert len(noting.got) == 1
    assert [talk(request.messages)[:2] for request in model_of(shop).requests] == [["user: before?", "assistant: a summary"]] * 3
    assert view.version == other.version


async def test_one_compressor_for_all(lab: Lab) -> None:
    """R20: one compressor on a shared agent: nothing of one conversation comes into another."""
    shop = agent("done", compressor=compressors.model(ScriptedModel(lambda request: request.messages[-1].content.upper())))
    runtime = await lab.runtime(shop)
    for name in ("ann", "bob"):
        await runtime.run(shop, "now", conversation=name, history=[UserMessage(f"I am {name}"), AiMessage("hi"), *said(2)])

    first, second = (str(talk(request.messages)).lower() for request in model_of(shop).requests)
    assert ("ann" in first, "bob" in first) == (True, False)
    assert ("ann" in second, "bob" in second) == (False, True)


async def test_ready_made_ones(lab: Lab) -> None:
    """N293, N294, N295, N296, N298: each of the ready-made compressors, through an agent."""
    history = earlier(*(looked(number) for number in range(1, 8)))
    plain = ContextWindow(compact_completed_tool_turns=False)
    lower = ScriptedModel('[{"id": 0, "summary": "q1"}, {"id": 3, "summary": "a1"}]')
    see = functools.partial(seen, lab, history, window=plain)
    recent = [*whole(7), "user: now"]
    untouched = earlier_talk(range(2, 7))

    assert await see(id="a", compressor=compressors.identity()) == [*whole(1), *untouched, *recent]
    compacted = [line for number in range(1, 7) for line in short(number)]
    assert await see(id="b", compressor=compressors.compact_completed_turns()) == [*compacted, *recent]
    excerpt = await see(id="c", compressor=compressors.text_excerpt(120))
    assert (len(excerpt), excerpt[0].endswith("assistant: answer 6")) == (6, True)
    summary = await see(id="d", compressor=compressors.model(ScriptedModel("all is well")))
    assert summary == ["user: Summarise our conversation so far.", "assistant: all is well", *recent]
    shorter = await see(id="e", compressor=compressors.per_message_model(lower))
    assert shorter == ["user: q1", *whole(1)[1:3], "assistant: a1", *untouched, *recent]


def earlier_talk(numbers: range) -> list[str]:
    return [line for number in numbers for line in whole(number)]


async def test_through_an_agent(lab: Lab, desk: Desk) -> None:
    """N299: a long conversation, compressed: the model sees little, beginning with a user message, and the turn completes."""
    shop = agent(call("refund"), "done", tools=[desk.tool()], compressor=compressors.text_excerpt(200))
    runtime = await lab.runtime(shop)
    history = earlier(*map(looked, range(30)))

    view = await runtime.run(shop, "now", history=history)

    assert (view.status, view.final_output) == (Status.COMPLETED, "done")
    for request in model_of(shop).requests:
        assert isinstance(request.messages[0], UserMessage)
        assert len(request.messages) <= 12
