"""What an actor does once a draft is saved: it starts and stops what the draft asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..actors.machine import messages as m
from ..actors.machine import texts
from ..actors.machine.draft import MEMORY, Action, AskMemory, AskPolicy, CallModel, RunTool, StopModel, StopTool
from ..actors.machine.limits import NO_CALLS
from ..actors.turn import Failure
from . import attempts, effects, memory, tasks

if TYPE_CHECKING:
    from .actor import Actor


def act(
    actor: Actor,
    actions: Sequence[Action],
    *,
    flagged: bool = False,
    unconfirmed: bool = False,
    spent: frozenset[str] = NO_CALLS,
) -> None:
    """Carry out what a save asks for, but for a model request that has left already (and may even be answered).

    Between the save and a tool's start stand four checks: is the lease certainly ours, has no cancel come with the
    acknowledgement, has the tree's budget room (not in `spent`), and (of a `once` tool) has a replica confirmed the save,
    where that was asked for? Where not, the attempt is known not to have started. Nor is one started that the same save stops.
    """
    stopped = {action.call_id for action in actions if isinstance(action, StopTool)} if len(actions) > 1 else NO_CALLS
    for action in actions:
        if type(action) is CallModel:
            start_model(actor, action)
        elif type(action) is RunTool:
            if action.call_id in spent and not flagged and action.call_id not in stopped:
                _tell_spent(actor, action)
            else:
                _start_tool(actor, action, flagged=flagged or action.call_id in stopped, unconfirmed=unconfirmed)
        elif type(action) is AskPolicy:
            call = actor.state.call(action.call_id)
            if call is not None:
                actor.asking |= {call.id}
                tasks.start(actor, f"policy {call.id}", effects.ask_policy, call)
        elif type(action) is AskMemory:
            actor.asking |= {MEMORY}
            tasks.start(actor, "memory", memory.recollect)
        elif type(action) is StopModel:
            if actor.model_task is not None:
                actor.model_task.cancel()
        elif type(action) is StopTool:
            _stop_tool(actor, action)


def start_model(actor: Actor, action: CallModel) -> None:
    """Send a model request that is saved or about to be."""
    if actor.steps is not None:
        actor.steps.begin()
    actor.model_task = tasks.start(actor, "model", effects.ask_model, action.iteration, action.failures)


def _tell_spent(actor: Actor, action: RunTool) -> None:
    why = "the budget of the tree was used up by others at the same time"
    again = " again" if action.attempt > 1 else ""
    text = texts.failed("budget_exceeded", f"The call was not started{again}: the budget is used up.")
    actor.mailbox.tell(m.ToolFailed(action.call_id, action.attempt, "spent", Failure("BudgetExceeded", why), text))


def _stop_tool(actor: Actor, action: StopTool) -> None:
    actor.stopping |= {action.call_id}
    for task, name in actor.tasks.items():
        if name == f"tool {action.call_id}" and tasks.begun(task):  # else it finds out when it begins
            task.cancel()


def _start_tool(actor: Actor, action: RunTool, *, flagged: bool, unconfirmed: bool) -> None:
    call = actor.state.call(action.call_id)
    if call is None:
        return None
    if not actor.owns():
        return actor.lose()
    if flagged:
        text = texts.failed("cancelled", "The call was not started.")
        actor.mailbox.tell(m.ToolFailed(call.id, call.attempt, "interrupted", Failure("Cancelled", "not started"), text))
        return None
    if unconfirmed and call.effect == "once":
        actor.mailbox.tell(m.NotStarted(call.id, call.attempt, "no replica of the store has confirmed its start"))
        return None
    actor.note_started(m.Start(call.id, call.attempt, call.effect))
    if actor.steps is not None:
        actor.steps.begin()
    tasks.start(actor, f"tool {call.id}", attempts.run_tool, call)
    return None
