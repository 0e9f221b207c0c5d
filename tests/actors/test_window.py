"""What a model sees of any history: whole turns, within limits, nothing torn."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnhold import AiMessage, ChatMessage, ContextWindow, InvalidDefinition, SystemMessage, ToolCall, ToolMessage, UserMessage
from turnhold.actors.history import marked, readable, unanswered
from turnhold.actors.tokens import total_tokens
from turnhold.actors.window import View, completed, cut, select, suffices, turns_of

WINDOWS = st.builds(
    ContextWindow,
    max_turns=st.integers(1, 5),
    max_messages=st.integers(1, 12),
    compact_completed_tool_turns=st.booleans(),
    keep_recent_turns=st.integers(0, 4),
)


@st.composite
def turns(draw: st.DrawFn, names: Any) -> list[ChatMessage]:
    """A turn: an input, rounds of calls with their results, answers and children in between, perhaps a reply."""
    found: list[ChatMessage] = [UserMessage(f"input {next(names)}")]
    for _ in range(draw(st.integers(0, 3))):
        calls = tuple(ToolCall(f"c{next(names)}", "look") for _ in range(draw(st.integers(0, 2))))
        found.append(AiMessage(draw(st.sampled_from(["", "I look."])), calls))
        found += [ToolMessage(call.id, f"result {call.id}") for call in calls]
        if draw(st.booleans()):
            found.append(UserMessage("more", kind=draw(st.sampled_from(["answer", "child", "fault"]))))
    if draw(st.booleans()):
        found.append(AiMessage(f"reply {next(names)}"))
    return found


@st.composite
def histories(draw: st.DrawFn) -> list[ChatMessage]:
    """A history as a store has it when a model is asked: perhaps with instructions, perhaps torn at its beginning."""
    names = itertools.count()
    found: list[ChatMessage] = [SystemMessage("be kind")] if draw(st.booleans()) else []
    if draw(st.booleans()):
        found += [ToolMessage("lost", "x"), AiMessage("of an earlier turn")]
    for _ in range(draw(st.integers(0, 7))):
        found += draw(turns(names))
    newest: list[ChatMessage] = draw(turns(names))
    return found + newest


def body(messages: list[ChatMessage]) -> list[ChatMessage]:
    return [message for message in messages if not isinstance(message, SystemMessage)]


def newest(messages: list[ChatMessage]) -> list[ChatMessage]:
    return turns_of(messages)[0][-1]


@given(histories(), WINDOWS)
def test_no_call_is_torn_from_its_result(history: list[ChatMessage], window: ContextWindow) -> None:
    """A result is never shown without its call, nor a call without its result."""
    shown = cut(history, window)

    calls: set[str] = set()
    for message in shown:
        if isinstance(message, AiMessage):
            calls |= {call.id for call in message.tool_calls}
        assert not isinstance(message, ToolMessage) or message.call_id in calls
    assert unanswered(shown) == []


@given(histories(), WINDOWS)
def test_the_request_and_all_after_it_are_shown(history: list[ChatMessage], window: ContextWindow) -> None:
    """The newest input is never pushed out, and the turn that it opened is whole; a window begins with an input."""
    shown = body(cut(history, window))

    whole = newest(history)
    assert shown[-len(whole) :] == whole
    assert isinstance(shown[0], UserMessage)
    assert shown[0].kind == "input"


@given(histories(), WINDOWS)
def test_recent_turns_are_as_they_were(history: list[ChatMessage], window: ContextWindow) -> None:
    """Of the protected turns that are shown each is untouched; older ones with their answer have lost no more than tool traffic."""
    all_turns, shown = turns_of(body(history))[0], turns_of(body(cut(history, window)))[0]

    recent = max(1, window.keep_recent_turns)
    for index, (was, now) in enumerate(zip(reversed(all_turns), reversed(shown), strict=False)):
        if index < recent or not window.compact_completed_tool_turns or not completed(was):
            assert now == was
        else:
            talk = [m for m in was if not isinstance(m, ToolMessage) and not (isinstance(m, AiMessage) and m.tool_calls)]
            assert now == talk


@given(histories(), WINDOWS)
def test_sizes_are_bounded(history: list[ChatMessage], window: ContextWindow) -> None:
    """No more turns than `max_turns`; no more messages than `max_messages`, but where the newest turn alone has more."""
    shown = body(cut(history, window))

    found = turns_of(shown)[0]
    assert len(found) <= window.max_turns
    assert len(shown) <= window.max_messages or len(found) == 1


@given(histories(), WINDOWS)
def test_no_turn_is_left_out_without_need(history: list[ChatMessage], window: ContextWindow) -> None:
    """The turns shown are the newest ones, and one more would be too many."""
    found = select(history, window)
    shown = turns_of(body(cut(history, window)))[0]

    allowed = [*found.older, *found.recent]
    assert shown == allowed[len(allowed) - len(shown) :]
    if len(shown) < len(allowed):
        assert sum(map(len, allowed[len(allowed) - len(shown) - 1 :])) > window.max_messages


@given(histories(), WINDOWS)
def test_twice_is_once(history: list[ChatMessage], window: ContextWindow) -> None:
    """A window of a window is the same window, and the history that it was cut from is as it was."""
    before = list(history)
    shown = cut(history, window)

    assert cut(shown, window) == shown
    assert history == before


@given(histories(), WINDOWS)
def test_a_view_goes_on_as_if_cut_anew(history: list[ChatMessage], window: ContextWindow) -> None:
    """A view that is told of each message of the newest turn shows what a new cut would, and counts its tokens."""
    tail = newest(history)[1:]
    start = history[: len(history) - len(tail)]
    view = View(select(start, window), window)

    for index, message in enumerate(tail, 1):
        view.add(message)
        assert list(view.messages()) == cut([*start, *tail[:index]], window)
        assert view.tokens == total_tokens(view.messages())


@given(histories(), WINDOWS, st.booleans())
def test_a_part_that_suffices_shows_the_same(history: list[ChatMessage], window: ContextWindow, compressed: bool) -> None:
    """Where the newest part of a history suffices, the window is the one of the whole."""
    whole = select(body(history), window)
    for first in range(len(history)):
        part = select(body(history[first:]), window)
        if first and suffices(part, window, compressed=compressed):
            assert list(View(part, window).messages()) == list(View(whole, window).messages())
            assert not compressed or part.compressible == whole.compressible


def test_a_part_with_room_for_one_more_message_does_not_suffice() -> None:
    """As long as a turn of one message would have room, what lies before may be seen."""
    odd = [UserMessage("one"), UserMessage("two"), AiMessage("x"), UserMessage("three")]

    assert not suffices(select(odd[1:], ContextWindow()), ContextWindow(max_messages=4), compressed=False)
    assert suffices(select(odd[1:], ContextWindow()), ContextWindow(max_messages=3), compressed=False)


def test_a_part_cut_within_calls_does_not_suffice() -> None:
    """A history of the user's own, in which an input stands between a call and its result, is not cut there."""
    odd = [
        UserMessage("one"),
        AiMessage("", (ToolCall("c", "look"),)),
        UserMessage("two"),
        ToolMessage("c", "x"),
        UserMessage("three"),
    ]
    window = ContextWindow(max_turns=2)

    assert not suffices(select(odd[2:], window), window, compressed=False)
    assert cut(odd, window) == odd
    assert cut(odd, ContextWindow(max_turns=1)) == odd[-1:]


