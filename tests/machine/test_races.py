"""The machine of the test kit, turned on ourselves: an agent with every kind of call, families, one that plans, one that talks."""

from __future__ import annotations

import atexit
import itertools
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from turnhold.store.sqlite import SqliteStore
from turnhold.testing import TurnRaceMachine

from ..redis_in_step import StoreInStep, line_to
from .racers import make_agent, make_family, make_planner, make_poor_family, make_talker
from .steps import END, play

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnhold import Agent

    from ..redis_in_step import Line
    from ..tally import Tally


def new_file() -> SqliteStore:
    """A file that nobody else has; folders are cleared away with this process."""
    return SqliteStore(Path(FOLDER) / f"{next(NUMBERS)}.db", synchronous="normal")


FOLDER = tempfile.mkdtemp()
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
NUMBERS = itertools.count()


# Each a look, of a second or two; that the machine finds what is broken is shown in tests/testing. The search is the one below.
TestRacesInMemory = TurnRaceMachine.of(make_agent).TestCase
TestRacesInMemory.settings = settings(TestRacesInMemory.settings, max_examples=60)
TestRacesInFiles = TurnRaceMachine.of(make_agent, store=new_file).TestCase
TestRacesInFiles.settings = settings(TestRacesInMemory.settings, max_examples=16)

TestRacesOfFamilies = TurnRaceMachine.of(make_family, turns=2).TestCase
TestRacesOfFamilies.settings = settings(TestRacesInMemory.settings, max_examples=25)
TestRacesOfPoorFamilies = TurnRaceMachine.of(make_poor_family, turns=2).TestCase
TestRacesOfPoorFamilies.settings = settings(TestRacesInMemory.settings, max_examples=10)

TestRacesOfPlanners = TurnRaceMachine.of(make_planner).TestCase
TestRacesOfPlanners.settings = settings(TestRacesInMemory.settings, max_examples=16)

TestRacesOfTalkers = TurnRaceMachine.of(make_talker, turns=4, conversations=1).TestCase
TestRacesOfTalkers.settings = settings(TestRacesInMemory.settings, max_examples=25)
TestRacesWithRewinds = TurnRaceMachine.of(make_talker, turns=4, conversations=1, rewinds=True).TestCase
TestRacesWithRewinds.settings = settings(TestRacesInMemory.settings, max_examples=16)


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("make", [make_agent, make_family, make_poor_family, make_planner, make_talker])
@pytest.mark.parametrize("store", ["memory://", new_file], ids=["memory", "file"])
def test_long_search(store: str, make: Callable[[], Agent], tally: Tally) -> None:
    """The same, long; on files a quarter of it."""
    look(TurnRaceMachine.of(make, store=store, nodes=3, turns=4), tally, 1 if store == "memory://" else 4)


@pytest.mark.redis
def test_races_on_redis(redis_url: str) -> None:
    """On the scripts of Redis, one operation in flight; a failure is printed as steps."""
    with line_to(redis_url) as line:
        run_state_machine_as_test(on_redis(line), settings=settings(TestRacesInMemory.settings, max_examples=6))


@pytest.mark.deep
@pytest.mark.redis
@pytest.mark.timeout(3600)
def test_long_search_on_redis(redis_url: str, tally: Tally) -> None:
    """The same, long."""
    with line_to(redis_url) as line:
        look(on_redis(line), tally, 8)


def on_redis(line: Line) -> type[TurnRaceMachine]:
    return TurnRaceMachine.of(make_talker, store=lambda: StoreInStep(line, f"race-{next(NUMBERS)}"), turns=4, conversations=1)


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("store", ["memory://", new_file], ids=["memory", "file"])
def test_long_search_with_rewinds(store: str, tally: Tally) -> None:
    """The same, where the store forgets."""
    look(TurnRaceMachine.of(make_talker, store=store, nodes=3, turns=4, rewinds=True), tally, 1 if store == "memory://" else 4)


