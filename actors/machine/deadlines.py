"""What the passing of time does to a turn: waits expire, retries fall due, limits are reached."""

from __future__ import annotations

import msgspec

from ..turn import CallStatus, OpenWait, Status
from ..waits import Effect, SuspensionType
from . import commands, ending, limits, texts
from .draft import Draft


def fire(draft: Draft, upto: int) -> None:
    """End the waits that were over at a store time, oldest deadline first.

    Mail carries the time of its delivery and is taken after `fire` up to that time: an answer delivered before the deadline wins,
    however late it is read; one delivered behind it finds the wait ended.
    """
    while draft.state.ending is None and not draft.state.status.terminal:
        due = [wait for wait in draft.state.waits if wait.expires is not None and wait.expires <= upto]
        if not due:
            return
        _expire(draft, min(due, key=lambda wait: wait.expires or 0))


def passed(draft: Draft) -> None:
    """End what is over now, and the turn where a time limit is reached."""
    fire(draft, draft.context.now)
    if draft.state.ending is None and not draft.state.status.terminal:
        limit = limits.next_limit(draft.state)
        if limit is not None and limit <= draft.context.now:
            limits.check(draft)


def _expire(draft: Draft, wait: OpenWait) -> None:
    if wait.type is SuspensionType.RETRY:
        draft.close(wait, Effect.RETRIED)
        commands.retry(draft, wait)
        return
    draft.close(wait, Effect.EXPIRED)
    if wait.on_expiry == "cancel":
        draft.state.cancel_reason = f"{wait.type.value} expired"
        ending.begin(draft, Status.CANCELLED)
    elif wait.on_expiry == "fail":
        ending.fail(draft, "Expired", f"{wait.type.value} {wait.id} expired")
    elif wait.on_expiry == "default" and wait.has_default:
        commands.submit(draft, wait, wait.default)
    else:
        _decline(draft, wait)


def _decline(draft: Draft, wait: OpenWait) -> None:
    call = draft.state.call(wait.correlation)
    if call is None:
        return None
    if wait.type is not SuspensionType.TOOL_APPROVAL:
        return commands.decline(draft, wait, call, "Nobody answered in time.", expired=True)
    result = texts.failed("approval_expired", "Nobody decided about the call in time; it did not run.")
    draft.put(
        msgspec.structs.replace(call, status=CallStatus.REJECTED, result=result, forms=None, form_marks=None, parameters=None)
    )
    return None
