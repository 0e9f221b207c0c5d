"""Middleware: code of the application around steps, model requests and calls of tools.

Each hook is around one attempt in one process. Nothing of it is stored, so it never spans a suspension.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast, final

import msgspec

from .chat import AiMessage
from .context import ToolContext
from .current import Entered
from .errors import InvalidDefinition, TurnholdError
from .model import ModelRequest
from .record import Metadata, Record
from .signature import is_async
from .tools import Tool
from .turn import Status

S = TypeVar("S")

StepOutcome: TypeAlias = Literal["completed", "suspended", "ended", "released", "lost"]
ProceedStep: TypeAlias = "Callable[[], Awaitable[StepEnd]]"
ProceedModel: TypeAlias = Callable[[ModelRequest], Awaitable[AiMessage]]
ProceedTool: TypeAlias = Callable[[], Awaitable[Any]]
Resolved: TypeAlias = "Tool[..., Any] | Awaitable[Tool[..., Any] | None] | None"

_current: ContextVar[TurnContext[Any]] = ContextVar("turnhold_turn_context")


class NoTurnContext(TurnholdError, LookupError):
    """No hook of a middleware is running here. `TurnContext.current()` works in hooks and in what they call."""


def _never() -> bool:
    return False


@final
class TurnContext(msgspec.Struct, Generic[S], frozen=True, kw_only=True, eq=False):
    """The turn, as code of the application that is asked beside its tools may know it.

    `step` is the number of the step under way. `epoch` is a fencing token: it grows with every activation of the turn. `metadata`
    is the turn's, `services` what the Runtime was given. `active_tools` are the names that its tools have activated, in that order
    (`ToolContext.activate`); they are saved with the turn.
    """

    turn_id: str
    root_turn_id: str
    parent_turn_id: str | None = None
    conversation_id: str | None = None
    tenant: str | None = None
    agent_id: str
    agent_version: str
    step: int = 0
    epoch: int = 0
    metadata: Metadata = {}
    services: S = cast("S", None)
    active_tools: tuple[str, ...] = ()
    cancelled: Callable[[], bool] = _never

    @staticmethod
    def current() -> TurnContext[Any]:
        """Return the context of the hook that runs here.

        :raises NoTurnContext: if none does.
        """
        try:
            return _current.get()
        except LookupError:
            raise NoTurnContext("no hook of a middleware is running here") from None

    @property
    def cancel_requested(self) -> bool:
        """Whether the turn is to be cancelled."""
        return self.cancelled()

    def __repr__(self) -> str:
        return f"<TurnContext {self.turn_id} step {self.step}>"


def current_turn(context: TurnContext[Any]) -> Entered[TurnContext[Any]]:
    """Make a context the current one, for a block."""
    return Entered(_current, context)


class StepEnd(Record, frozen=True):
    """How an attempt of a step ended, once that was saved.

    ``completed``: the reply is there, and all its calls have results. ``suspended``: the turn waits. ``ended``: the turn is over in
    another way than COMPLETED. ``released``: another node goes on with it. ``lost``: so it is, and nothing of this attempt that was
    not saved counts. `status` is the turn's, as far as this process knows it.
    """

    step: int
    outcome: StepOutcome
    status: Status


class Middleware:
    """The base of middleware: override the hooks you need; one that is not overridden costs nothing.

    Hooks are async. Each gets what it stands around and `proceed`, which goes on inwards: to the same hook of the next middleware
    of ``Agent(middleware=[first, …, last])``, and in the end to the thing itself. `proceed` works once, while its hook runs; a
    second call raises `ProceedTwice`, and nothing is done again. One object serves all turns of an agent, in any order and at
    once, so what belongs to a turn does not belong into its attributes.

    `tools` are brought along: the agent has them beside its own.
    """

    tools: Iterable[Tool[..., Any] | Callable[..., Any]] = ()

    async def around_step(self, turn: TurnContext[Any], proceed: ProceedStep) -> object:
        """Stand around the work on one step here: a model request and the calls of its reply, or calls that go on after a wait.

        `proceed` returns how the step ended, when that is saved. Nothing of the step starts before all these hooks have called it:
        an exception in front of it, or a return without it, is an error of what was to start. What is raised behind it is logged
        and changes nothing; nor does what a hook returns.
        """
        return await proceed()

    async def around_model_call(self, request: ModelRequest, proceed: ProceedModel) -> AiMessage:
        """Stand around one request to the model, which may be streamed; return the reply that counts.

        ``proceed(request)`` returns the model's reply; another request is for this attempt only and never stored. An exception is
        one of the model request: a `RetryableModelError` is retried as the policy says. `TurnContext.current()` tells of the turn.
        """
        return await proceed(request)

    async def around_tool_call(self, context: ToolContext[Any], proceed: ProceedTool) -> Any:
        """Stand around one attempt of a call whose start has been saved; return the value that is its result.

        ``proceed()`` calls the function, with the call's own arguments, and returns its value. An exception is one of the tool.
        """
        return await proceed()

    def resolve(self, turn: TurnContext[Any], name: str) -> Resolved:
        """Return the tool of a name that the agent itself has not, or `None`; sync or async.

        Asked about each such call before it is decided about, and again where it is to run in another process. Give the same every
        time. At most one middleware may answer, with a tool of that very name. The model sees such a tool only if
        `around_model_call` adds its `definition` to the request.
        """
        return None


Resolver: TypeAlias = Callable[[TurnContext[Any], str], object]
StepHook: TypeAlias = Callable[[TurnContext[Any], ProceedStep], Awaitable[object]]
ModelHook: TypeAlias = Callable[[ModelRequest, ProceedModel], Awaitable[AiMessage]]
ToolHook: TypeAlias = Callable[[ToolContext[Any], ProceedTool], Awaitable[Any]]


@final
class Hooks(msgspec.Struct, frozen=True):
    """The hooks that an agent's middleware has overridden, each kind from the outside in."""

    step: tuple[StepHook, ...] = ()
    model: tuple[ModelHook, ...] = ()
    tool: tuple[ToolHook, ...] = ()
    resolvers: tuple[Resolver, ...] = ()
    grouped: bool = False

    @property
    def early(self) -> bool:
        """Tell whether a model request may leave before the save that holds it is acknowledged: nobody looks at what is saved."""
        return not (self.step or self.model or self.grouped)


