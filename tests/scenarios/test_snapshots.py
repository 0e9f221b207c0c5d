"""Section I: what is stored is enough to go on anywhere, exactly once, and only what was stored counts."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from turnhold import (
    AiMessage,
    Budget,
    ExecutionPolicy,
    FormDefinition,
    InvalidDefinition,
    ModelOverloaded,
    Part,
    Phase,
    ResumeCommand,
    RetryPolicy,
    SnapshotTooLarge,
    Status,
    StoreUnavailable,
    SuspensionType,
    TurnOptions,
    TurnView,
    Usage,
    UserMessage,
    user_input_tool,
)
from turnhold.testing import ScriptedModel, assert_once, call, crash

from .lab import Desk, Gate, Lab, agent, approved, model_of, open_calls, result_of, talk, waiting

FORM = FormDefinition("f", description="a form", schema={"type": "object"})


async def test_crash_before_the_tool(lab: Lab, desk: Desk) -> None:
    """I141, I142, I143, T62: crash right after the save that intends a `once` call: no run here, and a person decides there."""
    shop = agent(call("refund"), "done", tools=[desk.tool(effect="once")])
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    with crash(first, "save", "after_apply") as crashed:
        turn = await first.start(shop, "hi")
        await crashed.wait()
    there = second.turn(turn.id)
    stored = await there.view()

    assert (len(model_of(shop).requests), desk.starts) == (1, [])
    assert stored.phase is Phase.TOOLS
    assert [pending.id for pending in stored.pending_calls] == ["call_1_0"]
    await lab.take_over()
    view = await there.resume(ResumeCommand.rerun(by="ann"))

    assert (view.status, desk.starts, len(model_of(shop).requests)) == (Status.COMPLETED, ["refund"], 2)


async def test_crash_before_a_repeatable_tool(lab: Lab, desk: Desk) -> None:
    """I144: the same with a repeatable call: another node completes it by itself, the tool ran once, the model twice."""
    shop = agent(call("refund"), "done", tools=[desk.tool()])
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    with crash(first, "save", "after_apply") as crashed:
        turn = await first.start(shop, "hi")
        await crashed.wait()

    await lab.take_over()
    view = await second.turn(turn.id).settle()

    assert (view.status, desk.starts, len(model_of(shop).requests)) == (Status.COMPLETED, ["refund"], 2)


@pytest.mark.parametrize("effect", ["once", "repeatable"])
async def test_crash_between_two_results(lab: Lab, desk: Desk, effect: str) -> None:
    """I145, T20, T52, T53: a saved result is never fetched again: after a crash only the call without one is looked at."""
    gate = Gate()
    tools = [desk.tool("a", result="A", effect=effect), desk.tool("b", result="B", gate=gate, effect=effect)]
    shop = agent([call("a"), call("b")], "done", tools=tools)
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    await lab.idle()
    await lab.kill(first)
    gate.open()
    await lab.take_over()
    there = second.turn(turn.id)
    view = await there.settle()

    if effect == "once":
        assert [wait.correlation_id for wait in view.open_waits] == ["call_1_1"]
        view = await there.resume(ResumeCommand.give_result("call_1_1", "B by hand"))
    assert view.status is Status.COMPLETED
    assert desk.starts.count("a") == 1
    assert desk.starts.count("b") == (1 if effect == "once" else 2)
    assert result_of(await there.history()) == "A"


async def test_crash_keeps_the_version(lab: Lab) -> None:
    """I146, I147, I152: taken over with version 2 active, a turn of version 1 runs version 1's tool and answers from it."""
    old, new, gate = Desk(), Desk(), Gate()
    one = agent(call("refund"), "one", version="1", tools=[old.tool(gate=gate)])
    two = agent(call("refund"), "two", version="2", tools=[new.tool()])
    first, second = await lab.runtime(one), await lab.runtime(one, two)
    turn = await first.start(one, "hi")
    await lab.idle()
    stored = await second.turn(turn.id).view()
    assert (stored.agent_version, [pending.name for pending in stored.pending_calls]) == ("1", ["refund"])
    await lab.kill(first)
    gate.open()

    await lab.take_over()
    view = await second.turn(turn.id).settle()

    assert (view.final_output, view.agent_version) == ("one", "1")
    assert (len(old.starts), new.starts, model_of(two).requests) == (2, [], [])


