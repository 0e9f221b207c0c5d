"""The random drive: simulated actors on three nodes of one store."""

from __future__ import annotations

from ...store import base as b
from .check import enter
from .driver import Driver
from .ops import Ops

SEEDS = 4
STEPS = 250


def random_actors(seed: int) -> None:
    """Enter the check with a seed."""

    async def body(ops: Ops) -> None:
        nodes = {"n1": ops, "n2": await ops.beside("n2"), "n3": await ops.beside("n3")}
        sent = 0

        async def send(op: b.Op, now: int) -> b.Reply:
            nonlocal sent
            sent += 1
            ops.time.set = now
            by = op.by if isinstance(op, b.Claim) else getattr(op, "claim", None)
            name = by.node if isinstance(by, b.ClaimBy) else sorted(nodes)[sent % len(nodes)]
            reply: b.Reply = await nodes[name](op)
            return reply

        await Driver(send, seed=seed, dead="nobody").drive(STEPS)

    says = "Actors that crash, freeze, are fenced and lose replies: each reply follows from those before, and every turn ends."
    enter(f"random_actors_{seed}", says, body, timed=True)


for number in range(SEEDS):
    random_actors(number)
