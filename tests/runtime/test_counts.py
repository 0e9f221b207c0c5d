"""What one approve cycle costs, in counts that no machine changes: a guard against regressions, without a clock."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from turnhold import Agent, ResumeCommand, Runtime, tool
from turnhold.runtime.runtime import node_of
from turnhold.store import base, codec
from turnhold.testing import ScriptedModel, VirtualClock, call

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Counts:
    """Counts the store operations of a node, the bytes of its writes, its tasks, timers and encodes."""

    def __init__(self, runtime: Runtime, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ops: Counter[str] = Counter()
        self.bytes = self.encodes = 0
        node = node_of(runtime)
        node.fault = self
        self.tasks = self._counted(monkeypatch, node.world, "spawn")
        self.timers = self._counted(monkeypatch, clock, "call_later")
        encode = codec._encode

        def counted(value: object) -> bytes:
            self.encodes += 1
            return encode(value)

        monkeypatch.setattr(codec, "_encode", counted)

    @staticmethod
    def _counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[str]:
        made: list[str] = []
        function: Callable[..., Any] = getattr(owner, name)

        def counted(*arguments: Any) -> Any:
            made.append(str(arguments[-1]))
            return function(*arguments)

        monkeypatch.setattr(owner, name, counted)
        return made

    def before(self, op: base.Op) -> None:
        pass

    def after(self, op: base.Op, reply: base.Reply) -> None:
        self.ops[type(op).__name__] += 1
        self.bytes += len(msgspec.msgpack.encode(op))

    def reset(self) -> None:
        self.ops.clear()
        self.bytes = self.encodes = 0
        self.tasks.clear()
        self.timers.clear()


@pytest.mark.blocking("a virtual clock uses the file on the loop")
@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_an_approve_cycle(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six round trips, a task for each activation and effect, each thing encoded once."""
    ran: list[int] = []

    @tool(approval=True)
    async def refund(amount: int) -> str:
        """Refund an amount."""
        ran.append(amount)
        return "done"

    agent = Agent("refunds", model=ScriptedModel(call("refund", amount=25), "answer"), tools=[refund], instructions="Refund.")
    clock = VirtualClock()
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/turns.db"
    async with Runtime(url, agents=[agent], clock=clock) as runtime:
        counts = Counts(runtime, clock, monkeypatch)
        for _ in range(2):  # the first one warms up
            await clock.idle()
            counts.reset()
            turn = await runtime.start("refunds", "please")
            view = await turn.settle(60)
            done = await turn.resume(ResumeCommand.approve_tool(view.open_waits[0], by="ann"), 60)
        await clock.idle()

        assert done.final_output == "answer"
        assert ran == [25, 25]
        assert counts.ops == {"Create": 1, "Deliver": 1, "Save": 4}
        assert len(counts.tasks) <= 5, counts.tasks  # two activations, two model requests, one attempt
        assert len(counts.timers) <= 5, counts.timers  # two settles, one answer, two model requests
        assert counts.encodes <= 20
        assert counts.bytes <= 6_650


async def test_a_suspended_turn_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No task, no timer, no entry for a turn that waits, and no store call for it while time passes."""

    @tool(approval=True)
    async def refund(amount: int) -> str:
        """Refund an amount."""
        raise AssertionError(amount)

    agent = Agent("refunds", model=ScriptedModel(call("refund", amount=25)), tools=[refund])
    clock = VirtualClock()
    async with Runtime("memory://", agents=[agent], clock=clock, lease=10) as runtime:
        counts = Counts(runtime, clock, monkeypatch)
        for _ in range(20):
            turn = await runtime.start("refunds", "please")
            await turn.settle(60)
        await clock.idle()
        node = node_of(runtime)
        assert (len(node.placement.actors), len(node.placement.tasks), node.watch.trees) == (0, 0, 0)
        counts.reset()
        await clock.advance(60)

        assert counts.ops.keys() <= {"Beat", "Prune", "Expired", "Due"}
        assert counts.tasks == []
