"""What a conversation remembers: read for a turn that begins, and for people; shown as it was edited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from ..actors.agent import Agent
from ..actors.chat import AiMessage, ChatMessage
from ..actors.errors import SnapshotCorrupt, StoreUnavailable
from ..actors.history import answered, readable
from ..actors.incremental import Incremental
from ..actors.machine import messages as m
from ..actors.machine.draft import Draft
from ..actors.memory import ChatMemory, MemoryMessage
from ..actors.window import recalled, select, suffices
from ..store import base, codec
from . import inputs
from .condensing import MOST, PAGE, Pages, condensed
from .guard import TimeLimit, failure_of, stray
from .host import Host
from .log import log

if TYPE_CHECKING:
    from .actor import Actor

T = TypeVar("T")
PATIENCE = 30.0


async def within(host: Host, work: Awaitable[T]) -> T:
    """Wait for a memory that is not ours. :raises TimeoutError: if it takes longer than `PATIENCE` seconds."""
    limit = TimeLimit(host.world, PATIENCE)
    try:
        return await work
    except asyncio.CancelledError:
        if limit.caught():
            raise TimeoutError(f"the chat memory did not answer within {PATIENCE:.0f} s") from None
        raise
    finally:
        limit.stop()


async def recollect(actor: Actor) -> m.Message:
    """Read what the turn's conversation remembers, as far as its model will see it.

    What a memory of the user's own has not got yet is passed on to it first: it holds all that was said before this turn began.

    :raises StoreUnavailable: if the store is out of reach; nothing can be noted about that, the activation is lost.
    """
    host, state = actor.host, actor.state
    conversation, how = state.conversation_id, state.recollection
    if conversation is None or how is None or not how.recall:
        return m.MemoryRead()
    try:
        own = host.relay.own
        if own is not None:
            await host.relay.pass_on(conversation)
        pages = _built_in(host, conversation) if own is None else _pages_of(host, own, conversation)
        opening, compressor = readable(state.opening or []), actor.executor.compressor
        if isinstance(compressor, Incremental):
            return await condensed(actor, compressor, pages, conversation, opening)
        return m.MemoryRead(tuple(await _recalled(pages, opening, actor.executor)))
    except StoreUnavailable:
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and not stray():
            raise
        log.exception("memory_failed", turn=actor.turn_id, conversation=conversation)
        return m.MemoryFailed(failure_of(error))


async def _recalled(pages: Pages, opening: Sequence[ChatMessage], agent: Agent) -> list[ChatMessage]:
    """Read backwards until what lies before would not be seen."""
    window, compressed = agent.window, agent.compressor is not None
    part: list[ChatMessage] = []
    found: list[ChatMessage] = []
    before, read = None, 0
    while read < MOST:
        page, before = await pages(before, PAGE)
        read += PAGE
        part = [*(cast("ChatMessage", each.message) for each in page if each.shown), *part]
        found = answered(part)
        if before is None or suffices(select([*found, *opening], window), window, compressed=compressed):
            break
    return recalled(found, opening, window, compressed=compressed)


def _built_in(host: Host, conversation: str) -> Pages:
    async def page(before: str | None, limit: int) -> tuple[list[MemoryMessage], str | None]:
        reply = await host.call(base.ReadMemory(conversation=conversation, before=before, limit=limit, shown=True))
        assert isinstance(reply, base.Memory)
        return readable_entries(conversation, reply.entries), reply.entries[0].id if reply.more and reply.entries else None

    return page


def _pages_of(host: Host, own: ChatMemory, conversation: str) -> Pages:
    async def page(before: str | None, limit: int) -> tuple[list[MemoryMessage], str | None]:
        found = checked(await within(host, own.page(conversation, before, limit)))
        for each in found:
            if each.shown:
                inputs.checked_message("a message of the chat memory", cast("ChatMessage", each.message), host.settings)
        more = len(found) >= limit and found[0].id != before
        return found, found[0].id if more else None

    return page


def checked(found: object) -> list[MemoryMessage]:
    """Return a page of somebody's memory. :raises TypeError: if it is none."""
    items = list(cast("Sequence[object]", found))
    for item in items:
        if not isinstance(item, MemoryMessage):
            raise TypeError(f"a page of the chat memory has a {type(item).__name__} in it, not only MemoryMessages")
    return cast("list[MemoryMessage]", items)


def readable_entries(conversation: str, entries: Sequence[base.MemoryEntry]) -> list[MemoryMessage]:
    """Return the entries of the memory in the store; one that cannot be read is left out, so that it hides no other."""
    messages: list[MemoryMessage] = []
    for entry in entries:
        try:
            messages.append(codec.decode_remembered(entry))
        except SnapshotCorrupt:
            log.exception("memory_unreadable", conversation=conversation, message_id=entry.id)
    return messages


async def show_edits(actor: Actor, draft: Draft) -> None:
    """Let the conversation show a reply with the arguments that a person has put into its calls, as all readers see it.

    In the history the reply stays what it was; it is read there.

    :raises StoreUnavailable: if the store is out of reach.
    """
    assert draft.edited is not None
    place, edits = draft.edited
    reply = await actor.host.call(base.ReadHistory(turn=actor.turn_id, start=place, limit=1))
    assert isinstance(reply, base.Entries)
    try:
        found = readable([*codec.decode_entries(actor.turn_id, reply.bodies), *edits])
    except SnapshotCorrupt:
        found = []
    if len(found) == 1 and isinstance(found[0], AiMessage):
        draft.reply = (place, found[0])
    else:
        log.error("edit_not_shown", turn=actor.turn_id, calls=[edit.call_id for edit in edits])
