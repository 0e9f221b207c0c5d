"""Tools that the agent itself does not name: found by resolvers, or shown to the model when a condition says so."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import TYPE_CHECKING, cast

import msgspec

from ..actors.errors import InvalidDefinition, MiddlewareError
from ..actors.machine import messages as m
from ..actors.middleware import current_turn
from ..actors.model import ModelRequest
from ..actors.tools import Tool
from ..actors.turn import CallRecord
from .around import name_of, turn_context
from .guard import failure_of, stray
from .log import log

if TYPE_CHECKING:
    from .actor import Actor


class ResolverFailed(Exception):
    """The resolvers did not say which tool a call names, so its attempt has not begun."""


async def _found(actor: Actor, name: str) -> Tool[..., object] | None:
    """Ask all resolvers. :raises MiddlewareError: if two answer, or one with another tool than was asked for."""
    context = turn_context(actor)
    found: Tool[..., object] | None = None
    by = ""
    with current_turn(context):
        for resolver in actor.executor.hooks.resolvers:
            answer = resolver(context, name)
            if inspect.isawaitable(answer):
                answer = await cast("Awaitable[object]", answer)
            if answer is None:
                continue
            if not isinstance(answer, Tool):
                raise MiddlewareError(f"{name_of(resolver)} gave a {type(answer).__name__} for {name!r}, not a Tool")
            if answer.name != name:
                raise MiddlewareError(f"{name_of(resolver)} was asked for {name!r} and gave {answer.name!r}")
            if answer.agent is not None:
                raise MiddlewareError(f"{name_of(resolver)} gave {name!r}, which starts an agent: such a tool belongs to the agent")
            if found is not None:
                raise MiddlewareError(f"{name!r} is ambiguous: both {by} and {name_of(resolver)} gave a tool")
            found, by = cast("Tool[..., object]", answer), name_of(resolver)
    return found


async def ask_resolvers(actor: Actor, call: CallRecord) -> m.Message:
    """Find out which tool a call names."""
    try:
        return m.ToolResolved(call.id, await _found(actor, call.name))
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and not stray():
            raise
        log.exception("resolver_failed", turn=actor.turn_id, call=call.id)
        return m.PolicyFailed(call.id, failure_of(error), m.RESOLVER)


async def tool_of(actor: Actor, call: CallRecord) -> Tool[..., object] | None:
    """Return the tool of a call that is none of the agent's own, asking again what another process has been told.

    :raises ResolverFailed: if that could not be found out.
    """
    tool = actor.resolved.get(call.id)
    if tool is not None or not actor.executor.hooks.resolvers or call.id in actor.resolved:
        return tool
    try:
        return await _found(actor, call.name)
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and not stray():
            raise
        log.exception("resolver_failed", turn=actor.turn_id, call=call.id)
        raise ResolverFailed(f"the tool resolver failed for {call.name}: {failure_of(error).message}") from error


async def shown(actor: Actor, request: ModelRequest) -> ModelRequest:
    """Return a request with the tools of those groups whose condition says so."""
    context = turn_context(actor)
    offered = {each.name: each for each in request.tools}
    with current_turn(context):
        for group in actor.executor.tool_groups:
            answer: object = group.when(context)
            if inspect.isawaitable(answer):
                answer = await cast("Awaitable[object]", answer)
            if not isinstance(answer, bool):
                raise InvalidDefinition(f"the condition of tool group {group.name} gave a {type(answer).__name__}, not a bool")
            if answer:
                for tool in group.tools:
                    offered.setdefault(tool.name, tool.definition)
    return msgspec.structs.replace(request, tools=tuple(offered.values()))
