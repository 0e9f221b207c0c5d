"""What a new activation finds: attempts of an owner that is gone, a request nobody will answer, perhaps a flag."""

from __future__ import annotations

import msgspec

from ..events import EventType
from ..turn import RUNNING, UNDECIDED, Status
from ..used import rest
from . import calls, ending, recall
from .draft import Draft, Noted, Outcome, Park
from .messages import Activated, CancelRequested, DefinitionAccepted

CHANGED = "the definition of"
"""How the reason begins for which a turn is parked whose agent has changed."""


def activated(draft: Draft, message: Activated) -> None:
    """Take over. `once` attempts that were running are in doubt, `repeatable` ones start again, up to a limit.

    A model request, or the question to a policy, is repeated; when that has cost `max_crashes` owners without a single result, the
    turn is parked.
    """
    state, context = draft.state, draft.context
    rest(state, state.updated_at)
    if state.status.terminal or message.quarantined:
        return
    _compare(draft)
    if state.opening is not None and state.recollection is None and context.agent is not None:
        recall.begin(draft, context.agent)
    request = state.request
    # All that a turn without any reply can die of is its first request; the save that holds it may have died with its owner.
    asked = not (state.iteration_count or state.calls or state.waits)
    if request is not None and request.activation not in (None, context.activation):
        asked = True
        state.request = msgspec.structs.replace(request, activation=None)
    if asked and message.crashes >= draft.policy.max_crashes and state.ending is None:
        draft.actions.append(Park(f"{message.crashes} owners were lost while the model was asked"))
        return
    for call in state.calls:
        if call.status is RUNNING and call.activation != context.activation and state.ending is None:
            calls.lost(draft, call, "the process that ran it is gone")
        elif call.status is UNDECIDED and message.crashes >= draft.policy.max_crashes and state.ending is None:
            draft.actions.append(Park(f"{message.crashes} owners were lost while the approval policy was asked about {call.name}"))
            return


def _compare(draft: Draft) -> None:
    """Notice that the agent is not what it was under the same version when the turn ran last."""
    state, agent = draft.state, draft.context.agent
    if agent is None or state.definition == agent.digest:
        return
    if state.definition and draft.context.park_changed and state.ending is None:
        draft.actions.append(Park(f"{CHANGED} {agent.key} has changed"))
    else:
        state.definition = agent.digest


def definition_accepted(draft: Draft, message: DefinitionAccepted) -> Outcome:
    """A person has looked at it: the turn is not parked for that, and goes on with the agent as it is."""
    if draft.context.agent is not None:
        draft.state.definition = draft.context.agent.digest
        draft.actions = [each for each in draft.actions if not (isinstance(each, Park) and each.reason.startswith(CHANGED))]
    return Noted()


def cancel_requested(draft: Draft, message: CancelRequested) -> None:
    """The flag is up: end as CANCELLED. Taken into the state once; a repeated flag is only acknowledged."""
    state = draft.state
    draft.took_cancel = True
    if state.status.terminal or state.ending is Status.CANCELLED:
        return
    state.cancel_reason = message.cause or draft.policy.cancellation_reason
    state.cancel_at = draft.context.now
    draft.emit(EventType.CANCELLATION_REQUESTED, {"reason": state.cancel_reason})
    ending.begin(draft, Status.CANCELLED)
