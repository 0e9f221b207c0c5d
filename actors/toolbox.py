"""The tools of an agent: those that the model always sees, and groups that it sees when a condition says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast, final

import msgspec

from .checks import MAX_ID, check_text, shown
from .errors import InvalidDefinition
from .middleware import Middleware, TurnContext
from .model import ToolDefinition
from .tools import Tool, tool

Condition: TypeAlias = "Callable[[TurnContext[Any]], bool | Awaitable[bool]]"


@final
@dataclass(frozen=True, eq=False, repr=False, init=False, slots=True)
class ToolGroup:
    """Tools that can always be called, and that the model sees only where `when` says so.

    :param tools: `Tool`s, or functions that become tools with default options.
    :param when: ``when(turn)``, sync or async, gets a `TurnContext` and is asked for each model request. It is part of that: an
        exception is one of the request.
    :raises InvalidDefinition: if an argument is wrong.
    """

    name: str
    tools: tuple[Tool[..., Any], ...]
    when: Condition

    def __init__(self, name: str, tools: Iterable[Tool[..., Any] | Callable[..., Any]], *, when: Condition) -> None:
        check_text("ToolGroup.name", name, MAX_ID, empty=False)
        if not callable(when):
            raise InvalidDefinition(f"tool group {name}: when must be a function, not {shown(when)}")
        values: dict[str, object] = {"name": name, "tools": tuple(named_tools(f"tool group {name}", tools).values()), "when": when}
        for key, value in values.items():
            object.__setattr__(self, key, value)

    def __repr__(self) -> str:
        return f"<ToolGroup {self.name}>"


class Toolbox(msgspec.Struct, frozen=True):
    """The tools of an agent, as it keeps them; `named` has all that can be called, `definitions` those the model always sees."""

    tools: tuple[Tool[..., Any], ...]
    groups: tuple[ToolGroup, ...]
    definitions: tuple[ToolDefinition, ...]
    named: Mapping[str, Tool[..., Any]]


def toolbox_of(id: str, tools: object, groups: object, middleware: Iterable[Middleware]) -> Toolbox:
    """Return the tools of an agent. :raises InvalidDefinition: if something is no tool, or two have one name."""
    place = f"agent {id}"
    own = named_tools(f"{place}: tools", tools)
    seen = dict(own)
    for each in middleware:
        _merge(place, seen, named_tools(f"{place}: {type(each).__name__}.tools", each.tools))
    named, kept = dict(seen), _groups(f"{place}: tool_groups", groups)
    for group in kept:
        _merge(place, named, {each.name: each for each in group.tools})
    return Toolbox(tuple(own.values()), kept, tuple(each.definition for each in seen.values()), named)


def _merge(place: str, named: dict[str, Tool[..., Any]], more: Mapping[str, Tool[..., Any]]) -> None:
    for each in more.values():
        if named.setdefault(each.name, each) is not each:
            raise InvalidDefinition(f"{place}: two tools have the name {each.name!r}")


def _groups(place: str, groups: object) -> tuple[ToolGroup, ...]:
    if isinstance(groups, str | bytes | Mapping) or not isinstance(groups, Iterable):
        raise InvalidDefinition(f"{place} must be a list of ToolGroups, not {type(cast('object', groups)).__name__}")
    kept = tuple(cast("Iterable[object]", groups))
    for each in kept:
        if not isinstance(each, ToolGroup):
            raise InvalidDefinition(f"{place} has {shown(each)}, which is no ToolGroup")
    groups_kept = cast("tuple[ToolGroup, ...]", kept)
    if len({each.name for each in groups_kept}) < len(groups_kept):
        raise InvalidDefinition(f"{place} has two groups of one name")
    return groups_kept


def named_tools(place: str, tools: Any) -> dict[str, Tool[..., Any]]:
    """Return tools by name. :raises InvalidDefinition: if something is no tool, or two have one name."""
    wrong = InvalidDefinition(f"{place} must be a list of tools, not {type(tools).__name__}")
    if isinstance(tools, str | bytes | Mapping):
        raise wrong
    try:
        several: list[Any] = list(tools)
    except TypeError:
        raise wrong from None
    named: dict[str, Tool[..., Any]] = {}
    for given in several:
        if not callable(given):
            raise InvalidDefinition(f"{place} has a {type(given).__name__}, which is neither a Tool nor a function")
        each = cast("Tool[..., Any]", given if isinstance(given, Tool) else tool(given))
        known = named.setdefault(each.name, each)
        if known is not each and (isinstance(given, Tool) or known.function != given):
            raise InvalidDefinition(f"{place}: two tools have the name {each.name!r}")
    return named
