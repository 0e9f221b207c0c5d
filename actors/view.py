"""A turn as its readers see it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Generic, TypeVar

from msgspec.structs import replace

from .carried import NO_TYPES, StructTypes
from .chat import ToolCall, Usage
from .errors import TurnNotCompleted
from .ids import root_of
from .output import Out
from .plan import TaskPlan, plan_view
from .record import JsonObject, JsonValue, Metadata, Record, Time, utc
from .turn import FINISHED, NOTHING, CallRecord, OpenWait, Status, TurnState, masked
from .used import total_of
from .waits import CHILD_AGENT, TOOL_APPROVAL, Phase, Suspension, SuspensionType

T = TypeVar("T")


class TurnError(Record, frozen=True):
    """Why a turn failed: the error's class and its text."""

    type: str
    message: str


class Owner(Record, frozen=True):
    """Who runs a turn, until when, under which epoch."""

    node: str
    until: Time
    epoch: int


class Quarantine(Record, frozen=True):
    """Why and since when a turn is parked, after how many crashes."""

    reason: str
    since: Time
    crashes: int


class TurnView(Record, Generic[Out], frozen=True, kw_only=True):
    """A turn at one moment.

    `suspensions` are the turn's own open waits, `suspension` the first of them; `open_waits` are those of the turn and all below
    it that can be answered from outside, depth first. `usage` and `tool_call_count` are of the turn and of all below it that
    have ended. `final_output` is that of a COMPLETED turn, else `None`: a value of the output type where the view was asked
    for with one, and as JSON has it (text, or dicts, lists, numbers) where it was not. In `metadata` stand Structs of the Runtime's
    `types`; in `to_dict` and `to_json` they are JSON like the rest. `plan` is the turn's own, if it made one.
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
    final_output: Out | None = None
    error: TurnError | None = None
    usage: Usage = Usage()
    iteration_count: int = 0
    step_count: int = 0
    tool_call_count: int = 0
    retry_count: int = 0
    next_runnable_at: Time | None = None
    budget_exceeded_reason: str | None = None
    metadata: Metadata = {}
    plan: TaskPlan | None = None
    streaming: bool = False
    cancel_requested: bool = False
    owner: Owner | None = None
    quarantine: Quarantine | None = None
    version: int = 0
    created_at: Time
    updated_at: Time
    completed_at: Time | None = None

    def raise_for_status(self) -> TurnView[Out]:
        """Return the view of a COMPLETED turn.

        :raises TurnNotCompleted: if the turn has any other status.
        """
        if self.status is not Status.COMPLETED:
            raise TurnNotCompleted(self)
        return self


class Page(Record, Generic[T], frozen=True):
    """One page of a listing; pass `next` as ``after=`` for the following one, `None` ends it.

    It does not know what it lists: `from_dict` leaves the items as dicts.
    """

    items: tuple[T, ...]
    next: str | None = None


def pending_call(record: CallRecord) -> ToolCall:
    """Return a call as readers may see it: edited arguments marked, sensitive ones masked."""
    arguments, edited_by = (record.arguments, None) if record.edited is None else (record.edited, record.edited_by)
    if record.sensitive:
        arguments = masked(arguments, record.sensitive)
    return ToolCall(record.id, record.name, arguments, record.invalid, edited_by)


def metadata_of(wait: OpenWait, call: CallRecord | None) -> JsonObject:
    """Return a wait's metadata; that of an approval names the call and its digest, which stand in its record."""
    found = wait.metadata or {}
    if call is None or wait.type is not TOOL_APPROVAL:
        return found
    return {"toolName": call.name, "digest": call.digest, **found}


def suspension_of(state: TurnState, wait: OpenWait) -> Suspension:
    """Return an open wait as its readers see it."""
    record = state.call(wait.correlation)
    suspension = Suspension(
        id=wait.id,
        type=wait.type,
        turn_id=state.turn_id,
        root_turn_id=root_of(state.turn_id),
        agent_id=state.agent_id,
        conversation_id=state.conversation_id,
        tenant=state.tenant,
        correlation_id=wait.correlation or None,
        call=None if record is None else pending_call(record),
        message=wait.message,
        resume_phase=wait.phase,
        assignee=wait.assignee,
        metadata=metadata_of(wait, record),
        created_at=utc(wait.created),
        expires_at=None if wait.expires is None else utc(wait.expires),
    )
    if wait.form_key is not None or wait.schema is not None:
        suspension = replace(suspension, form_key=wait.form_key, schema=wait.schema)
    if state.tree is not None:
        suspension = replace(suspension, ancestors=(root_of(state.turn_id), *state.tree.above))
    return suspension


