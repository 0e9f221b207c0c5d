"""A search for tools: the model sees one tool first, by which it finds others; those it finds it sees from then on."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias, cast, final

import msgspec

from .chat import AiMessage
from .checks import MAX_TEXT, check_text, check_whole, shown
from .context import ToolContext
from .errors import InvalidDefinition, MiddlewareError
from .middleware import Middleware, ProceedModel, TurnContext
from .model import ModelRequest
from .record import JsonObject
from .toolbox import named_tools
from .tools import Tool

Found: TypeAlias = "Iterable[str | Tool[..., Any]]"
Search: TypeAlias = "Callable[[str, Sequence[Tool[..., Any]]], Found | Awaitable[Found]]"

DESCRIPTION = "Search for tools by what they should do. Those that are found can be called from then on."
_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@final
class ToolSearch(Middleware):
    """Middleware that keeps many tools out of the model's sight until it searches for them.

    At first the model sees only the search tool. What it finds it sees, and may call, from its next request on, for the rest of the
    turn: the names are saved with the search's result, so they hold over waits, crashes and in other processes. A name that was not
    found cannot be called. Approval, effects and all else are those of the tools.

    :param tools: what can be found; `Tool`s, or functions that become tools with default options.
    :param limit: how many tools one search finds at most.
    :param name: the name of the search tool.
    :param description: what the model is told of it; say here what kind of tools there are.
    :param search: ``search(query, tools)``, sync or async, in place of the built-in ranking by words: gives names, or tools, the
        best first. It should give the same for the same query.
    :raises InvalidDefinition: if an argument is wrong, or a tool starts an agent or asks for forms of its own.
    """

    def __init__(
        self,
        tools: Iterable[Tool[..., Any] | Callable[..., Any]],
        *,
        limit: int = 5,
        name: str = "search_tools",
        description: str = DESCRIPTION,
        search: Search | None = None,
    ) -> None:
        check_whole("ToolSearch.limit", limit, 1)
        check_text("ToolSearch.description", description, MAX_TEXT, empty=False)
        if search is not None and not callable(search):
            raise InvalidDefinition(f"ToolSearch.search must be a function, not {shown(search)}")
        self._hidden = named_tools("ToolSearch", tools)
        for each in self._hidden.values():
            if each.agent is not None or each.forms:
                raise InvalidDefinition(f"ToolSearch: {each.name} is handled by the runtime and cannot be searched for")
        self._limit = limit
        self._search = search
        parameters: JsonObject = {
            "type": "object",
            "properties": {"query": {"type": "string", "minLength": 1, "description": "What the tool should do, in a few words."}},
            "required": ["query"],
            "additionalProperties": False,
        }
        self.tools = (Tool.from_schema(name, description, parameters, self._found, effect="repeatable"),)
        if name in self._hidden:
            raise InvalidDefinition(f"ToolSearch: the search tool has the name of one that it is to find: {name!r}")

    async def around_model_call(self, request: ModelRequest, proceed: ProceedModel) -> AiMessage:
        """Add what has been found so far."""
        offered = {each.name: each for each in request.tools}
        for name in TurnContext.current().active_tools:
            if name in self._hidden:
                offered.setdefault(name, self._hidden[name].definition)
        if len(offered) == len(request.tools):
            return await proceed(request)
        return await proceed(msgspec.structs.replace(request, tools=tuple(offered.values())))

    def resolve(self, turn: TurnContext[Any], name: str) -> Tool[..., Any] | None:
        """Return a tool that has been found."""
        return self._hidden.get(name) if name in turn.active_tools else None

    async def _found(self, query: str) -> JsonObject:
        tools = tuple(self._hidden.values())
        hits: object = ranked(query, tools) if self._search is None else self._search(query, tools)
        if inspect.isawaitable(hits):
            hits = await cast("Awaitable[object]", hits)
        found: dict[str, Tool[..., Any]] = {}
        for hit in cast("Iterable[object]", hits):
            name = hit.name if isinstance(hit, Tool) else hit
            if not isinstance(name, str) or name not in self._hidden:
                raise MiddlewareError(f"the search found {shown(name)}, which is none of its tools")
            found[name] = self._hidden[name]
            if len(found) == self._limit:
                break
        ToolContext.current().activate(*found)
        return {"tools": [{"name": each.name, "description": each.description} for each in found.values()]}


def ranked(query: str, tools: Iterable[Tool[..., Any]]) -> list[Tool[..., Any]]:
    """Return the tools that have words of a query in their name or description, the best first, then in their own order.

    A word counts in a name more than in a description, whole more than in part (from three letters on, at its beginning).
    """
    wanted = set(_words(query))
    scored = [(-sum(_score(word, each) for word in wanted), index, each) for index, each in enumerate(tools)]
    return [each for score, _, each in sorted(scored, key=lambda entry: entry[:2]) if score]


def _score(word: str, tool: Tool[..., Any]) -> int:
    return max(3 * _fit(word, _words(tool.name)), 2 * _fit(word, _words(tool.description)))


def _fit(word: str, words: Iterable[str]) -> int:
    best = 0
    for each in words:
        if each == word:
            return 4
        if min(len(each), len(word)) >= 3 and (each.startswith(word) or word.startswith(each)):
            best = 3
    return best


def _words(text: str) -> list[str]:
    return [word.lower() for part in _WORD.findall(text) for word in _HUMP.split(part)]
