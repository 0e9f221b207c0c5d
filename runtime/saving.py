"""How an activation's saves reach the store: again while its outcome is unknown, and with what the store has forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import msgspec

from ..actors.errors import StoreUnavailable
from ..store import base
from ..store.records import KEEP
from . import persist
from .errors import Crashed
from .log import log
from .part import Part
from .rewind import SaveLog, merged

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0


class Saver(Part, eq=False, gc=False):
    """Sends the saves of one activation, one at a time. `rewinds` counts how often the store was found to have gone back.

    `releasing`: a save is under way that may let go of the turn. Whether the lease still stands says nothing then.
    """

    log: SaveLog = msgspec.field(default_factory=SaveLog)
    releasing: bool = False
    rewinds: int = 0
    _pause: asyncio.Future[None] | None = None

    async def save(self, op: base.Save, children: Collection[str]) -> tuple[base.Save, base.Reply]:
        """Return the save that the store has decided about, and its reply; only a `Saved` has changed anything.

        A save is sent until its outcome is known, for as long as the lease is certainly ours. Behind means that the token still
        holds but saves were forgotten: they are sent again with this one, as one save, for as long as these are all here.

        :param children: the turn's open children, as `op` has them.
        :raises StoreUnavailable: if the outcome is unknown and the lease may be over, or the store has refused.
        """
        host = self._actor.host
        self.releasing = op.mode is not KEEP
        carrier = op
        first = sent = host.world.monotonic()
        pause = FIRST_PAUSE
        try:
            while True:
                try:
                    reply = await host.call(carrier)
                except Crashed:
                    raise
                except StoreUnavailable as error:
                    if not await self._again(error, carrier, pause):
                        raise
                    pause = min(2 * pause, LONGEST_PAUSE)
                    sent = host.world.monotonic()
                    continue
                if type(reply) is base.Saved:
                    self._note(carrier, reply, first if reply.replayed else sent)
                elif type(reply) is base.Behind and (again := self._with_forgotten(op, reply, children)) is not None:
                    carrier = again
                    first = sent = host.world.monotonic()
                    pause = FIRST_PAUSE
                    continue
                return carrier, reply
        finally:
            self.releasing = False

    def _note(self, op: base.Save, reply: base.Saved, sent: float) -> None:
        """Note what is saved. The lease counts from before the call that has applied it.

        :param sent: the last call's time, or, where that found the save there, the first one's: any of them may have applied it.
        """
        host = self._actor.host
        self._actor.extend(sent)
        if reply.owned:
            self.log.add(op)
        if op.relay:
            host.relay.kick(op.conversation)
        if op.confirm and not reply.confirmed:
            host.counters.note_unconfirmed(host.world, self._actor.turn_id)

    def _with_forgotten(self, op: base.Save, behind: base.Behind, children: Collection[str]) -> base.Save | None:
        """Return a save together with those that the store has forgotten; `None` where these are not all here."""
        self.rewinds += 1
        self._actor.host.counters.rewinds += 1
        log.warning("store_went_back", turn=self._actor.turn_id, version=op.version, stored=behind.version)
        forgotten = self.log.since(behind)
        if forgotten is None:
            return None
        return merged(forgotten, op, behind, children, persist.save_id(op.token, behind.version, self.rewinds))

    async def _again(self, error: StoreUnavailable, op: base.Save, pause: float) -> bool:
        """Rest after an outcome that is unknown; tell whether the save may be sent again."""
        if error.refused:
            log.exception("store_refused", turn=self._actor.turn_id, version=op.version)
            return False
        await self._rest(pause * (0.5 + 0.5 * self._actor.host.world.spread()))
        return self._actor.owns()

    async def _rest(self, seconds: float) -> None:
        if self._actor.owns():
            self._pause = asyncio.get_running_loop().create_future()
            await self._actor.host.world.rest(self._pause, seconds)

    def wake(self) -> None:
        """End a pause: the turn is not ours any more."""
        if self._pause is not None and not self._pause.done():
            self._pause.set_result(None)
