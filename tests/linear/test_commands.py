"""What senders are told at the same time, at several nodes, through crashes: one after the other they would be told the same."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnhold import Runtime
from turnhold.store.base import TurnStore
from turnhold.store.memory import MemoryStore
from turnhold.store.sqlite import SqliteStore
from turnhold.testing import VirtualClock
from turnhold.testing.loop import VirtualLoop

from .play import Asked, Run, machine, make_agent, play
from .search import Found, Search, check
from .turns import Ask

ASKING = ("answer",) * 5 + ("hasty", "reused", "again", "view", "question", "cancel")
PASSING = ("advance", "spin", "spin")
FAULTS = ("arm", "kill", "freeze", "thaw")
Moves = list[tuple[str, int, int, int]]
NUMBERS = count()


def moves(*names: str, most: int = 12) -> st.SearchStrategy[Moves]:
    """What happens in a run: who does it, and two numbers that say what."""
    return st.lists(st.tuples(st.sampled_from(names), st.integers(0, 5), st.integers(0, 13), st.integers(0, 15)), max_size=most)


QUIET = moves(*ASKING, *PASSING)
ROUGH = st.tuples(moves(*ASKING, *PASSING, most=5), moves(*FAULTS, most=2), moves(*ASKING, *PASSING, most=6)).map(
    lambda parts: [move for part in parts for move in part]
)


def judged(run: Asked) -> Found:
    """Find the order, and see that all were told the same of each wait's end."""
    told = {wait: receipts for wait, receipts in run.receipts.items() if len(receipts) > 1}
    assert not told, f"one wait, two receipts: {told}"
    return check(Search(machine(run), most=300_000), run.history)


def played(store: TurnStore, given: Moves) -> Found:
    """Play a run in virtual time, and judge it."""
    clock = VirtualClock(seed=0)
    loop = VirtualLoop(clock, limit=None)
    try:
        run = Run(store, clock)
        loop.run_until_complete(play(run, given))
    finally:
        loop.close()
    return judged(run)


@settings(max_examples=25)
@given(given=QUIET)
def test_in_memory(given: Moves) -> None:
    """Answers, duplicates, contradictions, reused ids, views, questions and cancels at the same time, at three nodes."""
    played(MemoryStore(), given)


@settings(max_examples=25)
@given(given=ROUGH)
def test_in_memory_with_faults(given: Moves) -> None:
    """The same while nodes die, stand still past their leases, and lose replies; what nobody heard may have happened or not."""
    played(MemoryStore(), given)


@settings(max_examples=12)
@given(given=QUIET | ROUGH)
def test_in_a_file(tmp_path_factory: pytest.TempPathFactory, given: Moves) -> None:
    """The same on SQLite."""
    folder: Path = tmp_path_factory.getbasetemp()
    played(SqliteStore(folder / f"linear-{next(NUMBERS)}.db", synchronous="normal"), given)


@pytest.mark.deep
@pytest.mark.timeout(1800)
@given(given=QUIET | ROUGH)
def test_long_search(given: Moves) -> None:
    """The same, long."""
    played(MemoryStore(), given)


# -------------------------------------------------------------------------------------------------------------- on a Redis


class RealRun(Asked):
    """A run in real time on nodes that stay well."""

    def __init__(self, runtimes: list[Runtime]) -> None:
        super().__init__(make_agent(0), None)
        self.runtimes = runtimes

    def nodes(self) -> list[Runtime]:
        """Two that run turns, and one that does not."""
        return self.runtimes


@pytest.mark.redis
@pytest.mark.blocking("the first store of a process reads its scripts")
async def test_on_a_redis(redis_url: str) -> None:
    """Twelve commands at once, ten times, on a real server in real time."""
    chance = random.Random(7)
    url = f"{redis_url}?namespace=linear-{next(NUMBERS)}"
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(Runtime(url, agents=[make_agent(0)], lease=10)) for _ in range(2)]
        nodes.append(await stack.enter_async_context(Runtime(url, execute=False, lease=10)))
        for _ in range(10):
            run = RealRun(nodes)
            run.created = run.now() - 5
            run.turn_id = (await nodes[0].start("shop", "hi")).id
            await nodes[0].turn(run.turn_id).settle()
            for at in range(12):
                if chance.random() < 0.2 and run.sent:
                    run.submit(chance.randrange(3), chance.choice(run.sent))
                elif chance.random() < 0.1:
                    run.ask(chance.randrange(3), Ask("view"))
                else:
                    run.submit(chance.randrange(3), run.command(chance.randrange(14), chance.randrange(12), f"k{at}"))
            await asyncio.gather(*run.tasks)
            for command in run.sent:
                run.submit(2, command)
                await run.tasks[-1]
            await nodes[0].turn(run.turn_id).cancel()
            judged(run)


# ----------------------------------------------------------------------------------------------------- what was found once

FOUND: dict[str, Moves] = {
    # accepted by an activation of the front; then another wait ends at node 0, where its id comes again with other content
    "a reused id behind the end of the wait it names": [
        *[("advance", 0, 0, 0), ("answer", 2, 12, 13), ("answer", 4, 11, 11), ("reused", 2, 1, 0), ("spin", 0, 3, 0)],
        ("reused", 3, 11, 6),
    ],
    "two questions": [
        *[("question", 3, 3, 14), ("answer", 3, 13, 8), ("question", 2, 13, 10), ("answer", 1, 9, 8), ("spin", 3, 9, 9)],
        ("again", 2, 5, 8),
    ],
    # these no release has got wrong; faults that are put into the code do
    "one command twice": [("advance", 0, 1, 0), ("reused", 2, 1, 9), ("again", 4, 8, 13)],
    "its owner dies in the save": [
        *[("advance", 0, 2, 0), ("arm", 0, 1, 0), ("answer", 0, 0, 0), ("spin", 0, 13, 0), ("view", 2, 0, 0)],
    ],
}


@pytest.mark.parametrize("given", FOUND.values(), ids=FOUND)
def test_again(given: Moves) -> None:
    """Runs that had no order, or have none with a fault in the code."""
    assert played(MemoryStore(), given).complete
