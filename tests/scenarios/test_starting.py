"""Section B: how a turn starts, what it takes along, and who else may start one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from turnhold import (
    Agent,
    AgentNotFound,
    AiMessage,
    Budget,
    ConversationBusy,
    ExecutionPolicy,
    IdempotencyKeyReused,
    InvalidDefinition,
    ModelOptions,
    Part,
    ResumeCommand,
    Runtime,
    Status,
    SystemMessage,
    TurnOptions,
    UserMessage,
)
from turnhold.testing import call

from .lab import Desk, Lab, agent, approved, model_of, talk, waiting

PARTS = tuple(Part(kind, f"https://example.org/{kind}") for kind in ("image", "audio", "video", "file"))


async def test_first_request(lab: Lab, desk: Desk) -> None:
    """B27: instructions come first as the system message, the tool is offered."""
    shop = agent("hello", tools=[desk.tool()], instructions="be kind")
    runtime = await lab.runtime(shop)

    await runtime.run(shop, "hi")

    (request,) = model_of(shop).requests
    assert request.messages == (SystemMessage("be kind"), UserMessage("hi"))
    assert [tool.name for tool in request.tools] == ["refund"]


async def test_request_options(lab: Lab) -> None:
    """B28, B29, B30: the request carries turn, conversation and the agent's options; the agent's own object stays as it is."""
    options = ModelOptions(temperature=0.5, extra={"account": "a-1"})
    shop = agent("hello", options=options)
    runtime = await lab.runtime(shop)

    turn = await runtime.start(shop, "hi", conversation="c-1")
    await turn.settle()

    (request,) = model_of(shop).requests
    assert (request.turn_id, request.conversation_id, request.agent_id) == (turn.id, "c-1", "shop")
    assert (request.iteration, request.attempt) == (1, 1)
    assert request.options.extra == {"account": "a-1"}
    assert shop.options is options
    assert options == ModelOptions(temperature=0.5, extra={"account": "a-1"})


async def test_options_travel(lab: Lab, desk: Desk) -> None:
    """B31, B32: limits and metadata of one turn are frozen into it and count on another node."""
    policy = ExecutionPolicy(max_iterations=1)
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)], policy=ExecutionPolicy(max_iterations=9))
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    options = TurnOptions(execution_policy=policy, metadata={"tenant": "acme"})
    turn, wait = await waiting(first, shop, options=options, metadata={"order": 7})
    await lab.close(first)

    view = await approved(second.turn(turn.id), wait)

    assert view.status is Status.MAX_ITERATIONS_REACHED
    assert view.metadata == {"tenant": "acme", "order": 7}


async def test_second_turn(lab: Lab) -> None:
    """B33, B34, B35: a turn started with the history of another sees it in front of its input, and nothing else."""
    shop = agent("answer", instructions="be kind")
    runtime = await lab.runtime(shop)
    first = await runtime.start(shop, "one")
    await first.settle()
    question = UserMessage("two", PARTS[:1])

    second = await runtime.start(shop, question, history=await first.history(), metadata={"n": 2})
    view = await second.settle()

    assert second.id != first.id
    assert (view.status, view.metadata) == (Status.COMPLETED, {"n": 2})
    assert talk(model_of(shop).requests[-1].messages) == ["system: be kind", "user: one", "assistant: answer", "user: two"]
    assert model_of(shop).requests[-1].messages[-1] == question
    assert len(await second.history()) == 5


async def test_nothing_is_shared(lab: Lab) -> None:
    """B36, B37, I148: what the caller does to its lists afterwards, or to what it was given, does not change the turn."""
    shop = agent("answer")
    runtime = await lab.runtime(shop)
    history: list = [UserMessage("old"), AiMessage("older")]
    metadata: dict = {"list": [1]}

    turn = await runtime.start(shop, "new", history=history, metadata=metadata)
    history.clear()
    metadata["list"].append(2)
    await turn.settle()
    (await turn.history()).clear()

    assert talk(await turn.history()) == ["user: old", "assistant: older", "user: new", "assistant: answer"]
    assert (await turn.view()).metadata == {"list": [1]}


async def test_parts(lab: Lab, desk: Desk) -> None:
    """B38, B39, B40: image, audio, video and file parts reach the model in every request and survive on another node."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn = await first.start(shop, UserMessage("look", PARTS))
    wait = (await turn.settle()).open_waits[0]
    await lab.close(first)

    view = await approved(second.turn(turn.id), wait)

    assert (view.status, view.iteration_count) == (Status.COMPLETED, 2)
    for request in model_of(shop).requests:
        assert request.messages[0] == UserMessage("look", PARTS)
    assert (await second.turn(turn.id).history())[0] == UserMessage("look", PARTS)


