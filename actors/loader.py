"""Where agents come from when a turn is started or brought back."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Protocol, TypeAlias, cast, runtime_checkable

from .agent import Agent
from .checks import shown
from .errors import InvalidDefinition

Loaded: TypeAlias = "Agent | Awaitable[Agent | None] | None"


@runtime_checkable
class AgentLoader(Protocol):
    """Finds agents by name; each method may be async where it says so. Must answer the same for the same version, always."""

    def load(self, id: str, version: str) -> Loaded:
        """Return exactly this version, or `None`; async if it has to look elsewhere."""
        ...

    def load_active(self, id: str) -> Loaded:
        """Return the version that new turns get, or `None`; async if it has to look elsewhere."""
        ...

    def known(self) -> Iterable[str]:
        """Name what can be loaded, as ``id@version``, of several versions of an id the active one last.

        A node announces these and claims only turns of them.
        """
        ...


class AgentTable:
    """A fixed set of agents, and those that they have as tools; of several versions of one id the last given is the active one.

    An agent that is only somebody's tool never takes that place from one that was given.

    :raises InvalidDefinition: if two different agents have one id and version.
    """

    def __init__(self, agents: Iterable[Agent] = ()) -> None:
        self._exact: dict[str, Agent] = {}
        self._active: dict[str, Agent] = {}
        if isinstance(agents, Agent | str) or not isinstance(cast("object", agents), Iterable):
            raise InvalidDefinition(f"agents must be a list of Agents, not {shown(agents)}")
        given = list(agents)
        for agent in given:
            if not isinstance(agent, Agent):
                raise InvalidDefinition(f"agents has a {type(agent).__name__}, which is not an Agent")
        named: dict[str, Agent] = {}
        for agent in _with_tools(given):
            if named.setdefault(agent.key, agent) is not agent:
                raise InvalidDefinition(f"two agents are called {agent.key}")
        last = {agent.key: agent for agent in given}
        for agent in (*(agent for key, agent in named.items() if key not in last), *last.values()):
            self._exact[agent.key] = self._active[agent.id] = agent

    def load(self, id: str, version: str) -> Agent | None:
        """Return exactly this version, or `None`."""
        return self._exact.get(f"{id}@{version}")

    def load_active(self, id: str) -> Agent | None:
        """Return the version given last, or `None`."""
        return self._active.get(id)

    def known(self) -> tuple[str, ...]:
        """Name the agents, as ``id@version``."""
        return tuple(self._exact)


def _with_tools(agents: Iterable[Agent]) -> list[Agent]:
    """Return agents and all that they have as tools, at any depth, each once."""
    found: dict[int, Agent] = {}
    left = list(agents)
    while left:
        agent = left.pop()
        if id(agent) not in found:
            found[id(agent)] = agent
            left += [tool.agent for tool in agent.tools if tool.agent is not None]
    return list(found.values())
