"""What is remembered of a conversation, and what a memory of your own has to offer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from .cards import ActionMessage, Card, FormMessage
from .chat import AiMessage, SystemMessage, ToolMessage, UserMessage
from .record import Record, Time

Remembered: TypeAlias = SystemMessage | UserMessage | AiMessage | ToolMessage | ActionMessage | FormMessage


class MemoryMessage(Record, frozen=True, kw_only=True):
    """One message of a conversation.

    `id` is unique in the conversation: ``turn:position`` for what a turn's history has, ``turn:approval:call`` and
    ``turn:input:call`` for cards. `turn_id` is the turn that wrote it (a child for a child's card; `None`: no turn of ours).
    `version` counts how often it was replaced: a card when its wait has ended, a reply when a person has edited a call of it.
    """

    id: str
    turn_id: str | None = None
    at: Time
    version: int = 0
    message: Remembered

    @property
    def shown(self) -> bool:
        """Tell whether a model may see it: cards are for people."""
        return not isinstance(self.message, Card)


@runtime_checkable
class ChatMemory(Protocol):
    """A memory of your own, instead of the one in the store; all nodes on a store need it, also those that run nothing.

    Messages are passed on in order, each until that has succeeded once; so any of them may come again, also from another node.
    Every call may raise, or take its time (up to 30 s): it is repeated later, and no turn fails of it.
    """

    async def append(self, conversation_id: str, message: MemoryMessage) -> bool:
        """Add a message at the end; false where there is one with its id already, which stays as it is."""
        ...

    async def page(self, conversation_id: str, before: str | None = None, limit: int = 64) -> Sequence[MemoryMessage]:
        """Return the newest `limit` messages before the one with the id `before` (of all where that is None), oldest first."""
        ...

    async def get(self, conversation_id: str, message_id: str) -> MemoryMessage | None:
        """Return a message by its id."""
        ...

    async def replace(self, conversation_id: str, message: MemoryMessage, expected_version: int) -> bool:
        """Put a message in the place of the one with its id, where that has this version; false (and nothing) where not."""
        ...
