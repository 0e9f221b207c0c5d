"""What the scenarios share: runtimes on one store and one clock, tools that note every start, and short forms of what users see."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

from turnhold import (
    Agent,
    AgentLoader,
    AiMessage,
    ChatMessage,
    Event,
    EventType,
    FormDefinition,
    MemoryMessage,
    ResumeCommand,
    Runtime,
    Suspension,
    SystemMessage,
    Tool,
    ToolContext,
    ToolMessage,
    TurnRef,
    TurnView,
    UserMessage,
    tool,
)
from turnhold.runtime.runtime import node_of
from turnhold.store import base
from turnhold.testing import ScriptedModel, VirtualClock, call

T = TypeVar("T")
LEASE = 10.0


class Lab:
    """Runtimes on one store and one clock; all are left at the end."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = VirtualClock()
        self._open: list[Runtime] = []

    async def runtime(self, *agents: Agent, loader: AgentLoader | None = None, **options: Any) -> Runtime:
        """Open one more node on the store."""
        found = agents if loader is None else loader
        runtime = Runtime(options.pop("store", self.url), agents=found, clock=self.clock, lease=LEASE, **options)
        await runtime.__aenter__()
        self._open.append(runtime)
        return runtime

    async def close(self, runtime: Runtime) -> None:
        """Leave a runtime, letting the time pass that its drain takes."""
        self._open.remove(runtime)
        await self.during(runtime.__aexit__(None, None, None))

    async def kill(self, runtime: Runtime) -> None:
        """Let a node die as a killed process would."""
        self._open.remove(runtime)
        await runtime._node.kill()

    async def close_all(self) -> None:
        for runtime in list(reversed(self._open)):
            await self.close(runtime)

    async def idle(self) -> None:
        """Let everything run that can run now."""
        await self.clock.idle()

    async def during(self, work: Awaitable[T], *, most: float = 120) -> T:
        """Await something while time passes, a second at a time."""
        task = asyncio.ensure_future(work)
        await self.clock.idle()
        for _ in range(int(most)):
            if task.done():
                break
            await self.clock.advance(1)
        assert task.done(), f"not over after {most} s"
        return await task

    async def take_over(self) -> None:
        """Let the leases of dead nodes end, and others find out."""
        await self.clock.advance(2 * LEASE)


