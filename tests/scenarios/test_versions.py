"""Versions: which one a turn runs, what happens when one is changed under its name, and new ones while a node runs."""

from __future__ import annotations

from typing import Any

import pytest

from turnhold import (
    Agent,
    AgentNotFound,
    AnswerPending,
    InMemoryAgentLoader,
    InvalidDefinition,
    ResumeCommand,
    Runtime,
    Status,
    Suspension,
)
from turnhold.testing import call

from .lab import Desk, Lab, agent, model_of

OLD, NEW = "Help.", "Help, but never refund."


def pair(desk: Desk) -> tuple[Agent[Any], Agent[Any]]:
    """An agent, and what somebody has made of it under the same version."""
    script = call("refund"), "done"
    return (
        agent(*script, tools=[desk.tool(approval=True)], instructions=OLD),
        agent(*script, tools=[desk.tool(approval=True)], instructions=NEW),
    )


async def answered(lab: Lab, runtime: Runtime, wait: Suspension) -> None:
    """Approve a call of a turn that this wakes and parks."""
    with pytest.raises(AnswerPending):
        await runtime.turn(wait.turn_id).submit(ResumeCommand.approve_tool(wait), timeout=0)
    assert (await lab.during(runtime.turn(wait.turn_id).settle())).quarantine is not None


async def test_a_changed_definition_runs(lab: Lab, desk: Desk) -> None:
    """By default an open turn goes on with the agent as it is now; the instructions that stand in its history stay."""
    old, new = pair(desk)
    first = await lab.runtime(old)
    turn = await first.start(old, "hi")
    (wait,) = (await turn.settle()).open_waits
    await lab.close(first)

    second = await lab.runtime(new)
    view = await lab.during(second.turn(turn.id).resume(ResumeCommand.approve_tool(wait)))

    assert (view.status, view.final_output, desk.starts) == (Status.COMPLETED, "done", ["refund"])
    assert model_of(new).requests[0].messages[0].content == OLD


async def test_a_changed_definition_is_parked(lab: Lab, desk: Desk) -> None:
    """T118: with "park" it is put into quarantine before anything runs, listed, and says why; who revives it accepts the change."""
    old, new = pair(desk)
    first = await lab.runtime(old)
    turn = await first.start(old, "hi")
    (wait,) = (await turn.settle()).open_waits
    await lab.close(first)
    second = await lab.runtime(new, changed_definition="park")
    here = second.turn(turn.id)

    with pytest.raises(AnswerPending):
        await here.submit(ResumeCommand.approve_tool(wait), timeout=0)
    view = await lab.during(here.settle())

    assert view.quarantine is not None
    assert view.quarantine.reason == "the definition of shop@1 has changed"
    assert [parked.id for parked in (await second.turns(quarantined=True)).items] == [turn.id]
    assert (desk.starts, model_of(new).requests) == ([], [])

    await here.revive(by="ann")
    view = await lab.during(here.settle())

    assert (view.status, view.quarantine, desk.starts) == (Status.COMPLETED, None, ["refund"])


async def test_revived_where_it_has_not_changed(lab: Lab, desk: Desk) -> None:
    """A parked turn that is revived goes on with the definition it began with, where a node has that."""
    old, new = pair(desk)
    first = await lab.runtime(old)
    turn = await first.start(old, "hi")
    (wait,) = (await turn.settle()).open_waits
    await lab.close(first)
    second = await lab.runtime(new, changed_definition="park")
    await answered(lab, second, wait)
    await lab.close(second)

    third = await lab.runtime(old, changed_definition="park")
    await third.turn(turn.id).revive()
    view = await lab.during(third.turn(turn.id).settle())

    assert (view.status, desk.starts) == (Status.COMPLETED, ["refund"])


