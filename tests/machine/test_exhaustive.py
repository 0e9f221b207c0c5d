"""Every order of what can happen to small turns: not a sample of them, all of them (DESIGN 8)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .explorer import Found, Story, explore
from .judge import Judge
from .stories import approvals, decisions, failures, in_turn, plan

ALWAYS = frozenset({"start", "result", "cancel", "crash"})
COMMANDS = frozenset({"command", "race", "time"})
# Worlds and steps between them, as they were counted; fewer would mean that the search has become blind somewhere.
SIZES: dict[Callable[..., Story], tuple[int, int, frozenset[str]]] = {
    approvals: (1684, 4030, COMMANDS | {"read late, just before", "read late, just after"}),
    decisions: (425, 710, COMMANDS | {"claim"}),
    failures: (1110, 1945, COMMANDS),
    in_turn: (1752, 3736, COMMANDS | {"question", "claim"}),
    plan: (1383, 2437, COMMANDS | {"hand-off", "claim"}),
}


def walk(story: Story) -> Found:
    """Walk through all worlds of a story, and see that each leads to an end, also where nobody cancels and nobody dies."""
    judge = Judge(story)
    found = explore(story, judge.step, judge.look)
    stuck = found.without_end(unless=frozenset({"cancel", "crash"}))
    assert not stuck, f"{len(stuck)} worlds without a way out, the first after {found.path(stuck[0])}"
    print(f"{len(found.worlds)} worlds, {len(found.edges)} steps")
    return found


@pytest.mark.parametrize("make", SIZES)
def test_all_orders(make: Callable[..., Story]) -> None:
    """In no order of replies, answers, deadlines, crashes and cancels happens what must not, and each world leads to an end."""
    worlds, steps, kinds = SIZES[make]
    found = walk(make())

    assert found.kinds == ALWAYS | kinds
    assert len(found.worlds) >= worlds * 0.9
    assert len(found.edges) >= steps * 0.9


@pytest.mark.deep
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("make", SIZES)
def test_all_orders_of_more_trouble(make: Callable[..., Story]) -> None:
    """The same with one more crash and a hand-off, also by API nodes."""
    found = walk(make(crashes=2, handoffs=1, api=True))

    assert len(found.worlds) > 1.5 * SIZES[make][0]
