"""Compression that goes on with a conversation: its state, its trigger, what is covered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from turnhold import (
    AiMessage,
    ChatMessage,
    CompressionContext,
    CompressionFailed,
    CompressionPending,
    CompressionState,
    Compressor,
    ContextWindow,
    InvalidDefinition,
    ModelError,
    ToolCall,
    ToolMessage,
    UserMessage,
    compressors,
)
from turnhold.actors.incremental import MOST, Incremental, Recalled, decode_state, encode_state
from turnhold.testing import ScriptedModel

Entry = tuple[str, ChatMessage]


class States:
    """States in a dict; `foreign` is what somebody else saves just before us."""

    def __init__(self) -> None:
        self.kept: dict[str, CompressionState] = {}
        self.saves: list[int] = []
        self.foreign: CompressionState | None = None

    async def load(self, conversation_id: str) -> CompressionState:
        return self.kept.get(conversation_id, CompressionState())

    async def save(self, conversation_id: str, state: CompressionState, expected_version: int) -> bool:
        if self.foreign is not None:
            self.kept[conversation_id] = self.foreign
        if (await self.load(conversation_id)).version != expected_version:
            return False
        self.saves.append(expected_version)
        self.kept[conversation_id] = state
        return True


class Summaries:
    """Writes "summary n", and remembers how much it was given each time."""

    def __init__(self) -> None:
        self.given: list[int] = []

    def __call__(self, messages: tuple[ChatMessage, ...], context: CompressionContext, /) -> Sequence[ChatMessage]:
        self.given.append(len(messages))
        return [UserMessage(f"summary {len(self.given)}")]


def turns(first: int, last: int) -> list[Entry]:
    """Turns of one message each that counts as question and answer at once: an answer to nothing, by its number."""
    return [(f"m{number}", AiMessage(f"said {number}")) for number in range(first, last + 1)]


def asked(first: int, last: int) -> list[Entry]:
    """Turns of question and answer."""
    entries: list[Entry] = []
    for number in range(first, last + 1):
        entries += [(f"q{number}", UserMessage(f"ask {number}")), (f"a{number}", AiMessage(f"answer {number}"))]
    return entries


async def recall(
    compressor: Incremental, entries: Sequence[Entry], states: States, *, window: ContextWindow | None = None
) -> Recalled:
    context = CompressionContext(model=ScriptedModel(), conversation_id="c")
    return await compressor.recall("c", entries, states, context, window=window)


def always(pending: CompressionPending) -> bool:
    return True


def never(pending: CompressionPending) -> bool:
    return False


async def test_below_the_threshold() -> None:
    """N279: nothing is compressed or saved, and the messages are as they were said."""
    states, summaries = States(), Summaries()

    found = await recall(compressors.incremental(summaries, over_turns=10), asked(1, 10), states)

    assert (found.compressed, found.messages) == (False, [message for _, message in asked(1, 10)])
    assert (found.state.compressions, states.saves, summaries.given) == (0, [], [])


async def test_first_compression() -> None:
    """N280: all that came is given to the compressor; the state says how far it goes, and is saved where there was none."""
    states, summaries = States(), Summaries()

    found = await recall(compressors.incremental(summaries, over_turns=99, estimate=len), asked(1, 100), states)

    assert (found.compressed, summaries.given, states.saves) == (True, [200], [0])
    assert found.messages == [UserMessage("summary 1")]
    assert found.state == states.kept["c"]
    assert found.state.to_dict() == {
        "version": 1,
        "summary": [{"role": "user", "content": "summary 1"}],
        "covered_until": "a100",
        "compressions": 1,
        "covered_tokens": 200,
        "covered_turns": 100,
    }


async def test_three_rounds() -> None:
    """N281, N282: each round gets the summary before it and what came since; versions and counters go on."""
    states, summaries = States(), Summaries()
    compressor = compressors.incremental(summaries, trigger=always, estimate=len)

    for last in (100, 200, 300):
        found = await recall(compressor, asked(1, last), states)

    assert summaries.given == [200, 201, 201]
    assert found.messages == [UserMessage("summary 3")]
    state = found.state
    assert (state.version, state.compressions, state.covered_turns, state.covered_tokens) == (3, 3, 300, 600)
    assert (state.covered_until, states.saves) == ("a300", [0, 1, 2])


async def test_nothing_new() -> None:
    """N273, N283: the same conversation again is not compressed again; one more turn is, and is covered then."""
    states, summaries = States(), Summaries()
    compressor = compressors.incremental(summaries, trigger=always)
    first = await recall(compressor, asked(1, 3), states)

    again = await recall(compressor, asked(3, 3), states)
    more = await recall(compressor, asked(1, 4), states)

    assert (again.compressed, again.messages) == (False, first.messages)
    assert (more.compressed, more.state.covered_until, summaries.given, states.saves) == (True, "a4", [6, 3], [0, 1])


async def test_what_a_trigger_sees() -> None:
    """N284: the state so far, and turns, messages and tokens of what came since."""
    seen: list[CompressionPending] = []

    def trigger(pending: CompressionPending) -> bool:
        seen.append(pending)
        return len(seen) == 1

    states = States()
    compressor = compressors.incremental(Summaries(), trigger=trigger, estimate=lambda messages: 7 * len(messages))
    await recall(compressor, asked(1, 2), states)
    await recall(compressor, asked(1, 5), states)

    assert [(each.state.version, each.turns, each.messages, each.tokens) for each in seen] == [(0, 2, 4, 28), (1, 3, 6, 42)]


async def test_covered_message_missing() -> None:
    """N285: entries without the covered message are refused; nothing is compressed or saved."""
    states, summaries = States(), Summaries()
    compressor = compressors.incremental(summaries, trigger=always)
    before = (await recall(compressor, asked(1, 2), states)).state

    with pytest.raises(CompressionFailed, match="a2"):
        await recall(compressor, asked(3, 4), states)

    assert (states.kept["c"], len(summaries.given)) == (before, 1)


async def test_somebody_else_was_faster() -> None:
    """N286: a state that was replaced meanwhile stays."""
    states = States()
    states.foreign = CompressionState(version=4, covered_until="a1")

    with pytest.raises(CompressionFailed, match="somebody else"):
        await recall(compressors.incremental(Summaries(), trigger=always), asked(1, 2), states)

    assert states.kept["c"] == states.foreign


@pytest.mark.parametrize("made", [[], [AiMessage("no user")], "text"])
async def test_no_summary(made: Any) -> None:
    """N287: a compressor that gives nothing usable is refused; nothing is saved."""
    states = States()

    def empty(messages: tuple[ChatMessage, ...], context: CompressionContext, /) -> Any:
        return made

    with pytest.raises(InvalidDefinition):
        await recall(compressors.incremental(empty, trigger=always), asked(1, 2), states)

    assert states.kept == {}


async def test_results_are_their_own() -> None:
    """N288: what was returned may be changed freely; the state is not touched by it."""
    states, entries = States(), asked(1, 2)
    found = await recall(compressors.incremental(Summaries(), trigger=always), entries, states)

    entries.clear()
    found.messages.append(UserMessage("more"))

    assert states.kept["c"].summary == found.state.summary == (UserMessage("summary 1"),)


@pytest.mark.parametrize(("estimate", "kept"), [(0, None), (MOST, MOST), (1 << 60, MOST)])
async def test_extreme_estimates(estimate: int, kept: int | None) -> None:
    """N289, N290: no tokens are not more than none; very many are kept as the largest number there is."""
    states = States()
    compressor = compressors.incremental(Summaries(), over_tokens=0, estimate=lambda _: estimate)

    found = await recall(compressor, asked(1, 1), states)

    assert found.compressed is (kept is not None)
    assert states.kept.get("c", CompressionState()).covered_tokens == (kept or 0)


async def test_counters_stop_at_the_largest() -> None:
    """N291: two of the largest make the largest; the turns are counted all the same."""
    states = States()
    compressor = compressors.incremental(Summaries(), trigger=always, estimate=lambda _: MOST)

    await recall(compressor, asked(1, 1), states)
    found = await recall(compressor, asked(1, 2), states)

    assert (found.state.covered_tokens, found.state.covered_turns) == (MOST, 2)


@pytest.mark.parametrize("estimate", [-1, 1.5, None])
async def test_wrong_estimates(estimate: Any) -> None:
    """N292: an estimate below zero, or that is no whole number, is refused."""
    with pytest.raises(InvalidDefinition, match="estimate"):
        await recall(compressors.incremental(Summaries(), trigger=always, estimate=lambda _: estimate), asked(1, 1), States())


async def test_wrong_triggers() -> None:
    """A trigger that answers with no bool is refused; nothing is saved."""
    trigger: Any = lambda _: "yes"  # noqa: E731
    states = States()

    with pytest.raises(InvalidDefinition, match="trigger"):
        await recall(compressors.incremental(Summaries(), trigger=trigger), asked(1, 1), states)

    assert states.kept == {}


async def test_protected_turns() -> None:
    """The newest turns of the window stay as they are, and are compressed a later time."""
    states, summaries = States(), Summaries()
    compressor = compressors.incremental(summaries, trigger=always)

    found = await recall(compressor, asked(1, 5), states, window=ContextWindow(keep_recent_turns=3))

    assert (found.state.covered_until, found.state.covered_turns) == ("a3", 3)
    assert found.messages == [UserMessage("summary 1"), *(message for _, message in asked(4, 5))]


@pytest.mark.parametrize(("window", "last", "due"), [({"max_turns": 4}, 3, False), ({"max_turns": 4}, 4, True)])
async def test_what_does_not_fit_is_compressed(window: Any, last: int, due: bool) -> None:
    """What would fall out of the window, with the new input in it, is compressed whatever the trigger says."""
    compressor = compressors.incremental(Summaries(), trigger=never)

    found = await recall(compressor, asked(1, last), States(), window=ContextWindow(keep_recent_turns=1, **window))

    assert found.compressed is due


async def test_a_turn_that_may_be_answered_is_not_covered() -> None:
    """Compression stops before a newest turn that has no answer; what stands before the first input is covered with it."""
    call = AiMessage("", (ToolCall("c", "look", {}),))
    entries: list[Entry] = [*turns(1, 2), *asked(1, 2), ("q3", UserMessage("ask 3")), ("a3", call), ("t3", ToolMessage("c", "x"))]
    states, summaries = States(), Summaries()

    found = await recall(compressors.incremental(summaries, trigger=always), entries, states)

    assert (found.state.covered_until, summaries.given) == ("a2", [6])
    assert found.messages == [UserMessage("summary 1"), *(message for _, message in entries[6:])]


async def test_a_turn_that_will_not_be_answered_is_covered() -> None:
    """A turn without an answer that has another behind it was discarded: compression does not end there for ever."""
    entries: list[Entry] = [*asked(1, 1), ("q2", UserMessage("ask 2")), *asked(3, 3)]

    found = await recall(compressors.incremental(Summaries(), trigger=always), entries, States())

    assert (found.state.covered_until, found.state.covered_turns) == (entries[-1][0], 3)


async def test_without_a_conversation() -> None:
    """The compressor works on the older turns of a window; in a conversation that has been done before."""
    messages = tuple(message for _, message in asked(1, 3))
    compressor: Compressor = compressors.incremental(Summaries(), over_turns=2)

    alone = await compressor(messages, CompressionContext(model=ScriptedModel()))  # type: ignore[misc]
    short = await compressor(messages[:4], CompressionContext(model=ScriptedModel()))  # type: ignore[misc]
    talk = await compressor(messages, CompressionContext(model=ScriptedModel(), conversation_id="c"))  # type: ignore[misc]

    assert (alone, short, talk) == ([UserMessage("summary 1")], messages[:4], messages)


async def test_a_model_that_fails() -> None:
    """The error of the compressor comes out, and nothing is saved."""
    states = States()
    compressor = compressors.incremental(compressors.model(ScriptedModel(ModelError("no"))), trigger=always)

    with pytest.raises(ModelError):
        await recall(compressor, asked(1, 2), states)

    assert states.kept == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"over_tokens": -1},
        {"over_turns": "3"},
        {"trigger": 3},
        {"estimate": "len"},
    ],
)
def test_wrong_arguments(wrong: dict[str, Any]) -> None:
    """They are refused by their name."""
    with pytest.raises(InvalidDefinition, match=next(iter(wrong))):
        compressors.incremental(Summaries(), **wrong)


def test_stored_states() -> None:
    """A state comes back as it was; one that cannot be read is refused."""
    state = CompressionState(version=2, summary=(UserMessage("s"), AiMessage("t")), covered_until="m", covered_turns=3)

    assert decode_state(encode_state(state), 2) == state
    with pytest.raises(CompressionFailed):
        decode_state(b"\xc1", 1)
