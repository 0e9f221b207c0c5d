"""The address of a conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from ..actors.checks import MAX_NAME, check_text
from ..actors.memory import MemoryMessage
from ..actors.record import JsonValue
from ..store import base
from . import inputs
from .memory import checked, readable_entries, within

if TYPE_CHECKING:
    from .node import Node
    from .ref import TurnRef


@final
class ConversationRef:
    """The address of a conversation; hold as many as you like, anywhere."""

    def __init__(self, node: Node, conversation_id: str) -> None:
        self._node = node
        self.id = conversation_id

    def __repr__(self) -> str:
        return f"<ConversationRef {self.id!r}>"

    async def open_turn(self) -> TurnRef[JsonValue] | None:
        """Return the conversation's open turn, if it has one."""
        from .ref import TurnRef

        reply = await self._node.call(base.OpenTurn(conversation=self.id))
        assert isinstance(reply, base.Opened)
        return None if reply.turn is None else TurnRef(self._node, reply.turn)

    async def queued(self) -> list[TurnRef[JsonValue]]:
        """Return the turns that wait for the open one to end, in the order in which they will run."""
        from .ref import TurnRef

        reply = await self._node.call(base.ListQueue(conversation=self.id))
        assert isinstance(reply, base.DueTurns)
        return [TurnRef(self._node, turn) for turn in reply.turns]

    async def messages(self, limit: int = 50, before: str | None = None) -> list[MemoryMessage]:
        """Return the newest messages, cards included, oldest first; with an own chat memory those that it has.

        :param limit: how many at most, from 1 to 1000.
        :param before: the id of a message: those before it; of one that is not there: the newest.
        :raises InvalidDefinition: if an argument is wrong.
        :raises TimeoutError: if an own chat memory does not answer within 30 s.
        :raises TypeError: if it answers with anything but a list of its messages.
        """
        limit = inputs.page_limit(limit)
        check_text("before", before, MAX_NAME, optional=True, empty=False)
        own = self._node.relay.own
        if own is not None:
            return checked(await within(self._node, own.page(self.id, before, limit)))
        reply = await self._node.call(base.ReadMemory(conversation=self.id, before=before, limit=limit))
        assert isinstance(reply, base.Memory)
        return readable_entries(self.id, reply.entries)

    async def clear(self) -> None:
        """Forget what was said; turns go on, and what they say from now on is remembered. A second time does nothing.

        It empties the memory in the store. An own chat memory is yours to empty, once nothing is left to be passed on to it.
        """
        await self._node.call(base.ClearMemory(conversation=self.id))
