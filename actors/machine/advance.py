"""What a turn does next, once a batch of messages has been taken in."""

from __future__ import annotations

import msgspec

from ..chat import AiMessage, ToolMessage, UserMessage
from ..events import MODEL_STARTED, TOOL_STARTED, TURN_SUSPENDED
from ..record import JsonObject
from ..turn import (
    AWAITING,
    FINISHED,
    PENDING,
    READY,
    RUNNING,
    UNDECIDED,
    UNDER_WAY,
    WAITING,
    CallRecord,
    ModelAttempt,
    OpenWait,
    Status,
    TurnState,
)
from ..used import rest
from ..waits import AT_MODEL, TOOL_APPROVAL
from . import children, ending, limits, planning, plans, policy, recall, replies
from .draft import MEMORY, AskMemory, AskPolicy, CallModel, Draft, RunTool
from .waiting import open_question


def settle(draft: Draft) -> None:
    """Bring a draft to rest: put results into the history, start what may start, and give the turn its status."""
    state = draft.state
    if not state.status.terminal:
        if state.calls and state.ending is None:
            if state.plan is not None:
                planning.advance(draft)
            _flush(draft)
            if state.calls and state.ending is None:
                _start_calls(draft)
        if state.ending is None and not state.calls:
            _model(draft)
        if state.ending is not None:
            ending.conclude(draft)
        if not state.status.terminal:
            _rest(draft)
    draft.changed = bool(draft.events or draft.messages or draft.receipts) or draft.took_cancel or state != draft.original
    if draft.changed:
        state.updated_at = draft.context.now


def in_flight(draft: Draft) -> bool:
    """Tell whether anything of this turn runs in this activation."""
    state, context = draft.state, draft.context
    if state.request is not None and state.request.activation == context.activation:
        return True
    if state.recollection is not None and (MEMORY in context.asking or any(isinstance(each, AskMemory) for each in draft.actions)):
        return True
    if not state.calls:
        return False
    for call in state.calls:
        if call.status is RUNNING and call.activation == context.activation:
            return True
        if call.status is UNDECIDED and call.id in context.asking:
            return True
    return AskPolicy in map(type, draft.actions)


def startable(draft: Draft) -> bool:
    """Tell whether an executor would find something to start."""
    state = draft.state
    if state.ending is not None:
        return True
    if state.calls:
        return bool(_ready(draft)) or (state.plan is not None and planning.due(draft))
    return not _held(draft)


def next_deadline(state: TurnState, cancel_grace: int) -> int | None:
    """Return the store time of a turn's next deadline."""
    first = limits.next_limit(state) if state.ending is None else state.ending_at + cancel_grace
    for wait in state.waits:
        if wait.expires is not None and (first is None or wait.expires < first):
            first = wait.expires
    return first


def _held(draft: Draft) -> bool:
    """Tell whether something stands before the next model request: an open wait that belongs to no call."""
    waits = draft.state.waits
    if not waits:
        return False
    calls = {call.id for call in draft.state.calls}
    return any(wait.correlation not in calls for wait in waits)


def _flush(draft: Draft) -> None:
    """Move results into the history, in the order of the reply; end the step when all are there."""
    state = draft.state
    for call in state.calls[state.flushed :]:
        if call.status not in FINISHED:
            return
        draft.append(ToolMessage(call.id, call.result or ""))
        state.flushed += 1
    if state.calls:
        results, state.calls, state.flushed, state.phase = state.flushed, (), 0, AT_MODEL
        ending.end_step(draft, results)


def _ready(draft: Draft) -> list[CallRecord]:
    """Return the calls that may be considered or started now; a sequential one runs alone, in its place."""
    ready: list[CallRecord] = []
    calls = draft.state.calls
    open_before = blocked = False
    for call in calls:
        if call.status in FINISHED:
            continue
        if call.status is UNDECIDED:
            if call.id not in draft.context.asking:
                ready.append(call)
        elif call.status is PENDING and not blocked and not (call.sequential and (open_before or _busy(calls))):
            ready.append(call)
        open_before = True
        blocked = blocked or call.sequential
    return ready


def _busy(calls: tuple[CallRecord, ...]) -> bool:
    """Tell whether one of these calls is being carried out: by its function, by a child, or by a plan."""
    for call in calls:
        awaited = call.child is not None or (call.name in plans.NAMES and call.status is AWAITING)
        if call.status is RUNNING or (awaited and not call.finished):
            return True
    return False


def _start_calls(draft: Draft) -> None:
    """Decide about new calls and start attempts, as far as order, limits and this node allow.

    One that was answered at once instead of started may have held up those behind it.
    """
    if not draft.context.execute or not (ready := _ready(draft)):
        return
    new = [call for call in ready if call.status is UNDECIDED]
    for call in new:
        if planning.handles(draft, call):
            planning.consider(draft, call)
        else:
            policy.consider(draft, call)
    if new:
        ready = _ready(draft)
    while pending := [call for call in ready if call.status is PENDING]:
        for call in pending:
            if not _start(draft, call):
                return
        ready = _ready(draft) if len(pending) < len(draft.state.calls) else []
    _flush(draft)


