"""Where agents come from when a turn is started or brought back."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any, Protocol, TypeAlias, cast, final, runtime_checkable

from .agent import Agent
from .checks import check_flag, shown
from .errors import AgentNotFound, InvalidDefinition

Loaded: TypeAlias = "Agent | Awaitable[Agent | None] | None"


@runtime_checkable
class AgentLoader(Protocol):
    """Finds agents by name; each method may be async where it says so. Must answer the same for the same version, always.

    What a version *is* should not change while turns of it are open; `Runtime(changed_definition=)` says what happens if it does.
    """

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


@final
class InMemoryAgentLoader:
    """A set of agents, and those that they have as tools; of several versions of one id the last given is the active one.

    An agent that is only somebody's tool never takes that place from one that was given. What is added later is announced with the
    node's next heartbeat, or with the first turn that is started of it there.

    :raises InvalidDefinition: if two different agents have one id and version.
    """

    def __init__(self, agents: Iterable[Agent[Any]] = ()) -> None:
        self._exact: dict[str, Agent[Any]] = {}
        self._active: dict[str, Agent[Any]] = {}
        if isinstance(agents, Agent | str) or not isinstance(cast("object", agents), Iterable):
            raise InvalidDefinition(f"agents must be a list of Agents, not {shown(agents)}")
        self._take(list(agents))

    def add(self, agent: Agent[Any], *, active: bool = True) -> None:
        """Add an agent, or another version of one; with `active` new turns get this version from now on.

        :raises InvalidDefinition: if there is another agent of this id and version already.
        """
        check_flag("active", active)
        before = self._active.get(agent.id) if isinstance(cast("object", agent), Agent) else None
        self._take([agent])
        if before is not None and not active:
            self._active[agent.id] = before

    def activate(self, id: str, version: str) -> None:
        """Let new turns get this version. Those that are open keep theirs.

        :raises AgentNotFound: if it was not added.
        """
        agent = self.load(id, version)
        if agent is None:
            raise AgentNotFound(id, version)
        self._active[id] = agent

    def load(self, id: str, version: str) -> Agent[Any] | None:
        """Return exactly this version, or `None`."""
        return self._exact.get(f"{id}@{version}")

    def load_active(self, id: str) -> Agent[Any] | None:
        """Return the active version, or `None`."""
        return self._active.get(id)

    def known(self) -> tuple[str, ...]:
        """Name the agents, as ``id@version``, of each id the active version last."""
        active = {agent.key for agent in self._active.values()}
        return (*(key for key in self._exact if key not in active), *(key for key in self._exact if key in active))

    def _take(self, given: list[Agent[Any]]) -> None:
        for agent in given:
            if not isinstance(cast("object", agent), Agent):
                raise InvalidDefinition(f"agents has a {type(agent).__name__}, which is not an Agent")
        named = dict(self._exact)
        for agent in _with_tools(given):
            if named.setdefault(agent.key, agent) is not agent:
                raise InvalidDefinition(f"two agents are called {agent.key}")
        last = {agent.key: agent for agent in given}
        active = {agent.id: agent for key, agent in named.items() if key not in last}
        self._exact = named
        self._active = {**active, **self._active, **{agent.id: agent for agent in last.values()}}


def _with_tools(agents: Iterable[Agent]) -> list[Agent]:
    """Return agents and all that they have as tools, at any depth, each once."""
    found: dict[int, Agent] = {}
    left = list(agents)
    while left:
        agent = left.pop()
        if id(agent) not in found:
            found[id(agent)] = agent
            left += [tool.agent for tool in agent.executable if tool.agent is not None]
    return list(found.values())
