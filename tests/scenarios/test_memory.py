"""What a conversation remembers, in the store, and what a turn takes along of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from turnhold import (
    ActionMessage,
    AiMessage,
    Budget,
    ChatMessage,
    ContextWindow,
    ExecutionPolicy,
    InvalidDefinition,
    MemoryMessage,
    Part,
    ResumeCommand,
    Runtime,
    Status,
    SystemMessage,
    TurnOptions,
    UserMessage,
)
from turnhold.runtime.runtime import node_of
from turnhold.store import base
from turnhold.testing import call

from .lab import Desk, Gate, Lab, agent, approved, asks, echo, held, model_of, open_calls, said, shown, talk, waiting

GATED = call("refund", amount=1)


async def entries(runtime: Runtime, conversation: str = "c", **options: Any) -> list[MemoryMessage]:
    return await runtime.conversation(conversation).messages(**options)


async def write(runtime: Runtime, *messages: Any, conversation: str = "c", **options: Any) -> None:
    """Put messages into the memory, as somebody else's turns would have done."""
    for number, message in enumerate(messages):
        body = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
        row = base.MemoryRow(f"m{number}", body, **options)
        await node_of(runtime).call(base.WriteMemory(conversation=conversation, row=row))


def exchanges(count: int) -> list[ChatMessage]:
    return [message for number in range(count) for message in (UserMessage(f"question {number}"), AiMessage(f"answer {number}"))]


# ---------------------------------------------------------------------------------------------------------------- recall


async def test_no_memory_is_needed(lab: Lab) -> None:
    """B41: a conversation needs nothing set up: the store remembers it."""
    shop = agent(echo)
    runtime = await lab.runtime(shop)

    await runtime.run(shop, "one", conversation="c")
    await runtime.run(shop, "two", conversation="c")
    await runtime.run(shop, "three", conversation="other")
    await runtime.run(shop, "four")

    assert [len(request.messages) for request in model_of(shop).requests] == [1, 3, 1, 1]
    assert await said(runtime) == ["user: one", "assistant: re one", "user: two", "assistant: re two"]


async def test_window_of_the_memory(lab: Lab) -> None:
    """B42, B43: of ten messages and a window of three the model sees the last two and the input; the turn holds no more."""
    shop = agent("new answer", window=ContextWindow(max_messages=3))
    runtime = await lab.runtime(shop)
    await write(runtime, *exchanges(5))

    turn = await runtime.start(shop, "new question", conversation="c")
    await turn.settle()

    expected = ["user: question 4", "assistant: answer 4", "user: new question"]
    assert talk(model_of(shop).requests[0].messages) == expected
    assert talk(await turn.history()) == [*expected, "assistant: new answer"]
    assert len(await entries(runtime)) == 12


async def test_long_conversation(lab: Lab) -> None:
    """What lies before the window is not read: a long conversation costs a turn no more than a short one."""
    shop = agent(echo, window=ContextWindow(max_turns=3))
    runtime = await lab.runtime(shop)
    await write(runtime, *exchanges(200))
    reads = Counting(runtime)

    turn = await runtime.start(shop, "now", conversation="c")
    await turn.settle()

    assert talk(await turn.history()) == [*talk(exchanges(200)[-4:]), "user: now", "assistant: re now"]
    assert reads.of("ReadMemory") == 1


async def test_recalled_turns_are_whole(lab: Lab, desk: Desk) -> None:
    """Turns with tools are recalled whole, or compacted where they are older than the newest two."""
    shop = agent(call("refund"), echo, tools=[desk.tool()], instructions="be kind")
    runtime = await lab.runtime(shop)
    for text in ("one", "two", "three"):
        turn = await runtime.start(shop, text, conversation="c")
        await turn.settle()

    seen = talk(model_of(shop).requests[-1].messages)
    assert seen[:4] == ["system: be kind", "user: one", "assistant: re refunded", "user: two"]
    assert seen[4:7] == ["assistant -> refund", "call_1_0 = refunded", "assistant: re refunded"]
    assert open_calls(await turn.history()) == []
    assert len(await entries(runtime)) == 12


async def test_given_history(lab: Lab) -> None:
    """A history that is given, an empty one too, takes the place of what was said; of it nothing is remembered twice."""
    shop = agent(echo)
    runtime = await lab.runtime(shop)
    await runtime.run(shop, "one", conversation="c")

    await runtime.run(shop, "two", conversation="c", history=[UserMessage("given"), AiMessage("yes")])
    await runtime.run(shop, "three", conversation="c", history=[])
    await runtime.run(shop, "four", conversation="c")

    seen = [talk(request.messages) for request in model_of(shop).requests]
    assert seen[1] == ["user: given", "assistant: yes", "user: two"]
    assert seen[2] == ["user: three"]
    assert seen[3] == [
        *("user: one", "assistant: re one", "user: two", "assistant: re two"),
        *("user: three", "assistant: re three", "user: four"),
    ]


