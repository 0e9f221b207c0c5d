"""Budget checks, in their order: active time, wall time, input, output and total tokens, tool calls.

A root's budget bounds its whole tree. What the other turns of the tree have used comes back with every save. Time in which several
of them run counts once; that of a sibling that still lives is not known. A child's own budget bounds it, and those below it as far
as they have ended.
"""

from __future__ import annotations

from ..events import STEP_STARTED
from ..policies import UNLIMITED, Budget
from ..record import Seconds, milliseconds
from ..turn import NOTHING, CallRecord, Status, TurnState, Used
from ..used import active_ms, plus, total_of, usage_of
from . import ending
from .draft import Draft, RunTool

NO_CALLS: frozenset[str] = frozenset()
MAX_DEPTH = 8
"""How many turns may stand above one; a chain of agents that call each other for ever ends here."""


def _of_tree(draft: Draft) -> Used:
    """Return what the tree has used, as far as is known: by the last save's sum, or by children that have ended since."""
    below, others = draft.state.below, draft.context.others or NOTHING
    most = (max(below[0], others[0]), max(below[1], others[1]), max(below[2], others[2]), max(below[3], others[3]))
    return plus(usage_of(draft.state), most)


def exceeded(draft: Draft, *, tool: bool = False) -> str | None:
    """Return the first limit that is reached, as ``name (used/limit)``; with `tool`, before one more call."""
    state, now = draft.state, draft.context.now
    own, tree = _own(state), None if state.tree is None else state.tree.budget
    if own is not None:
        used = _of_tree(draft) if state.tree is None else total_of(state)
        reason = _reached(own, used, active_ms(state, now), now - state.created_at, tool=tool)
        if reason is not None:
            return reason
    if tree is not None and state.tree is not None:
        # Wall time is the root's alone: it sleeps no longer than that, and takes its tree along.
        return _reached(tree, _of_tree(draft), state.tree.active_ms + active_ms(state, now), -1, tool=tool, of=" of the tree")
    return None


def _own(state: TurnState) -> Budget | None:
    if state.policy is None:
        return None
    budget = state.policy.budget
    return None if budget is UNLIMITED or budget == UNLIMITED else budget


def _reached(budget: Budget, used: Used, active: int, wall: int, *, tool: bool, of: str = "") -> str | None:
    for name, limit, spent in (("max_duration", budget.max_duration, active), ("max_wall_time", budget.max_wall_time, wall)):
        if limit is not None and spent >= milliseconds(limit):
            return f"{name}{of} ({spent} ms/{milliseconds(limit)} ms)"
    for name, most, count in (
        ("max_input_tokens", budget.max_input_tokens, used[0]),
        ("max_output_tokens", budget.max_output_tokens, used[1]),
        ("max_total_tokens", budget.max_total_tokens, used[2]),
    ):
        if most is not None and count > most:
            return f"{name}{of} ({count}/{most})"
    if tool and budget.max_tool_calls is not None and used[3] >= budget.max_tool_calls:
        return f"max_tool_calls{of} ({used[3]}/{budget.max_tool_calls})"
    return None


def check(draft: Draft, *, tool: bool = False) -> bool:
    """End the turn where a limit is reached; tell whether it goes on."""
    if draft.state.tree is None and _own(draft.state) is None:
        return True
    if (reason := exceeded(draft, tool=tool)) is None:
        return True
    spend(draft, reason)
    return False


def spend(draft: Draft, reason: str) -> None:
    """End the turn: a limit is reached."""
    draft.state.budget_exceeded_reason = draft.state.budget_exceeded_reason or reason
    ending.begin(draft, Status.BUDGET_EXCEEDED)


def next_limit(state: TurnState) -> int | None:
    """Return the store time at which a time limit is reached if things go on as they are."""
    own, tree = _own(state), state.tree
    if own is None and (tree is None or tree.budget is None):
        return None
    times = list[int]()
    if own is not None and own.max_wall_time is not None:
        times.append(state.created_at + _ms(own.max_wall_time))
    if state.active_since:
        # What has ended may overlap with the time since `active_since`: only what lies before it has been used beside it.
        before = state.active_ms + sum(min(end, state.active_since) - min(start, state.active_since) for start, end in state.spans)
        if own is not None and own.max_duration is not None:
            times.append(state.active_since + _ms(own.max_duration) - before)
        if tree is not None and tree.budget is not None and tree.budget.max_duration is not None:
            times.append(state.active_since + _ms(tree.budget.max_duration) - before - tree.active_ms)
    return min(times, default=None)


def _ms(value: Seconds) -> int:
    return max(1, milliseconds(value))


def begin_step(draft: Draft) -> bool:
    """Open a step if none is open; false where the turn may make no more."""
    state = draft.state
    if state.step_open:
        return True
    if state.step_count >= draft.policy.max_steps:
        ending.begin(draft, Status.MAX_STEPS_REACHED)
        return False
    state.step_count += 1
    state.step_open = True
    draft.emit(STEP_STARTED)
    return True


# ---------------------------------------------------------------------------------------------------------------- the tree


def too_deep(state: TurnState) -> bool:
    """Tell whether a turn may have no children."""
    return state.tree is not None and state.tree.depth >= MAX_DEPTH


def tree_budget(state: TurnState) -> Budget | None:
    """Return the budget that bounds a turn's whole tree, if there is one: the root's."""
    return _own(state) if state.tree is None else state.tree.budget


def unknown(draft: Draft) -> bool:
    """Tell whether what others of the tree have used matters here and is not known: no save of this activation has told it.

    What is below a root without open children has told it all.
    """
    state = draft.state
    if draft.context.others is not None or (state.tree is None and not state.children):
        return False
    budget = tree_budget(state)
    if budget is None:
        return False
    counts = (budget.max_input_tokens, budget.max_output_tokens, budget.max_total_tokens, budget.max_tool_calls)
    return any(limit is not None for limit in counts)


def unaffordable(draft: Draft, used: Used) -> frozenset[str]:
    """Return the calls of a saved draft that the tree's budget has no room for, by the sum that the save brought back.

    Several turns may have seen the same room left, each before the other's save; the sum has them all, in the order of their saves.
    """
    if not draft.actions or draft.state.ending is not None or (budget := tree_budget(draft.state)) is None:
        return NO_CALLS
    starts = [action.call_id for action in draft.actions if isinstance(action, RunTool)]
    if not starts:
        return NO_CALLS
    if _reached(budget, used, -1, -1, tool=False) is not None:
        return frozenset(starts)
    if budget.max_tool_calls is None or used[3] <= budget.max_tool_calls:
        return NO_CALLS
    new = {call.id for call in draft.state.calls if not _had_room(call)}
    return frozenset([call for call in starts if call in new][budget.max_tool_calls - used[3] :])


def _had_room(call: CallRecord) -> bool:
    """Tell whether the budget has had room for a call before.

    An owner that was lost may have been told that there was none, and never have said so. Whether it had begun the call instead is
    not known either: unless a call has shown that by something else, it is not begun again where the tree has wanted too much. Nor
    is one that was in doubt and that a person lets run again.
    """
    if call.attempt == 1:
        return False
    unknown = call.effect == "once" or call.crashes
    return not unknown or bool(call.failures or call.forms or call.declined)
