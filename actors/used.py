"""What a turn and those below it have used: tokens, calls, and the time in which something ran."""

from __future__ import annotations

from .turn import NOTHING, Spans, TurnState, Used

MAX_SPANS = 32


def minus(one: Used, other: Used) -> Used:
    """Return one less another, never less than nothing (a store that went back may know less than we do)."""
    if one == other:
        return NOTHING
    a, b, c, d = one[0] - other[0], one[1] - other[1], one[2] - other[2], one[3] - other[3]
    return max(0, a), max(0, b), max(0, c), max(0, d)


def usage_of(state: TurnState) -> Used:
    """Return what a turn has used itself; this is what each of its saves tells the root's record."""
    usage = state.usage
    return usage.input_tokens, usage.output_tokens, usage.total_tokens, state.tool_call_count


def total_of(state: TurnState) -> Used:
    """Return what a turn and those below it that have ended have used."""
    return plus(usage_of(state), state.below)


def plus(one: Used, other: Used) -> Used:
    """Return the sum of two."""
    return one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]


def active_ms(state: TurnState, now: int) -> int:
    """Return for how long the turn, or one below it that has ended, was active up to now; time of several counts once."""
    spans = _joined(state.spans, (state.active_since, now)) if state.active_since else state.spans
    return state.active_ms + sum(end - start for start, end in spans)


def rest(state: TurnState, at: int) -> None:
    """The turn is not active any more. Where its time may overlap with that of others it is kept as a span, else as a sum."""
    if not state.active_since:
        return
    since, state.active_since = state.active_since, 0
    if at <= since:
        return
    if state.children or state.tree is not None:
        state.spans = _joined(state.spans, (since, at))
    else:
        state.active_ms += at - since


def take_spans(state: TurnState, spans: Spans, now: int) -> None:
    """Take in when an ended child and those below it were active. Behind a root's last child all that is known is one sum."""
    for span in spans:
        state.spans = _joined(state.spans, span)
    if state.tree is None and not state.children:
        if state.active_since:
            state.spans = _joined(state.spans, (state.active_since, max(now, state.active_since)))
            state.active_since = max(now, state.active_since)
        state.active_ms += sum(end - start for start, end in state.spans)
        state.spans = ()


def _joined(spans: Spans, more: tuple[int, int]) -> Spans:
    """Return spans with one more. Of too many the two with the smallest gap become one: that gap then counts as active, too."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted((*spans, more)):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    while len(joined) > MAX_SPANS:
        at = min(range(1, len(joined)), key=lambda index: joined[index][0] - joined[index - 1][1])
        joined[at - 1 : at + 1] = [(joined[at - 1][0], joined[at][1])]
    return tuple(joined)
