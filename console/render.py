"""Waits, turns, events and receipts as lines of text."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

import msgspec

from ..actors.cards import ActionMessage, FormMessage
from ..actors.chat import AiMessage, ChatMessage, ToolCall, ToolMessage, UserMessage
from ..actors.events import Event, EventType
from ..actors.memory import MemoryMessage
from ..actors.plan import TaskPlan
from ..actors.record import JsonObject, JsonValue
from ..actors.turn import Status
from ..actors.view import TurnView
from ..actors.waits import Receipt, Suspension
from .terminal import INDENT, Terminal, aligned, plain, shortened

LONGEST_CALL: Final = 400
_IDS: Final = frozenset({"suspensionId", "correlationId", "toolCallId", "commandType", "suspensionType", "digest", "planId"})
_PLACE: Final = frozenset({"status", "phase", "stepCount", "maxSteps"})  # where the turn stood, which every event tells
_COLOURS: Final = {
    EventType.TURN_COMPLETED: "green",
    EventType.TOOL_STARTED: "cyan",
    EventType.TOOL_COMPLETED: "cyan",
    EventType.TURN_SUSPENDED: "yellow",
    EventType.TURN_RESUMED: "yellow",
    EventType.TOOL_IN_DOUBT: "red",
    EventType.TOOL_FAILED: "red",
    EventType.TURN_FAILED: "red",
    EventType.MODEL_FAILED: "red",
}


def json_text(value: JsonValue) -> str:
    """Return a value as JSON text."""
    return msgspec.json.encode(value).decode()


def call_text(call: ToolCall) -> str:
    """Return a call as people write one: ``name(key="value")``."""
    if call.invalid is not None:
        inside = call.invalid
    else:
        inside = ", ".join(f"{key}={json_text(value)}" for key, value in call.arguments.items())
    edited = f" (edited by {call.edited_by})" if call.edited_by else ""
    return plain(shortened(f"{call.name}({inside})", LONGEST_CALL) + edited)


def when(time: datetime, *, precise: bool = False) -> str:
    """Return a time in this machine's zone."""
    local = time.astimezone()
    return f"{local:%H:%M:%S}.{local.microsecond // 1000:03d}" if precise else f"{local:%Y-%m-%d %H:%M:%S}"


def coloured_status(terminal: Terminal, status: Status) -> str:
    """Return a status: green where the turn came to its end, yellow where it waits, red where it went wrong."""
    if status is Status.COMPLETED:
        return terminal.style("green", status.value)
    if status is Status.IN_DOUBT or status.terminal:
        return terminal.style("red", status.value)
    return terminal.style("yellow", status.value) if status.blocked else status.value


def wait_lines(terminal: Terminal, wait: Suspension, indent: str = INDENT) -> list[str]:
    """Return what a person has to know to answer a wait."""
    rows = [("wait", wait.id), ("kind", wait.type.value)]
    if wait.call is not None:
        rows.append(("call", call_text(wait.call)))
    if wait.message:
        rows.append(("asks", terminal.fit(wait.message, len(indent) + 10)))
    if wait.form_key is not None:
        rows.append(("form", wait.form_key))
        rows.append(("schema", json_text(wait.schema)))
    if wait.assignee is not None:
        rows.append(("assignee", plain(wait.assignee)))
    rows.append(("since", when(wait.created_at)))
    if wait.expires_at is not None:
        rows.append(("until", when(wait.expires_at)))
    return aligned(rows, indent)


def view_lines(terminal: Terminal, view: TurnView) -> list[str]:
    """Return what a turn is and where it stands."""
    rows = [
        ("turn", view.id),
        ("agent", f"{view.agent_id}@{view.agent_version}"),
        ("status", view.status.value),
        ("model", f"replies {view.iteration_count}, tokens {view.usage.total_tokens}"),
        ("calls", f"started {view.tool_call_count}, retried {view.retry_count}"),
        ("created", when(view.created_at)),
        ("updated", when(view.updated_at)),
    ]
    for name, value in (("parent", view.parent_turn_id), ("conversation", view.conversation_id), ("tenant", view.tenant)):
        if value is not None:
            rows.insert(2, (name, plain(value)))
    if view.owner is not None:
        rows.append(("owner", f"{plain(view.owner.node)} until {when(view.owner.until)}"))
    if view.cancel_requested and not view.status.terminal:
        rows.append(("cancel", "requested"))
    if view.quarantine is not None:
        rows.append(("quarantine", f"{terminal.fit(view.quarantine.reason, 16)} since {when(view.quarantine.since)}"))
    if view.error is not None:
        rows.append(("error", terminal.fit(f"{view.error.type}: {view.error.message}", 16)))
    if view.final_output is not None:
        text = view.final_output if isinstance(view.final_output, str) else json_text(view.final_output)
        rows.append(("output", terminal.fit(text, 16)))
    lines, at = aligned(rows), [name for name, _ in rows].index("status")
    lines[at] = lines[at].removesuffix(view.status.value) + coloured_status(terminal, view.status)
    return lines