async def test_parts_are_remembered(lab: Lab) -> None:
    """Images and files of earlier inputs are recalled with them."""
    shop = agent(echo)
    runtime = await lab.runtime(shop)
    look = UserMessage("look", (Part("image", "https://example.org/1"),))
    await runtime.run(shop, look, conversation="c")

    await runtime.run(shop, "again", conversation="c")

    assert model_of(shop).requests[-1].messages[0] == look


async def test_a_compressor_gets_what_was_said(lab: Lab) -> None:
    """With a compressor the older turns of the conversation are recalled beyond the message limit, and made shorter by it."""
    given: list[list[str]] = []

    def short(messages: Any, context: Any) -> list[ChatMessage]:
        given.append(talk(messages))
        return [UserMessage("in short"), AiMessage("ok")]

    shop = agent(echo, window=ContextWindow(max_messages=5), compressor=short)
    runtime = await lab.runtime(shop)
    await write(runtime, *exchanges(6))

    await runtime.run(shop, "now", conversation="c")

    assert len(given[0]) == 10
    assert talk(model_of(shop).requests[0].messages) == [
        *("user: in short", "assistant: ok", "user: question 5", "assistant: answer 5", "user: now")
    ]


async def test_edited_calls(lab: Lab, desk: Desk) -> None:
    """A reply whose call a person has edited is remembered as it ran, marked with who edited it, for models and for people."""
    tools = [desk.tool(approval=True), desk.tool("pay", approval=True)]
    shop = agent([GATED, call("pay", amount=2)], echo, tools=tools)
    first, second = await lab.runtime(shop), await lab.runtime(execute=False)
    turn = await first.start(shop, "one", conversation="c")
    one, two = (await turn.settle()).open_waits
    await second.turn(turn.id).submit(ResumeCommand.approve_tool(one, arguments={"amount": 7}, by="ann"))
    await lab.during(turn.resume(ResumeCommand.approve_tool(two, arguments={"amount": 8}, by="bob")))

    reply = (await entries(first))[1]
    assert isinstance(reply.message, AiMessage)
    assert [(each.arguments, each.edited_by) for each in reply.message.tool_calls] == [
        ({"amount": 7}, "ann"),
        ({"amount": 8}, "bob"),
    ]
    assert reply.version == 2
    assert len([entry for entry in await entries(first) if entry.shown]) == 5
    plain = agent(echo, id="plain")
    third = await lab.runtime(plain)
    await third.run(plain, "two", conversation="c")
    seen = model_of(plain).requests[0].messages
    assert isinstance(seen[1], AiMessage)
    assert [each.arguments for each in seen[1].tool_calls] == [{"amount": 7}, {"amount": 8}]
    assert seen[2].content.startswith("[A person (ann) edited")


@pytest.mark.parametrize("edited", [(1,), (3,), (1, 3), (3, 1)])
async def test_edits_between_results(lab: Lab, desk: Desk, edited: tuple[int, ...]) -> None:
    """The right reply is replaced, whatever results and edits of its calls stand behind it already, and in whatever order."""
    gated = [desk.tool(f"t{n}", approval=bool(n % 2)) for n in range(4)]
    shop = agent(call("t0"), [call(f"t{n}", amount=n) for n in range(4)], "done", tools=gated)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "one", conversation="c")
    waits = {int(wait.correlation_id[-1]): wait for wait in (await turn.settle()).open_waits if wait.correlation_id}
    for number in (*edited, *({1, 3} - {*edited})):
        arguments = {"amount": 10 * number} if number in edited else None
        await turn.submit(ResumeCommand.approve_tool(waits[number], arguments=arguments, by="ann"))
        await lab.idle()

    assert (await turn.view()).status is Status.COMPLETED
    replies = [each for each in shown(await entries(runtime)) if isinstance(each, AiMessage)]
    assert [each.edited_by for each in replies[0].tool_calls] == [None]
    assert [each.edited_by for each in replies[1].tool_calls] == [("ann" if n in edited else None) for n in range(4)]
    assert shown(await entries(runtime)) == await turn.history()


async def test_only_roots_are_remembered(lab: Lab) -> None:
    """What a child says to itself is not in the conversation; its outcome is, as the result of its call."""
    child = agent("child done", id="child")
    shop = agent(asks("child"), "done", tools=[child.as_tool()])
    runtime = await lab.runtime(shop, child)

    await runtime.run(shop, "one", conversation="c")

    assert await said(runtime) == ["user: one", "assistant -> child", "call_1_0 = child done", "assistant: done"]


