"""Finds calls of the package that block the event loop of an async test."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from blockbuster import BlockBuster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Named one by one: the root of an editable install is the repository, tests and virtual environment included.
FLOORS = [f"turnhold.{name}" for name in ("actors", "console", "models", "protocols", "runtime", "store", "testing")]

# (end of a file's path, its functions) below which blocking is right, each with its reason.
MAY_BLOCK: list[tuple[str, set[str]]] = [
    ("models/openai.py", {"_warm_up"}),  # the first definition of a model imports the package, so that no request has to
]


@contextlib.contextmanager
def no_blocking_calls() -> Iterator[None]:
    """Raise `BlockingError` where code of turnhold blocks a running event loop.

    Blocking calls of tests, pytest and plugins are their own affair: one counts when a frame of the package is on the
    stack. On a loop that turnhold defines itself time is virtual, and inline SQLite there is meant to block.
    """
    detector = BlockBuster(FLOORS)
    for function in detector.functions.values():
        function.can_block_functions.extend(MAY_BLOCK)
        function.can_block_predicate = _or_virtual_time(function.can_block_predicate)
    detector.activate()
    try:
        yield
    finally:
        detector.deactivate()


def _or_virtual_time(allowed: Callable[..., bool]) -> Callable[..., bool]:
    def may_block(*args: Any, **options: Any) -> bool:
        loop = type(asyncio.get_running_loop())
        return loop.__module__.split(".", 1)[0] == "turnhold" or allowed(*args, **options)

    return may_block
