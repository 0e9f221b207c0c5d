"""The lifecycle of a turn as its watchers see it."""

from __future__ import annotations

import enum
from typing import TypeAlias

from .policies import ExecutionPolicy
from .record import JsonObject, Record, Time
from .turn import WAITING, Status
from .waits import Phase, SuspensionType


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


# What every turn passes through, by names of their own: before Python 3.12 `EventType.TURN_STARTED` is a slow look-up.
TURN_STARTED, TURN_SUSPENDED, TURN_RESUMED = EventType.TURN_STARTED, EventType.TURN_SUSPENDED, EventType.TURN_RESUMED
STEP_STARTED, STEP_COMPLETED = EventType.STEP_STARTED, EventType.STEP_COMPLETED
MODEL_STARTED, MODEL_COMPLETED = EventType.MODEL_STARTED, EventType.MODEL_COMPLETED
TOOL_STARTED, TOOL_COMPLETED = EventType.TOOL_STARTED, EventType.TOOL_COMPLETED
TOOL_APPROVAL_REQUESTED, WAIT_ENDED = EventType.TOOL_APPROVAL_REQUESTED, EventType.WAIT_ENDED

RawEvent: TypeAlias = tuple[EventType, int, JsonObject, int]
"""An event as it is stored: its type, its time in store milliseconds, its data, and the number of the step it happened in."""

ENDS = {
    EventType.TURN_COMPLETED: Status.COMPLETED,
    EventType.TURN_FAILED: Status.FAILED,
    EventType.TURN_CANCELLED: Status.CANCELLED,
    EventType.MAX_ITERATIONS_REACHED: Status.MAX_ITERATIONS_REACHED,
    EventType.MAX_STEPS_REACHED: Status.MAX_STEPS_REACHED,
    EventType.BUDGET_EXCEEDED: Status.BUDGET_EXCEEDED,
}
TERMINAL_EVENTS = frozenset(ENDS)


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


def told(type: EventType, data: JsonObject, step: int, policy: ExecutionPolicy | None) -> JsonObject:
    """Return the data of an event as its readers get it: with what need not be stored, as it follows from the rest.

    :param policy: the turn's; `None` where it cannot be read, its limits are left out then.
    """
    status, phase = _place(type, data)
    more: JsonObject = {"status": status.value, "phase": phase.value, "stepCount": step}
    if policy is not None:
        more["maxSteps"] = policy.max_steps
        iteration = data.get("iteration")
        if isinstance(iteration, int):
            more["maxIterations"] = policy.max_iterations
            more["remainingIterations"] = max(0, policy.max_iterations - iteration)
        if type is EventType.MAX_ITERATIONS_REACHED:
            more["iterations"] = policy.max_iterations
        elif type is EventType.MAX_STEPS_REACHED:
            more["steps"] = policy.max_steps
    if type is EventType.STEP_STARTED:
        more["step"] = step
    elif type is EventType.STEP_COMPLETED:
        more["step"], more["toolMessageCount"] = step, 0
    elif type is EventType.TURN_SUSPENDED:
        more["resumePhase"] = phase.value
    elif type is EventType.TURN_FAILED and "reason" in data:
        more["error"] = data["reason"]
    return {**more, **data}


def _place(type: EventType, data: JsonObject) -> tuple[Status, Phase]:
    """Return status and phase of a turn at an event of it."""
    if type in ENDS:
        return ENDS[type], Phase.FINISHED
    if type is EventType.TURN_STARTED:
        return Status.READY, Phase.MODEL
    if type is EventType.TURN_SUSPENDED:
        kind = data.get("suspensionType")
        status = WAITING[SuspensionType(kind)] if isinstance(kind, str) and kind in SuspensionType.__members__ else Status.RUNNING
        return status, Phase.MODEL if data.get("resumePhase") == Phase.MODEL.value else Phase.TOOLS
    return Status.RUNNING, Phase.TOOLS if "toolCallId" in data else Phase.MODEL
