"""Who looks where: nodes on one partitioned store share its partitions without talking to each other.

Every node reads the same list of announced nodes and gives each partition to the node that scores highest for it (rendezvous
hashing), so a node that comes or goes moves only its own share. If the lists differ for a while, only latency suffers: a partition
that nobody takes for its own is still looked at by everybody now and then, and one that two take is claimed from by one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from ..actors.ids import PARTITIONS
from ..store import base


def score(node: str, partition: int) -> int:
    """Return how much a node wants a partition; the same in every process.

    A checksum alone is linear: two names would differ by the same bits in every partition. The multiplication breaks that.
    """
    mixed = (zlib.crc32(node.encode()) << 32 | zlib.crc32(b"%d" % partition)) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    mixed ^= mixed >> 29
    mixed = mixed * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
    return mixed ^ mixed >> 32


def home_of(partition: int, nodes: Iterable[str]) -> str | None:
    """Return the node that scores highest for a partition, `None` where there is none."""
    return max(nodes, key=lambda node: (score(node, partition), node), default=None)


class Homes:
    """The live executors, as far as this node knows, and what is whose.

    :param node: this node; it counts as live from its own point of view.
    :param agents: what this node runs (``id@version``); none: it is nobody's home.
    :param stale: milliseconds without a beat after which a node counts as gone.
    :param shared: whether nodes share the partitions; where not, nothing has a home, as one look covers everything.
    """

    def __init__(self, node: str, agents: Iterable[str], stale: int, *, shared: bool) -> None:
        self.shared = shared
        self._node = node
        self._own = frozenset(agents)
        self._stale = stale
        self._live: dict[str, frozenset[str]] = {}
        self._mine: tuple[int, ...] = ()
        self._homes: dict[tuple[int, str], str | None] = {}
        self.version = 0
        self._know({})

    def run(self, agents: Iterable[str]) -> None:
        """This node runs other agents from now on."""
        self._own = frozenset(agents)
        self._know({node: known for node, known in self._live.items() if node != self._node})

    def learn(self, nodes: base.Nodes) -> None:
        """Take in the list of announced nodes; those that announce no agent run none."""
        since = nodes.now - self._stale
        self._know({row.node: frozenset(row.agents) for row in nodes.nodes if row.agents and row.beat > since})

    def _know(self, live: dict[str, frozenset[str]]) -> None:
        if self._own:
            live[self._node] = self._own
        if live == self._live:
            return
        self._live = live
        self._homes.clear()
        if self.shared and self._own:
            self._mine = tuple(number for number in range(PARTITIONS) if home_of(number, live) == self._node)
        self.version += 1

    @property
    def mine(self) -> tuple[int, ...]:
        """Return the partitions whose home is this node."""
        return self._mine

    def takes(self, partition: int, agent: str) -> bool:
        """Tell whether, of the live nodes that run an agent (``id@version``), this one is a partition's home."""
        if agent not in self._own:
            return False
        key = (partition, agent)
        if key not in self._homes:
            self._homes[key] = home_of(partition, [node for node, agents in self._live.items() if agent in agents])
        return self._homes[key] == self._node

    def announced(self, agent: str) -> bool:
        """Tell whether any live node runs an agent (``id@version``)."""
        return any(agent in agents for agents in self._live.values())
