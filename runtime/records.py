"""Small records of the face that describe nodes."""

from __future__ import annotations

from ..actors.record import Record, Time, utc
from ..store import base


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
    relayed: int
    """Messages passed on to the chat memory of the application's own; repetitions count."""
    relay_failures: int
    """Times that this failed; it is tried again."""
    unrelayed: int
    """Conversations of which this node knows that something is still to be passed on."""
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
