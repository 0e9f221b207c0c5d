"""A store core over a real Redis, for the random driver: the draft scripts, and plain reads for the rest."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from turnhold.actors.ids import root_of, turn_of_wait
from turnhold.store import base
from turnhold.store.below import below

from . import redis_scripts as scripts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

    from turnhold.store.base import Op, Reply

# Virtual time, and no key that is not in KEYS.
CLOCK = """
local now = tonumber(redis.call('GET', KEYS[#KEYS]))
local named, server = {}, redis
for _, key in ipairs(KEYS) do named[key] = true end
local redis = {call = function(command, ...)
  local last = (command == 'DEL' or command == 'UNLINK') and select('#', ...) or 1
  for n = 1, last do
    if not named[select(n, ...)] then error(command .. ' of a key that is not in KEYS: ' .. select(n, ...)) end
  end
  return server.call(command, ...)
end}
"""
LATER_MS = 3_600_000
NODES_MS = 3_600_000


class RedisCore:
    """Applies operations to a Redis; with `virtual`, at the time given, else at the server's.

    `only` puts all turns into one partition: for callers whose conversations do not keep to their own.
    """

    def __init__(self, client: redis.Redis, namespace: str = "t", *, virtual: bool = True, only: str | None = None) -> None:
        self.client: Any = client
        self.keys = scripts.Keys(namespace, only)
        self.clock = f"{namespace}:clock"
        self.virtual = virtual
        self.calls = 0
        self._now = 0
        self._partitions: dict[str, None] = {}
        clock = CLOCK if virtual else None
        self._sha = {name: self.client.script_load(scripts.source(name, clock)) for name in scripts.SCRIPTS}

    def apply(self, op: Op, now: int) -> Reply:
        """Apply one operation at `now`, or at the greatest time seen so far."""
        self._now = now = max(now, self._now)
        reader = READERS.get(type(op))
        if reader is not None:
            return reader(self, op, now)
        return self.write(op)

    def write(self, op: Op) -> Reply:
        """Run an operation that is one script."""
        reply = self.run(scripts.PACKERS[type(op)](self.keys, op))
        if isinstance(op, base.Renew):
            return base.Renewed(reply[0], tuple(reply[1:]))
        kind, *values = reply
        if isinstance(op, base.Create) and kind in {b"EXISTS", b"REUSED"}:
            return (base.Existing if kind == b"EXISTS" else base.KeyReused)(op.new.turn)
        if kind == b"BUSY":
            turn = values[0].decode()
            return base.Busy(turn, self.field(turn, "ss").decode())
        return scripts.REPLIES[kind](*values)

    def run(self, script: scripts.Script) -> Any:
        """Call a script."""
        name, keys, args = script
        self._partitions[keys[0].partition("}")[0][-2:]] = None
        if self.virtual:
            self.client.set(self.clock, self._now)
            keys = [*keys, self.clock]
        self.calls += 1
        return self.client.evalsha(self._sha[name], len(keys), *keys, *args)

    def field(self, turn: str, name: str) -> Any:
        """Read one field of a record."""
        return self.client.hget(self.keys.turn(turn, "t")[0], name)

    def partitions(self, name: str) -> Iterator[str]:
        """Yield a key's name in each partition in use."""
        for partition in sorted(self._partitions):
            yield self.keys.partition(partition, name)[0]

    # ------------------------------------------------------------------------------------------------------ rewinds

    def take(self) -> dict[bytes, bytes]:
        """Return all that is stored."""
        return {key: self.client.dump(key) for key in self.client.scan_iter()}

    def put_back(self, state: dict[bytes, bytes]) -> None:
        """Make what is stored what it was when it was taken."""
        self.client.flushdb()
        for key, value in state.items():
            self.client.restore(key, 0, value)

    # ------------------------------------------------------------------------------------------------ composed writes

    def discard(self, op: base.Discard, now: int) -> Reply:
        """End a record that nobody can read; its parent's keys must be named."""
        parent = self.field(op.turn, "pa")
        kind, *_ = self.run(scripts.discard(self.keys, op, None if parent is None else parent.decode()))
        return scripts.REPLIES[kind]()

    def renew(self, op: base.Renew, now: int) -> Reply:
        """Extend leases, partition by partition."""
        flags: dict[int, int] = {}
        partitions: dict[str, list[int]] = {}
        for place, (turn, _) in enumerate(op.leases):
            partitions.setdefault(turn[:2], []).append(place)
        for places in partitions.values():
            part = base.Renew(leases=tuple(op.leases[place] for place in places), lease_ms=op.lease_ms)
            reply = self.run(scripts.renew(self.keys, part))
            now, *values = reply
            flags.update(zip(places, values, strict=True))
        return base.Renewed(now, tuple(flags[place] for place in range(len(op.leases))))

    def beat(self, op: base.Beat, now: int) -> Reply:
        """Announce a node, or take it off the list."""
        if op.leave:
            self.client.hdel("nodes", op.node)
        else:
            self.client.hset("nodes", op.node, msgspec.msgpack.encode(base.NodeRow(op.node, now, op.agents)))
        return base.Done()

    def prune(self, op: base.Prune, now: int) -> Reply:
        """Drop trees past retention; replies and seen ids end by themselves."""
        for key in self.partitions("over"):
            for root in self.client.zrange(key, "-inf", now, byscore=True, offset=0, num=op.limit):
                children = self.client.lrange(self.keys.tree(root.decode(), "k")[0], 0, -1)
                self.run(scripts.drop(self.keys, [root.decode(), *(child.decode() for child in children)], LATER_MS))
        for row in self.nodes():
            if row.beat + NODES_MS <= now:
                self.client.hdel("nodes", row.node)
        return base.Done()

    # --------------------------------------------------------------------------------------------------------- reads

    def read_mail(self, op: base.ReadMail, now: int) -> Reply:
        """Read unconsumed mail and the cancel flag."""
        mail = self.client.lrange(self.keys.turn(op.turn, "i")[0], 0, op.batch - 1)
        return base.MailBatch(now, tuple(map(scripts.mail_of, mail)), scripts.maybe(self.field(op.turn, "cx")))

    def find(self, op: base.Find, now: int) -> Reply:
        """Look up receipts by any key."""
        receipts = self.keys.tree(op.root, "r")[0]

        def by(prefix: str, name: str) -> bytes | None:
            wait = self.client.hget(receipts, prefix + name)
            return None if wait is None else self.client.hget(receipts, b"w" + wait)

        waits = [self.client.hget(receipts, f"w{wait}") for wait in op.waits]
        commands, calls = [by("c", name) for name in op.commands], [by("k", name) for name in op.calls]
        return base.Found((*commands, *waits, *calls))

    def look(self, op: base.Look, now: int) -> Reply:
        """Read a turn and the open waits of its tree."""
        return self.looked(op.turn, now) or base.Gone()

    def read_history(self, op: base.ReadHistory, now: int) -> Reply:
        """Read history entries."""
        bodies = self.client.lrange(self.keys.turn(op.turn, "h")[0], op.start, op.start + op.limit - 1)
        return base.Entries(tuple(bodies))

    def read_events(self, op: base.ReadEvents, now: int) -> Reply:
        """Read event batches."""
        batches = []
        for packed in self.client.lrange(self.keys.turn(op.turn, "e")[0], 0, -1):
            first, count, epoch, body = packed.split(b"\0", 3)
            if int(first) + int(count) - 1 > op.after:
                batches.append((int(first), int(count), int(epoch), body))
        last, state = self.field(op.turn, "ev"), self.field(op.turn, "st")
        return base.EventBatches(tuple(batches[: op.limit]), int(last or 0), state == b"T")

    def read_replies(self, op: base.ReadReplies, now: int) -> Reply:
        """Read answers by message id."""
        stored = [self.client.hget(self.keys.tree(op.turn, "y")[0], name) for name in op.message_ids]
        return base.Found(tuple(None if value is None else value.split(b"\0", 1)[1] for value in stored))

    def versions(self, op: base.Versions, now: int) -> Reply:
        """Read how far turns are."""
        rows = [self.client.hmget(self.keys.turn(turn, "t")[0], "v", "ev", "st", "tv") for turn in op.turns]
        return base.Progress(
            tuple((-1, 0, "", 0) if v is None else (int(v), int(ev), st.decode(), int(tv or 0)) for v, ev, st, tv in rows)
        )

    def due(self, op: base.Due, now: int) -> Reply:
        """Read turns that may run."""
        wakes = sorted((int(wake), turn.decode()) for turn, wake in self.scored("wake"))
        ready = (turn for wake, turn in wakes if wake <= now)
        later = next((wake for wake, _ in wakes if wake > now), None)
        return base.DueTurns(tuple(islice(ready, op.offset, op.offset + op.limit)), later, now)

    def expired(self, op: base.Expired, now: int) -> Reply:
        """Read turns whose owner is gone."""
        over, later = [], []
        for turn, lease in self.scored("leases"):
            ends = int(lease) + op.grace_ms
            dead = (scripts.maybe(self.field(turn.decode(), "nd")) or "") in op.dead_nodes
            (over.append((ends, turn.decode())) if ends <= now or dead else later.append(ends))
        return base.DueTurns(tuple(turn for _, turn in sorted(over)[: op.limit]), min(later, default=None), now)

    def list_waits(self, op: base.ListWaits, now: int) -> Reply:
        """Read open waits of all trees."""
        entries = sorted((int(created), wait.decode()) for wait, created in self.scored("waits"))
        page: list[bytes] = []
        last = None
        for entry in entries:
            if op.after is not None and entry <= (base.read_cursor(op.after) or entry):
                continue
            row = self.waits(turn_of_wait(entry[1]))[entry[1]]
            fits = all(want in {None, has} for want, has in _pairs(op, row)) and row.kind not in op.without
            if fits and len(page) == op.limit:
                return base.WaitListing(tuple(page), last)
            if fits:
                page.append(row.body)
                last = base.cursor(*entry)
        return base.WaitListing(tuple(page), None)

    def list_turns(self, op: base.ListTurns, now: int) -> Reply:
        """Read records."""
        wanted = {name: getattr(op, name) for name in ("status", "agent", "conversation", "parent", "tenant")}
        entries = sorted((int(score % 1e13), turn.decode()) for turn, score in self.scored("turns"))
        page: list[base.Looked] = []
        last = None
        for entry in entries:
            if op.after is not None and entry <= (base.read_cursor(op.after) or entry):
                continue
            row = self.looked(entry[1], now)
            assert row is not None
            fits = all(want in {None, getattr(row, name)} for name, want in wanted.items())
            fits = fits and op.root in {None, root_of(row.turn)} and op.quarantined in {None, row.quarantine is not None}
            if fits and len(page) == op.limit:
                return base.TurnListing(tuple(page), last)
            if fits:
                page.append(row)
                last = base.cursor(*entry)
        return base.TurnListing(tuple(page), None)

    def open_turn(self, op: base.OpenTurn, now: int) -> Reply:
        """Read a conversation's entry."""
        for key in self.partitions("open"):
            turn = self.client.hget(key, op.conversation)
            if turn is not None:
                return base.Opened(turn.decode(), self.field(turn.decode(), "ss").decode())
        return base.Opened(None)

    def list_nodes(self, op: base.ListNodes, now: int) -> Reply:
        """Read the announced nodes."""
        return base.Nodes(tuple(self.nodes()), now)

    # ------------------------------------------------------------------------------------------------------- helpers

    def nodes(self) -> list[base.NodeRow]:
        """Read all nodes."""
        return [msgspec.msgpack.decode(row, type=base.NodeRow) for row in self.client.hvals("nodes")]

    def scored(self, name: str) -> list[tuple[bytes, float]]:
        """Read a sorted set of all partitions."""
        return [entry for key in self.partitions(name) for entry in self.client.zrange(key, 0, -1, withscores=True)]

    def waits(self, turn: str) -> dict[str, base.WaitRow]:
        """Read a turn's open waits."""
        rows = (packed.split(b"\0", 1) for packed in self.client.lrange(self.keys.turn(turn, "w")[0], 0, -1))
        return {name.decode(): msgspec.msgpack.decode(row, type=base.WaitRow) for name, row in rows}

    def looked(self, turn: str, now: int) -> base.Looked | None:
        """Read a record."""
        raw = self.client.hgetall(self.keys.turn(turn, "t")[0])
        if not raw:
            return None
        row = {name.decode(): value.decode() for name, value in raw.items()}
        every = [root_of(turn), *(child.decode() for child in self.client.lrange(self.keys.tree(turn, "k")[0], 0, -1))]
        tree = below(turn, [(member, (self.field(member, "pa") or b"").decode() or None) for member in every])
        records = [(self.field(member, "st"), self.wake(member)) for member in tree]
        return base.Looked(
            turn=turn,
            parent=row.get("pa"),
            agent=row["ag"],
            agent_version=row["av"],
            conversation=row.get("cv"),
            tenant=row.get("tn"),
            schema=int(row["sc"]),
            status=row["ss"],
            state=row["st"],
            version=int(row["v"]),
            snapshot=self.client.get(self.keys.turn(turn, "s")[0]),
            activation=row.get("own") or None,
            node=row.get("nd") or None,
            epoch=int(row["ep"]),
            lease=int(row.get("lu", 0)),
            wake=self.wake(turn),
            cancel=row.get("cx"),
            crashes=int(row.get("cr", 0)),
            quarantine=row.get("q"),
            quarantined_at=int(row.get("qa", 0)),
            message_count=self.client.llen(self.keys.turn(turn, "h")[0]),
            event_count=int(row["ev"]),
            created=int(row["cre"]),
            updated=int(row["upd"]),
            now=now,
            wait_bodies=tuple(wait.body for member in tree for wait in self.waits(member).values()),
            live_turns=sum(state != b"T" for state, _ in records),
            runnable_turns=sum(state in {b"A", b"R"} or (due or now + 1) <= now for state, due in records),
        )

    def wake(self, turn: str) -> int | None:
        """Read when a turn may be claimed."""
        wake = self.client.zscore(self.keys.partition(turn, "wake")[0], turn)
        return None if wake is None else int(wake)


def _pairs(op: base.ListWaits, row: base.WaitRow) -> list[tuple[str | None, str | None]]:
    return [(op.agent, row.agent), (op.tenant, row.tenant), (op.assignee, row.assignee), (op.kind, row.kind)]


READERS: dict[type[Op], Callable[[RedisCore, Any, int], Reply]] = {
    base.Renew: RedisCore.renew,
    base.Discard: RedisCore.discard,
    base.Beat: RedisCore.beat,
    base.Prune: RedisCore.prune,
    base.ReadMail: RedisCore.read_mail,
    base.Find: RedisCore.find,
    base.Look: RedisCore.look,
    base.ReadHistory: RedisCore.read_history,
    base.ReadEvents: RedisCore.read_events,
    base.ReadReplies: RedisCore.read_replies,
    base.Versions: RedisCore.versions,
    base.Due: RedisCore.due,
    base.Expired: RedisCore.expired,
    base.ListWaits: RedisCore.list_waits,
    base.ListTurns: RedisCore.list_turns,
    base.OpenTurn: RedisCore.open_turn,
    base.ListNodes: RedisCore.list_nodes,
}
