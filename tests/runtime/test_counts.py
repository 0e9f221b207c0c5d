"""What one approve cycle costs, in counts that no machine changes: a guard against regressions, without a clock."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import weakref
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from turnhold import Agent, AiMessage, ExecutionPolicy, ModelRequest, ResumeCommand, Runtime, ToolCall, tool
from turnhold.runtime import actor
from turnhold.runtime.guard import TimeLimit
from turnhold.runtime.runtime import node_of
from turnhold.runtime.world import World
from turnhold.store import base, codec
from turnhold.testing import ScriptedModel, VirtualClock, call

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Counts:
    """Counts the store operations of a node, the bytes of its writes, its tasks, timers and encodes, and copies of messages.

    A message of the history is copied when it is written, when it is read, and when it is shown to a model.
    """

    def __init__(self, runtime: Runtime, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ops: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self.saves: list[tuple[int, int]] = []  # encodes and bytes so far, behind each save
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
        self._copied(monkeypatch, codec, "encode_entries", "written", lambda entries, _: len(entries))
        self._copied(monkeypatch, codec, "decode_entries", "read", lambda _, bodies: len(bodies))

    def _copied(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, kind: str, size: Callable[[Any, Any], int]) -> None:
        function: Callable[..., Any] = getattr(owner, name)

        def counted(first: Any, second: Any) -> Any:
            self.copies[kind] += size(first, second)
            return function(first, second)

        monkeypatch.setattr(owner, name, counted)

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
        if isinstance(op, base.Save):
            self.saves.append((self.encodes, self.bytes))

    def reset(self) -> None:
        self.ops.clear()
        self.copies.clear()
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

    model = ScriptedModel(call("refund", amount=25), "answer")
    agent = Agent("refunds", model=model, tools=[refund], instructions="Refund.")
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
        assert counts.copies == {"written": 5, "read": 3}  # each is written once; the second activation reads what there was
        assert [len(request.messages) for request in model.requests[-2:]] == [2, 4]
        assert counts.bytes <= 6_650


async def test_a_round_of_a_long_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a turn has become: a round is two saves, writes its two messages once, reads none, and encodes no more."""
    rounds = 40

    @tool
    async def step(number: int) -> str:
        """Make a step."""
        return f"step {number}"

    replies = [call("step", number=number) for number in range(100, 100 + rounds)]
    policy = ExecutionPolicy(max_iterations=rounds + 2, max_steps=2 * rounds + 4)
    agent = Agent("steps", model=ScriptedModel(*replies, "done"), tools=[step], policy=policy)
    clock = VirtualClock()
    async with Runtime("memory://", agents=[agent], clock=clock) as runtime:
        counts = Counts(runtime, clock, monkeypatch)
        view = await runtime.run("steps", "go", timeout=600)
        await clock.idle()

    assert view.final_output == "done"
    assert counts.copies == {"written": 2 + 2 * rounds}
    assert counts.ops["Save"] == 2 * rounds + 1
    rounds_of = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(counts.saves[::2])]
    early, late = rounds_of[4], rounds_of[-4]
    assert early[0] == late[0] <= 10
    more = 2 * 4 * (len(rounds_of) - 8)  # both snapshots of a round hold four bytes of each call's id; numbers become longer, too
    assert late[1] <= early[1] + more + 40


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


class Forgetful:
    """A model that asks for a refund first, and keeps nothing."""

    async def complete(self, request: ModelRequest) -> AiMessage:
        return AiMessage("answer") if request.iteration > 1 else AiMessage(tool_calls=(ToolCall("c1", "refund", {"amount": 25}),))


@pytest.mark.blocking("a virtual clock uses the file on the loop")
async def test_an_approve_cycle_leaves_nothing_behind(tmp_path: Path) -> None:
    """What an activation and its effects are made of goes with them, and nothing of it waits for the garbage collector."""

    @tool(approval=True)
    async def refund(amount: int) -> str:
        """Refund an amount."""
        return f"refunded {amount}"

    agent, clock = Agent("refunds", model=Forgetful(), tools=[refund]), VirtualClock()
    async with Runtime(f"sqlite:///{tmp_path}/turns.db", agents=[agent], clock=clock) as runtime:

        async def cycles(count: int) -> int:
            for _ in range(count):
                turn = await runtime.start("refunds", "please")
                view = await turn.settle(60)
                await turn.resume(ResumeCommand.approve_tool(view.open_waits[0], by="ann"), 60)
            await clock.idle()
            return sys.getallocatedblocks()

        await cycles(20)  # what is made once, and caches
        gc.collect()
        gc.freeze()  # what other tests have left may become garbage meanwhile
        gc.disable()
        try:
            before = await cycles(1)
            after = await cycles(40)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            circles = [each for each in gc.garbage if type(each).__module__.startswith("turnhold.")]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
            gc.unfreeze()

    # The clock keeps timers that were cancelled, some thirty objects a cycle; a part of an actor that stays is a hundred and more.
    assert after - before < 40 * 60
    assert circles == []


async def test_a_limit_that_is_lifted_goes() -> None:
    """The time limit of an effect and its timer know each other, and the garbage collector does not look at the timer."""

    def alive() -> int:
        return sum(isinstance(each, TimeLimit) for each in gc.get_objects())

    world, before = World(), alive()
    TimeLimit(world, 60).stop()

    assert alive() <= before


async def test_a_waiter_without_an_answer_goes() -> None:
    """What is raised instead of an answer, the frame it has left and the waiter know each other; the timer does not hold them."""
    world, loop = World(), asyncio.get_running_loop()

    async def asked() -> weakref.ref[asyncio.Future[None]]:
        waiter: asyncio.Future[None] = loop.create_future()
        loop.call_soon(waiter.set_exception, ConnectionError())
        with pytest.raises(ConnectionError):
            await world.answer(waiter, 60)
        return weakref.ref(waiter)

    waiter = await asked()
    await asyncio.sleep(0)  # the loop still holds what it has woken this task for
    gc.collect()

    assert waiter() is None


async def test_an_activation_with_a_fault_goes(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A turn that its activation cannot work with is parked, and neither the fault nor the activation stays in the process."""
    faults: list[weakref.ref[Exception]] = []

    class Fault(Exception):
        pass

    def broken(*_: object) -> None:
        fault = Fault()
        faults.append(weakref.ref(fault))
        raise fault

    caplog.set_level(logging.CRITICAL, "turnhold")  # what is logged is kept until the test is over
    clock = VirtualClock()
    async with Runtime("memory://", agents=[Agent("talks", model=ScriptedModel("answer"))], clock=clock) as runtime:
        monkeypatch.setattr(actor, "handle", broken)
        turn = await runtime.start("talks", "hi")
        view = await turn.settle(60)
        await clock.idle()
    gc.collect()

    assert view.quarantine is not None
    assert [fault() for fault in faults] == [None, None]