async def test_an_accepted_change_is_not_asked_about_again(lab: Lab, desk: Desk) -> None:
    """What was accepted is what the turn runs with from then on; another change is another matter."""
    old, new = pair(desk)
    twice = agent(call("refund"), call("refund"), "done", tools=[desk.tool(approval=True)], instructions=NEW)
    first = await lab.runtime(old)
    turn = await first.start(old, "hi")
    (wait,) = (await turn.settle()).open_waits
    await lab.close(first)
    second = await lab.runtime(twice, changed_definition="park")
    await answered(lab, second, wait)
    await second.turn(turn.id).revive()
    (wait,) = (await lab.during(second.turn(turn.id).settle())).open_waits
    await lab.close(second)

    third = await lab.runtime(new.replace(model=twice.model), changed_definition="park")
    view = await lab.during(third.turn(turn.id).resume(ResumeCommand.approve_tool(wait)))

    assert (view.status, desk.starts) == (Status.COMPLETED, ["refund", "refund"])


async def test_cancel_of_a_turn_whose_definition_has_changed(lab: Lab, desk: Desk) -> None:
    """A cancel ends it, parked or not."""
    old, new = pair(desk)
    first = await lab.runtime(old)
    turn = await first.start(old, "hi")
    await turn.settle()
    await lab.close(first)

    second = await lab.runtime(new, changed_definition="park")
    view = await lab.during(second.turn(turn.id).cancel("enough"))

    assert (view.status, view.quarantine, desk.starts) == (Status.CANCELLED, None, [])


async def test_a_version_added_while_the_node_runs(lab: Lab) -> None:
    """It is started there at once; turns of it that were waiting for somebody who knows it are found at the next heartbeat."""
    one, two = agent("one"), agent("two", version="2")
    loader = InMemoryAgentLoader([one])
    runtime = await lab.runtime(loader=loader)
    other = await lab.runtime(two)
    turn = await other.start(two, "hi")
    await lab.kill(other)
    await lab.take_over()
    waiting = runtime.turn(turn.id)

    with pytest.raises(AgentNotFound):
        await runtime.start(two, "hi")
    loader.add(two)
    view = await lab.during(runtime.run("shop", "hi"))
    again = await lab.during(waiting.settle())

    assert (view.agent_version, view.final_output, again.final_output) == ("2", "two", "two")
    assert [agents for node in await runtime.nodes() if node.node == runtime.node for agents in node.agents] == ["shop@1", "shop@2"]


async def test_which_version_is_active(lab: Lab) -> None:
    """The last added, unless it was added for later; `activate` chooses; what is open stays with its own."""
    one, two, three = (agent(name, version=str(number)) for number, name in enumerate(("one", "two", "three"), 1))
    loader = InMemoryAgentLoader([one])
    runtime = await lab.runtime(loader=loader)

    async def active() -> str:
        return (await lab.during(runtime.run("shop", "hi"))).agent_version

    found = [await active()]
    loader.add(two, active=False)
    found.append(await active())
    loader.activate("shop", "2")
    found.append(await active())
    loader.add(three)
    found.append(await active())
    with pytest.raises(AgentNotFound, match="shop@4"):
        loader.activate("shop", "4")
    with pytest.raises(InvalidDefinition, match="two agents"):
        loader.add(agent("other", version="3"))

    assert found == ["1", "1", "2", "3"]
    assert loader.known() == ("shop@1", "shop@2", "shop@3")


@pytest.mark.parametrize("wrong", ["", "run ", None, True])
def test_wrong_settings(wrong: Any) -> None:
    """What is neither "run" nor "park" is refused."""
    with pytest.raises(InvalidDefinition, match="changed_definition"):
        Runtime(changed_definition=wrong)


async def test_loader_that_knows_nothing_for_a_while(lab: Lab) -> None:
    """DESIGN 5.9: a node whose loader cannot say what it knows goes on announcing itself, and what it knew."""
    shop, down = agent("done"), False

    class Loader:
        def known(self) -> list[str]:
            if down:
                raise ConnectionError("no catalogue today")
            return ["shop@1"]

        def load(self, id: str, version: str) -> Agent | None:
            return shop

        def load_active(self, id: str) -> Agent | None:
            return shop

    runtime = await lab.runtime(loader=Loader())
    (before,) = await runtime.nodes()
    down = True
    await lab.clock.advance(180)
    (after,) = await runtime.nodes()

    assert after.seen_at > before.seen_at
    assert (after.agents, (await runtime.run("shop", "hi")).final_output) == (("shop@1",), "done")
