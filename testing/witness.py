"""A witness of everything that runtimes of a test do: what was saved, what was started, what the model was shown."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, final

from ..actors.agent import Agent
from ..actors.chat import AiMessage, ChatMessage, ToolMessage
from ..actors.context import NoToolContext, ToolContext
from ..actors.ids import root_of
from ..actors.model import ChatModel, ModelRequest
from ..actors.record import JsonObject
from ..actors.tools import Tool
from ..actors.turn import CallRecord, CallStatus, TurnState
from ..store import base, codec
from .breach import Breach
from .talks import Talks

__all__ = ["Breach", "Start", "WatchedModel", "Witness", "tools_of", "unanswered", "watched_agent", "watching"]


class Start(NamedTuple):
    """One start of a tool's function."""

    turn_id: str
    call_id: str
    attempt: int
    tool: str


@contextmanager
def watching(tool: Tool[..., Any], note: Callable[[ToolContext[Any]], None]) -> Generator[None]:
    """Be told of each start of a tool in a turn, just before its function is called."""
    original = tool.function

    def watched(*args: Any, **keywords: Any) -> object:
        with suppress(NoToolContext):
            note(ToolContext.current())
        return original(*args, **keywords)

    object.__setattr__(tool, "function", watched)
    try:
        yield
    finally:
        object.__setattr__(tool, "function", original)


def unanswered(messages: Iterable[ChatMessage]) -> list[str]:
    """Return the ids of calls whose result does not stand directly behind the reply that asked for them."""
    open_calls: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.call_id in open_calls:
                open_calls.remove(message.call_id)
            continue
        if open_calls:
            return open_calls
        if isinstance(message, AiMessage):
            open_calls = [call.id for call in message.tool_calls]
    return open_calls


