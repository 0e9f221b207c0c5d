"""The random driver is worth its name: it passes the true core and catches every named fault."""

from __future__ import annotations

from collections import Counter

import pytest

from turnhold.testing.conformance.expect import Violation

from .cores import Memory
from .driver import Driver
from .mutants import MUTANTS, Mutant

SEEDS = 40
STEPS = 500


def drive(box: Memory, seed: int, steps: int = STEPS) -> Counter[str]:
    rewind = (box.take, box.put_back) if seed % 2 else None
    return Driver(box, seed=seed, rewind=rewind).run(steps)


def first_caught(mutant: Mutant) -> int | None:
    kind = mutant.core()
    for seed in range(SEEDS):
        try:
            drive(Memory(kind), seed)
        except (Violation, LookupError, TypeError, ValueError, AttributeError):
            return seed
    return None


def test_the_true_core_passes_the_same_seeds() -> None:
    """No rule is broken in any of the seeds, and the interesting replies all come up."""
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        counts += drive(Memory(), seed)

    wanted = "Save:Behind Save:Conflict Save:Fenced Claim:Held Claim:NotDue Claim:TooNew Claim:UnknownAgent Create:Busy"
    wanted += " Create:KeyReused Create:Queued Deliver:Claimed Deliver:Closed Deliver:Full Deliver:Known Deliver:Replied"
    wanted += " Reap:Reaped"
    assert [name for name in wanted.split() if not counts[name]] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_fault_is_caught(mutant: Mutant) -> None:
    """A store with this fault does not get through the seeds."""
    assert first_caught(mutant) is not None


@pytest.mark.deep
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_long_runs(seed: int) -> None:
    """The true core, for long."""
    drive(Memory(), seed, steps=5000)
