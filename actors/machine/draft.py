"""The draft on which the machine works: a copy of the state, and what its save will carry and its owner will do."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar, cast

import msgspec
from msgspec.structs import replace

from ..agent import Agent
from ..cards import Card
from ..chat import AiMessage, CallEdited, HistoryEntry, Usage
from ..events import WAIT_ENDED, EventType, RawEvent
from ..policies import ExecutionPolicy
from ..record import JsonObject, utc
from ..tools import Tool
from ..turn import CallRecord, Ms, OpenWait, TurnState, Used
from ..waits import Effect, Receipt, ResumeCommand, Suspension
from . import cards
from .messages import StartChild

T = TypeVar("T")
DEFAULT_POLICY = ExecutionPolicy()
NOBODY: Mapping[str, Agent[Any]] = MappingProxyType({})
MEMORY = ""
"""What stands for the memory, where otherwise ids of calls stand."""
NOTHING_RESOLVED: Mapping[str, Tool[..., Any] | None] = MappingProxyType({})


class Context(msgspec.Struct, gc=False, frozen=True):
    """What the machine may know beside the state.

    `now` is store milliseconds. `agent` is absent on a node that runs nothing. `execute` says whether effects may be started.
    `asking` are calls whose policy is being asked by this activation; `MEMORY` among them is the memory. `spread` (0 to 1) is this
    step's share of jitter. `seen` is the usage that the model request under way has reported so far. `others` is what the other
    turns of the tree have used, as of this activation's last save; `None` before the first. With `park_changed` a turn whose agent
    has changed under the same version is parked, until a person lets it go on. `delegates` are the agents, by id, that may get
    tasks of its plans. `resolved` are the tools, by call id, that resolvers have found in this activation, or that nobody knows.
    """

    now: int
    activation: str
    agent: Agent | None = None
    execute: bool = True
    asking: frozenset[str] = frozenset()
    spread: float = 0.0
    cancel_grace: int = 10_000
    seen: Usage | None = None
    others: Used | None = None
    park_changed: bool = False
    delegates: Mapping[str, Agent[Any]] = NOBODY
    resolved: Mapping[str, Tool[..., Any] | None] = NOTHING_RESOLVED


class CallModel(msgspec.Struct, gc=False, frozen=True):
    """Send the model request; it may leave while the save that holds it is under way."""

    iteration: int
    failures: int


class RunTool(msgspec.Struct, gc=False, frozen=True):
    """Start an attempt of a call, after the save that holds it."""

    call_id: str
    attempt: int


class AskPolicy(msgspec.Struct, gc=False, frozen=True):
    """Ask the application about a call: which tool it names, where the agent has none, else whether it may run."""

    call_id: str


class AskMemory(msgspec.Struct, gc=False, frozen=True):
    """Ask what the turn's conversation remembers."""


class StopModel(msgspec.Struct, gc=False, frozen=True):
    """Stop the model request under way."""


class StopTool(msgspec.Struct, gc=False, frozen=True):
    """Interrupt an attempt that allows it."""

    call_id: str


class Park(msgspec.Struct, gc=False, frozen=True):
    """Quarantine the turn."""

    reason: str


Action: TypeAlias = CallModel | RunTool | AskPolicy | AskMemory | StopModel | StopTool | Park


class Refusal(msgspec.Struct, gc=False, frozen=True, tag="refusal", omit_defaults=True):
    """Why a command was not accepted: the error's class, its text and its attributes, as far as they are set."""

    error: str
    message: str
    receipt: Receipt | None = None
    agrees: bool = False
    faults: tuple[tuple[str, str], ...] = ()
    due: Ms = 0
    status: str = ""
    open_waits: tuple[str, ...] = ()


class Accepted(msgspec.Struct, gc=False, frozen=True, tag="accepted"):
    """The receipt of an accepted command."""

    receipt: Receipt


class Noted(msgspec.Struct, gc=False, frozen=True, tag="noted"):
    """A message that is no command has been taken in."""


Outcome: TypeAlias = Refusal | Accepted | Noted


class ChildTurn(msgspec.Struct, gc=False, frozen=True):
    """A child to be created in the same save."""

    state: TurnState
    messages: tuple[HistoryEntry, ...]
    events: tuple[RawEvent, ...]
    digest: str


