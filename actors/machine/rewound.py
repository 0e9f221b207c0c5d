"""What a turn owes to the world when its store has forgotten saves: a start that has happened stays started."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..turn import CallRecord, CallStatus, TurnState
from ..waits import Effect, SuspensionType
from . import policy, replies, texts
from .draft import Draft, Noted, Outcome
from .messages import Rewound, Start
from .waiting import open_doubt

WHY = "the store has forgotten its start"


def unknown_to(state: TurnState, started: Iterable[Start]) -> tuple[list[Start], list[Start]]:
    """Return the starts that a state does not know of: those of calls it has, and those of calls it has never heard of.

    A start that is in the state, whatever has become of it, needs nothing: a call that is found running there is in doubt as after
    every lost owner.
    """
    behind: list[Start] = []
    forgotten: list[Start] = []
    if state.status.terminal:
        return behind, forgotten
    calls = {call.id: call for call in state.calls}
    for start in started:
        call = calls.get(start.call_id)
        if call is not None:
            if not call.finished and call.attempt < start.attempt:
                behind.append(start)
        elif not replies.used(state, start.call_id):
            forgotten.append(start)
    return behind, forgotten


def rewound(draft: Draft, message: Rewound) -> Outcome:
    """Take in starts that the state has forgotten.

    No attempt gets a number that was used. A `once` call is in doubt, whatever the state says of it: what it waited for has been
    decided once, and forgotten. A `repeatable` one goes on from where the state has it.
    """
    for start in unknown_to(draft.state, message.started)[0]:
        call = draft.state.call(start.call_id)
        assert call is not None, "it was found in the state"
        if not call.counted:
            draft.state.tool_call_count += 1
        call = draft.put(msgspec.structs.replace(call, attempt=start.attempt, counted=True))
        if start.effect == "once":
            _doubt(draft, call)
    return Noted()


def _doubt(draft: Draft, call: CallRecord) -> None:
    if draft.state.ending is not None:
        text = texts.failed("outcome_unknown", "The call was in doubt when the turn ended; its outcome is unknown.")
        draft.put(msgspec.structs.replace(call, status=CallStatus.DONE, result=text))
        return
    waits = [wait for wait in draft.state.waits if wait.correlation == call.id]
    if any(wait.type is SuspensionType.IN_DOUBT for wait in waits):
        return  # a person is being asked already
    for wait in waits:
        draft.close(wait, Effect.SUPERSEDED)
    agent = draft.context.agent
    tool = None if agent is None else agent.tool(call.name)
    if call.status is CallStatus.UNDECIDED and tool is not None:
        call = policy.frozen(draft, call, tool)
    open_doubt(draft, msgspec.structs.replace(call, effect="once", allowed=True, parameters=None), WHY)
