"""How an activation's saves reach the store: again while its outcome is unknown, and with what the store has forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import msgspec

from ..actors.errors import StoreUnavailable
from ..store import base
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

        Behind means that the token still holds but saves were forgotten: they are sent again with this one, as one save.

        :param children: the turn's open children, as `op` has them.
        :raises StoreUnavailable: if the outcome is unknown and the lease may be over, or the store has refused.
        """
        self.releasing = op.mode is not base.Mode.KEEP
        try:
            reply = await self._send(op)
            if isinstance(reply, base.Behind):
                return await self._repeated(op, reply, children)
        finally:
            self.releasing = False
        return op, reply

    async def _repeated(self, op: base.Save, reply: base.Reply, children: Collection[str]) -> tuple[base.Save, base.Reply]:
        """Send a save once more, with those that the store has forgotten, for as long as these are all here."""
        sent = op
        while isinstance(reply, base.Behind):
            self.rewinds += 1
            self._actor.host.counters.rewinds += 1
            log.warning("store_went_back", turn=self._actor.turn_id, version=op.version, stored=reply.version)
            forgotten = self.log.since(reply)
            if forgotten is None:
                break
            name = persist.save_id(op.token, reply.version, self.rewinds)
            sent = merged(forgotten, op, reply, children, name)
            reply = await self._send(sent)
        return sent, reply

    async def _send(self, op: base.Save) -> base.Reply:
        """Send one save until its outcome is known, for as long as the lease is certainly ours, and note what is saved.

        The lease counts from before the call that has applied it: the last one, or, where that found the save there, any of them.
        """
        host = self._actor.host
        first = sent = host.world.monotonic()
        pause = FIRST_PAUSE
        while True:
            try:
                reply = await host.call(op)
            except Crashed:
                raise
            except StoreUnavailable as error:
                if error.refused:
                    log.exception("store_refused", turn=self._actor.turn_id, version=op.version)
                    raise
                await self._rest(pause * (0.5 + 0.5 * host.world.spread()))
                if not self._actor.owns():
                    raise
                pause = min(2 * pause, LONGEST_PAUSE)
                sent = host.world.monotonic()
                continue
            if isinstance(reply, base.Saved):
                self._actor.extend(first if reply.replayed else sent)
                if reply.owned:
                    self.log.add(op)
                if op.relay:
                    host.relay.kick(op.conversation)
                if op.confirm and not reply.confirmed:
                    host.counters.note_unconfirmed(host.world, self._actor.turn_id)
            return reply

    async def _rest(self, seconds: float) -> None:
        if self._actor.owns():
            self._pause = asyncio.get_running_loop().create_future()
            await self._actor.host.world.rest(self._pause, seconds)

    def wake(self) -> None:
        """End a pause: the turn is not ours any more."""
        if self._pause is not None and not self._pause.done():
            self._pause.set_result(None)
