"""A node that dies at any store call of an approve cycle: the turn goes on elsewhere, as DESIGN 5.5 says."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

from turnhold import StoreUnavailable
from turnhold.testing import VirtualClock, crash
from turnhold.testing.crashes import POINTS
from turnhold.testing.loop import run

from .cycle import Cycle, Ledger, Saves, agent_with, open_runtime

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from turnhold.actors.tools import ToolEffect
    from turnhold.testing.crashes import Point

STORES = ["memory", "sqlite"]


@pytest.fixture(params=STORES)
def fresh_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    numbers = count()

    def fresh() -> str:
        name = f"{request.node.name}-{next(numbers)}"
        return f"memory://{name}" if request.param == "memory" else f"sqlite:///{tmp_path}/{next(numbers)}.db"

    return fresh


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("effect", ["once", "repeatable"])
@pytest.mark.parametrize("answer", ["approve", "reject"])
def test_a_crash_at_any_store_call(fresh_store: Callable[[], str], point: Point, effect: ToolEffect, answer: str) -> None:
    """Wherever the only node dies, the next one ends the turn; in doubt is only what had started and had no result."""
    left_running: list[bool] = []
    for nth in count(1):
        found = run(lambda clock, nth=nth: crashed_cycle(fresh_store(), clock, point, effect, answer, nth))
        if found is None:
            break
        left_running.append(found)
    assert len(left_running) >= 6, "the cycle makes more store calls than that"
    assert any(left_running) == (answer == "approve" and point != "lost_reply")


async def crashed_cycle(store: str, clock: VirtualClock, point: Point, effect: ToolEffect, answer: str, nth: int) -> bool | None:
    """Run the cycle on one node with one crash, finish it on a second.

    :return: whether the crash left an attempt running; `None` if it did not happen.
    """
    ledger = Ledger()
    cycle, agent = Cycle(ledger, answer), agent_with(ledger, effect)
    async with open_runtime(store, agent, clock) as first:
        saves = Saves.of(first)
        with crash(first, "*", point, nth=nth) as crashed:
            try:
                await cycle.go_on(first)
            except StoreUnavailable:
                assert crashed.happened
            if crashed.happened:
                await crashed.wait()
    started, running = len(ledger.started), 0 if point == "lost_reply" else saves.left_running
    async with open_runtime(store, agent, clock) as second:
        turn, view = await cycle.go_on(second)
        await cycle.check(turn, view, effect)
    assert cycle.doubts == (1 if running and effect == "once" else 0)
    if running:
        assert [attempt for _, attempt in ledger.started[started:]] == [running + 1]
    else:
        assert [attempt for _, attempt in ledger.started] == [1] * (answer == "approve")
    return bool(running) if crashed.happened else None


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("who", ["owner", "answerer"])
def test_a_crash_of_owner_or_answerer(fresh_store: Callable[[], str], point: Point, who: str) -> None:
    """One node runs the turn, an API-only one answers: whichever dies at whatever call, a third ends the turn."""
    for nth in count(1):
        if not run(lambda clock, nth=nth: crashed_pair(fresh_store(), clock, point, who, nth)):
            return


async def crashed_pair(store: str, clock: VirtualClock, point: Point, who: str, nth: int) -> bool:
    ledger = Ledger()
    cycle, agent = Cycle(ledger), agent_with(ledger, "once")
    async with open_runtime(store, agent, clock) as owner, open_runtime(store, None, clock) as answerer:
        with crash(owner if who == "owner" else answerer, "*", point, nth=nth) as crashed:
            try:
                await cycle.go_on(owner, answerer)
            except StoreUnavailable:
                assert crashed.happened
    async with open_runtime(store, agent, clock) as third:
        turn, view = await cycle.go_on(third)
        await cycle.check(turn, view, "once")
    return crashed.happened
