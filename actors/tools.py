"""Tools: functions that a model may call."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar, cast, final, overload

from msgspec import UNSET

from .chat import ToolCall
from .checks import MAX_ID, MAX_TEXT, check_span, check_text
from .context import ToolContext, current_context
from .errors import InvalidDefinition
from .model import ToolDefinition
from .policies import ALLOW, REQUIRE, ApprovalDecision
from .record import JsonObject, Seconds
from .signature import Binder, binder_of, binder_of_schema, describe, is_async, parameter_names, unwrapped
from .turn import masked

if TYPE_CHECKING:
    from .agent import Agent
    from .forms import FormDefinition
    from .view import TurnView

P = ParamSpec("P")
R = TypeVar("R")
Q = ParamSpec("Q")
U = TypeVar("U")

ToolEffect: TypeAlias = Literal["once", "repeatable"]
Approval: TypeAlias = "bool | ApprovalDecision | Callable[..., bool | ApprovalDecision | Awaitable[bool | ApprovalDecision]]"
AskedApproval: TypeAlias = bool | ApprovalDecision | Awaitable[bool | ApprovalDecision]

USER_INPUT_TOOL = "request_user_input"
CREATE_PLAN, UPDATE_PLAN = "create_task_plan", "update_task_plan"
RESERVED = frozenset({USER_INPUT_TOOL, CREATE_PLAN, UPDATE_PLAN})
CHILD_PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {
        "input": {
            "type": "string",
            "minLength": 1,
            "description": "What to do, with all that has to be known: nothing else is seen.",
        }
    },
    "required": ["input"],
    "additionalProperties": False,
}
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@final
@dataclass(frozen=True, eq=False, repr=False, init=False, slots=True, weakref_slot=True)
class Tool(Generic[P, R]):
    """A function that a model may call, and how it may be called; made by `tool` or `Tool.from_schema`.

    Calling a Tool calls its function. `approval` says whether a person must agree; `effect` whether the function may be started
    again (`None`: "once" if a person had to approve the call, else "repeatable"). `sensitive` names the arguments that are masked
    wherever people or logs see them. `forms` are those of the control tool `request_user_input`, else empty. `agent` is the one
    that a call starts as a child turn (`Agent.as_tool`), else `None`.
    """

    name: str
    description: str
    parameters: JsonObject
    function: Callable[P, R]
    approval: Approval
    effect: ToolEffect | None
    timeout: timedelta | None
    sequential: bool
    cancellable: bool
    sensitive: tuple[str, ...]
    assignee: str | None
    metadata: Mapping[str, Any]
    forms: tuple[FormDefinition[Any], ...]
    agent: Agent[Any] | None
    is_async: bool
    definition: ToolDefinition
    _binder: Binder
    _asks: tuple[str, ...]
    _defaults: Mapping[str, Any]

    def __init__(self, function: Callable[P, R], options: _Options) -> None:
        name = options.checked_name(function)
        binder = options.binder(name, function)
        description = _description(name, options.description, function)
        values: dict[str, Any] = {
            **options.checked(name, binder, asynchronous=is_async(function)),
            "name": name,
            "description": description,
            "parameters": binder.parameters,
            "definition": ToolDefinition(name, description, binder.parameters),
            "function": function,
            "is_async": is_async(function),
            "_binder": binder,
            "_asks": _asks(name, options.approval, binder),
            "_defaults": _defaults(function, binder),
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, as if it were not a tool."""
        return self.function(*args, **kwargs)

    @property
    def __wrapped__(self) -> Callable[P, R]:
        """The function, for `inspect`."""
        return self.function

    @staticmethod
    def from_schema(
        name: str,
        description: str,
        parameters: Mapping[str, Any],
        function: Callable[Q, U],
        *,
        approval: Approval = False,
        effect: ToolEffect | None = None,
        timeout: Seconds | None = None,
        sequential: bool = False,
        cancellable: bool = False,
        sensitive: tuple[str, ...] | list[str] = (),
        assignee: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Tool[Q, U]:
        """Make a tool whose parameters are described by a JSON Schema of an object.

        The function gets the arguments by name, or all in one dict if its only parameter is called ``arguments``.

        :raises InvalidDefinition: if an argument is wrong, or the function cannot take what the schema describes.
        """
        return Tool(
            function,
            _Options(
                name, description, approval, effect, timeout, sequential, cancellable, sensitive, assignee, metadata, parameters
            ),
        )

    def bind(self, arguments: JsonObject) -> dict[str, Any]:
        """Return arguments as the function takes them, validated and converted; nothing is shared with what was given.

        :raises ArgumentsInvalid: if they do not fit.
        """
        return self._binder.bind(self.name, arguments)

    def invoke(self, bound: dict[str, Any], context: ToolContext[Any]) -> object:
        """Call the function here and now with what `bind` returned, under a context.

        :return: what the function returns; for an async one an awaitable, under the same context.
        """
        binder = self._binder
        keywords: dict[str, Any] = {binder.whole: bound} if binder.whole else dict(bound)
        for name in binder.contexts:
            keywords[name] = context
        function = cast("Callable[..., Any]", self.function)
        if self.is_async:
            return _awaited(function, keywords, context)
        with current_context(context):
            result = function(**keywords)
        return _awaited(lambda: result, {}, context) if inspect.isawaitable(result) else result

    def ask(self, arguments: JsonObject, call: ToolCall, *, turn: TurnView | None = None) -> AskedApproval:
        """Return what the tool's own `approval` says of a call; it may have to be awaited (see `decision_of`).

        A function is called with those of these that it names: the tool's parameters (converted; defaults where the call gives
        none), and, where no parameter has that name, ``call``, ``arguments`` and ``turn``.

        :raises ArgumentsInvalid: if the arguments do not fit the tool.
        """
        if not callable(self.approval):
            return self.approval
        known: dict[str, Any] = {"call": call, "arguments": arguments, "turn": turn, **self._defaults, **self.bind(arguments)}
        names = known if "**" in self._asks else self._asks
        return self.approval(**{name: known[name] for name in names if name in known})

    def mask(self, arguments: JsonObject) -> JsonObject:
        """Return arguments with the sensitive ones replaced."""
        return masked(arguments, self.sensitive)

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"


async def _awaited(function: Callable[..., Awaitable[Any]], keywords: dict[str, Any], context: ToolContext[Any]) -> Any:
    with current_context(context):
        return await function(**keywords)


@dataclass(frozen=True)
class _Options:
    """The options of a tool as they were given."""

    name: object
    description: object
    approval: object
    effect: object
    timeout: object
    sequential: object
    cancellable: object
    sensitive: object
    assignee: object
    metadata: object
    parameters: object = UNSET
    forms: tuple[FormDefinition[Any], ...] = ()
    agent: Agent[Any] | None = None

    def checked_name(self, function: object) -> str:
        """Return the tool's name.

        :raises InvalidDefinition: if the function is not one or the name does not do.
        """
        plain: Any = unwrapped(function) if callable(function) else function
        if isinstance(plain, Tool) or not callable(plain) or inspect.isclass(plain):
            raise InvalidDefinition(f"a tool is made of a function, not of {function!r:.200}")
        name = self.name
        if name is None:
            name = getattr(plain, "__name__", None) or type(plain).__name__
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidDefinition(f"a tool's name has 1 to 64 of A-Z a-z 0-9 _ -, not {name!r:.100}; give name=")
        if name in RESERVED and not self.forms:
            raise InvalidDefinition(f"the name {name!r} belongs to a control tool")
        return name

    def binder(self, name: str, function: Callable[..., Any]) -> Binder:
        """Return what makes arguments ready."""
        return binder_of(name, function) if self.parameters is UNSET else binder_of_schema(name, self.parameters, function)

    def checked(self, name: str, binder: Binder, *, asynchronous: bool) -> dict[str, Any]:
        """Return the options as the tool keeps them.

        :raises InvalidDefinition: if one is wrong.
        """
        if self.effect not in (None, "once", "repeatable"):
            raise InvalidDefinition(f"tool {name}: effect must be 'once', 'repeatable' or None, not {self.effect!r}")
        for key in ("sequential", "cancellable"):
            if not isinstance(getattr(self, key), bool):
                raise InvalidDefinition(f"tool {name}: {key} must be a bool, not {getattr(self, key)!r}")
        if self.cancellable and not asynchronous:
            raise InvalidDefinition(f"tool {name}: only an async function can be cancellable, a thread cannot be interrupted")
        check_text(f"tool {name}: assignee", self.assignee, MAX_ID, optional=True, empty=False)
        return {
            "approval": self.approval,
            "effect": self.effect,
            "timeout": positive(f"tool {name}: timeout", self.timeout),
            "sequential": self.sequential,
            "cancellable": self.cancellable,
            "sensitive": _sensitive(name, self.sensitive, parameter_names(binder.parameters)),
            "assignee": self.assignee,
            "metadata": read_only(f"tool {name}: metadata", self.metadata),
            "forms": self.forms,
            "agent": self.agent,
        }


def positive(name: str, value: object) -> timedelta | None:
    """Return a duration of more than nothing.

    :raises InvalidDefinition: if it is not one.
    """
    return None if value is None else check_span(name, value, positive=True)


def read_only(name: str, value: object) -> Mapping[str, Any]:
    """Return a read-only copy of a mapping with text keys.

    :raises InvalidDefinition: if it is not one.
    """
    if value is None:
        return MappingProxyType({})
    if not isinstance(value, Mapping):
        raise InvalidDefinition(f"{name} must be a mapping, not {type(value).__name__}")
    copy = dict(cast("Mapping[Any, Any]", value))
    for key in copy:
        check_text(f"{name} key", key, MAX_TEXT)
    return MappingProxyType(copy)


def _sensitive(name: str, value: object, known: tuple[str, ...]) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, tuple | list):
        raise InvalidDefinition(f"tool {name}: sensitive must be a tuple of parameter names, not {value!r}")
    names = tuple(cast("tuple[object, ...]", value))
    if unknown := [key for key in names if key not in known]:
        raise InvalidDefinition(f"tool {name}: sensitive names {unknown[0]!r}, which is not a parameter")
    return cast("tuple[str, ...]", names)