async def test_turns_that_did_not_complete(lab: Lab, desk: Desk) -> None:
    """A turn that failed or was cancelled is remembered with every call answered, and the next one goes on from there."""
    shop = agent(GATED, "x", tools=[desk.tool(approval=True)])
    broken = agent(RuntimeError("down"), id="broken")
    plain = agent(echo, id="plain", window=ContextWindow(compact_completed_tool_turns=False))
    runtime = await lab.runtime(shop, broken, plain)
    turn, _ = await waiting(runtime, shop, "one", conversation="c")
    await turn.cancel("enough")
    await runtime.run(broken, "two", conversation="c")

    view = await runtime.run(plain, "three", conversation="c")

    assert view.status is Status.COMPLETED
    seen = model_of(plain).requests[0].messages
    assert open_calls(seen) == []
    assert [type(message).__name__.removesuffix("Message") for message in seen] == [
        *("User", "Ai", "Tool", "Ai"),
        *("User", "Ai", "User"),
    ]
    assert [message.content for message in seen if isinstance(message, UserMessage)] == ["one", "two", "three"]


async def test_a_turn_that_never_began(lab: Lab) -> None:
    """A turn that ends before its history is opened leaves nothing in the memory; its own history tells what was asked."""
    shop = agent("x")
    api = await lab.runtime(execute=False)
    runtime = await lab.runtime(shop)
    await lab.close(runtime)
    del runtime
    node = node_of(api)
    await node.call(base.Beat(node="somebody", agents=("shop@1",)))
    turn = await api.start("shop", "one", conversation="c")

    view = await turn.cancel("not any more")

    assert view.status is Status.CANCELLED
    assert await entries(api) == []
    assert talk(await turn.history())[0] == "user: one"
    assert await api.conversation("c").open_turn() is None


async def test_limits_count_from_the_first_request(lab: Lab) -> None:
    """A turn without any budget, or whose policy is the default in so many words, behaves in a conversation as elsewhere."""
    shop = agent("x", policy=ExecutionPolicy(max_iterations=3))
    runtime = await lab.runtime(shop)
    nothing = TurnOptions(execution_policy=ExecutionPolicy(budget=Budget(max_duration=0)))

    view = await runtime.run(shop, "one", conversation="c", options=nothing)
    assert view.status is Status.BUDGET_EXCEEDED
    turn = await runtime.start(shop, "two", conversation="c", options=TurnOptions(execution_policy=ExecutionPolicy()))
    await turn.settle()

    look = await node_of(runtime).call(base.Look(turn=turn.id))
    assert isinstance(look, base.Looked)
    assert b"max_iterations" not in look.snapshot  # the default policy is stored as none, and is not the agent's
    assert len(model_of(shop).requests) == 1
    assert [line.split(":")[0] for line in await said(runtime)] == ["user", "assistant", "user", "assistant"]


# -------------------------------------------------------------------------------------------------------------- the cost


class Counting:
    """Counts a node's store calls."""

    def __init__(self, runtime: Runtime) -> None:
        self.ops: list[str] = []
        node_of(runtime).fault = self

    def before(self, op: base.Op) -> None:
        pass

    def after(self, op: base.Op, reply: base.Reply) -> None:
        self.ops.append(type(op).__name__)

    def of(self, name: str) -> int:
        return self.ops.count(name)


async def test_round_trips(lab: Lab) -> None:
    """A turn of a conversation costs one read and one save more than another, with a given history no read; others cost nothing."""
    shop = agent("x")
    runtime = await lab.runtime(shop)
    await runtime.run(shop, "warm up")
    counted = Counting(runtime)

    async def cost(**options: Any) -> list[str]:
        counted.ops.clear()
        await runtime.run(shop, "one", **options)
        await lab.idle()
        return list(counted.ops)

    assert await cost() == ["Create", "Save"]
    assert await cost(conversation="c") == ["Create", "ReadMemory", "Save", "Save"]
    assert await cost(conversation="d", history=[]) == ["Create", "Save", "Save"]


async def test_a_promoted_turn_costs_the_same(lab: Lab) -> None:
    """A queued turn is claimed, reads and saves as often as one that found its conversation free."""
    gate = Gate()
    slow, shop = agent(held(gate), id="slow"), agent("x")
    runtime = await lab.runtime(slow, shop)
    await runtime.start(slow, "one", conversation="c")
    await gate.entered.wait()
    queued = await runtime.start(shop, "two", conversation="c", when_busy="queue")
    counted = Counting(runtime)
    gate.open()
    await queued.settle()

    assert [name for name in counted.ops if name not in ("Due", "Look")] == ["Save", "Claim", "ReadMemory", "Save", "Save"]


