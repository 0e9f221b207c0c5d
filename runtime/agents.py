"""The agents that a node knows."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias, cast

from ..actors.agent import Agent
from ..actors.checks import MAX_KEY, check_text, shown
from ..actors.errors import AgentNotFound, InvalidDefinition
from ..actors.loader import AgentLoader, InMemoryAgentLoader
from ..actors.model import ChatModel

Limit: TypeAlias = Callable[[], AbstractContextManager[None]]


class Agents:
    """A loader, checked: what it gives is what was asked for."""

    def __init__(self, agents: Iterable[Agent] | AgentLoader) -> None:
        self._loader: AgentLoader = agents if isinstance(agents, AgentLoader) else _fixed(agents)
        self.announced: tuple[str, ...] = ()
        self.known: frozenset[str] = frozenset()
        self.refresh()
        self._used: dict[int, ChatModel] = {}

    def refresh(self) -> bool:
        """Ask the loader what it knows now; tell whether that has changed.

        :raises InvalidDefinition: if it says nothing that can be announced.
        """
        found = _known(self._loader)
        changed, self.announced, self.known = found != self.announced, found, frozenset(found)
        return changed

    async def exact(self, agent_id: str, version: str, limit: Limit = nullcontext) -> Agent | None:
        """Return exactly this version, or `None`; where the loader has to be waited for, within `limit`."""
        found: object = self._loader.load(agent_id, version)
        return self._checked(found if isinstance(found, Agent) else await _loaded(found, limit), agent_id, version)

    async def active(self, agent_id: str) -> Agent:
        """Return the version that new turns get. :raises AgentNotFound: if there is none."""
        found: object = self._loader.load_active(agent_id)
        agent = self._checked(found if isinstance(found, Agent) else await _loaded(found), agent_id, None)
        if agent is None:
            raise AgentNotFound(agent_id)
        return agent

    async def delegates(self, agent: Agent, limit: Limit | None = None) -> Mapping[str, Agent[Any]]:
        """Return those to whom an agent that makes plans may give tasks, by id, in the order of its policy.

        :param limit: given for a turn that lives already: its loader is waited for within it, and who is missing is left out.
        :raises AgentNotFound: if one is missing.
        """
        found: dict[str, Agent[Any]] = {}
        assert agent.planning is not None
        for name in agent.planning.allowed_agent_ids:
            if name == agent.id:
                continue
            other = self._checked(await _loaded(self._loader.load_active(name), limit or nullcontext), name, None)
            if other is not None:
                found[name] = other
            elif limit is None:
                raise AgentNotFound(name)
        return found

    def _checked(self, agent: Agent | None, agent_id: str, version: str | None) -> Agent | None:
        if agent is None:
            return None
        if agent.id != agent_id or (version is not None and agent.version != version):
            asked = agent_id if version is None else f"{agent_id}@{version}"
            raise InvalidDefinition(f"the loader was asked for {asked} and gave {agent.key}")
        self._used[id(agent.model)] = agent.model
        if agent.multimodal_model is not None:
            self._used[id(agent.multimodal_model)] = agent.multimodal_model
        return agent

    async def close(self) -> None:
        """Close the models that were used and have something to close (each decides what is its own)."""
        used, self._used = self._used, {}
        for model in used.values():
            close = getattr(model, "close", None)
            if close is not None and inspect.iscoroutinefunction(close):
                await close()


def _fixed(agents: Iterable[Agent]) -> AgentLoader:
    """Return a loader of agents that are all there are.

    :raises InvalidDefinition: if plans may give tasks to one that is not there.
    """
    loader = InMemoryAgentLoader(agents)
    for key in loader.known():
        name, _, version = key.rpartition("@")
        agent = loader.load(name, version)
        for other in () if agent is None or agent.planning is None else agent.planning.allowed_agent_ids:
            if loader.load_active(other) is None:
                raise InvalidDefinition(f"agent {key}: its plans may give tasks to {other!r}, which is not among the agents")
    return loader


def _known(loader: AgentLoader) -> tuple[str, ...]:
    names: object = loader.known()
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidDefinition(f"the loader's known() must give texts like 'id@version', not {shown(names)}")
    found: dict[str, None] = {}
    for name in cast("Iterable[object]", names):
        check_text("the loader's known()", name, MAX_KEY + 1, empty=False)
        found[cast("str", name)] = None
    return tuple(found)


async def _loaded(found: object, limit: Limit = nullcontext) -> Agent | None:
    if inspect.isawaitable(found):
        with limit():
            found = await cast("Awaitable[object]", found)
    if found is not None and not isinstance(found, Agent):
        raise InvalidDefinition(f"the loader gave a {type(found).__name__}, which is not an Agent")
    return cast("Agent | None", found)