async def test_no_other_version(lab: Lab, desk: Desk) -> None:
    """T118, DESIGN 8: a node that has only another version leaves the turn in place; a node that has it goes on."""
    one = agent(call("refund"), "one", version="1", tools=[desk.tool(approval=True)])
    two = agent("two", version="2")
    first = await lab.runtime(one)
    turn, wait = await waiting(first, one)
    await lab.close(first)
    wrong = await lab.runtime(two)

    desks = await lab.runtime(execute=False)
    await desks.turn(turn.id).submit(ResumeCommand.approve_tool(wait))
    await lab.clock.advance(60)
    assert (await wrong.turn(turn.id).view()).status is Status.RUNNING
    assert (desk.starts, model_of(two).requests) == ([], [])
    await lab.runtime(one)
    view = await lab.during(wrong.turn(turn.id).settle())

    assert (view.final_output, desk.starts) == ("one", ["refund"])


@pytest.mark.parametrize("point", ["before_apply", "after_apply", "lost_reply"])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
async def test_every_save(lab: Lab, desk: Desk, point: Any, number: int) -> None:
    """T04, T09, T62, T87: a node dies (or loses a reply) at any save of an approve cycle: at most one run, and it completes."""
    tool = desk.tool(approval=True)
    shop = agent(call("refund"), "done", tools=[tool])
    first, second = await lab.runtime(shop), await lab.runtime(shop)

    with assert_once(tool), crash(first, "save", point, nth=number):
        turn = await first.start(shop, "hi")
        await lab.idle()
        await lab.take_over()
        there = second.turn(turn.id)
        while not (view := await lab.during(there.settle())).status.terminal:
            (wait,) = view.open_waits
            if wait.type is SuspensionType.TOOL_APPROVAL:
                node = first if first.healthy else second
                await lab.during(_try(node.turn(turn.id), ResumeCommand.approve_tool(wait, command_id="c1")))
                await lab.take_over()
            else:
                await there.submit(ResumeCommand.give_result(wait, "refunded"))
            await lab.idle()

    assert view.status is Status.COMPLETED
    history = await there.history()
    assert talk(history) == ["user: hi", "assistant -> refund", "call_1_0 = refunded", "assistant: done"]


async def _try(turn, command) -> None:
    """Submit at a node that may die of it."""
    with contextlib.suppress(StoreUnavailable):
        await turn.submit(command)


BLOCKED: dict[str, tuple[Any, Status, Phase, SuspensionType]] = {
    "approval": (call("refund"), Status.WAITING_FOR_APPROVAL, Phase.TOOLS, SuspensionType.TOOL_APPROVAL),
    "form": (call("request_user_input", form_key="f"), Status.WAITING_FOR_USER, Phase.TOOLS, SuspensionType.USER_INPUT),
    "tool retry": (call("breaks"), Status.RETRY_SCHEDULED, Phase.TOOLS, SuspensionType.RETRY),
    "model retry": (ModelOverloaded("busy"), Status.RETRY_SCHEDULED, Phase.MODEL, SuspensionType.RETRY),
}


@pytest.mark.parametrize("state", BLOCKED)
async def test_blocked_states(lab: Lab, desk: Desk, state: str) -> None:
    """I151: a turn that waits is the same turn for every node, and after its node has gone."""
    reply, status, phase, kind = BLOCKED[state]
    policy = ExecutionPolicy(retry_policy=RetryPolicy(max_retries=1, initial_delay=60))
    tools = [desk.tool(approval=True), desk.tool("breaks", errors=[ConnectionError("lost")]), user_input_tool(FORM)]
    shop = agent(reply, "done", tools=tools, policy=policy)
    first, second = await lab.runtime(shop), await lab.runtime(execute=False)
    turn = await first.start(shop, "hi")
    here = await turn.settle()

    there = await second.turn(turn.id).settle()
    await lab.close(first)
    later = await second.turn(turn.id).settle()

    assert here.to_dict() == there.to_dict() == later.to_dict()
    assert here.suspension is not None
    assert (here.status, here.phase, here.suspension.type) == (status, phase, kind)
    assert here.status.blocked
    assert not here.status.terminal
    assert TurnView.from_dict(here.to_dict()) == here