def _start(draft: Draft, call: CallRecord) -> bool:
    """Intend one more attempt of a call; false where the turn ends instead.

    An approval is good for the name and arguments that were approved, and for no others, however they came into the record.
    """
    if call.approved and replies.digest_of(call.name, call.effective) != call.digest:
        policy.refuse(draft, call, "approval_mismatch", "The call is not the one that was approved; it did not run.")
        return True
    if limits.unknown(draft):
        draft.asks_tree = True
        return False
    planned = planning.handles(draft, call)
    if not limits.check(draft, tool=not (call.counted or planned)) or not limits.begin_step(draft):
        return False
    if planned:
        planning.begin(draft, call)
        return True
    if not call.counted:
        draft.state.tool_call_count += 1
    tool = None if draft.context.agent is None else draft.context.agent.tool(call.name)
    if tool is not None and tool.agent is not None:
        children.call(draft, call, tool.agent)
        return True
    call = draft.put(
        msgspec.structs.replace(
            call,
            status=RUNNING,
            attempt=call.attempt + 1,
            activation=draft.context.activation,
            counted=True,
            started=draft.context.now,
        )
    )
    draft.actions.append(RunTool(call.id, call.attempt))
    data: JsonObject = {"toolCallId": call.id, "toolName": call.name}
    if call.attempt > 1:
        data["attempt"] = call.attempt
    draft.emit(TOOL_STARTED, data)
    return True


def _model(draft: Draft) -> None:
    """At the boundary between replies: let in what has arrived, ask, or send the next model request.

    Before any of it, a turn of a conversation learns what was said there.
    """
    state, context = draft.state, draft.context
    if state.recollection is not None:
        recall.ask(draft)
        return
    if state.arrived:
        for text in state.arrived:
            draft.append(UserMessage(text, kind="child"))
        state.arrived = ()
        planning.spoken(draft)
    if state.question is not None and not _held(draft):
        state.request = None
        open_question(draft, state.question)
        state.question, state.questions = next(iter(state.questions), None), state.questions[1:]
    if state.waits and _held(draft):
        return
    request = state.request
    if request is None:
        if state.plan is not None and context.execute:
            _answer(draft)
            if state.ending is not None or state.status.terminal:
                return
        if state.iteration_count >= draft.policy.max_iterations:
            ending.begin(draft, Status.MAX_ITERATIONS_REACHED)
            return
        if context.execute:
            request = state.request = ModelAttempt(state.iteration_count + 1)
    if request is not None and request.activation is None and context.execute:
        _ask(draft, request)


def _answer(draft: Draft) -> None:
    """Answer with the outcome of a plan, where no model has to be asked for that."""
    if (answer := planning.answer(draft)) is not None and limits.check(draft):
        draft.append(AiMessage(answer))
        replies.conclude(draft, answer)


def _ask(draft: Draft, request: ModelAttempt) -> None:
    """Send a model request, as far as limits allow."""
    if limits.unknown(draft):
        draft.asks_tree = True
        return
    if not limits.check(draft) or not limits.begin_step(draft):
        return
    draft.state.request = msgspec.structs.replace(request, activation=draft.context.activation)
    draft.actions.append(CallModel(request.iteration, request.failures))
    data: JsonObject = {"iteration": request.iteration}
    if request.failures:
        data["attempt"] = request.failures + 1
    draft.emit(MODEL_STARTED, data)


def _rest(draft: Draft) -> None:
    """Give the turn its status, and count its active time."""
    state = draft.state
    draft.running = running = in_flight(draft)
    draft.startable = not running and startable(draft)
    first = None if running or draft.startable else first_wait(draft)
    if first is None:
        state.status = UNDER_WAY if state.step_count else READY
    else:
        state.status = WAITING[first.type]
        if state.step_open or draft.original.status is not state.status:
            ending.end_step(draft, state.flushed)
            draft.emit(TURN_SUSPENDED, suspended_data(first))
    now = draft.context.now
    if running and state.recollection is None:
        state.active_since = state.active_since or now
    else:
        rest(state, now)


def first_wait(draft: Draft) -> OpenWait | None:
    """Return the open wait that gives the turn its status: the first in call order, those without a call behind them."""
    waits = draft.state.waits
    if len(waits) < 2:
        return waits[0] if waits else None
    order = {call.id: index for index, call in enumerate(draft.state.calls)}
    return min(waits, key=lambda wait: order.get(wait.correlation, len(order)))


def suspended_data(wait: OpenWait) -> JsonObject:
    """Return the data of a TURN_SUSPENDED event."""
    data: JsonObject = {"suspensionId": wait.id, "suspensionType": str(wait.type)}
    if wait.correlation:
        data["correlationId"] = wait.correlation
    if wait.message is not None and wait.type is not TOOL_APPROVAL:
        data["message"] = wait.message
    if wait.phase is AT_MODEL:
        data["resumePhase"] = AT_MODEL.value
    return data
