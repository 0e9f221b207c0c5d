"""A private Redis Cluster for the tests: three masters, replicas if wanted; slots are moved and masters killed at will."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, Self

from .redis_server import HOST, RedisServer, wait_until

MASTERS = 3
SLOTS = 16_384


class NodeView(NamedTuple):
    """What one node says of another: as CLUSTER NODES has it."""

    role: Literal["master", "replica", "unknown"]
    master: str  # id of a replica's master, else "-"
    failed: bool
    linked: bool
    slots: frozenset[int]


class RedisCluster:
    """Three masters with a third of the slots each, and `replicas` for each master, from `with` to its end.

    `nodes` are the masters and then their replicas, as they were at the start: replica n of master m is node
    `3 + n * 3 + m`. A node found dead is given up after `node_timeout` milliseconds; with `full_coverage` all slots are
    down as soon as one is. Options are those of each server. It takes 2 s to start: no younger master takes writes.
    """

    def __init__(self, *, replicas: int = 0, node_timeout: int = 1_000, full_coverage: bool = True, **options: Any) -> None:
        settings = {
            "cluster_node_timeout": node_timeout,
            "cluster_require_full_coverage": "yes" if full_coverage else "no",
            "cluster_allow_replica_migration": "no",
            **options,
        }
        self.nodes = [RedisServer(cluster=True, **settings) for _ in range(MASTERS * (1 + replicas))]
        self.ids: dict[RedisServer, str] = {}

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The URL of the first node that runs."""
        return f"redis+cluster://{HOST}:{self.running[0].port}"

    @property
    def running(self) -> list[RedisServer]:
        return [node for node in self.nodes if node.running]

    def start(self) -> None:
        """Start the nodes, introduce them to each other and wait until they agree."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(RedisServer.start, self.nodes))
        self.ids = {node: node.cli("CLUSTER", "MYID") for node in self.nodes}
        for epoch, node in enumerate(self.nodes):
            node.cli("CLUSTER", "SET-CONFIG-EPOCH", epoch + 1)
            if epoch < MASTERS:
                first, behind = (SLOTS * number // MASTERS for number in (epoch, epoch + 1))
                node.cli("CLUSTER", "ADDSLOTSRANGE", first, behind - 1)
        for node in self.nodes[1:]:
            self.nodes[0].cli("CLUSTER", "MEET", HOST, node.port, node.bus_port)
        for place, node in enumerate(self.nodes[MASTERS:]):
            master = self.ids[self.nodes[place % MASTERS]]
            wait_until(lambda node=node, master=master: master in self.view(node), "the replica knows its master")
            node.cli("CLUSTER", "REPLICATE", master)
        for node in self.nodes[MASTERS:]:
            node.wait_synced()
        self.wait_agreed()

    def close(self) -> None:
        """Kill all nodes and forget their data."""
        for node in self.nodes:
            node.close()

    def view(self, node: RedisServer) -> dict[str, NodeView]:
        """Return what this node says of all nodes, by id."""
        return {line.split(" ", 1)[0]: _parsed(line) for line in node.cli("CLUSTER", "NODES").splitlines()}

    def state(self, node: RedisServer) -> str:
        """Return what this node says of the cluster: ok or fail."""
        return node.cli("CLUSTER", "INFO").split("cluster_state:")[1].split()[0]

    def masters(self) -> list[RedisServer]:
        """Return the running nodes that are masters and have slots, in the order of `nodes`."""
        return [node for node in self.running if _own(self.view(node)[self.ids[node]])]

    def replicas(self, master: RedisServer) -> list[RedisServer]:
        """Return the running replicas of a master, dead or alive, as they see it themselves."""
        return [node for node in self.running if self.view(node)[self.ids[node]].master == self.ids[master]]

    def slot(self, key: str) -> int:
        return self.running[0].cli("CLUSTER", "KEYSLOT", key)

    def owner(self, slot: int) -> RedisServer:
        """Return the master that says that the slot is its own."""
        return next(node for node in self.masters() if slot in self.view(node)[self.ids[node]].slots)

    def wait_agreed(self) -> None:
        """Wait until the running nodes tell one story and each says that the cluster is ok."""
        wait_until(self._agreed, "all nodes agree that the cluster is ok")

    def wait_state(self, state: Literal["ok", "fail"]) -> None:
        """Wait until each running node says that the cluster is in this state."""
        wait_until(lambda: {self.state(node) for node in self.running} == {state}, f"the cluster is {state}")

    def promote(self, replica: RedisServer, how: Literal["", "FORCE", "TAKEOVER"] = "") -> None:
        """Make a replica the master and wait until all know; a dead master needs FORCE or, without a majority, TAKEOVER."""
        replica.cli("CLUSTER", "FAILOVER", *how.split())
        name = self.ids[replica]
        wait_until(lambda: all(_own(self.view(node)[name]) for node in self.running), "all know the new master")

    def move(self, slot: int, target: RedisServer) -> SlotMove:
        """Return the steps by which a slot goes to another master; none is taken yet."""
        return SlotMove(self, slot, target)

    def _agreed(self) -> bool:
        running = self.running
        views = [self.view(node) for node in running]
        if any(view.keys() != set(self.ids.values()) for view in views):
            return False
        stories = {frozenset((name, node.role, node.master, node.slots) for name, node in view.items()) for view in views}
        alive = all(view[self.ids[node]].linked and not view[self.ids[node]].failed for view in views for node in running)
        return alive and len(stories) == 1 and {self.state(node) for node in running} == {"ok"}


class SlotMove:
    """One slot on its way to another master, as redis-cli does it, so that a test can stay between the steps.

    Between `begin` and `finish` the source answers ASK for keys that it has not, and both answer TRYAGAIN to a command on
    several keys of which only some are there.
    """

    def __init__(self, cluster: RedisCluster, slot: int, target: RedisServer) -> None:
        self.slot = slot
        self.source = cluster.owner(slot)
        self.target = target
        self._cluster = cluster

    def begin(self) -> None:
        """Let the target take keys of the slot, and the source send away those who ask for one that it has not."""
        self.target.cli("CLUSTER", "SETSLOT", self.slot, "IMPORTING", self._cluster.ids[self.source])
        self.source.cli("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self._cluster.ids[self.target])

    def keys(self) -> list[str]:
        """Return the keys of the slot that are still at the source."""
        return self.source.cli("CLUSTER", "GETKEYSINSLOT", self.slot, 1_000_000)

    def carry(self, *keys: str) -> None:
        """Carry these keys over, by default all that are still at the source."""
        if chosen := keys or self.keys():
            self.source.cli("MIGRATE", HOST, self.target.port, "", 0, 5_000, "KEYS", *chosen)

    def finish(self) -> None:
        """Make the target the owner, tell every master and wait until all nodes agree."""
        others = [node for node in self._cluster.masters() if node not in {self.source, self.target}]
        for node in (self.target, self.source, *others):
            node.cli("CLUSTER", "SETSLOT", self.slot, "NODE", self._cluster.ids[self.target])
        self._cluster.wait_agreed()

    def abort(self) -> None:
        """Bring back the keys that went over, and let the slot stay with the source."""
        self.source.cli("CLUSTER", "SETSLOT", self.slot, "STABLE")
        if gone := self.target.cli("CLUSTER", "GETKEYSINSLOT", self.slot, 1_000_000):
            self.target.cli("MIGRATE", HOST, self.source.port, "", 0, 5_000, "KEYS", *gone)
        self.target.cli("CLUSTER", "SETSLOT", self.slot, "STABLE")
        self._cluster.wait_agreed()


def _own(node: NodeView) -> bool:
    return node.role == "master" and bool(node.slots)


def _parsed(line: str) -> NodeView:
    _, _, flags, master, _, _, _, link, *ranges = line.split(" ")
    words = set(flags.split(","))
    role = "unknown" if "handshake" in words else "master" if "master" in words else "replica" if "slave" in words else "unknown"
    slots: set[int] = set()
    for part in ranges:
        if not part.startswith("["):  # a slot on its way, only its two ends have these
            first, _, last = part.partition("-")
            slots.update(range(int(first), int(last or first) + 1))
    return NodeView(role, master, bool(words & {"fail", "fail?"}), link == "connected", frozenset(slots))