def _ordered(state: TurnState) -> list[OpenWait]:
    """Return the open waits in call order, those without a call behind them."""
    order = {call.id: index for index, call in enumerate(state.calls)}
    return sorted(state.waits, key=lambda wait: order.get(wait.correlation, len(order)))


def _due(waits: Sequence[OpenWait]) -> datetime | None:
    """Return when the first retry is due."""
    due = [wait.expires for wait in waits if wait.expires is not None and wait.type is SuspensionType.RETRY]
    return utc(min(due)) if due else None


def view_of(
    state: TurnState,
    *,
    version: int,
    open_waits: tuple[Suspension, ...] | None = None,
    shown: tuple[Suspension, ...] = (),
    owner: Owner | None = None,
    quarantine: Quarantine | None = None,
    cancel_requested: bool = False,
    types: StructTypes = NO_TYPES,
) -> TurnView[JsonValue]:
    """Return a turn as its readers see it; without `open_waits` the turn's own answerable waits are taken.

    :param shown: waits of the turn's own that were made for their readers already.
    """
    waits = _ordered(state) if len(state.waits) > 1 else state.waits
    suspensions = ()
    if waits:
        suspensions = shown if len(shown) == len(waits) == 1 else tuple([suspension_of(state, wait) for wait in waits])
    if open_waits is None:
        open_waits = tuple([item for item in suspensions if item.type is not CHILD_AGENT]) if waits else ()
    total = None if state.below == NOTHING else total_of(state)
    # what most views lack is added where it is there: a call with more than 15 names takes Python several times as long
    view: TurnView[JsonValue] = TurnView(
        id=state.turn_id,
        root_turn_id=root_of(state.turn_id),
        agent_id=state.agent_id,
        agent_version=state.agent_version,
        status=state.status,
        phase=state.phase,
        usage=state.usage if total is None else Usage(total[0], total[1], total[2], estimated=state.usage.estimated),
        iteration_count=state.iteration_count,
        step_count=state.step_count,
        tool_call_count=state.tool_call_count if total is None else total[3],
        retry_count=state.retry_count,
        metadata=types.restored(state.metadata, state.metadata_marks) if state.metadata else {},
        version=version,
        created_at=utc(state.created_at),
        updated_at=utc(state.updated_at),
    )
    if state.calls or suspensions or open_waits:
        view = replace(
            view,
            suspension=suspensions[0] if suspensions else None,
            suspensions=suspensions,
            open_waits=open_waits,
            pending_calls=tuple([pending_call(call) for call in state.calls if call.status not in FINISHED]),
            next_runnable_at=_due(waits),
        )
    if state.parent_turn_id is not None or state.conversation_id is not None or state.tenant is not None:
        view = replace(view, parent_turn_id=state.parent_turn_id, conversation_id=state.conversation_id, tenant=state.tenant)
    if state.status.terminal or state.error is not None or state.budget_exceeded_reason is not None:
        view = _ended(view, state)
    if state.plan is not None or owner is not None or quarantine is not None:
        plan = None if state.plan is None else plan_view(state.plan, open_waits)
        view = replace(view, plan=plan, owner=owner, quarantine=quarantine)
    if state.streaming or cancel_requested or state.cancel_at:
        view = replace(view, streaming=state.streaming, cancel_requested=cancel_requested or state.cancel_at > 0)
    return view


def _ended(view: TurnView[JsonValue], state: TurnState) -> TurnView[JsonValue]:
    return replace(
        view,
        final_output=state.final_output,
        error=None if state.error is None else TurnError(state.error.type, state.error.message),
        budget_exceeded_reason=state.budget_exceeded_reason,
        completed_at=utc(state.completed_at) if state.completed_at else None,
    )