class Gate:
    """Where a tool or a model waits until the test lets it go."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()
        self.left = 0

    async def passing(self) -> None:
        self.entered.set()
        try:
            await self.opened.wait()
        finally:
            self.left += 1

    def open(self) -> None:
        self.opened.set()


class Desk:
    """Makes tools that note each start of their function."""

    def __init__(self) -> None:
        self.starts: list[str] = []
        self.arguments: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.attempts: list[int] = []
        self.ended: list[str] = []

    def tool(
        self,
        name: str = "refund",
        *,
        result: Any = "refunded",
        gate: Gate | None = None,
        errors: Sequence[BaseException] = (),
        forms: Sequence[FormDefinition] = (),
        body: Callable[[ToolContext[Any], dict[str, Any]], Awaitable[Any]] | None = None,
        **options: Any,
    ) -> Tool:
        """Make a tool: note the start, ask for forms, wait at a gate, raise the error of this attempt, return the result."""

        async def function(amount: int = 0, text: str = "") -> Any:
            """Do something that is noted."""
            context = ToolContext.current()
            self.starts.append(context.call.name)
            self.arguments.append({"amount": amount, "text": text})
            self.keys.append(context.idempotency_key)
            self.attempts.append(context.attempt)
            answers = [context.form(form) for form in forms]
            if gate is not None:
                await gate.passing()
            if context.attempt <= len(errors):
                raise errors[context.attempt - 1]
            self.ended.append(context.call.name)
            if body is not None:
                return await body(context, {"amount": amount, "text": text})
            return answers[-1] if forms else result

        return tool(function, name=name, **options)


def agent(*replies: Any, id: str = "shop", tools: Iterable[Tool] = (), **options: Any) -> Agent:
    """Return an agent with a scripted model (or the one given as ``model=``)."""
    model = options.pop("model", None) or ScriptedModel(*replies)
    return Agent(id, model=model, tools=tools, **options)


def asks(*names: str) -> list[Any]:
    """Return a reply with one call of each of these agents."""
    return [call(name, input=f"for {name}") for name in names]


def held(gate: Gate, text: str = "child done"):
    """Return a reply that waits at a gate."""

    async def reply(request):
        await gate.passing()
        return text

    return reply


def model_of(agent: Agent) -> ScriptedModel:
    assert isinstance(agent.model, ScriptedModel)
    return agent.model


def talk(messages: Iterable[ChatMessage]) -> list[str]:
    """Return a history in short: who said what; calls as ``assistant -> name, name``, results as ``id = text``."""
    short: list[str] = []
    for message in messages:
        match message:
            case SystemMessage():
                short.append(f"system: {message.content}")
            case UserMessage():
                short.append(f"user: {message.content}")
            case AiMessage() if message.tool_calls:
                short.append("assistant -> " + ", ".join(call.name for call in message.tool_calls))
            case AiMessage():
                short.append(f"assistant: {message.content}")
            case ToolMessage():
                short.append(f"{message.call_id} = {message.content}")
    return short


def result_of(messages: Iterable[ChatMessage], call_id: str = "call_1_0") -> str:
    """Return the one result that a history has for a call."""
    (found,) = [message.content for message in messages if isinstance(message, ToolMessage) and message.call_id == call_id]
    return found


def open_calls(messages: Iterable[ChatMessage]) -> list[str]:
    """Return the ids of calls without a result, in the place where a provider wants it: directly behind the reply."""
    left: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            assert message.call_id in left, f"a result of {message.call_id}, which was not asked or has one"
            left.remove(message.call_id)
            continue
        if left:
            return left
        if isinstance(message, AiMessage):
            left = [call.id for call in message.tool_calls]
    return left


def echo(request: Any) -> str:
    """Reply with what was said last."""
    return f"re {request.messages[-1].content}"


def shown(entries: Iterable[MemoryMessage]) -> list[ChatMessage]:
    """Return the messages of a conversation that models may see."""
    return [cast("ChatMessage", entry.message) for entry in entries if entry.shown]


async def said(runtime: Runtime, conversation: str = "c") -> list[str]:
    """Return what a conversation remembers, in short, without its cards."""
    return talk(shown(await runtime.conversation(conversation).messages(limit=1000)))


async def park(runtime: Runtime, turn: TurnRef) -> None:
    """Put a turn that waits into quarantine, as an owner does that cannot go on with it."""
    node = node_of(runtime)
    by = node.placement.claim_by()
    claimed = await node.call(base.Cancel(turn=turn.id, cause="x", claim=by))
    assert isinstance(claimed, base.Claimed)
    await node.call(base.Quarantine(turn=turn.id, token=base.Token(by.activation, claimed.epoch), reason="broken"))


async def stored_events(turn: TurnRef, after: int = 0) -> list[Event]:
    """Return the stored events of a turn that has ended."""
    return [event async for event in turn.events(after, live=False)]


def told(event: Event) -> dict[str, Any]:
    """Return what an event tells beside where its turn stood."""
    place = ("status", "phase", "stepCount", "maxSteps")
    return {key: value for key, value in event.data.items() if key not in place}


async def types(turn: TurnRef) -> list[EventType]:
    return [event.type for event in await stored_events(turn)]


async def waiting(runtime: Runtime, agent: Agent, input: str = "hi", **options: Any) -> tuple[TurnRef, Suspension]:
    """Start a turn, let it settle, and return its one open wait."""
    turn = await runtime.start(agent, input, **options)
    view = await turn.settle()
    (wait,) = view.open_waits
    return turn, wait


async def approved(turn: TurnRef, wait: Suspension, **options: Any) -> TurnView:
    return await turn.resume(ResumeCommand.approve_tool(wait, **options))