# ---------------------------------------------------------------------------------------------------------- for people


async def test_ids_and_versions(lab: Lab) -> None:
    """Each message tells its id, the turn that wrote it, when, and its version, and survives its JSON."""
    shop = agent("x", instructions="be kind")
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "one", conversation="c")
    await turn.settle()

    found = await entries(runtime)
    assert [(entry.id, entry.turn_id, entry.version, entry.shown) for entry in found] == [
        (f"{turn.id}:{place}", turn.id, 0, True) for place in (1, 2)
    ]
    assert [MemoryMessage.from_dict(entry.to_dict()) for entry in found] == found
    assert found[0].at <= found[1].at


async def test_paging(lab: Lab) -> None:
    """M254: pages go backwards from the newest message, each oldest first; the last one may be short, and none is past the end."""
    shop = agent(echo)
    runtime = await lab.runtime(shop)
    await write(runtime, *exchanges(4))

    newest = await entries(runtime, limit=3)
    assert talk(shown(newest)) == ["assistant: answer 2", "user: question 3", "assistant: answer 3"]
    older = await entries(runtime, limit=3, before=newest[0].id)
    assert [entry.id for entry in older] == ["m2", "m3", "m4"]
    assert [entry.id for entry in await entries(runtime, limit=3, before="m2")] == ["m0", "m1"]
    assert await entries(runtime, before="m0") == []
    assert await entries(runtime, "nobody") == []
    for wrong in (0, 1001, "3", True):
        with pytest.raises(InvalidDefinition, match="limit"):
            await entries(runtime, limit=wrong)
    with pytest.raises(InvalidDefinition, match="before"):
        await entries(runtime, before="")


async def test_what_is_given_out_is_the_readers(lab: Lab) -> None:
    """M258, M259: lists that were given out may be changed; neither the memory nor a turn is touched by it."""
    shop = agent(echo)
    runtime = await lab.runtime(shop)
    await runtime.run(shop, "one", conversation="c")
    for _ in range(3):
        found = await entries(runtime)
        found.clear()
        assert len(await entries(runtime)) == 2
    first, second = (await entries(runtime))[0], (await entries(runtime))[0]
    assert first == second
    assert first is not second


async def test_system_messages(lab: Lab) -> None:
    """M260: instructions are not remembered: each agent puts its own in front; one that somebody wrote there is not seen."""
    shop, other = agent(echo, instructions="be kind"), agent(echo, id="other", instructions="be short")
    runtime = await lab.runtime(shop, other)
    await write(runtime, SystemMessage("old rules"), UserMessage("zero"), AiMessage("null"))
    await runtime.run(shop, "one", conversation="c")

    await runtime.run(other, "two", conversation="c")

    seen = talk(model_of(other).requests[0].messages)
    assert [line for line in seen if line.startswith("system")] == ["system: be short"]
    assert seen[1] == "user: zero"


async def test_cards_do_not_use_up_the_window(lab: Lab) -> None:
    """M252, M253, M255, N264: models see the newest messages that are no cards, however many cards stand between them."""
    shop = agent(echo, window=ContextWindow(max_messages=3))
    runtime = await lab.runtime(shop)
    node = node_of(runtime)
    await write(runtime, *exchanges(2))
    for number in range(300):
        card = ActionMessage(message_id=f"card {number}", turn_id="t", action_id="a")
        row = base.MemoryRow(card.message_id, msgspec.msgpack.encode(card), shown=False)
        await node.call(base.WriteMemory(conversation="c", row=row))

    await runtime.run(shop, "now", conversation="c")

    assert talk(model_of(shop).requests[0].messages) == ["user: question 1", "assistant: answer 1", "user: now"]
    found = await entries(runtime, limit=1000)
    assert (len(found), sum(entry.shown for entry in found)) == (306, 6)


async def test_clear(lab: Lab, desk: Desk) -> None:
    """A conversation that was cleared has forgotten what was said; a turn that runs goes on, and what it says is remembered."""
    shop = agent(GATED, echo, tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    plain = agent(echo, id="plain")
    other = await lab.runtime(plain)
    await other.run(plain, "one", conversation="c")
    turn, wait = await waiting(runtime, shop, "two", conversation="c")

    await other.conversation("c").clear()
    await other.conversation("c").clear()
    assert await entries(runtime) == []
    assert (await turn.view()).status is Status.WAITING_FOR_APPROVAL
    await approved(turn, wait)

    assert len(await entries(runtime)) == 3  # the card, the result, the answer
    await other.run(plain, "three", conversation="c")
    seen = model_of(plain).requests[-1].messages
    assert open_calls(seen) == []
    assert talk(seen) == ["user: three"]