async def test_by_id(lab: Lab) -> None:
    """B44: started by id, the version given last answers; the conversation is bound."""
    one, two = agent("one", version="1"), agent("two", version="2")
    runtime = await lab.runtime(one, two)

    view = await runtime.run("shop", "hi", conversation="c-1")

    assert (view.final_output, view.agent_version, view.conversation_id) == ("two", "2", "c-1")


@pytest.mark.parametrize("named", ["nobody", agent("x", id="shop", version="9"), agent("another object of the same name")])
async def test_unknown_agent(lab: Lab, named: Agent | str) -> None:
    """B45: an agent that the node does not know is refused and nothing is started."""
    runtime = await lab.runtime(agent("hello"))

    with pytest.raises(AgentNotFound):
        await runtime.start(named, "hi")

    assert (await runtime.turns()).items == ()


class Careless:
    """A loader that gives another agent than it was asked for."""

    def __init__(self) -> None:
        self.given = agent("x", id="other")

    def load(self, id: str, version: str) -> Agent:
        return self.given

    def load_active(self, id: str) -> Agent:
        return self.given

    def known(self) -> list[str]:
        return ["shop@1"]


async def test_careless_loader(lab: Lab) -> None:
    """B46: a loader that gives another agent than asked is found out; nothing is started."""
    runtime = await lab.runtime(loader=Careless())

    with pytest.raises(InvalidDefinition, match="shop"):
        await runtime.start("shop", "hi")

    assert (await runtime.turns()).items == ()


async def test_busy(lab: Lab, desk: Desk) -> None:
    """B47, B48, J189, T50: a conversation has one open turn, on all nodes; who comes second learns which one and how it stands."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn, wait = await waiting(first, shop, conversation="c-1")

    with pytest.raises(ConversationBusy) as busy:
        await second.start(shop, "again", conversation="c-1")

    assert (busy.value.conversation_id, busy.value.turn_id) == ("c-1", turn.id)
    assert busy.value.status == "WAITING_FOR_APPROVAL"
    assert await second.conversation("c-1").open_turn() == turn
    await approved(turn, wait)
    assert await second.conversation("c-1").open_turn() is None
    assert (await second.start(shop, "again", conversation="c-1")).id != turn.id


@pytest.mark.parametrize("end", ["cancel", "reject", "fail"])
async def test_free_again(lab: Lab, desk: Desk, end: str) -> None:
    """T89, DESIGN 8: whatever ends a turn frees its conversation, and the next turn can go on from its history."""
    boom = desk.tool("boom", errors=[RuntimeError("no")])
    first = call("boom") if end == "fail" else call("refund")
    shop = agent(first, "done", "next", tools=[desk.tool(approval=True), boom])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi", conversation="c-1")
    await turn.settle()
    if end == "cancel":
        await turn.cancel()
    elif end == "reject":
        await turn.resume(ResumeCommand.reject_tool())

    history = await turn.history()
    follower = await runtime.start(shop, "more", conversation="c-1", history=history)

    assert (await follower.settle()).status in (Status.WAITING_FOR_APPROVAL, Status.FAILED)
    assert talk(history)[-1].startswith("assistant: ")
    assert talk(await follower.history())[len(history)] == "user: more"


async def test_race_for_a_conversation(lab: Lab, desk: Desk) -> None:
    """W-9, T06: of many starts in one conversation at once, on two nodes, exactly one wins."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    nodes = [await lab.runtime(shop), await lab.runtime(shop)]

    starts = [node.start(shop, f"hi {index}", conversation="c-1") for index in range(6) for node in nodes]
    found = await asyncio.gather(*starts, return_exceptions=True)

    (won,) = [one for one in found if not isinstance(one, BaseException)]
    assert all(isinstance(one, ConversationBusy) and one.turn_id == won.id for one in found if isinstance(one, BaseException))


async def test_idempotency_key(lab: Lab) -> None:
    """T08: starts with one key, at once or later, on any node, are one turn; for another input the key is refused."""
    shop = agent("hello")
    first, second = await lab.runtime(shop), await lab.runtime(shop)

    turns = await asyncio.gather(*(node.start(shop, "hi", idempotency_key="k") for node in (first, second, first)))
    await turns[0].settle()
    later = await second.start(shop, "hi", idempotency_key="k")
    with pytest.raises(IdempotencyKeyReused) as reused:
        await second.start(shop, "other", idempotency_key="k")

    assert {turn.id for turn in (*turns, later)} == {turns[0].id}
    assert reused.value.turn_id == turns[0].id
    assert len(model_of(shop).requests) == 1
    assert len((await first.turns()).items) == 1


