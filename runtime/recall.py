"""What an activation knows of its turn's history, and what its model sees of that.

It reads from the end, and no more than the window needs; from then on it keeps in step with what is saved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..actors.agent import Agent
from ..actors.chat import NOTHING_USED, CallEdited, ChatMessage, HistoryEntry, SystemMessage, Usage
from ..actors.compression import CompressionContext, Compressor, compress
from ..actors.errors import StoreUnavailable
from ..actors.history import readable
from ..actors.record import duration
from ..actors.window import View, select, suffices
from ..store import base, codec
from .guard import TimeLimit, stray
from .log import log
from .part import Part


class Recall(Part, eq=False, gc=False):
    """The newest part of a history, and from the first model request on the view of it that a model gets."""

    _part: Sequence[HistoryEntry] | None = None
    _first: int = 0
    _view: View | None = None
    _compressed: tuple[list[ChatMessage], list[ChatMessage] | None] | None = None
    _asking: CompressionContext | None = None

    @property
    def ready(self) -> bool:
        """Tell whether a request can be made up of what is at hand and what the store has had for long."""
        return self._part is not None or self._view is not None

    def tokens(self) -> int:
        """Return how many tokens the messages have that the model sees."""
        return 0 if self._view is None else self._view.tokens

    def spent(self) -> Usage:
        """Return what a compressor has used for the model request under way."""
        return NOTHING_USED if self._asking is None else self._asking.usage

    def over(self) -> None:
        """The model request is over, and what was spent for it is counted."""
        self._asking = None

    def begin(self, newest: Sequence[HistoryEntry], count: int) -> None:
        """Take the newest entries of a history.

        :param count: the length of the whole history.
        """
        self._part, self._first = newest, count - len(newest)

    def remember(self, entries: Sequence[HistoryEntry]) -> None:
        """Keep in step with what was saved."""
        if self._view is None:
            if self._part is not None:
                self._part = [*self._part, *entries]
            return
        for entry in entries:
            if type(entry) is CallEdited:  # what was said before looks different now
                self._part = self._view = None
                return
            self._view.add(entry)

    async def view(self, agent: Agent) -> View:
        """Return what the model sees now; with a compressor this may ask a model.

        :raises StoreUnavailable: if the history could not be read, or the store has gone back behind what it had acknowledged.
        :raises SnapshotCorrupt: if an entry cannot be read.
        """
        if self._view is not None:
            return self._view
        window, compressor = agent.window, agent.compressor
        part: Sequence[HistoryEntry] = ()
        first = self._actor.state.message_count
        if self._part is not None:
            part, first = self._part, self._first
        size = 0
        while True:  # backwards, each time as much again, until what lies before would not be seen
            found = select(readable(part), window)
            if first == 0 or suffices(found, window, compressed=compressor is not None):
                break
            size = 2 * size or max(len(part), self._actor.host.settings.tail)
            start = max(0, first - size)
            part = [*await self._read(start, first), *part]
            first = start
        self._part, self._first = part, first
        if first:
            head = readable(await self._read(0, 1))
            found.system[:0] = [message for message in head if isinstance(message, SystemMessage)]
        compressed = None if compressor is None else await self._shorter(agent, compressor, found.compressible)
        self._view, self._part = View(found, window, compressed), None
        return self._view

    async def _read(self, start: int, end: int) -> list[HistoryEntry]:
        actor = self._actor
        reply = await actor.host.call(base.ReadHistory(turn=actor.turn_id, start=start, limit=end - start))
        assert isinstance(reply, base.Entries)
        if len(reply.bodies) < end - start:  # the store has gone back behind a save it had acknowledged
            actor.forgotten = True
            raise StoreUnavailable(f"of {end - start} history entries from {start} the store has {len(reply.bodies)} left")
        return codec.decode_entries(actor.turn_id, reply.bodies)

    async def _shorter(self, agent: Agent, compressor: Compressor, older: list[ChatMessage]) -> list[ChatMessage] | None:
        """Return what a compressor makes of older turns, asked once; `None` where it fails: they are seen as they are then."""
        if not older:
            return None
        if self._compressed is None or self._compressed[0] != older:
            context = self._asking = CompressionContext.of(self._actor.state, agent.model, older)
            self._compressed = (older, await self._asked(agent, compressor, older, context))
        return self._compressed[1]

    async def _asked(
        self, agent: Agent, compressor: Compressor, older: list[ChatMessage], context: CompressionContext
    ) -> list[ChatMessage] | None:
        limit = TimeLimit(self._actor.host.world, duration(agent.options.timeout).total_seconds())
        try:
            return await compress(compressor, older, context)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and not limit.caught() and not stray():
                raise
            log.exception("compressor_failed", turn=self._actor.turn_id)
            return None
        finally:
            limit.stop()