async def test_everything_survives(lab: Lab, desk: Desk) -> None:
    """I155, I157, I160, I161: all of a turn survives on another node: parts, non-ASCII text, usage, metadata, policy, counters."""
    policy = ExecutionPolicy(max_iterations=7, retry_policy=RetryPolicy(max_retries=2), budget=Budget(max_total_tokens=999))
    reply = AiMessage("denkt nach …", (call("refund", amount=1, text="漢字"),), reasoning="weil", usage=Usage(5, 6))
    shop = agent(reply, "fertig", tools=[desk.tool(approval=True)], instructions="Sei nett, 漢字")
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    message = UserMessage("grüße", (Part("image", "https://example.org/ü.png", "image/png", "bild"),))
    options = TurnOptions(execution_policy=policy, metadata={"a": [1, None, {"b": "ü"}]}, streaming=True)
    turn = await first.start(shop, message, conversation="c-ü", tenant="t", options=options)
    here, history = await turn.settle(), await turn.history()
    await lab.close(first)
    there = second.turn(turn.id)

    assert (await there.view()).to_dict() == here.to_dict()
    assert await there.history() == history
    assert (here.usage.total_tokens, here.streaming, here.metadata) == (11, True, {"a": [1, None, {"b": "ü"}]})
    assert (here.conversation_id, here.tenant) == ("c-ü", "t")
    assert history[1] == message
    assert isinstance(history[2], AiMessage)
    assert (history[2].content, history[2].reasoning) == ("denkt nach …", "weil")
    assert (await approved(there, here.open_waits[0])).final_output == "fertig"


async def test_views_are_values(lab: Lab) -> None:
    """I157, I158, T68: a view is frozen; nothing that happens later changes it."""
    shop = agent("done")
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    before = await turn.view()
    copy = before.to_dict()
    await turn.settle()

    assert before.to_dict() == copy
    with pytest.raises(AttributeError):
        before.status = Status.FAILED  # pyright: ignore[reportAttributeAccessIssue]


class Foreign:
    """Nothing that JSON knows."""


@pytest.mark.parametrize("metadata", [{"a": Foreign()}, {"a": {1, 2}}, {"a": b"x"}, {1: "a"}, {"a": float("nan")}, {"a": 2**70}])
async def test_foreign_metadata(lab: Lab, metadata: Any) -> None:
    """I159, I163, I165: metadata that is not JSON-like is refused at the door, naming the place; nothing is stored or pickled."""
    runtime = await lab.runtime(agent("hello"))

    with pytest.raises(InvalidDefinition, match="metadata"):
        await runtime.start("shop", "hi", metadata=metadata)

    assert (await runtime.turns()).items == ()


async def test_too_large(lab: Lab, desk: Desk) -> None:
    """DESIGN 4: what is over the size limit is refused where it enters; a tool's result over it is that call's error."""
    policy = ExecutionPolicy(tool_errors="return_to_model")
    shop = agent(call("refund"), "sorry", tools=[desk.tool(result="x" * 10_000)], policy=policy)
    runtime = await lab.runtime(shop, max_snapshot=8192)

    with pytest.raises(SnapshotTooLarge):
        await runtime.start(shop, "x" * 10_000)
    view = await runtime.run(shop, "hi")

    assert view.final_output == "sorry"
    assert "SnapshotTooLarge" in result_of(model_of(shop).requests[-1].messages)


async def test_reply_too_large(lab: Lab) -> None:
    """A reply of the model that is over the limit fails the turn; it does not make it spin, and the rest can be read."""
    shop = agent("x" * 10_000)
    runtime = await lab.runtime(shop, max_snapshot=8192)
    turn = await runtime.start(shop, "hi")

    view = await lab.during(turn.settle(), most=5)

    assert view.status is Status.FAILED
    assert open_calls(await turn.history()) == []
    assert talk(await turn.history())[0] == "user: hi"


async def test_reading_runs_nothing(lab: Lab, desk: Desk) -> None:
    """T57: looking at a waiting turn, its history and its events wakes nothing and writes nothing."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    turn, _ = await waiting(runtime, shop)
    before = await turn.view()
    claims = runtime.statistics().claims

    for _ in range(3):
        await turn.view()
        await turn.history()
        await turn.children()
        await runtime.inbox()
        await runtime.turns()

    assert (await turn.view()).to_dict() == before.to_dict()
    assert runtime.statistics().claims == claims


async def test_agent_of_another_process(lab: Lab) -> None:
    """T58, W-13: behaviour comes from the agent that the node has, data from the snapshot."""
    desk, again = Desk(), Desk()
    one = agent(call("refund"), "one", tools=[desk.tool(approval=True)])
    same = agent(model=ScriptedModel(call("refund"), "from the other process"), tools=[again.tool(approval=True)])
    first, second = await lab.runtime(one), await lab.runtime(same)
    turn, wait = await waiting(first, one)
    await lab.close(first)

    view = await approved(second.turn(turn.id), wait)

    assert (view.final_output, desk.starts, again.starts) == ("from the other process", [], ["refund"])