def checked_middleware(name: str, middleware: object) -> tuple[Middleware, ...]:
    """Return middleware as an agent keeps it. :raises InvalidDefinition: if something is none, or stands there twice."""
    if isinstance(middleware, str | bytes | Mapping) or not isinstance(middleware, Iterable):
        raise InvalidDefinition(f"{name} must be a list of Middleware, not {type(cast('object', middleware)).__name__}")
    several = tuple(cast("Iterable[object]", middleware))
    for index, each in enumerate(several):
        if not isinstance(each, Middleware):
            raise InvalidDefinition(f"{name} has {each!r:.100}, which is no Middleware object")
        if any(each is other for other in several[:index]):
            raise InvalidDefinition(f"{name} has the same {type(each).__name__} twice")
    return cast("tuple[Middleware, ...]", several)


def hooks_of(name: str, middleware: Iterable[Middleware], *, grouped: bool) -> Hooks:
    """Return what middleware has overridden. :raises InvalidDefinition: if a hook is not async.

    :param grouped: whether groups of tools have to be asked for each model request.
    """
    found: dict[str, list[Any]] = {"around_step": [], "around_model_call": [], "around_tool_call": [], "resolve": []}
    for each in middleware:
        for key, hooks in found.items():
            hook = getattr(each, key)
            if getattr(hook, "__func__", hook) is getattr(Middleware, key):
                continue
            if not callable(hook) or not (key == "resolve" or is_async(hook)):
                raise InvalidDefinition(f"{name}: {type(each).__name__}.{key} must be an async function")
            hooks.append(hook)
    return Hooks(*(tuple(hooks) for hooks in found.values()), grouped=grouped)
