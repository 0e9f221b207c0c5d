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
    """A fixed set of agents; of several versions of one id the last given is the active one.

    :raises InvalidDefinition: if two different agents have one id and version.
    """

    def __init__(self, agents: Iterable[Agent] = ()) -> None:
        self._exact: dict[str, Agent] = {}
        self._active: dict[str, Agent] = {}
        if isinstance(agents, Agent | str) or not isinstance(cast("object", agents), Iterable):
            raise InvalidDefinition(f"agents must be a list of Agents, not {shown(agents)}")
        for agent in agents:
            if not isinstance(agent, Agent):
                raise InvalidDefinition(f"agents has a {type(agent).__name__}, which is not an Agent")
            if self._exact.setdefault(agent.key, agent) is not agent:
                raise InvalidDefinition(f"two agents are called {agent.key}")
            self._active[agent.id] = agent

    def load(self, id: str, version: str) -> Agent | None:
        """Return exactly this version, or `None`."""
        return self._exact.get(f"{id}@{version}")

    def load_active(self, id: str) -> Agent | None:
        """Return the version given last, or `None`."""
        return self._active.get(id)

    def known(self) -> tuple[str, ...]:
        """Name the agents, as ``id@version``."""
        return tuple(self._exact)
