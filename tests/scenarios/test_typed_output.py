"""Typed output: told to the model, asked for again until it fits, and given as a value to who asks with the type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from turnhold import Agent, EventType, ExecutionPolicy, InvalidDefinition, OutputInvalid, Status, TurnView, UserMessage
from turnhold.testing import ScriptedModel, call

from .lab import Desk, Gate, Lab, approved, model_of, types


class Quote(msgspec.Struct):
    order: str
    amount: int = 1


@dataclass
class Other:
    town: str


GOOD = '{"order": "O-1", "amount": 25}'


def typed(*replies: Any, id: str = "shop", output_type: Any = Quote, **options: Any) -> Agent[Any]:
    return Agent(id, model=ScriptedModel(*replies), output_type=output_type, **options)


async def test_valid_at_once(lab: Lab) -> None:
    """The model is told the schema; the output is a value for who has the type, and JSON-like for who has not."""
    shop = typed(GOOD)
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert (view.status, view.final_output, view.iteration_count) == (Status.COMPLETED, Quote("O-1", 25), 1)
    assert [request.output_schema for request in model_of(shop).requests] == [shop.output.schema]
    assert (await runtime.turn(view.id).view()).final_output == {"order": "O-1", "amount": 25}
    assert (await runtime.turns()).items[0].final_output == {"order": "O-1", "amount": 25}
    assert (await runtime.run("shop", "hi")).final_output == {"order": "O-1", "amount": 25}
    assert view.raise_for_status().to_dict()["final_output"] == {"order": "O-1", "amount": 25}
    assert TurnView.from_dict(view.to_dict()).final_output == {"order": "O-1", "amount": 25}


async def test_fenced(lab: Lab) -> None:
    """A fenced block will do; the history keeps the reply as it came."""
    shop = typed(f"```json\n{GOOD}\n```")
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    assert (await turn.settle()).final_output == Quote("O-1", 25)
    assert (await turn.history())[-1].content == f"```json\n{GOOD}\n```"


async def test_wrong_twice(lab: Lab) -> None:
    """A reply that does not fit goes back to the model with its faults, each time as one more step and iteration."""
    shop = typed("Gladly!", '{"order": 5, "amount": "many"}', GOOD)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await turn.settle()

    assert (view.final_output, view.iteration_count, view.step_count) == (Quote("O-1", 25), 3, 3)
    said = [message for message in await turn.history() if isinstance(message, UserMessage)]
    told = [msgspec.json.decode(message.content) for message in said[1:]]
    assert [message.kind for message in said] == ["input", "fault", "fault"]
    assert [each["type"] for each in told] == ["output_invalid", "output_invalid"]
    assert told[0]["faults"][0]["message"].startswith("is not JSON")
    assert told[1]["faults"] == [
        {"path": "$.order", "message": "must be text"},
        {"path": "$.amount", "message": "must be a whole number"},
    ]
    assert told[1]["schema"] == shop.output.schema
    assert [message.content for message in model_of(shop).requests[2].messages][-1] == msgspec.json.encode(told[1]).decode()
    found = await types(turn)
    assert found.count(EventType.MODEL_COMPLETED) == found.count(EventType.STEP_COMPLETED) == 3


async def test_never_right(lab: Lab) -> None:
    """When the iterations are used up the turn ends as ever, its error tells the faults, and the conversation can go on."""
    shop = typed("no", "no", policy=ExecutionPolicy(max_iterations=2))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi", conversation="c")

    view = await turn.settle()

    assert (view.status, view.final_output, view.iteration_count) == (Status.MAX_ITERATIONS_REACHED, None, 2)
    assert view.error is not None
    assert (view.error.type, "is not JSON" in view.error.message) == ("OutputInvalid", True)
    assert [message.to_dict()["role"] for message in await turn.history()] == [*["user", "assistant"] * 3]
    assert (await runtime.turn(view.id, output_type=Other).view()).final_output is None
    await (await runtime.start(shop, "again", conversation="c")).settle()


async def test_without_faults_no_error(lab: Lab, desk: Desk) -> None:
    """Iterations that were used up by calls leave no error behind, also where a reply did not fit before."""
    shop = typed("no", call("refund", amount=1), tools=[desk.tool()], policy=ExecutionPolicy(max_iterations=2))
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert (view.status, view.error) == (Status.MAX_ITERATIONS_REACHED, None)


async def test_over_a_passivation(lab: Lab, desk: Desk) -> None:
    """A turn that waited, and was asked again on another node, gives the same value on each; one without agents needs the type."""
    replies = (call("refund", amount=25), "done", GOOD)
    here, there = (typed(*replies, tools=[desk.tool(approval=True)]) for _ in range(2))
    first = await lab.runtime(here)
    turn = await first.start(here, "hi")
    waiting = await turn.settle()
    await lab.close(first)
    second, page = await lab.runtime(there), await lab.runtime(execute=False)

    view = await approved(second.turn(turn.id, output_type=Quote), waiting.open_waits[0])

    assert (view.final_output, len(desk.starts), len(model_of(there).requests)) == (Quote("O-1", 25), 1, 2)
    assert model_of(there).requests[0].output_schema == here.output.schema
    assert (await page.turn(turn.id).view()).final_output == {"order": "O-1", "amount": 25}
    assert (await page.turn(turn.id, output_type=Quote).settle()).final_output == Quote("O-1", 25)
    assert (await page.turn(turn.id, output_type=dict[str, str | int]).view()).final_output == {"order": "O-1", "amount": 25}


async def test_wrong_type_asked_for(lab: Lab) -> None:
    """An output that does not fit the type asked for is an error that names the faults and shows the turn as it is."""
    shop = typed(GOOD)
    runtime = await lab.runtime(shop, Agent("talk", model=ScriptedModel("hello")))
    turn, talk = await runtime.start(shop, "hi"), await runtime.start("talk", "hi")
    await turn.settle()
    await talk.settle()

    for read in (runtime.turn(turn.id, output_type=Other).view, runtime.turn(turn.id, output_type=Other).settle):
        with pytest.raises(OutputInvalid, match=f"the output of turn {turn.id} does not fit: .*town is missing") as raised:
            await read()
        assert raised.value.faults == (("$.town", "is missing"),)
        assert raised.value.view == await runtime.turn(turn.id).view()
    with pytest.raises(OutputInvalid, match="must be text"):
        await runtime.turn(turn.id, output_type=str).view()
    with pytest.raises(OutputInvalid, match="must be an object"):
        await runtime.turn(talk.id, output_type=Quote).view()
    assert (await runtime.turn(talk.id, output_type=str).view()).final_output == "hello"
    with pytest.raises(InvalidDefinition, match="output_type"):
        runtime.turn(turn.id, output_type=object)


async def test_other_ends(lab: Lab, desk: Desk) -> None:
    """A turn that has not completed has no output, and asking with a type is no error."""
    shop = typed(call("refund", amount=1), tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    assert (await turn.settle()).final_output is None
    view = await turn.cancel("enough")
    assert (view.status, view.final_output) == (Status.CANCELLED, None)


async def test_streaming(lab: Lab) -> None:
    """A model that streams is asked in the same way, and its reply is put together before it is read."""
    shop = typed("no", GOOD)
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi", streaming=True)

    assert (view.final_output, view.iteration_count) == (Quote("O-1", 25), 2)


async def test_of_a_child(lab: Lab) -> None:
    """A child's typed output reaches its parent's history as JSON, and its reference as a value."""
    gate = Gate()

    async def slow(request: object) -> str:
        await gate.passing()
        return "too late"

    inner = typed(GOOD, id="inner")
    outer = Agent("outer", model=ScriptedModel(slow, "done"))
    runtime = await lab.runtime(inner, outer)
    parent = await runtime.start(outer, "hi")
    await lab.idle()
    child = await parent.start_child(inner, "quote")
    gate.open()

    assert (await child.settle()).final_output == Quote("O-1", 25)
    await parent.settle()
    assert [
        message.content for message in await parent.history() if '"output":{"order":"O-1","amount":25}' in message.content
    ] != []
    assert [(await each.view()).final_output for each in await parent.children()] == [{"order": "O-1", "amount": 25}]
