"""Agents: immutable definitions of who answers, with which model, by which tools, under which rules."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar, final, overload

from .chat import ChatMessage
from .compression import Compressor, check_compressor
from .digest import definition_digest
from .errors import InvalidDefinition
from .middleware import Hooks, Middleware, checked_middleware, hooks_of
from .model import ChatModel, ModelOptions, ToolDefinition
from .output import Out, Output, output_of
from .parts import carry_parts
from .policies import ExecutionPolicy, PlanningPolicy
from .toolbox import ToolGroup, toolbox_of
from .tools import Approval, AskedApproval, Tool, agent_tool, read_only
from .waits import MAX_ID, MAX_TEXT, check_text
from .window import ContextWindow

U = TypeVar("U")

AgentApproval: TypeAlias = "Callable[..., AskedApproval]"
MAX_INSTRUCTIONS = 1 << 20
DEFAULT_POLICY = ExecutionPolicy()
DEFAULT_OPTIONS = ModelOptions()
DEFAULT_WINDOW = ContextWindow()
FIELDS = (
    *("id", "version", "name", "description", "model", "instructions", "tools", "approval", "policy", "planning", "options"),
    *("middleware", "tool_groups", "window", "compressor", "multimodal_model", "output_type", "tool_error_message", "attributes"),
)


@final
@dataclass(frozen=True, eq=False, repr=False, init=False, slots=True, weakref_slot=True)
class Agent(Generic[Out]):
    """What a turn runs: a model, instructions, tools and rules. Turns are bound to `id` and `version`, never to another version.

    Generic in its output: what starts a turn of it by this object gives references and views with that type.

    :param tools: `Tool`s, or functions that become tools with default options.
    :param tool_groups: `ToolGroup`s: tools that can always be called, and that the model sees when their condition says so.
    :param approval: ``approval(turn, call, tool)``, sync or async; a bool (true: a person must approve) or an `ApprovalDecision`.
    :param planning: giving one lets the model make plans, whose tasks agents carry out as child turns.
    :param middleware: `Middleware` around its steps, model requests and calls of tools; the first is the outermost.
    :param window: how much of the history the model sees.
    :param compressor: what makes the older turns in the window shorter; ``turnhold.compressors`` has some.
    :param multimodal_model: what is asked in place of `model` where a message that it would see has parts (images, files, …).
    :param output_type: what the final reply must be: text, or a Struct, a dataclass, a TypedDict or another type with a JSON form.
        The model is told its schema, and asked again, within `max_iterations`, as long as its reply does not fit.
    :param tool_error_message: ``tool_error_message(call, error)`` returns what the model reads of a failed tool.
    :param attributes: the application's own; never sent to a model, never stored.
    :raises InvalidDefinition: if an argument is wrong.
    """

    id: str
    version: str
    name: str
    description: str
    model: ChatModel
    instructions: str | None
    tools: tuple[Tool[..., Any], ...]
    tool_groups: tuple[ToolGroup, ...]
    approval: AgentApproval | None
    policy: ExecutionPolicy
    planning: PlanningPolicy | None
    options: ModelOptions
    middleware: tuple[Middleware, ...]
    window: ContextWindow
    compressor: Compressor | None
    multimodal_model: ChatModel | None
    output_type: Any
    tool_error_message: Callable[..., str] | None
    attributes: Mapping[str, Any]
    definitions: tuple[ToolDefinition, ...]
    output: Output[Out]
    digest: bytes
    hooks: Hooks
    _tools: Mapping[str, Tool[..., Any]]

    def __init__(
        self,
        id: str,
        *,
        model: ChatModel,
        version: str = "1",
        name: str | None = None,
        description: str = "",
        instructions: str | None = None,
        tools: Iterable[Tool[..., Any] | Callable[..., Any]] = (),
        tool_groups: Iterable[ToolGroup] = (),
        approval: AgentApproval | None = None,
        policy: ExecutionPolicy = DEFAULT_POLICY,
        planning: PlanningPolicy | None = None,
        options: ModelOptions = DEFAULT_OPTIONS,
        middleware: Iterable[Middleware] = (),
        window: ContextWindow = DEFAULT_WINDOW,
        compressor: Compressor | None = None,
        multimodal_model: ChatModel | None = None,
        output_type: type[Out] | object = str,
        tool_error_message: Callable[..., str] | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        _check_texts(id, version, name, description, instructions)
        _check_models(id, model=model, multimodal_model=model if multimodal_model is None else multimodal_model)
        _check_parts(id, policy=policy, planning=planning, options=options, window=window)
        if compressor is not None:
            check_compressor(f"agent {id}: compressor", compressor)
        _check_functions(id, approval=approval, tool_error_message=tool_error_message)
        around = checked_middleware(f"agent {id}: middleware", middleware)
        box = toolbox_of(id, tools, tool_groups, around)
        values: dict[str, object] = {
            "id": id,
            "version": version,
            "name": id if name is None else name,
            "description": description,
            "model": model,
            "instructions": instructions,
            "tools": box.tools,
            "tool_groups": box.groups,
            "approval": approval,
            "policy": policy,
            "planning": planning,
            "options": options,
            "middleware": around,
            "window": window,
            "compressor": compressor,
            "multimodal_model": multimodal_model,
            "output_type": output_type,
            "tool_error_message": tool_error_message,
            "attributes": read_only(f"agent {id}: attributes", attributes),
            "definitions": box.definitions,
            "output": output_of(f"agent {id}: output_type", output_type),
            "hooks": hooks_of(f"agent {id}", around, grouped=bool(box.groups)),
            "_tools": box.named,
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)
        object.__setattr__(self, "digest", definition_digest(self))

    @property
    def key(self) -> str:
        """The agent's full name, ``id@version``."""
        return f"{self.id}@{self.version}"

    def tool(self, name: str) -> Tool[..., Any] | None:
        """Return the tool of a name, if the agent has one."""
        return self._tools.get(name)

    def model_for(self, messages: Iterable[ChatMessage]) -> ChatModel:
        """Return the model that is asked with these messages: `multimodal_model`, if there is one and one of them has parts."""
        return self.model if self.multimodal_model is None or not carry_parts(messages) else self.multimodal_model

    @property
    def executable(self) -> tuple[Tool[..., Any], ...]:
        """All tools that can be called, seen or not: its own, those of its groups, and those that its middleware brings along."""
        return tuple(self._tools.values())

    @overload
    def replace(self, *, output_type: type[U], **changes: Any) -> Agent[U]: ...
    @overload
    def replace(self, **changes: Any) -> Agent[Out]: ...
    def replace(self, **changes: Any) -> Agent[Any]:
        """Return an agent with some fields changed.

        :raises InvalidDefinition: if there is no such field, or the value is wrong.
        """
        if unknown := sorted(set(changes) - set(FIELDS)):
            raise InvalidDefinition(f"agent {self.id}: there is no field {unknown[0]!r}")
        fields = {key: getattr(self, key) for key in FIELDS}
        if self.name == self.id and "id" in changes:
            del fields["name"]
        return Agent(**{**fields, **changes})

    def as_tool(
        self,
        name: str | None = None,
        description: str | None = None,
        *,
        approval: Approval = False,
        sequential: bool = False,
        assignee: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Tool[..., Any]:
        """Return a tool whose calls start this agent as a child turn, with the call's ``input`` as its input.

        The call waits for the child; the child's final output is its result. A child that ends otherwise gives a structured one.

        :param name: how the model calls it; by default the agent's name, other characters than A-Z a-z 0-9 _ - replaced.
        :param description: what the model is told it is for; by default the agent's description.
        :param approval: whether a person must agree before the child starts, as of `tool`.
        :param sequential: never beside other calls of the same reply.
        :param assignee: who is asked for approval.
        :raises InvalidDefinition: if an argument is wrong.
        """
        named = re.sub(r"[^A-Za-z0-9_-]+", "_", self.name)[:64].strip("_") if name is None else name
        text = (self.description or f"Let the agent {self.name} do something.") if description is None else description
        return agent_tool(self, named, text, approval=approval, sequential=sequential, assignee=assignee, metadata=metadata)

    def __repr__(self) -> str:
        return f"<Agent {self.key}>"


def _check_parts(id: str, *, policy: object, planning: object, options: object, window: object) -> None:
    for key, value, kind in (
        ("policy", policy, ExecutionPolicy),
        ("planning", planning, PlanningPolicy),
        ("options", options, ModelOptions),
        ("window", window, ContextWindow),
    ):
        if not isinstance(value, kind) and not (key == "planning" and value is None):
            raise InvalidDefinition(f"agent {id}: {key} must be of type {kind.__name__}, not {type(value).__name__}")


def _check_texts(id: str, version: object, name: object, description: object, instructions: object) -> None:
    check_text("Agent.id", id, MAX_ID, empty=False)
    if "@" in id:
        raise InvalidDefinition(f"Agent.id must not contain '@': {id!r}")
    check_text(f"agent {id}: version", version, MAX_ID, empty=False)
    check_text(f"agent {id}: name", name, MAX_ID, optional=True, empty=False)
    check_text(f"agent {id}: description", description, MAX_TEXT)
    check_text(f"agent {id}: instructions", instructions, MAX_INSTRUCTIONS, optional=True)


def _check_functions(id: str, **functions: object) -> None:
    for key, value in functions.items():
        if value is not None and not callable(value):
            raise InvalidDefinition(f"agent {id}: {key} must be a function, not {type(value).__name__}")


def _check_models(id: str, **models: object) -> None:
    for key, model in models.items():
        _check_model(id, key, model)


def _check_model(id: str, key: str, model: object) -> None:
    complete = getattr(model, "complete", None)
    if inspect.isclass(model) or not callable(complete):
        raise InvalidDefinition(f"agent {id}: {key} must have an async complete(request), not be {model!r:.100}")
    plain = inspect.unwrap(complete)
    if inspect.isroutine(plain) and not inspect.iscoroutinefunction(plain):
        raise InvalidDefinition(f"agent {id}: the complete of its {key} must be async")
