"""One node's use of a Redis: operations, the server's time, bells."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeAlias, cast

import msgspec

from ..actors.errors import StoreUnavailable
from . import base, redis_pack
from .base import Bell, Live, Op, Reply
from .node_names import MARK, name_of, with_key, with_name
from .redis_bells import Bells
from .redis_keys import Keys
from .redis_link import pack
from .redis_memory import RedisMemory
from .redis_pack import Script
from .redis_place import Place
from .redis_reads import Command
from .redis_replies import maybe, reply_of
from .redis_scripts import Scripts
from .redis_servers import Question, Servers
from .redis_time import ServerTime

FORMAT = 3  # 1 knew no queues; 1 and 2 stored owners and open waits in another way
OLDEST = (7, 0)
BATCH = 200  # leases a script renews at once; about 2 ms of the server's time
CONFIRM_MS = 1000
LATER_MS = 3_600_000
NODES_MS = 3_600_000
SUCCEEDED_MS = 120_000  # a silent node is forgotten sooner where another has announced itself under its name since
Reader: TypeAlias = Callable[[Any, Any], Coroutine[Any, Any, Reply]]
_log = logging.getLogger("turnhold")


class RedisConnection(RedisMemory):
    """One node's use of a Redis."""

    def __init__(self, place: Place, scripts: Scripts, node: str, bell: Bell, live: Live | None) -> None:
        self.keys = Keys(place.namespace)
        self.key = node + MARK + secrets.token_hex(6)
        self._place = place
        self._scripts = scripts
        self._loop = asyncio.get_running_loop()
        self.servers = Servers(place, scripts)
        self.bells = Bells(place, self.servers, self.keys, self.key, bell, live)
        self.watch, self.unwatch = self.bells.watch, self.bells.unwatch
        self.publish, self.wants = self.bells.publish, self.bells.wants
        self.time = ServerTime(self._loop.time)

    # ----------------------------------------------------------------------------------------------------- life cycle

    async def open(self) -> None:
        """Find the servers, see that they and what they hold are known, and listen. :raises StoreUnavailable: if not."""
        await self.servers.learn()
        await self._check_server()
        await self._check_format()
        await self.time.begin(self._time)
        await self.bells.open()

    async def close(self) -> None:
        """Leave; what is under way is cut off. A second time does nothing."""
        await self.bells.close()
        await self.servers.close()

    async def _check_server(self) -> None:
        (info,) = await self._plain([("INFO", "everything")], key=self.keys.meta)
        found = dict(line.split(":", 1) for line in info.decode(errors="replace").splitlines() if ":" in line)
        version = found.get("redis_version", "7.0").split(".")
        if tuple(map(int, version[:2])) < OLDEST:
            raise StoreUnavailable(f"{self._place.shown} is Redis {'.'.join(version)}; 7.0 or later is needed", refused=True)
        if (found.get("cluster_enabled") == "1") != self._place.cluster:
            kind = (
                "a Redis Cluster: write redis+cluster://" if found.get("cluster_enabled") == "1" else "no Cluster: write redis://"
            )
            raise StoreUnavailable(f"{self._place.shown} is {kind}", refused=True)
        if found.get("maxmemory", "0") != "0" and found.get("maxmemory_policy") != "noeviction":
            _log.warning(
                "redis_may_evict: maxmemory-policy is %s; turns can be lost. Set noeviction", found.get("maxmemory_policy")
            )

    async def _check_format(self) -> None:
        found = await self._one(("format", [self.keys.meta], [FORMAT]))
        if found != str(FORMAT).encode():
            where = f"namespace {self.keys.namespace!r} at {self._place.shown}"
            raise StoreUnavailable(f"{where} is of format {found.decode()}, this release knows {FORMAT}", refused=True)

    # ----------------------------------------------------------------------------------------------------------- time

    def now(self) -> int:
        """Return the server's time in milliseconds, as far as it is known."""
        return self.time.now()

    async def _time(self) -> int:
        ((seconds, micros),) = await self._plain([("TIME",)], key=self.keys.meta)
        return int(seconds) * 1000 + int(micros) // 1000

    def dead_nodes(self) -> Sequence[str]:
        """Return nothing: a server cannot prove that a node is dead."""
        return ()

    # ------------------------------------------------------------------------------------------------------------ ask

    async def ask(self, commands: Sequence[Command], *, partly: bool = False) -> list[Any]:
        """Send plain commands, each with its key in second place; `partly`: None for those that are not answered in time."""
        slot = self.servers.slot
        questions = [Question(pack(command), slot=slot(cast("str", command[1]))) for command in commands]
        return await self.servers.ask(questions, partly=partly)

    async def run(self, scripts: Sequence[Script]) -> list[Any]:
        """Run scripts."""
        return await self.servers.ask([self.question(script) for script in scripts])

    async def _plain(self, commands: Sequence[Command], *, key: str) -> list[Any]:
        slot = self.servers.slot(key)
        return await self.servers.ask([Question(pack(command), slot=slot) for command in commands])

    def question(self, script: Script, lane: str = "main", confirm: int = 0) -> Question:
        """Return the question that runs a script."""
        name, keys, args = script
        data = pack(("EVALSHA", self._scripts.digests[name], len(keys), *keys, *args))
        return Question(data, confirm=confirm, slot=self.servers.slot(keys[0]), script=name, lane=lane)

    def _one(self, script: Script, lane: str = "main", confirm: int = 0) -> Awaitable[Any]:
        return self.servers.ask_one(self.question(script, lane, confirm))

    async def call(self, op: Op) -> Reply:
        """Apply an operation. :raises StoreUnavailable: if its outcome is not known in time, or the server refuses it."""
        return with_name(await self.apply(with_key(op, self.key)))

    def apply(self, op: Op) -> Coroutine[Any, Any, Reply]:
        """Apply an operation in which nodes are called by their keys."""
        script = redis_pack.PACKERS.get(type(op))
        return _READERS[type(op)](self, op) if script is None else self._run_one(op, script(self.keys, op))

    async def _run_one(self, op: Op, script: Script) -> Reply:
        asked = self._loop.time()
        return self._told(reply_of(op, await self._one(script)), asked)

    def _told(self, reply: Reply, asked: float) -> Reply:
        now: int | None = getattr(reply, "now", None)
        if now is not None:
            self.time.learn(now, asked)
        return reply

    # ------------------------------------------------------------------------------------------------ composed writes

    async def create(self, op: base.Create) -> Reply:
        """Create a root; the turns that it supersedes must be named, and are not known before the first answer."""
        others: list[str] = []
        while True:
            asked = self._loop.time()
            answer = await self._one(redis_pack.create(self.keys, op, others))
            if answer[0] != b"GROWN":
                break
            others = [turn.decode() for turn in answer[1]]
        if answer[0] == b"BUSY":
            turn = answer[1].decode()
            return base.Busy(turn, await self.status(turn) or "", answer[2])
        return self._told(reply_of(op, answer), asked)

    async def save(self, op: base.Save) -> Reply:
        """Commit a transition, and wait for a replica where that is asked for."""
        heirs: list[str] = []
        while True:
            script, replicas = redis_pack.save(self.keys, op, heirs), None
            asked = self._loop.time()
            if op.confirm:
                answer, replicas = await self._one(script, "confirm", CONFIRM_MS)
            else:
                answer = await self._one(script)
            if answer[0] != b"NEXT":
                break
            heirs.append(answer[1].decode())
        reply = self._told(reply_of(op, answer), asked)
        if op.confirm and isinstance(reply, base.Saved) and not (isinstance(replicas, int) and replicas > 0):
            return msgspec.structs.replace(reply, confirmed=False)
        return reply

    async def renew(self, op: base.Renew) -> Reply:
        """Extend leases, partition by partition, on a connection of their own."""
        partitions: dict[str, list[int]] = {}
        for place, (turn, _) in enumerate(op.leases):
            partitions.setdefault(turn[:2], []).append(place)
        batches = [places[first : first + BATCH] for places in partitions.values() for first in range(0, len(places), BATCH)]
        questions: list[Question] = []
        for places in batches:
            part = base.Renew(leases=tuple(op.leases[place] for place in places), lease_ms=op.lease_ms)
            questions.append(self.question(redis_pack.renew(self.keys, part), "renew"))
        flags: dict[int, int] = {}
        now, asked = self.now(), self._loop.time()
        for places, (now, *values) in zip(batches, await self.servers.ask(questions), strict=True):
            self.time.learn(now, asked)
            flags.update(zip(places, values, strict=True))
        return base.Renewed(now, tuple(flags[place] for place in range(len(op.leases))))

    async def discard(self, op: base.Discard) -> Reply:
        """End a record that nobody can read; its parent's keys must be named."""
        (parent,) = await self.ask([("HGET", *self.keys.turn(op.turn, "t"), "pa")])
        heirs: list[str] = []
        while True:
            answer = await self._one(redis_pack.discard(self.keys, op, maybe(parent), heirs))
            if answer[0] != b"NEXT":
                return reply_of(op, answer)
            heirs.append(answer[1].decode())

    async def beat(self, op: base.Beat) -> Reply:
        """Announce a node, or take it off the list; an idle node learns the server's time from nothing else."""
        agents = b"" if op.leave else msgspec.msgpack.encode(op.agents)
        asked = self._loop.time()
        _, now = await self._one(("beat", [self.keys.nodes], [op.node, agents]), "renew")
        self.time.learn(now, asked)
        return base.Done()

    async def prune(self, op: base.Prune) -> Reply:
        """Drop trees past retention, and nodes that are long gone; replies and seen ids end by themselves."""
        now = self.now()
        found = await self.ask([("ZRANGE", f"{tag}over", 0, now, "BYSCORE", "LIMIT", 0, op.limit) for tag in self.keys.tags])
        for root in [root.decode() for roots in found for root in roots][: op.limit]:
            (children,) = await self.ask([("LRANGE", *self.keys.tree(root, "k"), 0, -1)])
            await self._one(redis_pack.drop(self.keys, [root, *(child.decode() for child in children)], LATER_MS))
        nodes = await self.list_nodes(base.ListNodes())
        assert isinstance(nodes, base.Nodes)
        newest: dict[str, int] = {}
        for row in nodes.nodes:
            newest[name_of(row.node)] = max(row.beat, newest.get(name_of(row.node), 0))
        kept = {row.node: SUCCEEDED_MS if row.beat < newest[name_of(row.node)] else NODES_MS for row in nodes.nodes}
        if gone := [row.node for row in nodes.nodes if row.beat + kept[row.node] <= now]:
            await self.ask([("HDEL", self.keys.nodes, *gone)])
        return base.Done()


