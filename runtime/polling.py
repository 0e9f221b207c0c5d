"""How a node finds work: it looks at what is due, page by page, when a bell, the next wake or the period says so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..actors.errors import StoreUnavailable
from ..store import base
from .homes import Homes
from .log import log
from .world import gather

if TYPE_CHECKING:
    from .placement import Placement

FIRST_PAGE, PAGE, PAGES = 64, 256, 4
WIDE_SECONDS = 5.0
FAILED_SECONDS = 1.0


class Poller:
    """Claims what may run.

    On a partitioned store it looks at the partitions whose home this node is, and now and then at all: what their homes leave
    behind is found then.

    A page on which there is nothing for this node is passed over, at most `PAGES` a time; the next look goes on behind it.

    :param homes: who looks where.
    """

    def __init__(self, placement: Placement, homes: Homes) -> None:
        self._placement = placement
        self._homes = homes
        self._known = 0
        self._offsets = {True: 0, False: 0}
        self._wide = True
        self._wide_at = 0.0
        self._ended = False
        self._ring: asyncio.Future[None] | None = None
        self._rung = True
        self.left = False  # a due turn was left where it is: look again when an activation has ended

    def ring(self) -> None:
        """Look soon."""
        self._rung = True
        if self._ring is not None and not self._ring.done():
            self._ring.set_result(None)

    def look_everywhere(self) -> None:
        """Look soon, at all partitions."""
        self._wide = True
        self.ring()

    async def run(self, period: float | None) -> None:
        """Look for as long as this node lives; sleeps until a bell, the next wake, or the period (seconds) is over."""
        placement, world = self._placement, self._placement.host.world
        while True:
            self._rung = False
            pause = period
            self.left = placement.free <= 0
            if not self.left:
                try:
                    pause = await self._look(period)
                except StoreUnavailable as error:
                    log.warning("poll_failed", error=str(error))
                    pause = FAILED_SECONDS
            self._ring = asyncio.get_running_loop().create_future()
            if self._rung:
                self._ring.set_result(None)
            await world.rest(self._ring, pause)

    async def _look(self, period: float | None) -> float | None:
        """Claim what there is; return after how many seconds there may be more."""
        homes, world = self._homes, self._placement.host.world
        if not homes.shared:
            return await self._scan(None, period, wide=True)
        if self._known != homes.version:
            self._known = homes.version
            self._offsets[False] = 0
        if period is not None:
            period *= 0.9 + 0.2 * world.spread()
        wide = self._wide or world.monotonic() >= self._wide_at
        pause = await self._share(homes.mine, period, wide=wide)
        if self._wide:  # not over yet
            return pause
        if wide:
            self._wide_at = world.monotonic() + WIDE_SECONDS * (0.9 + 0.2 * world.spread())
        left = max(0.0, self._wide_at - world.monotonic())
        return left if pause is None else min(pause, left)

    async def _share(self, mine: tuple[int, ...], period: float | None, *, wide: bool) -> float | None:
        """Look at this node's share, or at everything: then until nothing is left to claim, or a page was the last for now."""
        if not wide:
            return await self._scan(mine, period, wide=False) if mine else None
        self._wide, self._ended = False, False  # before the read: who rings while it is under way wants another one
        try:
            return await self._scan(None, period, wide=True)
        finally:
            self._wide = self._wide or not self._ended

    async def _scan(self, partitions: tuple[int, ...] | None, period: float | None, *, wide: bool) -> float | None:
        """Read on in the list of what is due, claim what this node can run, and tell when to look again."""
        placement = self._placement
        for page in range(PAGES):
            limit = PAGE if page else min(FIRST_PAGE, 4 * placement.free)
            reply = await placement.host.call(base.Due(limit=limit, offset=self._offsets[wide], partitions=partitions))
            assert isinstance(reply, base.DueTurns)
            todo = self._runnable(reply.turns)
            if todo:
                if await self._claim(todo):
                    self.ring()
                    return period
                return FAILED_SECONDS
            if len(reply.turns) < limit:
                self._offsets[wide] = 0
                if wide:
                    placement.skips.scanned()
                self._ended = True
                wait = None if reply.next is None else max(0.0, (reply.next - reply.now) / 1000)
                pauses = (period, wait, placement.skips.wait())
                return min((pause for pause in pauses if pause is not None), default=None)
            self._offsets[wide] += limit
        self._ended = True
        return FAILED_SECONDS if period is None else period

    def _runnable(self, turns: tuple[str, ...]) -> list[str]:
        """Return those of a page that this node may claim now."""
        placement = self._placement
        due = [turn for turn in turns if not placement.skips.still(turn)]
        todo = [turn for turn in due if not placement.held(turn)]
        self.left = self.left or min(len(todo), placement.free) < len(due)
        if len(todo) > placement.free and self._homes.shared:  # all nodes see this page: let them not race for its head
            first = int(placement.host.world.spread() * len(todo))
            todo = todo[first:] + todo[:first]
        return todo[: placement.free]

    async def _claim(self, turns: list[str]) -> bool:
        """Claim turns at once; tell whether that has changed what is due."""
        placement = self._placement
        changed = False

        async def claim(turn: str) -> None:
            nonlocal changed
            changed = await placement.claim(turn) or changed

        placement.claiming.update(turns)
        await gather([placement.host.world.spawn(claim(turn), f"claim {turn}") for turn in turns])
        return changed
