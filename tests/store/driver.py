"""The random driver of `turnhold.testing` over a core, without a loop: ``Driver(core, seed=7).run(500)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turnhold.testing.conformance import driver

if TYPE_CHECKING:
    from collections import Counter

    from turnhold.store import base as b


class Driver(driver.Driver):
    """One run. The same seed gives the same run."""

    def __init__(self, core: b.StoreCore, **options: Any) -> None:
        async def send(op: b.Op, now: int) -> b.Reply:
            return core.apply(op, now)

        super().__init__(send, **options)

    def run(self, steps: int, *, drain: bool = True) -> Counter[str]:
        """Take random steps, then let good actors finish all turns. :raises Violation: if the store breaks a rule."""
        try:
            self.drive(steps, drain=drain).send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("a core does not suspend")
