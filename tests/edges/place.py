"""What the tests of the edges share: runtimes on virtual time, an agent with a gated tool, a picture of all that can be seen."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from typing import Any

import pytest

from turnhold import Agent, Runtime, Suspension, TurnholdError, TurnRef, tool
from turnhold.store.memory import MemoryStore
from turnhold.testing import ScriptedModel, VirtualClock, call

LEASE = 10.0
_names = itertools.count()


class Place:
    """Opens runtimes on one store and one clock, and leaves them at the end."""

    def __init__(self, url: str | None = None) -> None:
        self.clock = VirtualClock()
        self.memory = MemoryStore(namespace=f"edges-{next(_names)}")
        self.store: Any = self.memory if url is None else url
        self._stack = AsyncExitStack()

    async def runtime(self, *agents: Agent, **options: Any) -> Runtime:
        runtime = Runtime(self.store, agents=agents, clock=self.clock, **{"lease": LEASE, "drain": 0, **options})
        return await self._stack.enter_async_context(runtime)

    async def close(self) -> None:
        """Leave the runtimes; where a test has failed in the middle, that takes time, and nobody else lets it pass."""
        leaving = asyncio.ensure_future(self._stack.aclose())
        while not leaving.done():
            await self.clock.advance(1)
        await leaving

    @property
    def records(self) -> dict[str, Any]:
        """The memory store's own records, to be changed behind everybody's back."""
        return self.memory.core._turns


starts: list[int] = []


@tool(approval=True)
async def refund(amount: int = 0) -> str:
    """Refund an amount."""
    starts.append(amount)
    return "refunded"


def gated(*replies: Any, id: str = "shop", **options: Any) -> Agent:
    """Return an agent whose tool a person must approve."""
    return Agent(id, model=ScriptedModel(*(replies or (call("refund", amount=5), "done"))), tools=[refund], **options)


def plain(*replies: Any, id: str = "plain", **options: Any) -> Agent:
    """Return an agent without tools."""
    return Agent(id, model=ScriptedModel(*(replies or ("done",))), **options)


async def waiting(runtime: Runtime, agent: Agent | str = "shop", **options: Any) -> tuple[TurnRef, Suspension]:
    """Start a turn and return it with its one open wait."""
    turn = await runtime.start(agent, "please", **options)
    (wait,) = (await turn.settle(5)).open_waits
    return turn, wait


async def refused(work: Any, kind: type[BaseException], words: str | None = None) -> None:
    """Check that it fails with exactly this typed error, shortly said."""
    with pytest.raises(TurnholdError, match=words) as caught:
        await work()
    assert type(caught.value) is kind, repr(caught.value)[:300]
    assert len(str(caught.value)) < 500
    str(caught.value).encode()


async def picture(runtime: Runtime, *turns: TurnRef) -> dict[str, Any]:
    """Return all that can be seen of turns and lists, but for versions: a command that is refused is still taken in by a save."""
    return {
        "turns": [view.to_dict() | {"version": 0} for view in (await runtime.turns()).items],
        "inbox": (await runtime.inbox()).to_dict(),
        **{turn.id: [await _seen(turn)] for turn in turns},
    }


async def _seen(turn: TurnRef) -> list[Any]:
    return [
        (await turn.view()).to_dict() | {"version": 0},
        [message.to_dict() for message in await turn.history()],
        [event.to_dict() async for event in turn.events(live=False, follow=False)],
        [child.id for child in await turn.children()],
    ]
