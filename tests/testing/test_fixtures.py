"""The pytest plugin, and what the package shows of the kit."""

from __future__ import annotations

import pytest

import turnhold.testing
from turnhold import Agent, tool
from turnhold.testing import ScriptedModel, TurnRaceMachine, VirtualClock
from turnhold.testing.fixtures import RuntimeFactory, turnhold_runtime, virtual_clock

__all__ = ["turnhold_runtime", "virtual_clock"]


async def test_runtimes_of_a_test_share_its_clock_and_are_left_behind_it(
    turnhold_runtime: RuntimeFactory, virtual_clock: VirtualClock
) -> None:
    """The factory opens nodes on one clock; a store of one name is shared by them."""
    agent = Agent("a", model=ScriptedModel("hello"))
    first = await turnhold_runtime("memory://fixtures", agents=[agent])
    second = await turnhold_runtime("memory://fixtures", execute=False)

    view = await first.run("a", "hi")

    assert view.created_at == virtual_clock.now()
    assert (await second.turn(view.id).view()).final_output == "hello"
    assert first.healthy


def test_a_name_that_the_kit_has_not_is_an_attribute_error() -> None:
    """Names that load Hypothesis come when asked for; others do not exist."""
    assert turnhold.testing.TurnRaceMachine is TurnRaceMachine
    with pytest.raises(AttributeError, match="nothing"):
        _ = turnhold.testing.nothing  # pyright: ignore[reportAttributeAccessIssue]


def test_a_machine_needs_a_new_store_for_each_run() -> None:
    """A fixed file would carry turns from one run into the next."""

    @tool
    async def nothing() -> str:
        return ""

    with pytest.raises(ValueError, match="a new store"):
        TurnRaceMachine.of(lambda: Agent("a", model=ScriptedModel("x"), tools=[nothing]), store="sqlite:///one.db")
    with pytest.raises(TypeError, match="of"):
        TurnRaceMachine()
