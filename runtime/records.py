"""Small records of the face that describe nodes, and the address of a conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from ..actors.record import Record, Time, utc
from ..store import base

if TYPE_CHECKING:
    from .node import Node
    from .ref import TurnRef


class Statistics(Record, frozen=True, kw_only=True):
    """What a node does right now, and what it has counted since it was opened."""

    live_turns: int
    """Activations that live here."""
    effects: int
    """Model requests, tool attempts and questions to policies under way."""
    threads: int
    """Worker threads in use by tools, those nobody waits for any more included."""
    watched_trees: int
    """Trees that somebody in this process watches."""
    claims: int
    """Turns claimed so far."""
    lost: int
    """Activations that ended because their lease was lost."""
    reaped: int
    """Turns taken from owners that were gone."""
    draining: bool


class NodeInfo(Record, frozen=True, kw_only=True):
    """A node that has announced itself, when it did so last, and the agents (``id@version``) it runs."""

    node: str
    seen_at: Time
    agents: tuple[str, ...] = ()

    @classmethod
    def of(cls, row: base.NodeRow) -> NodeInfo:
        """Return the announcement of a node."""
        return cls(node=row.node, seen_at=utc(row.beat), agents=row.agents)


@final
class ConversationRef:
    """The address of a conversation."""

    def __init__(self, node: Node, conversation_id: str) -> None:
        self._node = node
        self.id = conversation_id

    async def open_turn(self) -> TurnRef | None:
        """Return the conversation's open turn, if it has one."""
        from .ref import TurnRef

        reply = await self._node.call(base.OpenTurn(conversation=self.id))
        assert isinstance(reply, base.Opened)
        return None if reply.turn is None else TurnRef(self._node, reply.turn)

    def __repr__(self) -> str:
        return f"<ConversationRef {self.id!r}>"
