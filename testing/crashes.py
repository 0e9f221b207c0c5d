"""Crash points: a node that dies, or loses a reply, at a chosen store call."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal, TypeAlias, final

from ..actors.errors import StoreUnavailable
from ..runtime.node import Fault, Node
from ..runtime.runtime import Runtime, node_of
from ..runtime.world import gather
from ..store.base import Op, Reply
from ..store.rules import OPERATIONS

Point: TypeAlias = Literal["before_apply", "after_apply", "lost_reply"]
POINTS: tuple[Point, ...] = ("before_apply", "after_apply", "lost_reply")


@final
class Crash:
    """A crash point that is armed: it strikes once. `happened` tells whether it has, `seen` how many calls fitted so far."""

    def __init__(self, node: Node, operation: str, point: Point, nth: int) -> None:
        self.happened = False
        self.seen = 0
        self._node = node
        self._operation = operation
        self._point: Point = point
        self._nth = nth
        self._next: Fault | None = node.fault
        self._struck = asyncio.Event()

    def before(self, op: Op) -> None:
        """Strike before the store sees an operation."""
        if self._next is not None:
            self._next.before(op)
        if self._point == "before_apply":
            self._at(op)

    def after(self, op: Op, reply: Reply) -> None:
        """Strike when the store has applied an operation."""
        if self._next is not None:
            self._next.after(op, reply)
        if self._point != "before_apply":
            self._at(op)

    def _at(self, op: Op) -> None:
        if self.happened or self._operation not in {"*", OPERATIONS[type(op)]}:
            return
        self.seen += 1
        if self.seen < self._nth:
            return
        self.happened = True
        self._struck.set()
        if self._point == "lost_reply":
            raise StoreUnavailable(f"the reply to {OPERATIONS[type(op)]} was lost (a test)")
        self._node.crash()

    async def wait(self) -> None:
        """Wait until it has happened and, where the node died of it, nothing of the node is left."""
        await self._struck.wait()
        if self._node.dead:
            await gather([self._node.crash()])


@contextmanager
def crash(runtime: Runtime, operation: str = "*", point: Point = "after_apply", *, nth: int = 1) -> Generator[Crash]:
    """Let a runtime's node die at its n-th store call of a kind, as long as the block lasts.

    ``before_apply``: the node is dead before the store sees the call. ``after_apply``: the store has done it, the node is dead
    before it hears of that. ``lost_reply``: the store has done it, the node lives, does not know, and repeats the identical call.

    A dead node makes no further store call, its tasks end, nothing is given back; whoever waits for it here gets
    `StoreUnavailable`. It is left as usual; another Runtime on the same store takes over when its leases end.

    :param operation: the lower-case name of a store operation (`create`, `deliver`, `claim`, `save`, `renew`, …), or ``*``.
    :param nth: the n-th call since the block was entered.
    """
    if operation != "*" and operation not in OPERATIONS.values():
        raise ValueError(f"there is no store operation {operation!r}; there are {', '.join(sorted(OPERATIONS.values()))}")
    if point not in POINTS:
        raise ValueError(f"point must be one of {', '.join(POINTS)}, not {point!r}")
    if nth < 1:
        raise ValueError("nth counts from 1")
    node = node_of(runtime)
    before = node.fault
    crashed = node.fault = Crash(node, operation, point, nth)
    try:
        yield crashed
    finally:
        node.fault = before
