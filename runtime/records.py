"""Small records of the face that describe nodes, and the address of a conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from ..actors.record import JsonValue, Record, Time, utc
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
    home_partitions: int
    """Partitions of the store that this node looks at first; 0 where nodes do not share them."""
    unclaimable: int
    """Due turns that this node has seen and cannot run: it does not know their agent, or they are of a newer release."""
    stranded: int
    """Those of them whose agent no live node announces (as far as this node knows them): nobody will run them."""
    longest_stall: float
    """The longest time in seconds for which the event loop did not answer; 0 where there was none worth a warning."""
    claims: int
    """Turns claimed so far."""
    held: int
    """Claims that found another owner: others were faster."""
    lost: int
    """Activations that ended because their lease was lost."""
    fenced: int
    """Calls that the store refused because another activation owns the turn now."""
    renewals_failed: int
    """Renewals of leases that the store did not answer, by batches and their repetitions."""
    reaped: int
    """Turns taken from owners that were gone."""
    quarantined: int
    """Turns parked by this node: unreadable, or crashed too often."""
    bells: int
    """Hints from the store that a turn may need somebody."""
    unconfirmed: int
    """Saves that no replica of the store has confirmed in time, where that was asked for."""
    rewinds: int
    """Saves repeated with what the store had forgotten before them."""
    forgotten: int
    """Starts of `once` calls that the store has forgotten, and that could not be marked in doubt."""
    hooks_failed: int
    """Hooks around steps that raised when their step was over."""
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

    async def open_turn(self) -> TurnRef[JsonValue] | None:
        """Return the conversation's open turn, if it has one."""
        from .ref import TurnRef

        reply = await self._node.call(base.OpenTurn(conversation=self.id))
        assert isinstance(reply, base.Opened)
        return None if reply.turn is None else TurnRef(self._node, reply.turn)

    def __repr__(self) -> str:
        return f"<ConversationRef {self.id!r}>"