def test_edited_calls_stay_marked() -> None:
    """The result of an edited call says so, also one that comes after the edit."""
    call = AiMessage("", (ToolCall("c", "pay", {"amount": 2}, edited_by="ann"),))
    view = View(select([UserMessage("go"), call], ContextWindow()), ContextWindow())

    view.add(ToolMessage("c", "paid"))

    result = view.messages()[-1]
    assert isinstance(result, ToolMessage)
    assert result.content == "[A person (ann) edited the arguments of this call before it ran.]\npaid"
    assert view.messages() == tuple(marked(readable(view.messages()), {}))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_turns": 0}, "ContextWindow.max_turns must be a whole number of at least 1, not 0"),
        ({"max_messages": 0}, "ContextWindow.max_messages must be a whole number of at least 1, not 0"),
        ({"max_messages": True}, "ContextWindow.max_messages must be"),
        ({"keep_recent_turns": -1}, "ContextWindow.keep_recent_turns must be a whole number of at least 0, not -1"),
        ({"compact_completed_tool_turns": 1}, "ContextWindow.compact_completed_tool_turns must be True or False"),
    ],
)
def test_wrong_windows(fields: dict[str, Any], words: str) -> None:
    """A wrong field is named, with its limit."""
    with pytest.raises(InvalidDefinition, match=words):
        ContextWindow(**fields)