def look(machine: type[TurnRaceMachine], tally: Tally, part: int) -> None:
    run_state_machine_as_test(machine, settings=settings(TestRacesInMemory.settings, max_examples=settings().max_examples // part))
    tally.update(machine.totals)


ROBBED = (
    "open(seat=0, room=10_000, polls=False, talks=False)",
    "ask(pick=0, seat=0)",
    "replace(drain=False, seat=0)",
    "slow(delay=0.0, operation='*', seat=0)",
    "talk(seat=1, talk=0, when_busy='queue')",
    "advance(seconds=0.25)",
    "freeze(behind='*', seat=1)",
    "slow(delay=0.0, operation='*', seat=0)",
    *["advance(seconds=0.25)"] * 5,
    "lose_lease(pick=0)",
    END,
)


def test_a_robbed_owner_that_begins_late_breaks_no_promise() -> None:
    """An owner whose lease was taken early, and that begins behind its successor what its own save had begun, is not blamed."""
    starts = play(TurnRaceMachine.of(make_family, nodes=3, turns=4), ROBBED).starts

    behind = [(one, other) for at, other in enumerate(starts) for one in starts[at:] if one[:2] == other[:2]]
    assert any(one.attempt < other.attempt for one, other in behind), "it did begin behind its successor"


FORGOTTEN = (
    "open(talks=True, room=2, polls=False, seat=3)",
    "arm(nth=2, operation='cancel', point='after_apply', seat=1)",
    "start(seat=1)",
    "keep()",
    "start_again(pick=11, seat=5)",
    "freeze(behind='*', seat=1)",
    "cut(cut='renew', seat=4)",
    "start(seat=1)",
    "rewind()",
    "start(seat=6)",
    "thaw(seat=7)",
    END,
)


def test_a_turn_that_is_forgotten_before_anybody_was_told_of_it_is_not_missed() -> None:
    """Its creation was applied, the store went back, and only then was its sender told."""
    witness = play(TurnRaceMachine.of(make_talker, turns=4, conversations=1, rewinds=True), FORGOTTEN)

    assert witness.tainted


LATE = (
    "open(seat=0, room=10_000, polls=False, talks=True)",
    "talk(seat=0, talk=0, when_busy='refuse')",
    "freeze(behind='', seat=0)",
    "slow(delay=0.1, operation='*', seat=1)",
    "cancel(pick=0, seat=0)",
    "start_again(pick=1, seat=1)",
    "arm(nth=1, operation='*', point='before_apply', seat=1)",
    END,
)


def test_a_start_that_was_refused_once_may_have_made_its_turn_later() -> None:
    """It was sent twice: one was refused, of the other nobody was told; the conversation had become free in between."""
    witness = play(TurnRaceMachine.of(make_poor_family, nodes=3, turns=4), LATE)

    assert len(witness.talks.known) == 1


OVERDRAWN = (
    "open(seat=0, room=10_000, polls=False, talks=False)",
    "advance(seconds=0.25)",
    "slow(delay=6.0, operation='*', seat=0)",
    "advance(seconds=0.25)",
    END,
)


def test_a_call_that_had_no_room_is_not_started_by_the_next_owner() -> None:
    """The save of its start told that the tree's budget was used up, and the owner was lost before it could say so."""
    starts = play(TurnRaceMachine.of(make_poor_family, nodes=3, turns=4), OVERDRAWN).starts

    assert [start.attempt for start in starts] == [2]


AFTER_THE_END = (
    "open(seat=0, room=10_000, polls=False, talks=False)",
    "keep()",
    "hold_threads(seat=0)",
    "freeze(behind='save', seat=1)",
    "rewind()",
    "keep()",
    "rewind()",
    "start(seat=1)",
    "lose_lease(pick=0)",
    "keep()",
    "rewind()",
    END,
)


def test_a_robbed_owner_that_begins_behind_the_end_breaks_no_promise() -> None:
    """Its successor has ended the turn, whose last state knows nothing of the calls any more."""
    starts = play(TurnRaceMachine.of(make_talker, nodes=3, turns=4, rewinds=True), AFTER_THE_END).starts

    assert any(
        start.attempt == 1 and other.attempt == 2 and start[:2] == other[:2] for other, start in itertools.combinations(starts, 2)
    )


SAME_CALL = (
    "open(seat=0, room=1, polls=False, talks=False)",
    "advance(seconds=0.5)",
    "start(seat=0)",
    "lose(operation='deliver', seat=0)",
    "start(seat=0)",
    "freeze(behind='*', seat=1)",
    "start(seat=0)",
    "ask(pick=15, seat=0)",
    "slow(delay=0.0, operation='*', seat=0)",
    "answer(at_root=True, by_call=True, choice=0, pick=1, seat=1)",
    *["advance(seconds=0.25)"] * 3,
    "repeat(pick=0, seat=0)",
    "advance(seconds=4.0)",
    "answer(at_root=False, by_call=False, choice=0, pick=0, seat=0)",
    *["advance(seconds=0.25)"] * 2,
    END,
)


def test_a_command_by_call_id_that_finds_another_call_of_that_id() -> None:
    """Sent twice to the root; the slower one looks when another child waits with the same call id, and gets the one receipt."""
    play(TurnRaceMachine.of(make_family, nodes=3, turns=4), SAME_CALL)
