"""A turn without a runtime: a state, an activation, and what it has been asked to do outside."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from turnhold import Agent, AiMessage, ApprovalDecision, ChatMessage, ResumeCommand, Status, ToolCall, Usage, UserMessage
from turnhold.actors.history import readable
from turnhold.actors.ids import root_id
from turnhold.actors.machine import messages as m
from turnhold.actors.machine.create import new_turn
from turnhold.actors.machine.draft import AskPolicy, CallModel, Context, Draft, RunTool
from turnhold.actors.machine.handle import handle
from turnhold.actors.policies import ExecutionPolicy
from turnhold.actors.turn import CallRecord, CallStatus, Failure, TurnState

from .lab import Desk

START = 1_000_000
LOST = Failure("ConnectionError", "lost")
GATED = ApprovalDecision.require(expires_in=60)
REFUND = ToolCall("c", "refund")
DENIED = Failure("PermissionError", "denied")


@dataclass
class Machine:
    """Feeds messages to a turn as one activation after the other would; keeps what was appended, told and asked."""

    agent: Agent
    now: int = START
    activation: str = "a1"
    grace: int = 10_000
    asking: set[str] = field(default_factory=set)
    history: list[Any] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    receipts: list[Any] = field(default_factory=list)
    started: list[tuple[str, int]] = field(default_factory=list)
    draft: Draft = field(init=False)
    state: TurnState = field(init=False)
    number: int = 0
    seen: Usage | None = None  # of the model request under way

    def __post_init__(self) -> None:
        draft = new_turn(
            root_id(bytes(26), None, None, ""),
            self.agent.id,
            self.agent.version,
            UserMessage("hi"),
            self.context(),
            policy=self.agent.policy,
        )
        self.take(draft)

    def context(self) -> Context:
        return Context(
            now=self.now,
            activation=self.activation,
            agent=self.agent,
            asking=frozenset(self.asking),
            cancel_grace=self.grace,
            seen=self.seen,
        )

    def take(self, draft: Draft) -> Draft:
        """Do what a save and the actions behind it do."""
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(draft.state), type=TurnState) == draft.state
        self.draft, self.state = draft, draft.state
        self.history += draft.messages
        self.events += draft.events
        self.receipts += draft.receipts
        for action in draft.actions:
            if isinstance(action, AskPolicy):
                self.asking.add(action.call_id)
            elif isinstance(action, RunTool):
                self.started.append((action.call_id, action.attempt))
        return draft

    def feed(self, *messages: m.Message) -> Draft:
        """Hand over a batch."""
        for message in messages:
            if isinstance(message, m.PolicyDecided | m.PolicyFailed):
                self.asking.discard(message.call_id)
        before = msgspec.msgpack.encode(self.state)
        draft = handle(self.state, messages, self.context())
        assert msgspec.msgpack.encode(self.state) == before, "the state that was given has been changed"
        return self.take(draft)

    # ------------------------------------------------------------------------------------------------------- messages

    def replied(self, *calls: ToolCall, text: str = "") -> m.ModelReplied:
        request = self.state.request
        assert request is not None
        return m.ModelReplied(request.iteration, request.failures, AiMessage(text, calls))

    def returned(self, index: int = 0, text: str = "ok", attempt: int | None = None) -> m.ToolReturned:
        call = self.state.calls[index]
        return m.ToolReturned(call.id, attempt or call.attempt, text)

    def failed(self, kind: Any = "error", index: int = 0, attempt: int | None = None) -> m.ToolFailed:
        call = self.state.calls[index]
        return m.ToolFailed(call.id, attempt or call.attempt, kind, LOST, "failed")

    def decided(self, decision: ApprovalDecision, index: int = 0) -> m.PolicyDecided:
        return m.PolicyDecided(self.state.calls[index].id, decision)

    def mail(self, command: ResumeCommand, at: int | None = None) -> m.Received:
        """A command, delivered at a store time."""
        self.number += 1
        return m.Received(f"m{self.number}", m.Resume(command), self.now if at is None else at)

    def crash(self, crashes: int = 1) -> Draft:
        """Another activation takes over."""
        self.activation = f"a{int(self.activation[1:]) + 1}"
        self.asking.clear()
        return self.feed(m.Activated(crashes))

    # ---------------------------------------------------------------------------------------------------------- looks

    def call(self, index: int = 0) -> CallRecord:
        return self.state.calls[index]

    @property
    def statuses(self) -> list[CallStatus]:
        return [call.status for call in self.state.calls]

    @property
    def answers(self) -> list[Any]:
        """The outcomes of the last batch, in order."""
        return [outcome for _, outcome in self.draft.answers]

    @property
    def talk(self) -> list[ChatMessage]:
        return readable(self.history)

    def asked_model(self) -> bool:
        return any(isinstance(action, CallModel) for action in self.draft.actions)


def machine(*tools: Any, **options: Any) -> Machine:
    """A turn of an agent whose model is never asked: the test says what it replies."""

    class Nobody:
        async def complete(self, request):
            raise AssertionError

    policy = options.pop("policy", ExecutionPolicy())
    return Machine(Agent("shop", model=Nobody(), tools=tools, policy=policy, **options))


def waiting(decision: ApprovalDecision = GATED, **options: Any) -> Machine:
    """A turn whose one call waits for approval, until 60 s from the start."""
    turn = machine(Desk().tool(approval=decision, **options))
    turn.feed(turn.replied(REFUND))
    assert turn.state.status is Status.WAITING_FOR_APPROVAL
    return turn


def approve(turn: Machine, **options: Any) -> ResumeCommand:
    return ResumeCommand.approve_tool("c", **options)


def running(effect: Any = "repeatable", policy: ExecutionPolicy | None = None, **options: Any) -> Machine:
    """A turn whose one call runs as attempt 1."""
    turn = machine(Desk().tool(effect=effect, **options), policy=policy or ExecutionPolicy())
    turn.feed(turn.replied(REFUND))
    assert turn.statuses == [CallStatus.RUNNING]
    return turn