async def test_key_of_an_open_turn(lab: Lab, desk: Desk) -> None:
    """T07: a client that repeats its start while the first one waits gets that turn, not ConversationBusy."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    turn, _ = await waiting(runtime, shop, conversation="c-1", idempotency_key="k")

    again = await runtime.start(shop, "hi", conversation="c-1", idempotency_key="k")

    assert again.id == turn.id


async def test_turns_are_apart(lab: Lab, desk: Desk) -> None:
    """T71, T108, T119: turns of one agent with equal call ids have nothing in common: an approval reaches the turn it names."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    one, wait = await waiting(runtime, shop)
    two, other = await waiting(runtime, shop)
    assert wait.correlation_id == other.correlation_id

    await approved(one, wait)

    assert (await one.view()).status is Status.COMPLETED
    assert (await two.view()).open_waits == (other,)
    assert [event.turn_id for event in [event async for event in one.events()]].count(one.id) == 18


async def test_listing(lab: Lab, desk: Desk) -> None:
    """DESIGN 4: turns are listed oldest first, page by page, by status, agent, conversation and tenant."""
    shop, other = agent(call("refund"), "done", tools=[desk.tool(approval=True)]), agent("bye", id="other")
    runtime = await lab.runtime(shop, other)
    started = []
    for index in range(5):
        started.append(await runtime.start(shop, f"hi {index}", tenant="acme" if index % 2 else None))
        await started[-1].settle()
        await lab.clock.advance(0.01)
    last = await runtime.start(other, "hi", conversation="c-1")
    await last.settle()

    page = await runtime.turns(agent="shop", limit=3)
    rest = await runtime.turns(agent="shop", limit=3, after=page.next)

    assert [view.id for view in (*page.items, *rest.items)] == [turn.id for turn in started]
    assert rest.next is None
    assert [view.id for view in (await runtime.turns(tenant="acme")).items] == [started[1].id, started[3].id]
    assert [view.id for view in (await runtime.turns(status=Status.COMPLETED)).items] == [last.id]
    assert [view.id for view in (await runtime.turns(conversation="c-1")).items] == [last.id]


async def test_budget_of_one_turn(lab: Lab) -> None:
    """DESIGN 4: options replace the agent's policy as a whole, for this turn only."""
    shop = agent(AiMessage("hello"), policy=ExecutionPolicy(budget=Budget(max_wall_time=5)))
    runtime = await lab.runtime(shop)

    none = await runtime.start(shop, "hi", options=TurnOptions(execution_policy=ExecutionPolicy(budget=Budget(max_wall_time=0))))
    plain = await runtime.run(shop, "hi")

    assert ((await none.settle()).status, plain.status) == (Status.BUDGET_EXCEEDED, Status.COMPLETED)


async def unbound(lab: Lab, shop: Agent) -> str:
    """Start a turn by id where nobody knows the agent and no executor is free to take it."""
    announcer = await lab.runtime(shop)
    announcer._node.draining = True
    desks = await lab.runtime(execute=False)
    turn = await desks.start(shop.id, "hi")
    await lab.close(announcer)
    return turn.id


async def test_unbound_and_cancelled(lab: Lab) -> None:
    """DESIGN 4: a turn that a node without agents started and cancelled has its input in its history."""
    turn_id = await unbound(lab, agent("never", instructions="be kind"))
    desks = await lab.runtime(execute=False)
    assert talk(await desks.turn(turn_id).history()) == ["user: hi"]

    view = await desks.turn(turn_id).cancel("no")

    assert view.status is Status.CANCELLED
    assert talk(await desks.turn(turn_id).history()) == ["user: hi", "assistant: This turn was not finished: no"]


async def test_unbound_and_asked(lab: Lab) -> None:
    """DESIGN 4: instructions and input stand in front of whatever came before the first executor did."""
    shop = agent("done", instructions="be kind")
    turn_id = await unbound(lab, shop)
    desks = await lab.runtime(execute=False)
    turn = desks.turn(turn_id)
    await turn.suspend("which?")
    await lab.idle()
    runtime = await lab.runtime(shop)
    assert (await lab.during(turn.settle())).status is Status.WAITING_FOR_USER

    view = await lab.during(turn.resume(ResumeCommand.user_input("this")))

    assert view.final_output == "done"
    assert talk(await runtime.turn(turn_id).history()) == ["system: be kind", "user: hi", "user: this", "assistant: done"]


@pytest.mark.parametrize("wrong", [{"store": None}, {"agents": None}, {"agents": "shop"}, {"store": 3}], ids=str)
def test_a_runtime_of_nothing(wrong: Any) -> None:
    """A11, A12: a runtime without a store or without a list (or loader) of agents is refused when it is made."""
    with pytest.raises(InvalidDefinition):
        Runtime(**wrong)


async def test_the_announced_version(lab: Lab) -> None:
    """An API-only node starts the version that an executor gives new turns, not the one that is greatest as text."""
    await lab.runtime(agent("nine", version="9"), agent("ten", version="10"))
    desks = await lab.runtime(execute=False)

    view = await desks.run("shop", "hi")

    assert (view.agent_version, view.final_output) == ("10", "ten")