def _description(name: str, given: object, function: Callable[..., Any]) -> str:
    text = describe(function) if given is None else given
    check_text(f"tool {name}: description", text, MAX_TEXT)
    return cast("str", text)


def _asks(name: str, approval: object, binder: Binder) -> tuple[str, ...]:
    """Return the argument names that an approval function takes; "**" for all."""
    if isinstance(approval, bool | ApprovalDecision):
        return ()
    if not callable(approval):
        raise InvalidDefinition(f"tool {name}: approval must be a bool, an ApprovalDecision or a function, not {approval!r}")
    try:
        found = inspect.signature(approval).parameters.values()
    except (TypeError, ValueError) as error:
        raise InvalidDefinition(f"tool {name}: the signature of approval cannot be read: {error}") from None
    known = {*parameter_names(binder.parameters), "call", "arguments", "turn"}
    names: list[str] = []
    for parameter in found:
        if parameter.kind is parameter.VAR_KEYWORD:
            names.append("**")
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise InvalidDefinition(f"tool {name}: approval gets arguments by name, so not {parameter.name}")
        elif parameter.name in known:
            names.append(parameter.name)
        elif parameter.default is parameter.empty:
            raise InvalidDefinition(f"tool {name}: approval asks for {parameter.name!r}; it may name {', '.join(sorted(known))}")
    return tuple(names)


