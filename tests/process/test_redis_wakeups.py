"""How fast a node learns that there is work: by the bell, and without it."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .processes import Crew

pytestmark = [pytest.mark.process, pytest.mark.redis]
POLL = 1.0  # seconds between two looks at the own share, with a tenth of it more
WAKES = 0.05  # seconds from an answer on loopback to the tool's start on an idle node
SLACK = 1.0  # the machine has other things to do


def delays(crew: Crew, count: int, **options: Any) -> list[float]:
    """Let an API-only node answer, one by one; return the seconds from before each answer to the start of its tool elsewhere."""
    executor, api = crew.spawn("executor"), crew.spawn("api")
    opened = [crew.ask_open(executor, **options), crew.ask_open(api, execute=False, agents=False)]
    for request in opened:
        request.get()
    turns = [turn for turn, _ in executor("start_all", agent="once", count=count)]
    found: list[float] = []
    for turn in turns:
        sent = api("timed", turn=turn, kind="approve_tool", wait="call_1_0", by="ann")
        found.append(executor.event("tool", turn=turn)["mono"] - sent)
    assert {view["status"] for view in api("settle_all", turns=turns)} == {"COMPLETED"}
    return found


def test_the_bell_wakes_an_idle_node(redis_crew: Crew, record_property: Any) -> None:
    """The tool starts within 50 ms of an answer on loopback, long before the next look would have found it."""
    found = sorted(delays(redis_crew, 40))

    record_property("wake_p50_ms", round(median(found) * 1000, 2))
    print(f"answer to tool start elsewhere: p50 {median(found) * 1000:.1f} ms, longest {found[-1] * 1000:.1f} ms")
    assert found[len(found) // 4] < WAKES  # the slower ones are the machine's
    assert median(found) < POLL / 4


def test_without_the_bell_a_look_finds_it(redis_crew: Crew, record_property: Any) -> None:
    """A node that hears nothing starts it within the period of its looks."""
    found = sorted(delays(redis_crew, 4, deaf=True))

    record_property("deaf_p50_ms", round(median(found) * 1000, 1))
    print(f"answer to tool start elsewhere, no bell: p50 {median(found) * 1000:.0f} ms, longest {found[-1] * 1000:.0f} ms")
    assert found[-1] < 1.1 * POLL + SLACK
