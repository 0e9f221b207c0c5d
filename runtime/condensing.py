"""What a turn takes along of a conversation whose agent compresses it as it goes on: a summary, and what came since."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

from ..actors.chat import ChatMessage
from ..actors.compression import CompressionContext
from ..actors.errors import CompressionFailed, StoreUnavailable
from ..actors.history import answered
from ..actors.incremental import CompressionState, Incremental, decode_state, encode_state
from ..actors.machine import messages as m
from ..actors.memory import MemoryMessage
from ..actors.record import duration
from ..actors.window import recalled
from ..store import base
from .guard import TimeLimit, stray
from .host import Host
from .log import log

if TYPE_CHECKING:
    from .actor import Actor

PAGE, MOST = 64, 10_000
Pages: TypeAlias = Callable[[str | None, int], Awaitable[tuple[list[MemoryMessage], str | None]]]
"""Gives messages before an id, the oldest first, and the id before which there are more, if there are."""
Entry: TypeAlias = tuple[str, ChatMessage]


class Notes:
    """The state of one conversation and agent, as a note beside the conversation; read once."""

    def __init__(self, host: Host, agent_id: str) -> None:
        self._host = host
        self._name = f"compression {agent_id}"
        self._state: CompressionState | None = None

    async def load(self, conversation_id: str) -> CompressionState:
        """Return the state; a note that cannot be read is as good as none, and will be replaced."""
        if self._state is None:
            reply = await self._host.call(base.ReadNote(conversation=conversation_id, name=self._name))
            assert isinstance(reply, base.Noted)
            self._state = CompressionState(version=reply.version)
            if reply.body is not None:
                try:
                    self._state = decode_state(reply.body, reply.version)
                except CompressionFailed:
                    log.exception("compression_unreadable", conversation=conversation_id)
        return self._state

    async def save(self, conversation_id: str, state: CompressionState, expected_version: int) -> bool:
        """Replace the state. :raises CompressionFailed: if it is over the limit of a message."""
        body, limit = encode_state(state), self._host.settings.max_message
        if len(body) > limit:
            raise CompressionFailed(f"the summary has {len(body)} bytes, the limit is {limit}")
        note = base.WriteNote(conversation=conversation_id, name=self._name, body=body, expected=expected_version)
        return isinstance(await self._host.call(note), base.Done)

    def restart(self) -> None:
        """What was compressed is not there any more: begin again, in the place of the old state."""
        assert self._state is not None
        self._state = CompressionState(version=self._state.version)


async def condensed(
    actor: Actor, compressor: Incremental, pages: Pages, conversation: str, opening: Sequence[ChatMessage]
) -> m.MemoryRead:
    """Read what came since the last compression, and compress again where it is time for it.

    Where that fails, the turn sees what there was before: the old summary, and what came since, as far as it fits.
    """
    agent, notes = actor.executor, Notes(actor.host, actor.state.agent_id)
    state = await notes.load(conversation)
    entries, found = await _since(pages, state.covered_until)
    if not found:
        log.warning("compression_restarted", conversation=conversation, agent=agent.key)
        notes.restart()
        state = await notes.load(conversation)
    since = [message for name, message in entries if name != state.covered_until]
    context = CompressionContext.of(actor.state, agent.model, since)
    seen = [*state.summary, *since]
    limit = TimeLimit(actor.host.world, duration(agent.options.timeout).total_seconds())
    try:
        seen = (await compressor.recall(conversation, entries, notes, context, window=agent.window)).messages
    except StoreUnavailable:
        raise
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and not limit.caught() and not stray():
            raise
        log.exception("compressor_failed", turn=actor.turn_id, conversation=conversation)
    finally:
        limit.stop()
    return m.MemoryRead(tuple(recalled(seen, opening, agent.window, compressed=True)), context.usage)


async def _since(pages: Pages, covered: str | None) -> tuple[list[Entry], bool]:
    """Read backwards to the message up to which the conversation was compressed; tell whether it was there."""
    part: list[Entry] = []
    before, read, found = None, 0, False
    while not found and read < MOST:
        page, before = await pages(before, PAGE)
        read += PAGE
        names = [each.id for each in page]
        start = names.index(covered) if covered in names else 0
        found = covered in names
        part = [*((each.id, cast("ChatMessage", each.message)) for each in page[start:] if each.shown), *part]
        if before is None:
            break
    kept = set(map(id, answered([message for _, message in part])))
    return [entry for entry in part if id(entry[1]) in kept or entry[0] == covered], found or covered is None