_READERS: dict[type[Op], Reader] = {
    base.Create: RedisConnection.create,
    base.Save: RedisConnection.save,
    base.Renew: RedisConnection.renew,
    base.Discard: RedisConnection.discard,
    base.Beat: RedisConnection.beat,
    base.Prune: RedisConnection.prune,
    base.ReadMail: RedisConnection.read_mail,
    base.Look: RedisConnection.look,
    base.ReadHistory: RedisConnection.read_history,
    base.ReadReplies: RedisConnection.read_replies,
    base.Versions: RedisConnection.versions,
    base.Due: RedisConnection.due,
    base.Expired: RedisConnection.expired,
    base.ListWaits: RedisConnection.list_waits,
    base.ListTurns: RedisConnection.list_turns,
    base.OpenTurn: RedisConnection.open_turn,
    base.ListQueue: RedisConnection.list_queue,
    base.ListNodes: RedisConnection.list_nodes,
    base.WriteMemory: RedisConnection.write_memory,
    base.ReadMemory: RedisConnection.read_memory,
    base.FindMemory: RedisConnection.find_memory,
    base.ClearMemory: RedisConnection.clear_memory,
    base.Relays: RedisConnection.relays,
    base.ReadRelay: RedisConnection.read_relay,
    base.Relayed: RedisConnection.relayed,
    base.ReadNote: RedisConnection.read_note,
    base.WriteNote: RedisConnection.write_note,
}
