"""The machine of the test kit, turned on ourselves: an agent with every kind of call, families, one that plans."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from turnhold import Agent, AiMessage, Budget, ExecutionPolicy, ModelRefused, ModelRequest, PlanningPolicy, Tool, ToolCall, tool
from turnhold.store.sqlite import SqliteStore
from turnhold.testing import ScriptedModel, TurnRaceMachine, call

if TYPE_CHECKING:
    from collections.abc import Callable


class Slow:
    """A model that takes its time."""

    def __init__(self, model: ScriptedModel) -> None:
        self.model = model

    async def complete(self, request: ModelRequest) -> AiMessage:
        await asyncio.sleep(0.2)
        return await self.model.complete(request)


def make_agent() -> Agent:
    """An approval of a `once` tool, and beside a `repeatable` tool; then both kinds without a person; then text."""

    @tool(approval=True)
    async def refund(amount: int) -> str:
        """Refund an amount; once."""
        await asyncio.sleep(1)
        return f"refunded {amount}"

    @tool(approval=True, effect="repeatable")
    async def notify(text: str) -> str:
        """Notify somebody, if a person agrees."""
        return f"sent {text}"

    @tool
    async def look_up(order: str) -> str:
        """Look something up."""
        await asyncio.sleep(4)
        return f"{order} is fine"

    @tool(effect="once")
    async def charge(amount: int) -> str:
        """Charge without asking; once."""
        await asyncio.sleep(0.3)
        return f"charged {amount}"

    model = ScriptedModel(
        [call("refund", amount=25), call("look_up", order="O-1"), call("notify", text="hello")],
        [call("charge", amount=1), call("look_up", order="O-2")],
        "done",
    )
    return Agent("races", model=Slow(model), tools=[refund, notify, look_up, charge])


def make_family(max_tool_calls: int = 100, gated: str = "gated") -> Agent:
    """Three agents as tools: one with a gated tool beside another, one, itself gated, with an agent as a tool, one that fails."""

    @tool(approval=True)
    async def refund(amount: int) -> str:
        """Refund an amount; once."""
        await asyncio.sleep(1)
        return f"refunded {amount}"

    @tool
    async def look_up(order: str) -> str:
        """Look something up."""
        await asyncio.sleep(4)
        return f"{order} is fine"

    def member(id: str, *tools: Tool, policy: ExecutionPolicy | None = None) -> Agent:
        calls = {"refund": call("refund", amount=25), "look_up": call("look_up", order="O-1")}
        asked = [calls.get(each.name) or call(each.name, input="do it") for each in tools]
        model = ScriptedModel(asked, f"{id} done") if tools else ScriptedModel(ModelRefused("no"))
        return Agent(id, model=Slow(model), tools=tools, policy=policy or ExecutionPolicy(tool_errors="return_to_model"))

    leaf = member("leaf", refund, look_up)
    members = [member("plain", refund, look_up), member("gated", leaf.as_tool(), look_up), member("fails")]
    budget = Budget(max_total_tokens=1_000_000, max_tool_calls=max_tool_calls, max_duration=3600)
    return member(
        "races",
        *(each.as_tool(approval=each.id == gated) for each in members),
        policy=ExecutionPolicy(budget=budget, tool_errors="return_to_model"),
    )


def make_poor_family() -> Agent:
    """The same, whose budget has no room for all of its calls, and whose members ask for them at once."""
    return make_family(5, gated="nobody")


def make_planner() -> Agent:
    """An agent that plans, and does its tasks itself: two at once, one behind them; with a gated tool and one without."""

    @tool(approval=True)
    async def refund(amount: int) -> str:
        """Refund an amount; once."""
        await asyncio.sleep(1)
        return f"refunded {amount}"

    @tool
    async def look_up(order: str) -> str:
        """Look something up."""
        await asyncio.sleep(4)
        return f"{order} is fine"

    names: dict[str, list[str]] = {"a": [], "b": [], "c": ["a", "b"]}
    tasks: Any = [{"id": name, "title": name, "description": name, "dependsOn": after} for name, after in names.items()]

    def first(request: ModelRequest) -> list[ToolCall]:
        if any(each.name == "create_task_plan" for each in request.tools):
            return [call("create_task_plan", goal="all of it", tasks=tasks), call("look_up", order="O-2")]
        return [call("refund", amount=25), call("look_up", order="O-1")]

    policy = ExecutionPolicy(budget=Budget(max_total_tokens=1_000_000, max_tool_calls=100, max_duration=3600))
    model = Slow(ScriptedModel(first, "done"))
    return Agent("races", model=model, tools=[refund, look_up], policy=policy, planning=PlanningPolicy(max_parallel=2))


def new_file() -> SqliteStore:
    """A file that nobody else has; folders are cleared away with this process."""
    return SqliteStore(Path(FOLDER) / f"{next(NUMBERS)}.db", synchronous="normal")


FOLDER = tempfile.mkdtemp()
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
NUMBERS = itertools.count()


# Each a look, of a second or two; that the machine finds what is broken is shown in tests/testing. The search is the one below.
TestRacesInMemory = TurnRaceMachine.of(make_agent).TestCase
TestRacesInMemory.settings = settings(TestRacesInMemory.settings, max_examples=60)
TestRacesInFiles = TurnRaceMachine.of(make_agent, store=new_file).TestCase
TestRacesInFiles.settings = settings(TestRacesInMemory.settings, max_examples=16)

TestRacesOfFamilies = TurnRaceMachine.of(make_family, turns=2).TestCase
TestRacesOfFamilies.settings = settings(TestRacesInMemory.settings, max_examples=25)
TestRacesOfPoorFamilies = TurnRaceMachine.of(make_poor_family, turns=2).TestCase
TestRacesOfPoorFamilies.settings = settings(TestRacesInMemory.settings, max_examples=10)

TestRacesOfPlanners = TurnRaceMachine.of(make_planner).TestCase
TestRacesOfPlanners.settings = settings(TestRacesInMemory.settings, max_examples=16)


@pytest.mark.deep
@pytest.mark.parametrize("make", [make_agent, make_family, make_poor_family, make_planner])
@pytest.mark.parametrize("store", ["memory://", new_file])
def test_long_search(store: str, make: Callable[[], Agent]) -> None:
    """The same, long."""
    run_state_machine_as_test(
        TurnRaceMachine.of(make, store=store, nodes=3),
        settings=settings(TestRacesInMemory.settings, max_examples=settings().max_examples),
    )
