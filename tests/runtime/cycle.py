"""One approve cycle that goes on over crashes, and what must be true of it in the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import turnhold
from turnhold import Agent, ResumeCommand, Runtime, SuspensionType, ToolContext, TurnRef, TurnView, tool
from turnhold.runtime.runtime import node_of
from turnhold.store import base, codec
from turnhold.testing import ScriptedModel, VirtualClock, call

if TYPE_CHECKING:
    from turnhold.actors.tools import ToolEffect
    from turnhold.actors.turn import TurnState

LEASE = 10
ANSWER = "the-answer"
ANSWERS = {"approve": ResumeCommand.approve_tool, "reject": ResumeCommand.reject_tool}


@dataclass
class Ledger:
    """What the outside world saw."""

    started: list[tuple[str, int]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    reruns: int = 0


def agent_with(ledger: Ledger, effect: ToolEffect) -> Agent:
    @tool(approval=True, effect=effect)
    async def refund(amount: int) -> str:
        """Refund an amount."""
        context = ToolContext.current()
        ledger.started.append((context.idempotency_key, context.attempt))
        ledger.ended.append(context.idempotency_key)
        return f"refunded {amount}"

    return Agent("refunds", model=ScriptedModel(call("refund", amount=25), "done"), tools=[refund])


@dataclass
class Saves:
    """The last state that one node's saves, applied or acknowledged, left in the store."""

    states: list[TurnState] = field(default_factory=list)

    @classmethod
    def of(cls, runtime: Runtime) -> Saves:
        found = node_of(runtime).fault = cls()
        return found

    def before(self, op: base.Op) -> None:
        pass

    def after(self, op: base.Op, reply: base.Reply) -> None:
        if isinstance(op, base.Save) and isinstance(reply, base.Saved):
            self.states.append(codec.decode_state(op.turn, op.schema, op.snapshot))

    @property
    def left_running(self) -> int:
        """The attempt that the store has as started, 0 if none."""
        calls = self.states[-1].calls if self.states else []
        return next((call.attempt for call in calls if call.status == "running"), 0)


@dataclass
class Cycle:
    """Starts the turn, answers its wait, settles; may be asked to go on, on any node, wherever it broke off."""

    ledger: Ledger
    answer: str = "approve"
    receipt: turnhold.Receipt | None = None
    doubts: int = 0

    async def go_on(self, runtime: Runtime, answerer: Runtime | None = None) -> tuple[TurnRef, TurnView]:
        turn = await runtime.start("refunds", "please", idempotency_key="the-start")
        view = await turn.settle()
        while not view.status.terminal:
            (wait,) = view.open_waits
            ref = (answerer or runtime).turn(turn.id)
            if wait.type is SuspensionType.IN_DOUBT:
                self.doubts += 1
                self.ledger.reruns += 1
                await ref.submit(ResumeCommand.rerun(wait, command_id=f"rerun-{wait.id}"))
            else:
                self.keep(await ref.submit(self.command(wait)))
            view = await turn.settle()
        return turn, view

    def command(self, wait: turnhold.Suspension | str) -> ResumeCommand:
        return ANSWERS[self.answer](wait, command_id=ANSWER, by="ann")

    def keep(self, receipt: turnhold.Receipt) -> None:
        if self.receipt is not None:
            assert receipt.to_dict() | {"replayed": 0} == self.receipt.to_dict() | {"replayed": 0}
        self.receipt = receipt

    async def check(self, turn: TurnRef, view: TurnView, effect: ToolEffect) -> None:
        """What must be true at the end, whatever broke."""
        started, keys = self.ledger.started, {key for key, _ in self.ledger.started}
        assert view.status is turnhold.Status.COMPLETED
        assert view.final_output == "done"
        assert len(set(started)) == len(started), "one (call, attempt) started twice"
        assert len(keys) == (self.answer == "approve")
        if effect == "once":
            assert len(started) <= 1 + self.ledger.reruns, "a once tool was started again without a person"
        wait = next(str(event.data["suspensionId"]) for event in [e async for e in turn.events()] if "suspensionId" in event.data)
        self.keep(await turn.submit(self.command(wait)))
        events = [event.sequence async for event in turn.events()]
        assert events == list(range(1, len(events) + 1))
        kinds = [type(message).__name__ for message in await turn.history()]
        assert kinds == ["UserMessage", "AiMessage", "ToolMessage", "AiMessage"]


def open_runtime(store: str, agent: Agent | None, clock: VirtualClock) -> Runtime:
    agents = [] if agent is None else [agent]
    return Runtime(store, agents=agents, clock=clock, lease=LEASE, drain=0, execute=agent is not None)
