"""Section N: a conversation that is compressed as it goes on; its state is kept with it, over processes."""

from __future__ import annotations

from typing import Any

import pytest

from turnhold import (
    AiMessage,
    Budget,
    CompressionState,
    ContextWindow,
    ExecutionPolicy,
    ModelError,
    Status,
    Usage,
    UserMessage,
    compressors,
)
from turnhold.actors.incremental import encode_state
from turnhold.runtime.condensing import Notes
from turnhold.runtime.runtime import node_of
from turnhold.store import base
from turnhold.testing import ScriptedModel, call, crash

from .diary import Diary
from .lab import Desk, Lab, agent, echo, model_of, park, said, talk, waiting

INTRO = "user: Summarise our conversation so far."


def scribe(*replies: Any) -> ScriptedModel:
    """A model that writes summaries: the given replies, or "summary of n lines"."""

    def summary(request: Any) -> AiMessage:
        return AiMessage(f"summary of {len(request.messages[-1].content.splitlines())} lines", usage=Usage(10, 5))

    return ScriptedModel(*(replies or (summary,)))


def shop(model: ScriptedModel, **options: Any) -> Any:
    how = options.pop("how", {"over_turns": 2})
    window = options.pop("window", ContextWindow(keep_recent_turns=1))
    return agent(echo, compressor=compressors.incremental(compressors.model(model), **how), window=window, **options)


async def talks(lab: Lab, runtime: Any, agent: Any, *words: str) -> None:
    for word in words:
        await lab.during(runtime.run(agent, word, conversation="c"))


async def test_a_conversation_that_goes_on(lab: Lab) -> None:
    """N273, J191, J192: compressed when it is time, from the summary on; what is covered is not read again, in no process."""
    writer = scribe()
    clerk = shop(writer)
    first, second = await lab.runtime(clerk), await lab.runtime(clerk)

    for number in range(1, 9):
        await talks(lab, (first, second)[number % 2], clerk, f"q{number}")

    asked = [talk(request.messages) for request in model_of(clerk).requests]
    assert asked[2] == ["user: q1", "assistant: re q1", "user: q2", "assistant: re q2", "user: q3"]
    assert asked[3] == [INTRO, "assistant: summary of 6 lines", "user: q4"]
    assert asked[5] == [
        INTRO,
        "assistant: summary of 6 lines",
        "user: q4",
        "assistant: re q4",
        "user: q5",
        "assistant: re q5",
        "user: q6",
    ]
    assert asked[6] == [INTRO, "assistant: summary of 8 lines", "user: q7"]
    assert len(writer.requests) == 2
    assert writer.requests[1].messages[-1].content.splitlines()[1] == "assistant: summary of 6 lines"
    assert len(await said(first)) == 16
    state = await Notes(node_of(second), "shop").load("c")
    assert (state.version, state.compressions, state.covered_turns) == (2, 2, 6)


async def test_what_falls_out_of_the_window_is_in_the_summary(lab: Lab) -> None:
    """Whatever the trigger says: before a turn would fall out of the window, the conversation is compressed."""
    clerk = shop(scribe(), how={"over_turns": 1000}, window=ContextWindow(max_turns=3, keep_recent_turns=2))
    runtime = await lab.runtime(clerk)

    await talks(lab, runtime, clerk, *(f"q{number}" for number in range(1, 6)))

    asked = [talk(request.messages) for request in model_of(clerk).requests]
    assert asked[2][0] == "user: q1"
    assert asked[3] == [INTRO, "assistant: summary of 4 lines", "user: q3", "assistant: re q3", "user: q4"]
    assert asked[4] == [INTRO, "assistant: summary of 4 lines", "user: q4", "assistant: re q4", "user: q5"]


