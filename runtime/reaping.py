"""Taking over from owners that are gone. Never from the own activations of this node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from ..actors.errors import StoreUnavailable
from ..store import base
from .log import log
from .world import gather

if TYPE_CHECKING:
    from .placement import Placement

Dead: TypeAlias = Callable[[], Iterable[str]]


class Reaper:
    """Looks when a lease may be over (between its period and a whole lease from now), or when an alarm says that somebody died.

    A node that was stalled, cut off, or has just come back does not know what the others went through: it renews first, and reaps
    nothing until they had the time to renew, too. Only an owner that is proved dead is not given that time.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._alarm: asyncio.Future[None] | None = None
        self._alarmed = False
        self._quiet_until = float("-inf")

    def alarm(self) -> None:
        """Look soon whether somebody has died."""
        self._alarmed = True
        if self._alarm is not None and not self._alarm.done():
            self._alarm.set_result(None)

    def doubt(self) -> None:
        """The store was out of reach: let everybody renew first."""
        settings, world = self._placement.host.settings, self._placement.host.world
        self._quiet_until = max(self._quiet_until, world.monotonic() + (settings.renew + settings.grace) / 1000)

    async def run(self, period: float, dead: Dead) -> None:
        """Reap for as long as this node lives.

        :param period: the least number of seconds between two looks.
        :param dead: names the nodes that are proved dead.
        """
        placement, world, settings = self._placement, self._placement.host.world, self._placement.host.settings
        quiet = (settings.renew + settings.grace) / 1000
        due = world.monotonic() + period
        while True:
            alarmed = await self._rest(due)
            now = world.monotonic()
            self._quiet_until = max(self._quiet_until, placement.leases.troubled_at + quiet)
            dead_nodes = tuple(dead()) if alarmed or now >= due else ()
            if not dead_nodes and now < max(due, self._quiet_until):
                due = max(due, self._quiet_until)
                continue
            try:
                due = now + await self._reap(period, dead_nodes)
            except StoreUnavailable as error:
                log.warning("reap_failed", error=str(error))
                self.doubt()
                due = now + period

    async def _rest(self, due: float) -> bool:
        """Wait until `due` or an alarm, in steps of half a renewal period; one that ends that much later was a stall.

        :return: whether there was an alarm.
        """
        placement, world = self._placement, self._placement.host.world
        step = placement.host.settings.renew / 2000
        while True:
            self._alarm = asyncio.get_running_loop().create_future()
            if self._alarmed:
                self._alarm.set_result(None)
            until = min(due, world.monotonic() + step)
            await world.wait(self._alarm, until - world.monotonic())
            alarmed, self._alarmed = self._alarmed, False
            now = world.monotonic()
            if now - until > step:
                self.doubt()
                await placement.leases.renew_now()
            if alarmed or now >= due:
                return alarmed

    async def _reap(self, period: float, dead_nodes: tuple[str, ...]) -> float:
        """Take over what there is; return after how many seconds there may be more."""
        placement = self._placement
        world, settings, counts = placement.host.world, placement.host.settings, placement.host.counters
        expired = base.Expired(grace_ms=settings.grace, dead_nodes=dead_nodes)
        while True:
            reply = await placement.host.call(expired)
            assert isinstance(reply, base.DueTurns)
            before = counts.reaped
            todo = [turn for turn in reply.turns if not placement.held(turn)]
            await gather([world.spawn(self._take_over(turn, settings.grace, dead_nodes), f"reap {turn}") for turn in todo])
            if len(reply.turns) < expired.limit or counts.reaped == before:
                break
        left = settings.lease if reply.next is None else reply.next - reply.now
        return max(period, min(left, settings.lease) / 1000)

    async def _take_over(self, turn: str, grace: int, dead_nodes: tuple[str, ...]) -> None:
        try:
            for dead_node in dead_nodes or (None,):
                taken = await self._placement.host.call(base.Reap(turn=turn, grace_ms=grace, dead_node=dead_node))
                if isinstance(taken, base.Reaped):
                    return
        except StoreUnavailable as error:
            log.warning("reap_failed", turn=turn, error=str(error))
