"""Text for terminals: colours, widths, and what may not reach a terminal."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from turnhold import Event, EventType, PlanStatus, Task, TaskPlan, TaskStatus, ToolCall
from turnhold.actors.record import utc
from turnhold.console.demo_speech import Speaker
from turnhold.console.render import call_text, plan_lines, span, timeline
from turnhold.console.terminal import Terminal, aligned, plain

if TYPE_CHECKING:
    from turnhold.actors.record import JsonObject


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def event(kind: EventType, data: JsonObject | None = None, *, at: int = 0, sequence: int = 1, durable: bool = True) -> Event:
    return Event(
        turn_id="t",
        root_turn_id="t",
        agent_id="a",
        agent_version="1",
        sequence=sequence,
        type=kind,
        at=utc(at),
        data=data or {},
        durable=durable,
    )


@pytest.mark.parametrize(
    ("out", "variables", "coloured"),
    [
        (Tty(), {}, True),
        (Tty(), {"NO_COLOR": "1"}, False),
        (Tty(), {"NO_COLOR": ""}, True),
        (Tty(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colour_is_for_people(out: io.StringIO, variables: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, unless NO_COLOR is set (to anything) or the terminal has none."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert (Terminal(out).style("red", "x") != "x") == coloured


def test_what_a_model_wrote_does_not_steer_the_terminal() -> None:
    """Escape sequences and other control characters are replaced, also in arguments and streamed text."""
    out = io.StringIO()
    evil = "\x1b[2J\x07\u202ebye"
    speaker = Speaker(Terminal(out, width=80))
    speaker(event(EventType.MODEL_TEXT_DELTA, {"content": evil}))
    speaker(event(EventType.MODEL_COMPLETED, {"text": evil}))

    for text in (plain(evil), call_text(ToolCall("1", "f\x1b", {"x": evil})), Terminal(out, width=80).fit(evil), out.getvalue()):
        assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert plain("a\tb\r\nc") == "a b \nc"


def test_streamed_text_breaks_between_words_and_keeps_them_whole() -> None:
    """Deltas cut words anywhere; the lines have at most 78 columns and all of the words."""
    out = io.StringIO()
    speaker = Speaker(Terminal(out, width=80))
    text = " ".join(f"word{number}" for number in range(60))
    pieces = [text[at : at + 5] for at in range(0, len(text), 5)]
    for piece in pieces:
        speaker(event(EventType.MODEL_TEXT_DELTA, {"content": piece}))
    speaker(event(EventType.MODEL_COMPLETED, {"text": text}))
    said = out.getvalue()

    assert f"({len(pieces)} deltas)" in said
    shown = said.replace(f"({len(pieces)} deltas)", "").split()
    assert shown[0] == "model"
    assert "".join(shown[1:]) == text.replace(" ", "")
    assert max(map(len, said.splitlines()[:-1])) <= 80


def test_early_deltas_stand_behind_the_tool_that_they_speak_of() -> None:
    """A request may leave before the save of a tool's result is told; the story stays in order."""
    out = io.StringIO()
    speaker = Speaker(Terminal(out, width=80))
    told: list[tuple[EventType, JsonObject]] = [
        (EventType.TOOL_STARTED, {"toolName": "f"}),
        (EventType.MODEL_TEXT_DELTA, {"content": "All "}),
        (EventType.TOOL_COMPLETED, {"toolName": "f"}),
        (EventType.MODEL_TEXT_DELTA, {"content": "done."}),
        (EventType.MODEL_COMPLETED, {"text": "All done."}),
    ]
    for kind, data in told:
        speaker(event(kind, data))

    assert out.getvalue().splitlines() == [
        "  tool    f starts; the store knew before",
        "  tool    f has returned",
        "  model   All done.  (2 deltas)",
    ]


def test_a_model_that_does_not_stream_is_shown_whole() -> None:
    """Without deltas the text of the reply is shown, without a count."""
    out = io.StringIO()
    Speaker(Terminal(out, width=80))(event(EventType.MODEL_COMPLETED, {"text": "Hello there."}))

    assert out.getvalue() == "  model   Hello there.\n"


def test_the_timeline_says_how_long_a_turn_slept() -> None:
    """Between its suspension and what came next."""
    lines = timeline(
        Terminal(io.StringIO(), width=60),
        [
            event(EventType.TURN_SUSPENDED, {"suspensionType": "TOOL_APPROVAL"}, sequence=1),
            event(
                EventType.WAIT_ENDED,
                {"suspensionType": "TOOL_APPROVAL", "effect": "APPROVED", "by": "ann"},
                at=3_725_000,
                sequence=2,
            ),
        ],
    )

    assert lines[1] == "       asleep for 1:02:05"
    assert lines[2].endswith("WAIT_ENDED               TOOL_APPROVAL…")
    assert span(timedelta(seconds=2.04)) == "2.0 s"


def test_the_timeline_leaves_out_what_every_event_tells() -> None:
    """Where the turn stood is in each event; a line says what is the event's own."""
    place: JsonObject = {"status": "RUNNING", "phase": "TOOLS", "stepCount": 1, "maxSteps": 1000}
    lines = timeline(
        Terminal(io.StringIO(), width=100),
        [
            event(EventType.TURN_STARTED, place, sequence=1),
            event(EventType.TOOL_FAILED, {**place, "toolCallId": "c", "toolName": "refund", "error": "no bank"}, sequence=2),
        ],
    )

    assert [line.split(".000  ")[1] for line in lines] == ["TURN_STARTED", "TOOL_FAILED              refund: error no bank"]


def test_a_plan_is_shown_with_its_tasks() -> None:
    """One line each: how it stands, who does it, in which turn, and why it failed; nothing a model wrote breaks a line."""
    tasks = (
        Task(id="money", title="Refund", description="Refund O-1.", agent_id="clerk", status=TaskStatus.FAILED, error="no bank"),
        Task(id="a\nb", title="Write", description="Write.", agent_id="writer", status=TaskStatus.RUNNING, child_turn_id="00-x"),
    )
    plan = TaskPlan(id="p", goal="Ann is\nhappy", status=PlanStatus.RUNNING, tasks=tasks, failed=1, total=2)

    assert plan_lines(Terminal(io.StringIO(), width=80), plan) == [
        "  RUNNING 0/2  Ann is happy",
        "  money  FAILED   clerk  no bank",
        "  a b    RUNNING  writer  00-x",
    ]


def test_the_timeline_names_tasks_and_children() -> None:
    """A task by its id and what is new of it, a child by its agent and its turn."""
    lines = timeline(
        Terminal(io.StringIO(), width=120),
        [
            event(EventType.TASK_STARTED, {"taskId": "money", "childTurnId": "00-x", "childAgentId": "clerk", "title": "Refund"}),
            event(EventType.CHILD_STARTED, {"childTurnId": "00-x", "childAgentId": "clerk", "taskId": "money"}),
            event(EventType.TASK_FAILED, {"taskId": "money", "childTurnId": "00-x", "taskStatus": "FAILED", "error": "no bank"}),
        ],
    )

    assert [line.split(".000  ")[1].split(maxsplit=1)[1] for line in lines] == ["money: Refund", "clerk 00-x", "money: no bank"]


def test_columns_are_aligned() -> None:
    """Each column is as wide as its widest cell; nothing trails."""
    assert aligned([("a", "bb", ""), ("ccc", "d", "")], "") == ["a    bb", "ccc  d"]
