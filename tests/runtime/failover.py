"""A memory store that a failover puts back in time, and whose replicas may be out of reach."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from turnhold import StoreUnavailable
from turnhold.store import base
from turnhold.store.memory import MemoryConnection, MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable

WRITES = (base.Create, base.Deliver, base.Cancel, base.Claim, base.Save, base.Abandon, base.Reap)


@dataclass
class Failover:
    """The store. `past` holds what it was behind each write; `plan` says before or behind which save it goes back, how far."""

    plan: dict[int, tuple[str, int]] = field(default_factory=dict)
    fits: Callable[[Any], bool] = lambda core: True
    saved: Callable[[str], None] = lambda turn: None
    replicas: bool = True
    down: StoreUnavailable | None = None
    past: list[Any] = field(default_factory=list)
    saves: list[tuple[base.Save, base.Reply]] = field(default_factory=list)
    claimed: dict[str, int] = field(default_factory=dict)
    number: int = 0
    rewinds: int = 0
    namespace = ""
    poll_seconds: float | None = None
    lease_seconds = 10.0
    partitioned = False
    proves_death = True

    def __post_init__(self) -> None:
        self.store = MemoryStore()

    @property
    def core(self) -> Any:
        return self.store.core

    async def connect(self, node: str, bell: base.Bell, clock: Any, *, inline: bool = False, live: Any = None) -> Any:
        return Connection(await self.store.connect(node, bell, clock, inline=inline, live=live), self)

    def back(self, steps: int) -> None:
        """Forget the newest writes, as many as asked for, or as far as that fits; bells ring as behind a reconnect."""
        candidates = self.past[: len(self.past) - 1][-steps:]
        found = next((index for index, core in enumerate(candidates) if self.fits(core)), None)
        if found is None:
            return
        del self.past[len(self.past) - 1 - len(candidates) + found + 1 :]
        self.core.__dict__.update(copy.deepcopy(candidates[found].__dict__))
        self.rewinds += 1
        for bell in list(self.store.bells):
            bell("any", "")


class Connection:
    """One node's use of it."""

    def __init__(self, connection: MemoryConnection, failover: Failover) -> None:
        self._connection = connection
        self._failover = failover

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def call(self, op: base.Op) -> base.Reply:
        failover = self._failover
        if failover.down is not None:
            raise failover.down
        when, steps = "", 0
        if isinstance(op, base.Save):
            failover.number += 1
            when, steps = failover.plan.get(failover.number, ("", 0))
        if when == "before":
            failover.back(steps)
        reply = await self._connection.call(op)
        if isinstance(op, base.Save):
            failover.saves.append((op, reply))
            if isinstance(reply, base.Saved):
                failover.saved(op.turn)
            if isinstance(reply, base.Saved) and op.confirm and not failover.replicas:
                reply = msgspec.structs.replace(reply, confirmed=False)
        if isinstance(reply, base.Claimed):
            failover.claimed[op.new.turn if isinstance(op, base.Create) else getattr(op, "turn", "")] = reply.version
        if isinstance(op, WRITES):
            failover.past.append(copy.deepcopy(failover.core))
        if when == "after" and getattr(reply, "owned", False):  # where it lets go of the turn, nobody knows of it any more
            failover.back(steps)
        return reply
