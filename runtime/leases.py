"""The leases of what lives here: renewed together, lost one by one.

Renewals run on the loop that also runs the actors, on purpose: a loop that is stuck shall lose its leases, not hide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..actors.errors import StoreUnavailable
from ..actors.ids import partition_of
from ..store import base
from .errors import Crashed
from .host import Host
from .log import log
from .world import Timer, gather

if TYPE_CHECKING:
    from .actor import Actor

BATCH = 200
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0


class Leases:
    """The renewer and the warden of a node.

    Each batch of renewals goes its own way, so one that hangs or fails holds up no other. `cut_off` says that nothing of what
    lives here could be renewed lately: this node then takes nothing new until a call gets through again. `troubled_at` is when a
    renewal failed last (monotonic seconds).
    """

    def __init__(self, host: Host, actors: Mapping[str, Actor]) -> None:
        self._host = host
        self._actors = actors
        self._busy: set[Actor] = set()
        self._failing: set[Actor] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: asyncio.Future[None] | None = None
        self._pause: asyncio.Future[None] | None = None
        self._warden: Timer | None = None
        self._warden_at = 0.0
        self._asked = False
        self._through = False
        self.cut_off = False
        self.troubled_at = float("-inf")
        self._quiet_until = float("-inf")

    # -------------------------------------------------------------------------------------------------------- renewer

    async def run(self) -> None:
        """Extend the leases of all that lives here, for as long as this node lives."""
        world, settings = self._host.world, self._host.settings
        try:
            while True:
                loop = asyncio.get_running_loop()
                if not self._actors and not self.cut_off:
                    self._idle = loop.create_future()
                    await self._idle
                self._pause = loop.create_future()
                if self._through and self.cut_off:
                    self._pause.set_result(None)
                period = LONGEST_PAUSE if self.cut_off else settings.renew / 1000
                await world.rest(self._pause, period * (0.9 + 0.1 * world.spread()))
                if self.cut_off:
                    await self._come_back()
                else:
                    self._begin()
        finally:
            await self._close()

    async def _close(self) -> None:
        if self._warden is not None:
            self._warden.cancel()
            self._warden = None
        for task in self._tasks:
            task.cancel()
        await gather(list(self._tasks))
        self.cut_off = self._through = False

    async def renew_now(self) -> None:
        """Extend all leases once; learn of mail, cancels and losses. A batch that fails is tried again behind this."""
        waiters = self._begin()
        if waiters:
            await asyncio.wait(waiters)

    def _begin(self) -> list[asyncio.Future[None]]:
        """Send the renewals of all that is not being renewed; each future is done when its batch was tried once."""
        groups: dict[int, list[Actor]] = {}
        for actor in self._actors.values():
            if not actor.lost and actor not in self._busy:
                groups.setdefault(partition_of(actor.turn_id), []).append(actor)
        waiters: list[asyncio.Future[None]] = []
        for partition, actors in groups.items():
            for first in range(0, len(actors), BATCH):
                batch = actors[first : first + BATCH]
                self._busy.update(batch)
                tried: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                task = self._host.world.spawn(self._renewal(batch, tried), f"renew {partition:02x} of {self._host.node}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                waiters.append(tried)
        return waiters

    async def _renewal(self, actors: list[Actor], tried: asyncio.Future[None]) -> None:
        """Renew a batch, again and again for as long as one of it may still be ours."""
        world, pause = self._host.world, FIRST_PAUSE
        left = actors
        try:
            while left and not await self._renewed(left):
                if not tried.done():
                    tried.set_result(None)
                await world.sleep(pause * (0.75 + 0.25 * world.spread()))
                pause = min(LONGEST_PAUSE, 2 * pause)
                left = [actor for actor in left if not actor.lost and self._actors.get(actor.turn_id) is actor]
        except Crashed:
            pass
        finally:
            self._busy.difference_update(actors)
            self._failing.difference_update(actors)
            if not tried.done():
                tried.set_result(None)

    async def _renewed(self, actors: list[Actor]) -> bool:
        sent = self._host.world.monotonic()
        leases = tuple((actor.turn_id, actor.token) for actor in actors)
        try:
            reply = await self._host.call(base.Renew(leases=leases, lease_ms=self._host.settings.lease))
        except Crashed:
            raise
        except StoreUnavailable as error:
            self._missed(actors, error)
            return False
        assert isinstance(reply, base.Renewed)
        for actor, flag in zip(actors, reply.flags, strict=True):
            if flag == 0:
                # where a save under way lets go of the turn, its own reply says who was first
                if actor.accepting and not actor.saver.releasing and self._actors.get(actor.turn_id) is actor:
                    actor.lose()
                continue
            actor.extend(sent)
            if flag > 1:
                actor.mailbox.ring()
        self._through = True
        if self.cut_off:
            self.hurry()
        return True

    def _missed(self, actors: list[Actor], error: StoreUnavailable) -> None:
        """Note a batch that failed. There is one for each partition, so the log hears of all together, once a second at most."""
        self._host.counters.renewals_failed += 1
        self.troubled_at = self._host.world.monotonic()
        self._failing.update(actors)
        if self.troubled_at >= self._quiet_until:
            self._quiet_until = self.troubled_at + LONGEST_PAUSE
            log.warning("renewal_failed", error=str(error), turns=len(self._failing))
        self._through = False
        if not self.cut_off and all(actor.lost or actor in self._failing for actor in self._actors.values()):
            self.cut_off = True
            log.error("cut_off", node=self._host.node, turns=len(self._actors))
            self.hurry()

    def hurry(self) -> None:
        """Renew now, and not at the end of the period."""
        if self._pause is not None and not self._pause.done():
            self._pause.set_result(None)

    async def _come_back(self) -> None:
        """Rejoin when a renewal got through, or, where nothing is left to renew, when the node could announce itself."""
        if not self._through and (self._tasks or not await self._host.announce()):
            return
        self.cut_off = False
        await self.renew_now()
        if not self.cut_off:
            log.info("rejoined", node=self._host.node)
            await self._host.announce()
            self._host.look_everywhere()

    # --------------------------------------------------------------------------------------------------------- warden

    def watch(self, actor: Actor) -> None:
        """A turn has come to life: renew it from now on, and end it at its local deadline."""
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        self._arm(actor.deadline)

    def _arm(self, at: float) -> None:
        if self._warden is not None:
            if self._warden_at <= at:
                return
            self._warden.cancel()
        self._warden_at = at
        self._warden = self._host.world.timer(at - self._host.world.monotonic(), self._at_deadline)

    def _at_deadline(self) -> None:
        """The earliest deadline may have come, unless it was extended meanwhile. No call to the store delays this.

        Where the renewer is asleep although a deadline has come, the whole process has stood still: the store is asked once who
        owns what, and what it does not confirm in the time of an operation is lost.
        """
        self._warden = None
        world = self._host.world
        now = world.monotonic()
        actors = [actor for actor in self._actors.values() if not actor.lost]
        over = [actor for actor in actors if actor.deadline <= now]
        stalled = [actor for actor in over if actor not in self._busy]
        if stalled and not self._asked:
            self._asked = True
            self.hurry()
        else:
            self._asked = False
            stalled = []
        for actor in over:
            if actor not in stalled:
                actor.lose()
        if stalled:
            self._arm(now + self._host.settings.operation / 1000)
        elif left := [actor.deadline for actor in actors if not actor.lost]:
            self._arm(min(left))
