"""Middleware at work: one hook within the other, each with a `proceed` that works once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from ..actors.carried import Marks
from ..actors.chat import AiMessage, Usage
from ..actors.context import ToolContext
from ..actors.errors import MiddlewareError, ProceedTwice
from ..actors.ids import root_of
from ..actors.middleware import ModelHook, ToolHook, TurnContext, current_turn
from ..actors.model import ModelRequest
from ..actors.record import JsonValue
from ..actors.tokens import total_tokens, usage_of
from .log import log

if TYPE_CHECKING:
    from .actor import Actor

P = ParamSpec("P")
R = TypeVar("R")
Q = TypeVar("Q")


def turn_context(actor: Actor) -> TurnContext[object]:
    """Return what hooks, conditions and resolvers may know of a turn."""
    state = actor.state
    return TurnContext(
        turn_id=state.turn_id,
        root_turn_id=root_of(state.turn_id),
        parent_turn_id=state.parent_turn_id,
        conversation_id=state.conversation_id,
        tenant=state.tenant,
        agent_id=state.agent_id,
        agent_version=state.agent_version,
        step=state.step_count,
        epoch=actor.token.epoch,
        metadata=restored(actor, state.metadata or {}, state.metadata_marks),
        services=actor.host.services,
        active_tools=state.active_tools,
        cancelled=actor.cancelled,
    )


def restored(actor: Actor, value: JsonValue, marks: Marks) -> Any:
    """Return a stored value with its Structs, as far as the node has their types; what does not fit its type is noted."""
    if not marks:
        return value
    return actor.host.types.restored(value, marks, lambda why: log.warning("struct_unfit", turn=actor.turn_id, why=why))


def name_of(hook: object) -> str:
    """Return a hook's name as messages show it."""
    return f"{type(getattr(hook, '__self__', hook)).__name__}.{getattr(hook, '__name__', 'hook')}"


class Proceed(Generic[P, R]):
    """The `proceed` of one hook: it works once, while the hook runs."""

    __slots__ = ("_closed", "_ended", "_hook", "_task", "_used", "_work")

    def __init__(self, hook: object, work: Callable[P, Awaitable[R]]) -> None:
        self._hook = hook
        self._work = work
        self._used = self._closed = False
        self._task: asyncio.Task[Any] | None = None
        self._ended: asyncio.Future[None] | None = None

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Go on inwards. :raises ProceedTwice: if that was done before, or the hook has returned."""
        if self._used or self._closed:
            why = "it had been called before" if self._used else "its hook had returned"
            raise ProceedTwice(f"the proceed of {name_of(self._hook)} works once: {why}")
        self._used = True
        self._task = asyncio.current_task()
        try:
            return await self._work(*args, **kwargs)
        finally:
            self._task = None
            if self._ended is not None and not self._ended.done():
                self._ended.set_result(None)

    async def held(self, running: Awaitable[Q]) -> Q:
        """Await the hook; what it has left running in a task of its own is awaited, too, and cancelled as it is."""
        try:
            return await running
        except asyncio.CancelledError:
            if self._task is not None:
                self._task.cancel()
            raise
        finally:
            self._closed = True
            if self._task is not None:
                await self._left()

    async def _left(self) -> None:
        cancelled: asyncio.CancelledError | None = None
        while (task := self._task) is not None:
            self._ended = self._ended or asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait([self._ended])
            except asyncio.CancelledError as error:
                cancelled = error
                task.cancel()
        if cancelled is not None:
            raise cancelled


async def _model(hook: ModelHook, inner: Callable[[ModelRequest], Awaitable[AiMessage]], request: ModelRequest) -> AiMessage:
    async def checked(request: ModelRequest) -> AiMessage:
        if not isinstance(cast("object", request), ModelRequest):
            raise MiddlewareError(f"{name_of(hook)} went on with a {type(request).__name__}, not with a ModelRequest")
        return await inner(request)

    proceed = Proceed(hook, checked)
    return await proceed.held(hook(request, proceed))


async def _tool(hook: ToolHook, inner: Callable[[], Awaitable[object]], context: ToolContext[object]) -> object:
    proceed = Proceed(hook, inner)
    return await proceed.held(hook(context, proceed))


class Tally:
    """What the model has used for a reply that hooks have in hand."""

    __slots__ = ("used",)

    def __init__(self) -> None:
        self.used = Usage()

    def beside(self, reply: AiMessage | None) -> Usage:
        """Return what the reply that counts does not say of it; `None` is no reply."""
        return self.used if reply is None or reply.usage is None else Usage()


async def reply_of(
    actor: Actor, request: ModelRequest, tally: Tally, ask: Callable[[ModelRequest], Awaitable[AiMessage]]
) -> AiMessage:
    """Send a model request through the hooks of the agent's middleware."""

    async def inmost(sent: ModelRequest) -> AiMessage:
        reply = await ask(sent)
        tokens = actor.recall.tokens() if sent.messages is request.messages else total_tokens(sent.messages)
        tally.used = actor.seen = usage_of(tokens, reply)
        return reply

    work: Callable[[ModelRequest], Awaitable[AiMessage]] = inmost
    for hook in reversed(actor.executor.hooks.model):
        work = partial(_model, hook, work)
    with current_turn(turn_context(actor)):
        return await work(request)


async def value_of(actor: Actor, context: ToolContext[object], call: Callable[[], Awaitable[object]]) -> object:
    """Make a call within the hooks of the agent's middleware."""
    work = call
    for hook in reversed(actor.executor.hooks.tool):
        work = partial(_tool, hook, work, context)
    return await work()
