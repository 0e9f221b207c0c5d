"""Agents and where they come from."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from turnhold.actors.agent import Agent
from turnhold.actors.chat import AiMessage
from turnhold.actors.errors import InvalidDefinition
from turnhold.actors.loader import AgentLoader, InMemoryAgentLoader
from turnhold.actors.model import ModelOptions, ModelRequest
from turnhold.actors.policies import ExecutionPolicy
from turnhold.actors.tools import tool


class Model:
    async def complete(self, request: ModelRequest) -> AiMessage:
        return AiMessage("x")


class Wrapped:
    """A model behind a decorator that is no coroutine function itself."""

    def __init__(self) -> None:
        @functools.wraps(Model.complete)
        def complete(request: ModelRequest) -> Any:
            return Model().complete(request)

        self.complete = complete


class Plain:
    def complete(self, request: ModelRequest) -> AiMessage:
        return AiMessage("x")


def look(x: int) -> int:
    return x


def other(x: int) -> int:
    return x


MODEL = Model()


def test_defaults() -> None:
    """An id and a model are enough."""
    agent = Agent("shop", model=MODEL)

    assert (agent.id, agent.version, agent.name, agent.key) == ("shop", "1", "shop", "shop@1")
    assert (agent.description, agent.instructions, agent.tools, agent.definitions) == ("", None, (), ())
    assert (agent.policy, agent.options) == (ExecutionPolicy(), ModelOptions())
    assert repr(agent) == "<Agent shop@1>"


def test_what_is_given_is_exposed() -> None:
    """Scenario A 3: the same options object, policy, model."""
    options, policy = ModelOptions(temperature=0.5), ExecutionPolicy(max_iterations=3)
    agent = Agent("shop", model=MODEL, options=options, policy=policy, approval=lambda turn, call, tool: False)

    assert agent.options is options
    assert agent.policy is policy
    assert agent.model is MODEL


def test_attributes_are_a_read_only_copy() -> None:
    """Scenario A 4: readable, not writable, apart from their source."""
    source = {"team": "billing"}
    agent = Agent("shop", model=MODEL, attributes=source)
    source["team"] = "x"

    assert agent.attributes["team"] == "billing"
    with pytest.raises(TypeError):
        agent.attributes["team"] = "x"  # type: ignore[index]


def test_an_agent_is_immutable() -> None:
    """No field can be set."""
    with pytest.raises(AttributeError):
        Agent("shop", model=MODEL).version = "2"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"id": ""}, r"Agent\.id must not be blank"),
        ({"id": " \t"}, r"Agent\.id must not be blank"),
        ({"id": None}, r"Agent\.id must be text"),
        ({"id": "é" * 65}, r"Agent\.id has 130 bytes"),
        ({"id": "a@b"}, "must not contain '@'"),
        ({"id": "a\0b"}, "must not contain a NUL"),
        ({"id": "\udfff"}, "not valid Unicode"),
        ({"version": ""}, "agent shop: version must not be blank"),
        ({"version": 1}, "agent shop: version must be text"),
        ({"version": "1" * 129}, "agent shop: version has 129 bytes"),
        ({"name": " "}, "agent shop: name must not be blank"),
        ({"name": 3}, "agent shop: name must be text"),
        ({"description": None}, "agent shop: description must be text"),
        ({"instructions": 3}, "agent shop: instructions must be text"),
        ({"instructions": "x" * 1_048_577}, "agent shop: instructions has 1048577 bytes"),
        ({"model": None}, "agent shop: model must have an async complete"),
        ({"model": "gpt"}, "agent shop: model must have an async complete"),
        ({"model": Model}, "agent shop: model must have an async complete"),
        ({"model": Plain()}, "complete of its model must be async"),
        ({"policy": None}, "agent shop: policy must be of type ExecutionPolicy"),
        ({"policy": {}}, "agent shop: policy must be of type ExecutionPolicy"),
        ({"options": None}, "agent shop: options must be of type ModelOptions"),
        ({"approval": True}, "agent shop: approval must be a function"),
        ({"tool_error_message": "text"}, "agent shop: tool_error_message must be a function"),
        ({"attributes": [1]}, "agent shop: attributes must be a mapping"),
        ({"attributes": {None: 1}}, "agent shop: attributes key must be text"),
        ({"tools": None}, "agent shop: tools must be a list"),
        ({"tools": "look"}, "agent shop: tools must be a list"),
        ({"tools": tool(look)}, "agent shop: tools must be a list"),
        ({"tools": {"look": look}}, "agent shop: tools must be a list"),
        ({"tools": [None]}, "tools has a NoneType"),
        ({"tools": [lambda x: x]}, "a tool's name"),
        ({"tools": [tool(look), tool(look)]}, "two tools have the name 'look'"),
        ({"tools": [tool(look), tool(other, name="look")]}, "two tools have the name 'look'"),
        ({"tools": [look, tool(look)]}, "two tools have the name 'look'"),
    ],
)
def test_each_wrong_argument_is_named(arguments: dict, words: str) -> None:
    """Scenarios A 5, 6, 7, 13 and more: every argument is checked when the agent is built."""
    good: dict[str, Any] = {"id": "shop", "model": MODEL}

    with pytest.raises(InvalidDefinition, match=words):
        Agent(**(good | arguments))


def test_tools_by_name() -> None:
    """Scenario A 19: the same instance, none for an unknown name; plain functions are wrapped; once is enough."""
    looking = tool(look, approval=True)
    agent = Agent("shop", model=MODEL, tools=[looking, other, looking, other])

    assert [each.name for each in agent.tools] == ["look", "other"]
    assert agent.tool("look") is looking
    assert agent.tool("nothing") is None
    assert [each.name for each in agent.definitions] == ["look", "other"]
    assert agent.definitions[0] is looking.definition


def test_an_iterator_of_tools_will_do() -> None:
    """It is read once."""
    assert [each.name for each in Agent("shop", model=MODEL, tools=iter([look])).tools] == ["look"]


def test_a_model_behind_a_decorator_is_fine() -> None:
    """What is wrapped counts."""
    assert Agent("shop", model=Wrapped()).id == "shop"


def test_replace() -> None:
    """A changed copy; a name that was the id follows it, an own one stays."""
    agent = Agent("shop", model=MODEL, tools=[look])
    second, renamed = agent.replace(version="2", instructions="new"), agent.replace(id="store")

    assert (agent.key, second.key, second.instructions) == ("shop@1", "shop@2", "new")
    assert second.tool("look") is agent.tool("look")
    assert renamed.name == "store"
    assert agent.replace(name="Shop").replace(id="store").name == "Shop"
    with pytest.raises(InvalidDefinition, match="no field 'colour'"):
        agent.replace(colour=1)
    with pytest.raises(InvalidDefinition, match="version"):
        agent.replace(version="")


ONE, TWO = Agent("shop", model=MODEL), Agent("shop", version="2", model=MODEL)


def test_a_table_finds_exact_and_active_versions() -> None:
    """Scenarios A 20 to A 22: exact instances, the last given is active, none for an unknown version."""
    table = InMemoryAgentLoader([ONE, TWO, ONE, TWO])

    assert (table.load("shop", "1"), table.load("shop", "2")) == (ONE, TWO)
    assert table.load_active("shop") is TWO
    assert table.load("shop", "3") is None
    assert table.load("store", "1") is None
    assert table.load_active("store") is None
    assert table.known() == ("shop@1", "shop@2")
    assert isinstance(table, AgentLoader)


def test_a_version_may_contain_an_at() -> None:
    """Only the id may not, so names stay unambiguous."""
    agent = Agent("shop", version="1@beta", model=MODEL)

    assert InMemoryAgentLoader([agent]).load("shop", "1@beta") is agent


@pytest.mark.parametrize(
    ("agents", "words"),
    [
        ([ONE, Agent("shop", model=MODEL)], "two agents are called shop@1"),
        ([None], "agents has a NoneType"),
        (["shop"], "agents has a str"),
        (ONE, "agents must be a list"),
        ("shop", "agents must be a list"),
        (None, "agents must be a list"),
    ],
)
def test_wrong_tables(agents: Any, words: str) -> None:
    """Two different agents of one name, or things that are no agents."""
    with pytest.raises(InvalidDefinition, match=words):
        InMemoryAgentLoader(agents)


async def test_a_custom_loader_fits_the_protocol() -> None:
    """Scenario A 23: a loader that assembles agents, async where it has to look."""

    class Assembling:
        async def load(self, id: str, version: str) -> Agent | None:
            return Agent(id, version=version, model=MODEL)

        async def load_active(self, id: str) -> Agent | None:
            return await self.load(id, "9")

        def known(self) -> list[str]:
            return ["shop@9"]

    loader: AgentLoader = Assembling()
    active: Any = loader.load_active("shop")

    assert isinstance(loader, AgentLoader)
    assert (await active).key == "shop@9"
