"""Any order of what may happen to a turn, told to the machine: what must never happen does not (DESIGN 8)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnhold import (
    Agent,
    AiMessage,
    ApprovalDecision,
    Budget,
    Effect,
    ExecutionPolicy,
    FormDefinition,
    ResumeCommand,
    RetryPolicy,
    Status,
    SuspensionType,
    ToolCall,
    ToolMessage,
    Usage,
    user_input_tool,
)
from turnhold.actors.events import TERMINAL_EVENTS
from turnhold.actors.machine import messages as m
from turnhold.actors.machine.draft import CallModel, Draft, Park, RunTool, StopModel, StopTool
from turnhold.actors.turn import CallStatus, Failure

from .lab import Desk, open_calls
from .machine import Machine

FORM = FormDefinition("f", description="a form", schema={"type": "object"}, expires_in=20)
LOST = Failure("ConnectionError", "lost")
NAMES = ("plain", "gated", "once", "alone", "soft", "asked", "request_user_input", "nope")
CALLS = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(("x", "y", "", "a/b"))), min_size=1, max_size=4)
LIMITS = st.sampled_from(
    [
        ExecutionPolicy(),
        ExecutionPolicy(max_crashes=2, retry_policy=RetryPolicy(max_retries=1, initial_delay=5, jitter=0), max_iterations=4),
        ExecutionPolicy(budget=Budget(max_tool_calls=3, max_wall_time=60), tool_errors="return_to_model", max_steps=6),
        ExecutionPolicy(budget=Budget(max_duration=25, max_total_tokens=40)),
    ]
)


class Nobody:
    async def complete(self, request):
        raise AssertionError


def tools() -> list[Any]:
    desk = Desk()
    return [
        desk.tool("plain"),
        desk.tool("gated", approval=ApprovalDecision.require(expires_in=15)),
        desk.tool("once", effect="once"),
        desk.tool("alone", sequential=True),
        desk.tool("soft", cancellable=True),
        desk.tool("asked", approval=lambda call: True),
        user_input_tool(FORM),
    ]


class World(Machine):
    """A machine with what runs outside of it, and the rules that hold for every draft."""

    model: tuple[int, int] | None = None
    running: set[tuple[str, int]]
    rejected: set[str]
    reruns: Counter[str]
    parked = False

    def take(self, draft: Draft) -> Draft:
        if not hasattr(self, "running"):
            self.running, self.rejected, self.reruns = set(), set(), Counter()
        super().take(draft)
        self.check(draft)
        for action in draft.actions:
            match action:
                case CallModel():
                    assert self.model is None, "two model requests at once"
                    assert open_calls(self.talk) == [], "a request with an open call"
                    self.model = (action.iteration, action.failures)
                case StopModel():
                    self.model = None
                case RunTool():
                    self.run(action)
                case StopTool():
                    assert any(name == action.call_id for name, _ in self.started)
                case Park():
                    self.parked = True
                case _:
                    pass
        return draft

    def run(self, action: RunTool) -> None:
        assert Counter(self.started)[action.call_id, action.attempt] == 1, "one attempt started twice"
        assert action.call_id not in self.rejected, "a rejected call started"
        record = self.draft.state.call(action.call_id)
        assert record is not None
        assert record.status is CallStatus.RUNNING
        if record.effect == "once" and action.attempt > 1:
            self.reruns[action.call_id] -= 1
            assert self.reruns[action.call_id] >= 0, "a `once` call started again without a person"
        self.running.add((action.call_id, action.attempt))

    def check(self, draft: Draft) -> None:
        state = draft.state
        ended = Counter(receipt.suspension_id for receipt in self.receipts)
        assert all(count == 1 for count in ended.values()), "two ends of one wait"
        assert not {wait.id for wait in state.waits} & set(ended), "a wait is open and has ended"
        for receipt in draft.receipts:
            name = receipt.suspension_id.split("/")[1]
            if receipt.effect in (Effect.REJECTED, Effect.DECLINED):
                self.rejected.add(name)
            if receipt.effect in (Effect.RERUN, Effect.SUBMITTED):
                self.reruns[name] += 1
        last = [kind for kind, *_ in self.events if kind in TERMINAL_EVENTS]
        assert len(last) == state.status.terminal, "a terminal event for each end, and only then"
        if state.status.terminal:
            assert self.events[-1][0] in TERMINAL_EVENTS
            assert (state.waits, state.calls, state.request) == ((), (), None)
            assert open_calls(self.talk) == []
        elif state.status.blocked:
            assert state.waits
            assert state.ending is None

    # -------------------------------------------------------------------------------------------------- what may happen

    def crash(self, crashes: int = 1) -> Draft:
        self.model, self.running = None, set()
        return super().crash(crashes)

    def ended(self, name: str, attempt: int) -> None:
        self.running.discard((name, attempt))


FITTING: dict[SuspensionType, list[Any]] = {
    SuspensionType.TOOL_APPROVAL: [
        ResumeCommand.approve_tool,
        lambda wait, command_id: ResumeCommand.approve_tool(wait, arguments={"amount": 7}, command_id=command_id),
        ResumeCommand.reject_tool,
    ],
    SuspensionType.USER_INPUT: [
        lambda wait, command_id: ResumeCommand.submit_form(wait, {"a": 1}, command_id=command_id),
        ResumeCommand.decline,
        lambda wait, command_id: ResumeCommand.user_input("text", wait=wait, command_id=command_id),
    ],
    SuspensionType.RETRY: [lambda wait, command_id: ResumeCommand.retry(wait, force=True, command_id=command_id)],
    SuspensionType.IN_DOUBT: [
        ResumeCommand.rerun,
        lambda wait, command_id: ResumeCommand.give_result(wait, 1, command_id=command_id),
        ResumeCommand.fail_call,
    ],
}
EVERY = [make for makes in FITTING.values() for make in makes]


def command(draw: Any, world: World) -> ResumeCommand:
    """A command: mostly one that fits an open wait, also to ended waits, of wrong kinds, and with an id that was used."""
    number = draw(st.sampled_from([None, None, None, "c1"]))
    if world.state.waits and draw(st.integers(0, 4)):
        wait = draw(st.sampled_from(world.state.waits))
        return draw(st.sampled_from(FITTING[wait.type]))(wait.id, command_id=number)
    ended = [receipt.suspension_id for receipt in world.receipts[-3:]]
    return draw(st.sampled_from(EVERY))(draw(st.sampled_from([*ended, None, "x"])), command_id=number)


def outside(draw: Any, world: World) -> m.Message | None:
    """Something that runs outside ends."""
    if world.model is not None:
        (iteration, failures), world.model = world.model, None
        if draw(st.integers(0, 9)) == 9:
            return m.ModelFailed(iteration, failures, LOST, retryable=draw(st.booleans()))
        calls = (
            tuple(ToolCall(name, tool, {"form_key": "f"} if tool == "request_user_input" else {}) for tool, name in draw(CALLS))
            if draw(st.integers(0, 5)) < 5
            else ()
        )
        return m.ModelReplied(iteration, failures, AiMessage("text", calls, usage=Usage(1, 2)))
    if world.asking and draw(st.booleans()):
        name = draw(st.sampled_from(sorted(world.asking)))
        world.asking.discard(name)
        if draw(st.integers(0, 3)) == 0:
            return m.PolicyFailed(name, LOST)
        decision = draw(st.sampled_from([ApprovalDecision.allow(), ApprovalDecision.require(), ApprovalDecision.deny()]))
        return m.PolicyDecided(name, decision)
    if world.running:
        name, attempt = draw(st.sampled_from(sorted(world.running)))
        world.ended(name, attempt)
        kind = draw(st.sampled_from([*["ok"] * 6, "form", "told", "error", "timeout", "loop", "interrupted"]))
        if kind == "ok":
            return m.ToolReturned(name, attempt, "ok")
        return m.FormAsked(name, attempt, FORM) if kind == "form" else m.ToolFailed(name, attempt, kind, LOST, "failed")
    return None


def something(draw: Any, world: World) -> m.Message | None:
    """Draw the next thing that happens."""
    kind = draw(st.integers(0, 19))
    if kind <= 10:
        return outside(draw, world)
    if kind <= 14:
        return world.mail(command(draw, world), at=world.now - draw(st.sampled_from([0, 0, 3_000, 20_000])))
    if kind == 15:
        return m.Received(f"q{world.now}", m.Suspend("which?"), world.now) if draw(st.booleans()) else None
    if kind == 16:
        return m.CancelRequested("stop") if draw(st.integers(0, 9)) == 9 else outside(draw, world)
    if kind == 17:
        world.now += draw(st.sampled_from([1_000, 6_000, 30_000]))
        return m.DeadlinePassed()
    return m.Activated(1) if kind == 18 and draw(st.booleans()) else m.DeadlinePassed()


def explore(data: st.DataObject) -> None:
    """Let things happen to a turn, then cancel it: it ends, with a closed history."""
    draw = data.draw
    policy = draw(LIMITS)
    world = World(Agent("shop", model=Nobody(), tools=tools(), policy=policy))
    for _ in range(draw(st.integers(1, 40))):
        batch = [message for message in (something(draw, world) for _ in range(draw(st.integers(1, 2)))) if message is not None]
        if any(isinstance(message, m.Activated) for message in batch):
            world.crash()  # what the old owner had not taken in is lost with it
        elif batch:
            world.feed(*batch)
        if world.parked:
            return
        if world.state.status.terminal and draw(st.booleans()):
            break
    world.feed(m.CancelRequested("over"))
    world.now += 20_000
    world.feed(m.DeadlinePassed())
    assert world.state.status.terminal
    assert world.state.status is Status.CANCELLED or world.state.completed_at < world.now
    results = [message.call_id for message in world.talk if isinstance(message, ToolMessage)]
    assert len(results) == len(set(results))


@given(st.data())
def test_any_order(data: st.DataObject) -> None:
    """DESIGN 8: in any order, no attempt starts twice, no rejected call starts, a wait ends once, no request has an open call."""
    explore(data)


@pytest.mark.deep
@pytest.mark.timeout(300)
@given(st.data())
@settings(max_examples=2_000)
def test_any_order_deep(data: st.DataObject) -> None:
    """The same, many more times."""
    explore(data)
