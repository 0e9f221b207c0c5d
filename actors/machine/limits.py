"""Budget checks, in their order: active time, wall time, input, output and total tokens, tool calls."""

from __future__ import annotations

from ..policies import Budget
from ..record import Seconds, milliseconds
from ..turn import Status, TurnState
from . import ending
from .draft import Draft

UNLIMITED = Budget()


def active_ms(draft: Draft) -> int:
    """Return how long the turn has been active, up to now."""
    state = draft.state
    return state.active_ms + (max(0, draft.context.now - state.active_since) if state.active_since else 0)


def exceeded(draft: Draft, *, tool: bool = False) -> str | None:
    """Return the first limit that is reached, as ``name (used/limit)``; with `tool`, before one more call."""
    if draft.state.policy is None or draft.state.policy.budget == UNLIMITED:
        return None
    budget, usage = draft.policy.budget, draft.state.usage
    for name, limit, used in (
        ("max_duration", budget.max_duration, active_ms(draft)),
        ("max_wall_time", budget.max_wall_time, draft.context.now - draft.state.created_at),
    ):
        if limit is not None and used >= milliseconds(limit):
            return f"{name} ({used} ms/{milliseconds(limit)} ms)"
    for name, most, used in (
        ("max_input_tokens", budget.max_input_tokens, usage.input_tokens),
        ("max_output_tokens", budget.max_output_tokens, usage.output_tokens),
        ("max_total_tokens", budget.max_total_tokens, usage.total_tokens),
    ):
        if most is not None and used > most:
            return f"{name} ({used}/{most})"
    if tool and budget.max_tool_calls is not None and draft.state.tool_call_count >= budget.max_tool_calls:
        return f"max_tool_calls ({draft.state.tool_call_count}/{budget.max_tool_calls})"
    return None


def check(draft: Draft, *, tool: bool = False) -> bool:
    """End the turn where a limit is reached; tell whether it goes on."""
    if (reason := exceeded(draft, tool=tool)) is None:
        return True
    draft.state.budget_exceeded_reason = reason
    ending.begin(draft, Status.BUDGET_EXCEEDED)
    return False


def next_limit(state: TurnState) -> int | None:
    """Return the store time at which a time limit is reached if things go on as they are."""
    if state.policy is None or state.policy.budget == UNLIMITED:
        return None
    budget, times = state.policy.budget, list[int]()
    if budget.max_wall_time is not None:
        times.append(state.created_at + _ms(budget.max_wall_time))
    if budget.max_duration is not None and state.active_since:
        times.append(state.active_since + _ms(budget.max_duration) - state.active_ms)
    return min(times, default=None)


def _ms(value: Seconds) -> int:
    return max(1, milliseconds(value))
