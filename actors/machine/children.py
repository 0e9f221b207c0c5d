"""Children that the application starts by hand, and the plain questions it asks."""

from __future__ import annotations

from ..events import EventType
from ..waits import Effect, SuspensionType
from . import texts
from .create import new_child
from .draft import Draft, Noted, Outcome, Refusal
from .ending import stop_model
from .messages import ChildEnded, StartChild, Suspend
from .waiting import open_child


def _closed(draft: Draft) -> Refusal | None:
    state = draft.state
    if state.status.terminal or state.ending is not None:
        status = (state.ending or state.status).value
        return Refusal("TurnClosed", f"turn {state.turn_id} is {status}", status=status)
    return None


def _stop_model(draft: Draft) -> None:
    """Take back the request under way: what is about to be asked stands before the next one."""
    if stop_model(draft):
        for wait in list(draft.state.waits):
            if wait.type is SuspensionType.RETRY and not wait.correlation:
                draft.close(wait, Effect.SUPERSEDED)


def suspend(draft: Draft, message: Suspend) -> Outcome:
    """Ask a plain question when the calls in flight have ended."""
    if (refusal := _closed(draft)) is not None:
        return refusal
    draft.state.question = message.message
    _stop_model(draft)
    return Noted()


def start(draft: Draft, message: StartChild) -> Outcome:
    """Create a child in the save that makes its parent wait for it; a repeated message finds it there."""
    state = draft.state
    if message.child_id in state.children or any(wait.correlation == message.child_id for wait in state.waits):
        return Noted()
    if (refusal := _closed(draft)) is not None:
        return refusal
    draft.children.append(new_child(state, message, draft.context.now))
    state.children.append(message.child_id)
    _stop_model(draft)
    open_child(draft, message.child_id)
    draft.emit(EventType.CHILD_STARTED, {"childTurnId": message.child_id, "childAgentId": message.agent_id})
    return Noted()


def ended(draft: Draft, message: ChildEnded) -> Outcome:
    """Take a child's outcome in; it enters the history at the next boundary, once."""
    state = draft.state
    if message.child_id in state.children:
        state.children.remove(message.child_id)
    for wait in list(state.waits):
        if wait.type is SuspensionType.CHILD_AGENT and wait.correlation == message.child_id:
            draft.close(wait, Effect.CHILD_ENDED)
            state.arrived.append(texts.child_result(message))
            draft.progress = True
    return Noted()