def plan_lines(terminal: Terminal, plan: TaskPlan) -> list[str]:
    """Return what a plan is for, and how far each of its tasks is."""
    head = f"{INDENT}{plan.status.value} {plan.completed}/{plan.total}  "
    rows = [(" ".join(plain(task.id).split()), task.status.value, task.agent_id, task.child_turn_id or "") for task in plan.tasks]
    tasks = zip(aligned(rows, INDENT), plan.tasks, strict=True)
    return [
        head + terminal.fit(plan.goal, len(head)),
        *(f"{line}  {terminal.fit(task.error, len(line) + 2)}" if task.error else line for line, task in tasks),
    ]


def timeline(terminal: Terminal, events: Iterable[Event], *, without: frozenset[EventType] = frozenset()) -> list[str]:
    """Return events with their times, one a line, and how long the turn was asleep."""
    lines: list[str] = []
    asleep: datetime | None = None
    for event in events:
        if asleep is not None:
            lines.append(terminal.style("dim", f"{INDENT}     asleep for {span(event.at - asleep)}"))
        asleep = event.at if event.type is EventType.TURN_SUSPENDED else None
        if event.type in without:
            continue
        name = f"{event.type.value:<23}"
        if event.type in _COLOURS:
            name = terminal.style(_COLOURS[event.type], name)
        lines.append(
            f"{INDENT}{event.sequence:>3}  {when(event.at, precise=True)}  {name}  {terminal.fit(detail(event), 46)}".rstrip()
        )
    return lines


def span(time: timedelta) -> str:
    """Return a duration, roughly: seconds with one digit, or hours, minutes and seconds."""
    seconds = time.total_seconds()
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


def detail(event: Event) -> str:
    """Return what an event says beside its type."""
    data: JsonObject = event.data
    by = f" by {data['by']}" if data.get("by") else ""
    match event.type:
        case EventType.STEP_STARTED | EventType.STEP_COMPLETED:
            return f"step {data.get('step')}"
        case EventType.MODEL_STARTED:
            return f"request {data.get('iteration')}" + (f", attempt {data['attempt']}" if data.get("attempt", 1) != 1 else "")
        case EventType.MODEL_COMPLETED:
            return str(data.get("text") or "") or "asks for tools"
        case EventType.TURN_SUSPENDED:
            return str(data.get("suspensionType"))
        case EventType.WAIT_ENDED:
            return f"{data.get('suspensionType')} {data.get('effect')}{by}"
        case EventType.TURN_RESUMED:
            return f"{data.get('commandType')}{by}"
        case EventType.TASK_STARTED | EventType.TASK_COMPLETED | EventType.TASK_FAILED:
            said = data.get("title") or data.get("error") or data.get("result")
            return f"{data.get('taskId')}: {said}" if said else str(data.get("taskId"))
        case EventType.CHILD_STARTED:
            return f"{data.get('childAgentId')} {data.get('childTurnId')}"
        case _:
            named = str(data.get("toolName") or "")
            rest = ", ".join(
                f"{key} {value if isinstance(value, str) else json_text(value)}"
                for key, value in data.items()
                if key not in _IDS and key not in _PLACE and key not in {"toolName", "by"}
            )
            return f"{named}{by}{': ' if named and rest else ''}{rest}"


def receipt_text(receipt: Receipt) -> str:
    """Return an accepted answer in one line."""
    who = f" by {plain(receipt.by)}" if receipt.by else ""
    again = " (this command was accepted before)" if receipt.replayed else ""
    return f"{receipt.effect.value}{who} at {when(receipt.at)}{again}"


def message_lines(terminal: Terminal, message: ChatMessage) -> list[str]:
    """Return one message of a history."""
    match message:
        case AiMessage():
            role, text = "assistant", message.content
        case ToolMessage():
            role, text = "tool", message.content
        case _:
            role, text = "user" if isinstance(message, UserMessage) else "system", message.content
    lines = [f"{INDENT}{role:<9}  {terminal.fit(text, 13)}"] if text or not isinstance(message, AiMessage) else []
    if isinstance(message, AiMessage):
        lines += [f"{INDENT}{role if not text else '':<9}  {terminal.fit(call_text(call), 13)}" for call in message.tool_calls]
    return lines


def entry_lines(terminal: Terminal, entry: MemoryMessage) -> list[str]:
    """Return one entry of a conversation."""
    message = entry.message
    if not isinstance(message, ActionMessage | FormMessage):
        return message_lines(terminal, message)
    who = f" by {message.operator}" if message.operator else ""
    why = f": {message.reason}" if message.reason else ""
    return [f"{INDENT}{'card':<9}  {terminal.fit(f'{message.status.value}{who}{why}  {message.content}', 13)}"]
