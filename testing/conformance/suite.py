"""All checks of a store, and what came of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from . import conversations, drive, ends, lists, mail, memory, nodes, owners, saves
from .check import CHECKS, Factory, StoreCheck

# importing one enters its checks; the order is that of the report, what is most basic first
ORDER = [module.__name__ for module in (owners, mail, saves, ends, conversations, memory, lists, nodes, drive)]


@final
@dataclass(frozen=True)
class StoreReport:
    """What `check_store` has done: the names of the checks that passed, and of those that were left out.

    Checks that move time are left out where the store does not take it from the clock given to `connect`.
    """

    passed: tuple[str, ...]
    left_out: tuple[str, ...]


def checks() -> tuple[StoreCheck, ...]:
    """Return all checks of a store, to run each as a test of its own: `await check.run(factory)`."""
    return tuple(sorted(CHECKS, key=lambda check: ORDER.index(check.body.__module__)))


async def check_store(factory: Factory) -> StoreReport:
    """Hold a store to all that a Runtime relies on, and tell which checks ran.

    :param factory: a function that returns a new, empty store each time, beside those it gave before (a file or a namespace of its
        own). It should be fast: it is called more than once for each check.
    :raises ExceptionGroup: if the store is wrong: one exception for each check that failed, all of them named in its message.
    """
    passed: list[str] = []
    left_out: list[str] = []
    faults: list[Exception] = []
    told: list[str] = []
    for check in checks():
        try:
            (passed if await check.run(factory) else left_out).append(check.name)
        except Exception as fault:
            fault.add_note(f"check {check.name}: {check.says}")
            faults.append(fault)
            told.append(f"{check.name}: {_first_line(fault)}")
    if faults:
        raise ExceptionGroup("\n  ".join([f"{len(faults)} of {len(checks())} checks of the store failed", *told]), faults)
    return StoreReport(tuple(passed), tuple(left_out))


def _first_line(fault: Exception) -> str:
    text = str(fault).partition("\n")[0] or type(fault).__name__
    return text if len(text) <= 300 else f"{text[:300]}…"
