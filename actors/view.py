"""A turn as its readers see it."""

from __future__ import annotations

from datetime import datetime
from typing import Generic, TypeVar

from .chat import ToolCall, Usage
from .errors import TurnNotCompleted
from .record import JsonObject, JsonValue, Record
from .turn import Status
from .waits import Phase, Suspension

T = TypeVar("T")


class TurnError(Record, frozen=True):
    """Why a turn failed: the error's class and its text."""

    type: str
    message: str


class Owner(Record, frozen=True):
    """Who runs a turn, until when, under which epoch."""

    node: str
    until: datetime
    epoch: int


class Quarantine(Record, frozen=True):
    """Why and since when a turn is parked, after how many crashes."""

    reason: str
    since: datetime
    crashes: int


class TurnView(Record, frozen=True, kw_only=True):
    """A turn at one moment.

    `suspensions` are the turn's own open waits, `suspension` the first of them; `open_waits` are those of the whole tree that can
    be answered from outside, depth first.
    """

    id: str
    root_turn_id: str
    parent_turn_id: str | None = None
    agent_id: str
    agent_version: str
    conversation_id: str | None = None
    tenant: str | None = None
    status: Status
    phase: Phase
    suspension: Suspension | None = None
    suspensions: tuple[Suspension, ...] = ()
    open_waits: tuple[Suspension, ...] = ()
    pending_calls: tuple[ToolCall, ...] = ()
    final_output: JsonValue = None
    error: TurnError | None = None
    usage: Usage = Usage()
    iteration_count: int = 0
    step_count: int = 0
    tool_call_count: int = 0
    retry_count: int = 0
    next_runnable_at: datetime | None = None
    budget_exceeded_reason: str | None = None
    metadata: JsonObject = {}
    streaming: bool = False
    cancel_requested: bool = False
    owner: Owner | None = None
    quarantine: Quarantine | None = None
    version: int = 0
    created_at: datetime
    updated_at: datetime
    completed_at: datetime | None = None

    def raise_for_status(self) -> TurnView:
        """Return the view of a COMPLETED turn.

        :raises TurnNotCompleted: if the turn has any other status.
        """
        if self.status is not Status.COMPLETED:
            raise TurnNotCompleted(self)
        return self


class Page(Record, Generic[T], frozen=True):
    """One page of a listing; pass `next` as ``after=`` for the following one, `None` ends it."""

    items: tuple[T, ...]
    next: str | None = None
