"""One turn under test in Redis and in memory, with short ways to write its operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from turnhold.actors.ids import child_id, root_id, wait_id
from turnhold.store import base
from turnhold.store.memory_core import MemoryCore

from .redis_core import RedisCore

if TYPE_CHECKING:
    import redis

START = 1_700_000_000_000
ROOT = root_id(b"\x07" * 26, None, None, "test")
CHILD = child_id(ROOT, b"\x01" * 10)
WAIT = wait_id(ROOT, "call-1", 1)


class Both:
    """A Redis core and a memory core that must give the same replies."""

    def __init__(self, client: redis.Redis) -> None:
        self.redis, self.memory = RedisCore(client), MemoryCore()
        self.now = START
        self.calls = 0
        self.version = self.history = self.events = 0
        self.token = base.Token("", 0)

    def __call__(self, op: base.Op, later: int = 1) -> Any:
        self.now += later
        self.calls += 1
        reply = self.redis.apply(op, self.now)
        assert reply == self.memory.apply(op, self.now)
        return reply

    def claimed(self, op: base.Op, by: base.ClaimBy, later: int = 1) -> base.Claimed:
        """Apply what claims; what follows is saved by this owner."""
        reply = self(op, later)
        assert isinstance(reply, base.Claimed), reply
        self.token = base.Token(by.activation, reply.epoch)
        self.version, self.history, self.events = reply.version, reply.message_count, reply.event_count
        return reply

    def create(self, **changes: Any) -> base.Claimed:
        """Create the root and own it."""
        by = claim_by("first")
        return self.claimed(base.Create(new=new_turn(**changes), claim=by), by)

    def next(self, mode: base.Mode = base.Mode.KEEP, **more: Any) -> base.Save:
        """Make the next save of the owner, without applying it."""
        fields: dict[str, Any] = {
            "turn": ROOT,
            "token": self.token,
            "version": self.version,
            "save_id": f"save {self.now} {self.version}",
            "lease_ms": 1_000,
            "schema": 1,
            "status": "COMPLETED" if mode is base.Mode.END else "RUNNING",
            "snapshot": b"snapshot %d" % self.version,
            "messages": base.Messages(self.history, (b"entry",)),
            "events": base.Events(self.events, 2, b"two"),
        }
        return base.Save(mode=mode, **(fields | more))

    def save(self, mode: base.Mode = base.Mode.KEEP, **more: Any) -> base.Saved:
        """Save as the owner."""
        op = self.next(mode, **more)
        reply = self(op)
        assert isinstance(reply, base.Saved), reply
        self.version = reply.version
        self.history += len(op.messages.bodies)
        self.events += op.events.count
        return reply

    def look(self, turn: str = ROOT) -> base.Looked:
        """Read a record, the same in both."""
        return self(base.Look(turn=turn), later=0)


def new_turn(turn: str = ROOT, **changes: Any) -> base.NewTurn:
    new = base.NewTurn(
        turn=turn,
        agent="agent",
        agent_version="1",
        digest="digest",
        schema=1,
        status="READY",
        snapshot=b"\x00\xff",
        messages=base.Messages(0, (b"hello",)),
        events=base.Events(0, 1, b"created"),
    )
    return msgspec.structs.replace(new, **changes)


def claim_by(activation: str, **changes: Any) -> base.ClaimBy:
    by = base.ClaimBy(activation=activation, node=f"node of {activation}", lease_ms=1_000, schema=1, tail=2)
    return msgspec.structs.replace(by, **changes)


def mail(message_id: str, **changes: Any) -> base.Mail:
    return msgspec.structs.replace(base.Mail(message_id, b"body\x00" + message_id.encode()), **changes)


def deliver(message_id: str, *, by: base.ClaimBy | None = None, cap: int = 256, **changes: Any) -> base.Deliver:
    return base.Deliver(turn=ROOT, mail=mail(message_id, **changes), claim=by, cap=cap)
