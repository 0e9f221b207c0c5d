"""Measures the draft scripts: ``python -m tests.store.measure_redis`` prints what docs/verification.md quotes."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import redis

from turnhold.actors.ids import base32, call_key, root_id, wait_id
from turnhold.store import base

from ..redis_server import redis_server
from .redis_core import RedisCore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TURNS = 5_000
LEASE = 30_000


def fill(size: int, number: int) -> bytes:
    """Return bytes that no allocator can share."""
    return (b"%08d" % number * (size // 8 + 1))[:size]


def name(number: int, kind: bytes) -> str:
    return base32(kind + b"%014d" % number)


class Cycle:
    """The approve cycle of turn `number`, operation by operation, in the sizes that the figures name."""

    def __init__(self, number: int, partitions: int) -> None:
        self.number = number
        self.turn = root_id(bytes([number % partitions]) + b"%015d" % number, None, None, "bench")
        self.wait = wait_id(self.turn, f"call_{number:020d}", 1)
        self.mail = base.Mail(name(number, b"ma"), fill(200, number), name(number, b"co"), self.wait)
        self.epoch = 0

    def claim_by(self, kind: bytes) -> base.ClaimBy:
        agents = frozenset({"order-agent@1", "support-agent@1"})
        return base.ClaimBy(
            activation=name(self.number, kind), node="node-0123456789abcdef", lease_ms=LEASE, agents=agents, schema=1, tail=20
        )

    def create(self) -> base.Create:
        new = base.NewTurn(
            turn=self.turn,
            agent="order-agent",
            agent_version="1",
            digest=name(self.number, b"di"),
            schema=1,
            status="RUNNING",
            snapshot=fill(500, self.number),
            messages=base.Messages(0, (fill(150, self.number),)),
            events=base.Events(0, 1, fill(100, self.number)),
        )
        return base.Create(new=new, claim=self.claim_by(b"a1"))

    def save(self, kind: bytes, version: int, mode: base.Mode, history: int, events: int, **more: Any) -> base.Save:
        activation = name(self.number, b"a1" if version == 0 else b"a2")
        return base.Save(
            turn=self.turn,
            token=base.Token(activation, self.epoch),
            version=version,
            save_id=name(self.number, kind),
            mode=mode,
            lease_ms=LEASE,
            schema=1,
            snapshot=fill(500, self.number),
            messages=base.Messages(history, more.pop("messages", ())),
            events=base.Events(events, more.pop("count", 0), more.pop("body", b"")),
            **more,
        )

    def suspend(self) -> base.Save:
        row = base.WaitRow(self.wait, "TOOL_APPROVAL", 1_700_000_000_000 + self.number, fill(300, self.number), "order-agent")
        messages = (fill(150, self.number),) * 3
        return self.save(
            b"s1", 0, base.Mode.SUSPEND, 1, 1, messages=messages, count=3, body=fill(200, self.number),
            status="WAITING_FOR_APPROVAL", opened=(row,), usage=(900, 60, 960, 0), progress=True,
        )  # fmt: skip

    def deliver(self) -> base.Deliver:
        return base.Deliver(turn=self.turn, mail=self.mail, claim=self.claim_by(b"a2"))

    def receipt(self) -> base.Save:
        call = call_key(self.turn, f"call_{self.number:020d}")
        receipt = base.ReceiptRow(self.wait, fill(200, self.number), self.mail.command_id, call)
        reply = base.ReplyRow(self.mail.message_id, fill(200, self.number))
        return self.save(
            b"s2", 1, base.Mode.KEEP, 4, 4, count=3, body=fill(300, self.number), status="RUNNING",
            consumed=(self.mail.message_id,), receipts=(receipt,), replies=(reply,), closed=(self.wait,),
            usage=(900, 60, 960, 0),
        )  # fmt: skip

    def result(self) -> base.Save:
        return self.save(
            b"s3", 2, base.Mode.KEEP, 4, 7, messages=(fill(200, self.number),), count=3, body=fill(300, self.number),
            status="RUNNING", usage=(900, 60, 960, 1), progress=True,
        )  # fmt: skip

    def plain(self) -> base.Save:
        receipt = base.ReceiptRow(self.wait + "x", fill(200, self.number), name(self.number, b"c2"))
        return self.save(
            b"s4", 3, base.Mode.KEEP, 5, 10, messages=(fill(150, self.number),) * 2, count=3, body=fill(300, self.number),
            status="RUNNING", receipts=(receipt,), usage=(1900, 90, 1990, 1), progress=True,
        )  # fmt: skip

    def final(self) -> base.Save:
        return self.save(
            b"s5", 4, base.Mode.END, 7, 13, messages=(fill(150, self.number),), count=2, body=fill(300, self.number),
            status="COMPLETED", usage=(2900, 120, 3020, 1), progress=True,
        )  # fmt: skip


def memory(client: Any) -> int:
    return int(client.info("memory")["used_memory"])


def phase(client: Any, core: RedisCore, ops: Iterable[tuple[Cycle, base.Op]]) -> float:
    """Apply operations; return the server's microseconds for each script call."""
    client.config_resetstat()
    for cycle, op in ops:
        reply = core.apply(op, 0)
        assert isinstance(reply, base.Claimed | base.Saved), reply
        if isinstance(reply, base.Claimed):
            cycle.epoch = reply.epoch
    return float(client.info("commandstats")["cmdstat_evalsha"]["usec_per_call"])


PHASES: list[tuple[str, Callable[[Cycle], base.Op]]] = [
    ("create-and-claim", Cycle.create),
    ("SAVE, suspending: 3 messages, 200 B events, 1 wait", Cycle.suspend),
    ("deliver-and-claim", Cycle.deliver),
    ("SAVE, receipt and reply, 1 mail consumed, 1 wait closed", Cycle.receipt),
    ("SAVE, tool result: 1 message, 300 B events", Cycle.result),
    ("SAVE: 2 messages, 300 B events, 1 receipt", Cycle.plain),
    ("SAVE, final", Cycle.final),
]


def run(partitions: int) -> dict[str, float]:
    """Take all turns through the cycle together, step by step."""
    figures: dict[str, float] = {}
    with redis_server() as url:
        client = redis.Redis.from_url(url)
        core = RedisCore(client, "turnhold", virtual=False)
        warm = Cycle(TURNS, partitions)
        phase(client, core, [(warm, warm.create())])
        before = memory(client)
        cycles = [Cycle(number, partitions) for number in range(TURNS)]
        for label, make in PHASES:
            figures[label] = phase(client, core, ((cycle, make(cycle)) for cycle in cycles))
            if make is Cycle.suspend:
                figures["bytes per suspended turn"] = (memory(client) - before) / TURNS
        figures["bytes per finished turn"] = (memory(client) - before) / TURNS
        figures["version"] = client.info("server")["redis_version"]
        client.close()
    return figures


def main() -> None:
    for partitions in (1, 256):
        runs = [run(partitions) for _ in range(3)]
        print(f"Redis {runs[0].pop('version')}, {TURNS} turns in {partitions} partition(s), median of {len(runs)}")
        for label in runs[0]:
            print(f"  {statistics.median(figures[label] for figures in runs):8.1f}  {label}")


if __name__ == "__main__":
    main()