async def test_turns_without_an_answer_are_in_the_summary(lab: Lab, desk: Desk) -> None:
    """A turn whose record was discarded has no answer and never will: a conversation is compressed beyond it."""
    clerk = shop(scribe(), how={"over_turns": 1000}, window=ContextWindow(max_turns=4, keep_recent_turns=1))
    gated = agent(call("refund"), id="gated", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(clerk, gated)
    await talks(lab, runtime, clerk, "q1")
    turn, _ = await waiting(runtime, gated, "q2", conversation="c")
    await park(runtime, turn)
    await turn.discard("nobody can read it")

    await talks(lab, runtime, clerk, "q3", "q4", "q5")

    assert talk(model_of(clerk).requests[3].messages) == [INTRO, "assistant: summary of 7 lines", "user: q5"]


async def test_what_a_summary_costs(lab: Lab) -> None:
    """The turn that compresses pays for it, out of its budget."""
    policy = ExecutionPolicy(budget=Budget(max_total_tokens=14))
    clerk = shop(scribe(), how={"over_turns": 0}, policy=policy)
    runtime = await lab.runtime(clerk)

    first = await lab.during(runtime.run(clerk, "q1", conversation="c"))
    second = await lab.during(runtime.run(clerk, "q2", conversation="c"))

    assert first.status is Status.COMPLETED
    assert (second.status, second.usage.total_tokens) == (Status.BUDGET_EXCEEDED, 15)
    assert len(model_of(clerk).requests) == 1


@pytest.mark.parametrize(
    "broken", [ModelError("no"), AiMessage(" "), AiMessage("x" * 40_000)], ids=["raises", "empty", "too large"]
)
async def test_a_compressor_that_fails(lab: Lab, broken: Any) -> None:
    """The turn sees what was said as it is, no turn fails of it, and the next one tries again."""
    writer = scribe(lambda _: broken if isinstance(broken, AiMessage) else (_ for _ in ()).throw(broken))
    clerk = shop(writer, how={"over_turns": 0})
    runtime = await lab.runtime(clerk, max_snapshot=32_000)

    await talks(lab, runtime, clerk, "q1", "q2", "q3")

    assert talk(model_of(clerk).requests[2].messages) == [
        "user: q1",
        "assistant: re q1",
        "user: q2",
        "assistant: re q2",
        "user: q3",
    ]
    assert len(writer.requests) == 2


async def test_a_conversation_that_was_cleared(lab: Lab) -> None:
    """The summary goes with it; compression begins again."""
    clerk = shop(scribe(), how={"over_turns": 0})
    runtime = await lab.runtime(clerk)
    await talks(lab, runtime, clerk, "q1", "q2")

    await runtime.conversation("c").clear()
    await talks(lab, runtime, clerk, "q3", "q4")

    asked = [talk(request.messages) for request in model_of(clerk).requests]
    assert asked[2] == ["user: q3"]
    assert asked[3] == [INTRO, "assistant: summary of 2 lines", "user: q4"]


@pytest.mark.parametrize("body", [b"\xc1", encode_state(CompressionState(version=1, covered_until="gone"))], ids=["broken", "gone"])
async def test_a_state_that_cannot_be_used(lab: Lab, body: bytes) -> None:
    """One that cannot be read, or covers a message that is not there, is replaced."""
    clerk = shop(scribe(), how={"over_turns": 0})
    runtime = await lab.runtime(clerk)
    await talks(lab, runtime, clerk, "q1")
    foreign = base.WriteNote(conversation="c", name="compression shop", body=body, expected=0)
    assert isinstance(await node_of(runtime).call(foreign), base.Done)

    await talks(lab, runtime, clerk, "q2")

    assert talk(model_of(clerk).requests[1].messages) == [INTRO, "assistant: summary of 2 lines", "user: q2"]
    assert (await Notes(node_of(runtime), "shop").load("c")).version == 2


@pytest.mark.parametrize("point", ["before_apply", "after_apply", "lost_reply"])
async def test_a_node_that_dies_while_it_compresses(lab: Lab, point: Any) -> None:
    """J196: at the write of the state: another node takes the turn up; what was compressed is compressed once in the end."""
    clerk = shop(scribe(), how={"over_turns": 0})
    first, second = await lab.runtime(clerk), await lab.runtime(clerk)
    await talks(lab, first, clerk, "q1")

    with crash(first, "write_note", point):
        turn = await first.start(clerk, "q2", conversation="c")
        await lab.idle()
        await lab.take_over()
        view = await lab.during(second.turn(turn.id).settle())

    assert view.final_output == "re q2"
    assert talk(model_of(clerk).requests[-1].messages) == [INTRO, "assistant: summary of 2 lines", "user: q2"]
    state = await Notes(node_of(second), "shop").load("c")
    assert (state.version, state.covered_turns) == (1, 1)


async def test_with_a_memory_of_ones_own(lab: Lab) -> None:
    """What came since is read from the user's own memory; the state stays in the store."""
    diary = Diary()
    clerk = shop(scribe(), how={"over_turns": 0})
    runtime = await lab.runtime(clerk, chat_memory=diary)

    await talks(lab, runtime, clerk, "q1", "q2", "q3")

    asked = [talk(request.messages) for request in model_of(clerk).requests]
    assert asked[1:] == [
        [INTRO, "assistant: summary of 2 lines", "user: q2"],
        [INTRO, "assistant: summary of 4 lines", "user: q3"],
    ]


async def test_without_a_conversation(lab: Lab) -> None:
    """A turn alone has no state: the compressor works on the older turns of its window."""
    clerk = shop(scribe(), how={"over_turns": 1})
    runtime = await lab.runtime(clerk)
    history = [each for number in (1, 2, 3) for each in (UserMessage(f"q{number}"), AiMessage(f"re q{number}"))]

    view = await lab.during(runtime.run(clerk, "q4", history=history))

    assert view.final_output == "re q4"
    assert talk(model_of(clerk).requests[0].messages) == [INTRO, "assistant: summary of 6 lines", "user: q4"]
