"""The lifecycle of a turn as its watchers see it."""

from __future__ import annotations

import enum

from .record import JsonObject, Record, Time


class EventType(enum.StrEnum):
    """What happened."""

    TURN_STARTED = "TURN_STARTED"
    STEP_STARTED = "STEP_STARTED"
    STEP_COMPLETED = "STEP_COMPLETED"
    MODEL_STARTED = "MODEL_STARTED"
    MODEL_COMPLETED = "MODEL_COMPLETED"
    MODEL_FAILED = "MODEL_FAILED"
    MODEL_TEXT_DELTA = "MODEL_TEXT_DELTA"
    MODEL_REASONING_DELTA = "MODEL_REASONING_DELTA"
    MODEL_TOOL_CALL_DELTA = "MODEL_TOOL_CALL_DELTA"
    TOOL_STARTED = "TOOL_STARTED"
    TOOL_PROGRESS = "TOOL_PROGRESS"
    TOOL_COMPLETED = "TOOL_COMPLETED"
    TOOL_FAILED = "TOOL_FAILED"
    TOOL_REJECTED = "TOOL_REJECTED"
    TOOL_IN_DOUBT = "TOOL_IN_DOUBT"
    TOOL_APPROVAL_REQUESTED = "TOOL_APPROVAL_REQUESTED"
    TOOL_INPUT_REQUESTED = "TOOL_INPUT_REQUESTED"
    TURN_SUSPENDED = "TURN_SUSPENDED"
    TURN_RESUMED = "TURN_RESUMED"
    WAIT_ENDED = "WAIT_ENDED"
    RETRY_SCHEDULED = "RETRY_SCHEDULED"
    CHILD_STARTED = "CHILD_STARTED"
    PLAN_CREATED = "PLAN_CREATED"
    PLAN_UPDATED = "PLAN_UPDATED"
    TASK_STARTED = "TASK_STARTED"
    TASK_COMPLETED = "TASK_COMPLETED"
    TASK_FAILED = "TASK_FAILED"
    CANCELLATION_REQUESTED = "CANCELLATION_REQUESTED"
    TURN_COMPLETED = "TURN_COMPLETED"
    TURN_FAILED = "TURN_FAILED"
    TURN_CANCELLED = "TURN_CANCELLED"
    MAX_ITERATIONS_REACHED = "MAX_ITERATIONS_REACHED"
    MAX_STEPS_REACHED = "MAX_STEPS_REACHED"
    BUDGET_EXCEEDED = "BUDGET_EXCEEDED"


TERMINAL_EVENTS = frozenset(
    {
        EventType.TURN_COMPLETED,
        EventType.TURN_FAILED,
        EventType.TURN_CANCELLED,
        EventType.MAX_ITERATIONS_REACHED,
        EventType.MAX_STEPS_REACHED,
        EventType.BUDGET_EXCEEDED,
    }
)


class Event(Record, frozen=True, kw_only=True):
    """One thing that happened to a turn.

    A stored event (`durable`) has a gap-free `sequence` from 1 per turn; pass it to `events(after=)` to go on behind it. A live one
    (a delta, progress) has sequence 0. `epoch` is that of the activation which saved it.
    """

    turn_id: str
    root_turn_id: str
    parent_turn_id: str | None = None
    agent_id: str
    agent_version: str
    sequence: int
    type: EventType
    at: Time
    data: JsonObject = {}
    durable: bool = True
    epoch: int = 0