class Draft(msgspec.Struct, eq=False, gc=False):
    """A transition in the making. It works on a copy of the state, and never changes in place what a state is made of.

    `cards` are those of waits that open or end here, by their ids. The first `known` messages are none that the turn adds to its
    conversation. `edited`: the reply at this place of the history has calls whose arguments a person has replaced; `reply` is that
    place again and the reply as the conversation is to show it (added by the owner, who can read it). `shown` are the
    waits that open, but for those for children, as their readers see them (added by who stores them).

    `starting` are children that the save will create; `children` are they, ready to be stored. `asks_tree`: something could start,
    but first a save has to bring back what the tree has used. `too_large`: what the turn came to had no room in a save.
    `running` and `startable` say of a draft at rest whether something of the turn runs in this activation, and, where nothing does,
    whether an executor would find something to start; `changed` whether there is anything to save.
    """

    original: TurnState
    context: Context
    state: TurnState = cast("TurnState", None)
    messages: list[HistoryEntry] = []
    events: list[RawEvent] = []
    actions: list[Action] = []
    receipts: tuple[Receipt, ...] = ()
    answers: tuple[tuple[str, Outcome], ...] = ()
    opened: tuple[OpenWait, ...] = ()
    shown: tuple[Suspension, ...] = ()
    closed: tuple[str, ...] = ()
    starting: tuple[StartChild, ...] = ()
    children: tuple[ChildTurn, ...] = ()
    cancels: tuple[tuple[str, str], ...] = ()
    cards: dict[str, Card] = {}
    progress: bool = False
    took_cancel: bool = False
    asks_tree: bool = False
    known: int = 0
    edited: tuple[int, tuple[CallEdited, ...]] | None = None
    reply: tuple[int, AiMessage] | None = None
    too_large: bool = False
    running: bool = False
    startable: bool = False
    changed: bool = False

    def __post_init__(self) -> None:
        self.state = replace(self.original)

    @property
    def policy(self) -> ExecutionPolicy:
        """Return the turn's frozen policy."""
        return self.state.policy or DEFAULT_POLICY

    def emit(self, type: EventType, data: JsonObject | None = None) -> None:
        """Add an event of the lifecycle."""
        self.events.append((type, self.context.now, data or {}, self.state.step_count))

    def append(self, entry: HistoryEntry) -> None:
        """Add an entry to the history; before an executor has opened that, to what will stand in it."""
        if self.state.opening is None:
            self.messages.append(entry)
        else:
            self.state.opening = [*self.state.opening, entry]

    def tool(self, call: CallRecord) -> Tool[..., Any] | None:
        """Return the tool of a call, as far as it is known here."""
        context = self.context
        found = None if context.agent is None else context.agent.tool(call.name)
        return context.resolved.get(call.id) if found is None else found

    def put(self, record: CallRecord) -> CallRecord:
        """Replace the record of a call."""
        calls = list(self.state.calls)
        for index, old in enumerate(calls):
            if old.id == record.id:
                calls[index] = record
                self.state.calls = tuple(calls)
                break
        return record

    def open(self, wait: OpenWait) -> None:
        """Open a wait."""
        self.state.waits = (*self.state.waits, wait)
        self.opened = (*self.opened, wait)
        call = self.state.call(wait.correlation) if cards.shows(self.state, wait) else None
        if call is not None:
            self._show(cards.opened(self.state, wait, call))

    def _show(self, card: Card) -> None:
        self.cards[card.message_id] = card

    def start_child(self, message: StartChild, more: JsonObject | None = None) -> None:
        """Let the save create a child."""
        self.starting = (*self.starting, message)
        self.state.children = (*self.state.children, message.child_id)
        data: JsonObject = {"childTurnId": message.child_id, "childAgentId": message.agent_id}
        self.emit(EventType.CHILD_STARTED, {**data, **(more or {})})

    def close(self, wait: OpenWait, effect: Effect, command: ResumeCommand | None = None, by: str | None = None) -> Receipt:
        """End a wait and leave its receipt."""
        self.state.waits = without(self.state.waits, wait)
        if wait in self.opened:
            self.opened = without(self.opened, wait)
        else:
            self.closed = (*self.closed, wait.id)
        receipt = Receipt(
            command_id=None if command is None else command.command_id,
            turn_id=self.state.turn_id,
            suspension_id=wait.id,
            type=None if command is None else command.type,
            by=by if command is None else command.by,
            at=utc(self.context.now),
            metadata={} if command is None else command.metadata,
            effect=effect,
            digest="" if command is None else command.digest,
        )
        self.receipts = (*self.receipts, receipt)
        call = self.state.call(wait.correlation) if cards.shows(self.state, wait) else None
        if call is not None:
            self._show(cards.ended(self.state, wait, call, receipt, command))
        self.emit(WAIT_ENDED, ended_data(wait, receipt))
        return receipt


def without(items: tuple[T, ...], item: T) -> tuple[T, ...]:
    """Return items without one that is among them."""
    at = items.index(item)
    return (*items[:at], *items[at + 1 :])


def ended_data(wait: OpenWait, receipt: Receipt) -> JsonObject:
    """Return the data of a WAIT_ENDED event."""
    data: JsonObject = {"suspensionId": wait.id, "suspensionType": str(wait.type), "effect": str(receipt.effect)}
    if wait.correlation:
        data["correlationId"] = wait.correlation
    if receipt.by is not None:
        data["by"] = receipt.by
    return data
