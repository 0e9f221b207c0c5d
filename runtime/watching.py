"""How a node learns what no bell has told it: one batched question a period, over all trees that are watched here."""

from __future__ import annotations

import asyncio

from ..actors.errors import StoreUnavailable
from ..store import base
from .log import log
from .placement import Placement
from .watch import Progress

CHUNK = 1000


class Watching:
    """Asks the store how far the watched trees are, and rings those who have not seen it.

    Nobody who waits asks by himself, so ten thousand waiters cost what one costs. A tree that was not asked about for a while is
    compared with the answer of the last time: what has not changed since then was not missed.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._host = placement.host
        self._seen: dict[str, Progress] = {}
        self._doubt: asyncio.Future[None] | None = None
        self._doubted = False

    def ring(self) -> None:
        """Something happened somewhere: ask now."""
        self._doubted = True
        if self._doubt is not None and not self._doubt.done():
            self._doubt.set_result(None)

    async def run(self, period: float | None) -> None:
        """Ask every `period` seconds, and when bells were lost, for as long as this node lives.

        Who lives here and has mail is asked along with it, where the store's bells do not say so.
        """
        world = self._host.world
        while True:
            self._doubt = asyncio.get_running_loop().create_future()
            if self._doubted:
                self._doubt.set_result(None)
            await world.rest(self._doubt, period)
            self._doubted = False
            try:
                await self._ask()
                if self._placement.actors:
                    await self._placement.renew_now()
            except StoreUnavailable as error:
                log.warning("watch_failed", error=str(error))

    async def _ask(self) -> None:
        """Ask about each tree of which a watched turn does not live here (who lives here tells by itself)."""
        watch = self._host.watch
        self._seen = {root: found for root, found in self._seen.items() if watch.watched(root)}
        roots = watch.roots(self._placement.live)
        for start in range(0, len(roots), CHUNK):
            chunk = roots[start : start + CHUNK]
            reply = await self._host.call(base.Versions(turns=tuple(chunk)))
            assert isinstance(reply, base.Progress)
            for root, progress in zip(chunk, reply.turns, strict=True):
                watch.found(root, self._seen.get(root), progress)
                self._seen[root] = progress