def _defaults(function: Callable[..., Any], binder: Binder) -> dict[str, Any]:
    found = inspect.signature(function).parameters.values()
    names = parameter_names(binder.parameters)
    return {each.name: each.default for each in found if each.name in names and each.default is not each.empty}


def decision_of(value: object) -> ApprovalDecision:
    """Return what an approval policy's answer means: true that a person must approve.

    :raises InvalidDefinition: if it is neither a bool nor an `ApprovalDecision`.
    """
    if isinstance(value, bool):
        return REQUIRE if value else ALLOW
    if isinstance(value, ApprovalDecision):
        return value
    raise InvalidDefinition(f"an approval policy answers with a bool or an ApprovalDecision, not {type(value).__name__}")


@overload
def tool(
    function: Callable[P, R],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    approval: Approval = False,
    effect: ToolEffect | None = None,
    timeout: Seconds | None = None,
    sequential: bool = False,
    cancellable: bool = False,
    sensitive: tuple[str, ...] | list[str] = (),
    assignee: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    approval: Approval = False,
    effect: ToolEffect | None = None,
    timeout: Seconds | None = None,
    sequential: bool = False,
    cancellable: bool = False,
    sensitive: tuple[str, ...] | list[str] = (),
    assignee: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    approval: Approval = False,
    effect: ToolEffect | None = None,
    timeout: Seconds | None = None,
    sequential: bool = False,
    cancellable: bool = False,
    sensitive: tuple[str, ...] | list[str] = (),
    assignee: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Any:
    """Make a tool of a function; the schema comes from its annotations, the description from its docstring.

    Works with ``@tool``, ``@tool(…)`` and ``tool(function, …)``, on functions, async functions, bound methods, partials and
    callable objects. A parameter annotated `ToolContext` is filled by the runtime.

    :param approval: whether a person must approve: a bool, an `ApprovalDecision`, or a function of those arguments it names.
    :param effect: "once" if a second start would do harm, "repeatable" if not.
    :param timeout: how long one attempt may take (a timedelta, or seconds).
    :param sequential: never run beside other calls of the same reply.
    :param cancellable: a cancel may interrupt the (async) function.
    :param sensitive: names of arguments that are masked in views, events and logs.
    :param assignee: who is asked for approval.
    :raises InvalidDefinition: if an option is wrong, or a parameter cannot be given by a model.
    """
    options = _Options(name, description, approval, effect, timeout, sequential, cancellable, sensitive, assignee, metadata)

    def decorate(function: Callable[..., Any]) -> Tool[..., Any]:
        return Tool(function, options)

    return decorate if function is None else decorate(function)


def control_tool(name: str, description: str, parameters: JsonObject, forms: tuple[FormDefinition[Any], ...]) -> Tool[..., Any]:
    """Make a tool that the runtime itself handles; its function is never called."""
    options = _Options(name, description, False, "repeatable", None, False, False, (), None, None, parameters, forms)
    return Tool(_never(name), options)


def agent_tool(
    agent: Agent[Any], name: str, description: str, *, approval: object, sequential: object, assignee: object, metadata: object
) -> Tool[..., Any]:
    """Make a tool whose calls start an agent as a child turn (see `Agent.as_tool`); its function is never called.

    :raises InvalidDefinition: if an argument is wrong.
    """
    options = _Options(
        name, description, approval, "repeatable", None, sequential, False, (), assignee, metadata, CHILD_PARAMETERS, agent=agent
    )
    return Tool(_never(name), options)


def _never(name: str) -> Callable[..., None]:
    def never(arguments: JsonObject) -> None:
        raise InvalidDefinition(f"{name} is handled by the runtime, not called")

    return never