@final
class Witness:
    """Remembers, and notes each breach of what must never happen; `testify` raises them."""

    def __init__(self) -> None:
        self.saved: dict[str, TurnState] = {}
        self.starts: list[Start] = []
        self.breaches: list[str] = []
        self.counts: Counter[str] = Counter()
        self.talks = Talks(self.note)
        self.begun: set[str] = set()  # turns whose history was open in a save before their last
        self.given: dict[tuple[str, str], list[JsonObject]] = {}
        self.tainted: set[str] = set()  # roots of trees of which the store has forgotten something
        self.robbed: set[str] = set()  # turns taken from an owner whose lease was not over
        self._running: set[tuple[str, str, int]] = set()  # attempts of calls that any save has begun
        self._versions: dict[str, int] = {}
        self._intended: set[tuple[str, str]] = set()
        self._intents: list[tuple[str, list[str], int]] = []
        self._once: dict[tuple[str, str], bool] = {}

    @property
    def turns(self) -> list[str]:
        """All turns of which the creation, or a save, was seen."""
        return list(self._versions)

    def taint(self, roots: Iterable[str]) -> None:
        """The store has forgotten something of these trees: what it had promised of them is void."""
        self.tainted |= set(roots)
        self.talks.lost = True

    def testify(self) -> None:
        """Raise what has been noted. :raises Breach: if there is anything."""
        if self.breaches:
            raise Breach("; ".join(self.breaches))

    def note(self, breach: str) -> None:
        """Note a breach; raising it where it happens might be caught as a fault of a tool or a model."""
        self.breaches.append(breach)

    # ------------------------------------------------------------------------------------------------------- the store

    def applied(self, op: base.Op, reply: base.Reply) -> None:
        """A store has applied an operation."""
        self.talks.applied(op, reply)
        if isinstance(op, base.Create) and isinstance(reply, base.Claimed | base.Created | base.Queued):
            self._versions.setdefault(op.new.turn, 0)
        if not isinstance(op, base.Save) or not isinstance(reply, base.Saved) or reply.replayed:
            return
        state = codec.decode_state(op.turn, op.schema, op.snapshot)
        before = self._versions.get(op.turn)
        if before is not None and reply.version != before + 1 and root_of(op.turn) not in self.tainted:
            self.note(f"version {reply.version} of turn {op.turn} was saved on top of {before}")
        self._versions[op.turn] = reply.version
        first = [call.id for call in state.calls if call.status is CallStatus.RUNNING and (op.turn, call.id) not in self._intended]
        self._intended |= {(op.turn, call) for call in first}
        self._intents.append((op.turn, first, reply.usage[3]))
        self.saved[op.turn] = state
        if state.opening is None and op.mode is not base.Mode.END:
            self.begun.add(op.turn)
        for call in state.calls:
            if call.status is CallStatus.RUNNING:
                self._running.add((op.turn, call.id, call.attempt))
            if call.attempt:
                self._once[op.turn, call.id] = call.effect == "once"

    def call(self, turn_id: str, call_id: str) -> CallRecord | None:
        """Return the record of a call as it was saved last."""
        state = self.saved.get(turn_id)
        return next((call for call in state.calls if call.id == call_id), None) if state is not None else None

    # ------------------------------------------------------------------------------------------------------- the world

    def started(self, context: ToolContext[Any]) -> None:
        """A tool starts: its attempt must be new, and its intent must have been saved.

        It is what was saved last; but an owner that was robbed may begin late what a save of its own had begun: its lease still
        holds, for all it knows.
        """
        start = Start(context.turn_id, context.call_id, context.attempt, context.call.name)
        if start in self.starts and root_of(start.turn_id) not in self.tainted:
            self.note(f"{start} was started twice")
        self.starts.append(start)
        self.given.setdefault(start[:2], []).append(context.call.arguments)
        record = self.call(start.turn_id, start.call_id)
        late = start.turn_id in self.robbed and start[:3] in self._running
        running = record is not None and record.status is CallStatus.RUNNING and record.attempt == start.attempt
        if not running and not late:
            self.note(f"{start} was started, saved is {record}")

    def asked(self, request: ModelRequest) -> None:
        """A model is asked: every call it sees must have its result."""
        if calls := unanswered(request.messages):
            self.note(f"the model of turn {request.turn_id} was shown {', '.join(calls)} without a result")

    def starts_of(self, turn_id: str, call_id: str) -> int:
        """Return how often a call's function was started."""
        return sum(start.turn_id == turn_id and start.call_id == call_id for start in self.starts)

    def overdrawn(self, root: str, most: int) -> list[str]:
        """Return the calls that were started although the save that committed to them told that the tree had none left.

        Of several calls of one such save, those begun first may have had room.
        """
        found: list[str] = []
        for turn_id, calls, used in self._intents:
            begun = [call for call in calls if self.starts_of(turn_id, call)]
            if root_of(turn_id) == root and used > most:
                found += begun[max(0, len(calls) - (used - most)) :]
        return found

    def once_calls(self, turn_id: str) -> list[str]:
        """Return the calls of a turn that are `once`, as far as they were started."""
        return [call for (turn, call), once in self._once.items() if once and turn == turn_id]


@final
class WatchedModel:
    """A model that shows its witness what it is asked."""

    def __init__(self, model: ChatModel, witness: Witness) -> None:
        self._model = model
        self._witness = witness

    async def complete(self, request: ModelRequest) -> AiMessage:
        """Answer as the model does."""
        self._witness.asked(request)
        return await self._model.complete(request)


def watched_agent(agent: Agent, witness: Witness) -> Agent:
    """Return the agent with a model that a witness hears, and so the agents that it has as tools, at any depth."""
    return _watched(agent, witness, {})


def _watched(agent: Agent, witness: Witness, known: dict[int, Agent]) -> Agent:
    found = known.get(id(agent))
    if found is None:
        tools: list[Tool[..., Any]] = []
        for tool in agent.executable:
            if tool.agent is not None:
                child = _watched(tool.agent, witness, known)
                tool = copy.copy(tool)  # noqa: PLW2901
                object.__setattr__(tool, "agent", child)
            tools.append(tool)
        model, other = agent.model, agent.multimodal_model
        eyes = None if other is None else WatchedModel(other, witness)
        found = known[id(agent)] = agent.replace(model=WatchedModel(model, witness), multimodal_model=eyes, tools=tools)
    return found


def tools_of(agent: Agent) -> list[Tool[..., Any]]:
    """Return the tools of an agent and of those that it has as tools, each once."""
    found: dict[int, Tool[..., Any]] = {}
    for tool in agent.executable:
        below = () if tool.agent is None else tools_of(tool.agent)
        found.update({id(each): each for each in (tool, *below)})
    return list(found.values())
