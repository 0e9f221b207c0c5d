"""Section D: calls of tools, what comes back, and what goes wrong."""

from __future__ import annotations

import asyncio
import json

import pytest

from turnhold import (
    AiMessage,
    Budget,
    EventType,
    ExecutionPolicy,
    RetryPolicy,
    Status,
    SuspensionType,
    ToolCall,
    ToolContext,
    ToolError,
    tool,
)
from turnhold.testing import call

from .lab import Desk, Gate, Lab, agent, approved, model_of, open_calls, result_of, stored_events, talk, told, types, waiting

TELL = ExecutionPolicy(tool_errors="return_to_model")


async def test_order(lab: Lab, desk: Desk) -> None:
    """D59: calls start in the reply's order, and their results stand in it."""
    tools = [desk.tool(name, result=name.upper()) for name in ("a", "b", "c")]
    shop = agent([call("c"), call("a"), call("b")], "done", tools=tools)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    await turn.settle()

    assert desk.starts == ["c", "a", "b"]
    assert talk(await turn.history())[2:5] == ["call_1_0 = C", "call_1_1 = A", "call_1_2 = B"]


async def test_concurrent(lab: Lab, desk: Desk) -> None:
    """DESIGN 5.2: calls of one reply run at once; results come in any order and enter the history in the reply's."""
    gates = {name: Gate() for name in ("a", "b")}
    shop = agent([call("a"), call("b")], "done", tools=[desk.tool(name, gate=gates[name], result=name) for name in gates])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await lab.idle()
    assert desk.starts == ["a", "b"]

    gates["b"].open()
    await lab.idle()
    assert talk(await turn.history()) == ["user: hi", "assistant -> a, b"]
    gates["a"].open()
    view = await turn.settle()

    assert (view.final_output, desk.ended) == ("done", ["b", "a"])
    assert talk(await turn.history())[2:4] == ["call_1_0 = a", "call_1_1 = b"]


async def test_sequential(lab: Lab, desk: Desk) -> None:
    """DESIGN 5.2: a sequential tool runs alone: behind all calls before it, in front of all behind it."""
    gates = {name: Gate() for name in ("a", "b", "c")}
    tools = [desk.tool(name, gate=gates[name], sequential=name == "b") for name in gates]
    shop = agent([call("a"), call("b"), call("c")], "done", tools=tools)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    for expected in (["a"], ["a", "b"], ["a", "b", "c"]):
        await lab.idle()
        assert desk.starts == expected
        gates[expected[-1]].open()

    assert (await turn.settle()).status is Status.COMPLETED


async def test_sequential_by_policy(lab: Lab, desk: Desk) -> None:
    """DESIGN 5.2: where the policy says so, all calls of a reply run one at a time, in its order."""
    gates = {name: Gate() for name in ("a", "b", "c")}
    shop = agent(
        [call("a"), call("b"), call("c")],
        "done",
        tools=[desk.tool(name, gate=gates[name]) for name in gates],
        policy=ExecutionPolicy(sequential=True),
    )
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    for expected in (["a"], ["a", "b"], ["a", "b", "c"]):
        await lab.idle()
        assert desk.starts == expected
        gates[expected[-1]].open()

    assert (await turn.settle()).status is Status.COMPLETED


async def test_sequential_behind_approval(lab: Lab, desk: Desk) -> None:
    """A sequential call behind one that waits for a person waits, too; it asks for its own approval meanwhile."""
    tools = [desk.tool("a", approval=True), desk.tool("b", sequential=True, approval=True)]
    shop = agent([call("a"), call("b")], "done", tools=tools)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    first, second = (await turn.settle()).open_waits

    view = await approved(turn, second)
    assert (desk.starts, view.status) == ([], Status.WAITING_FOR_APPROVAL)
    view = await approved(turn, first)

    assert (view.status, desk.starts) == (Status.COMPLETED, ["a", "b"])


async def test_error_to_model(lab: Lab, desk: Desk) -> None:
    """D60: with return_to_model the model reads an execution error with its text, under the call's id; the turn completes."""
    shop = agent(call("refund"), "sorry", tools=[desk.tool(errors=[ValueError("no money")])], policy=TELL)
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert view.final_output == "sorry"
    result = json.loads(result_of(model_of(shop).requests[-1].messages))
    assert result == {"error": True, "type": "tool_execution_error", "message": "no money", "errorType": "ValueError"}


async def test_error_message(lab: Lab, desk: Desk) -> None:
    """D61, W-13: the agent's own words for an error, also on another node; the id is the call's."""
    shop = agent(
        call("refund", amount=4),
        "sorry",
        tools=[desk.tool(errors=[ValueError("no money")], approval=True)],
        policy=TELL,
        tool_error_message=lambda call, error: f"{call.name}({call.arguments['amount']}): {error}",
    )
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn, wait = await waiting(first, shop)
    await lab.close(first)

    await approved(second.turn(turn.id), wait)

    assert result_of(model_of(shop).requests[-1].messages) == "refund(4): no money"


@pytest.mark.parametrize("answer", [None, 3, RuntimeError("the factory itself")])
async def test_error_message_fails(lab: Lab, desk: Desk, answer: object) -> None:
    """W-11: a tool_error_message that raises, or gives no text, costs nothing: the usual text is used."""

    def words(call, error):
        if isinstance(answer, Exception):
            raise answer
        return answer

    shop = agent(call("refund"), "sorry", tools=[desk.tool(errors=[ValueError("no money")])], policy=TELL, tool_error_message=words)
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert view.status is Status.COMPLETED
    assert "no money" in result_of(model_of(shop).requests[-1].messages)


@pytest.mark.parametrize("policy", [TELL, ExecutionPolicy()], ids=["return_to_model", "fail"])
async def test_unknown_tool(lab: Lab, desk: Desk, policy: ExecutionPolicy) -> None:
    """D62, R17 (W-25): a tool name that does not exist goes back to the model with the names that do; bounded by iterations."""
    shop = agent(call("refnud"), call("refund"), "done", tools=[desk.tool()], policy=policy)
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert (view.final_output, desk.starts) == ("done", ["refund"])
    result = json.loads(result_of(model_of(shop).requests[1].messages))
    assert (result["error"], result["type"]) == (True, "unknown_tool")
    assert "refnud" in result["message"]
    assert "refund" in result["message"]


async def test_unknown_tool_for_ever(lab: Lab, desk: Desk) -> None:
    """R17 (W-25): a model that never gets a name right ends at its iterations."""
    shop = agent(*[call("nope")] * 9, tools=[desk.tool()], policy=ExecutionPolicy(max_iterations=3))
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert (view.status, view.iteration_count, view.tool_call_count) == (Status.MAX_ITERATIONS_REACHED, 3, 0)


async def test_tool_gone(lab: Lab, desk: Desk) -> None:
    """D63: a restored call whose tool the agent no longer has is answered by name; it hangs nothing and runs nothing."""
    with_tool = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    without = agent("unused", "done without", tools=[desk.tool("other")])
    first = await lab.runtime(with_tool)
    turn, wait = await waiting(first, with_tool)
    await lab.close(first)
    second = await lab.runtime(without)

    view = await approved(second.turn(turn.id), wait)

    assert view.final_output == "done without"
    assert "refund" in result_of(await second.turn(turn.id).history())
    assert desk.starts == []


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (ToolCall("x", "refund", invalid="{amount: "), "JSON"),
        (ToolCall("x", "refund", {"amount": "much"}), "$.amount"),
        (ToolCall("x", "refund", {"ammount": 3}), "$.ammount"),
    ],
    ids=["not JSON", "wrong type", "unknown name"],
)
async def test_bad_arguments(lab: Lab, desk: Desk, bad: ToolCall, word: str) -> None:
    """D64: arguments that cannot be read, or do not fit, go back to the model with their places; the tool does not run."""
    shop = agent(AiMessage(tool_calls=(bad,)), call("refund", amount=3), "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    result = json.loads(result_of(model_of(shop).requests[1].messages, "x"))
    assert (result["error"], result["type"]) == (True, "invalid_arguments")
    assert word in json.dumps(result)
    assert (await approved(turn, wait)).final_output == "done"
    assert desk.arguments == [{"amount": 3, "text": ""}]


async def test_context(lab: Lab) -> None:
    """D69, D70, D71: a running tool knows its turn, its call and the key for outside systems; no cancel is reported."""
    seen: list[ToolContext] = []

    @tool
    async def look(context: ToolContext, amount: int) -> str:
        """Look at the context."""
        assert ToolContext.current() is context
        seen.append(context)
        return "ok"

    shop = agent(call("look", amount=1), "done", tools=[look], version="3")
    services = object()
    runtime = await lab.runtime(shop, services=services)
    turn = await runtime.start(shop, "hi", conversation="c-1", tenant="acme", metadata={"n": 1})

    await turn.settle()

    (context,) = seen
    assert (context.turn_id, context.root_turn_id, context.parent_turn_id) == (turn.id, turn.id, None)
    assert (context.agent_id, context.agent_version) == ("shop", "3")
    assert (context.conversation_id, context.tenant, context.metadata) == ("c-1", "acme", {"n": 1})
    assert (context.tool, context.call, context.call_id) == (look, ToolCall("call_1_0", "look", {"amount": 1}), "call_1_0")
    assert context.idempotency_key == f"{turn.id}:call_1_0"
    assert (context.attempt, context.form_data, context.cancel_requested) == (1, None, False)
    assert context.services is services


async def test_progress(lab: Lab, desk: Desk) -> None:
    """D72: progress of a tool reaches those who watch, tagged with call and attempt; it is live, not stored."""
    gate = Gate()

    async def body(context, arguments):
        await context.progress("half", percent=50)
        return "ok"

    shop = agent(call("refund"), "done", tools=[desk.tool(gate=gate, body=body)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    async def watch():
        return [event async for event in turn.events() if event.type is EventType.TOOL_PROGRESS]

    watcher = asyncio.ensure_future(watch())
    await lab.idle()
    gate.open()

    (event,) = await watcher
    assert told(event) == {"message": "half", "percent": 50, "toolCallId": "call_1_0", "toolName": "refund", "attempt": 1}
    assert (event.durable, event.sequence) == (False, 0)
    assert EventType.TOOL_PROGRESS not in await types(turn)


async def test_long_result(lab: Lab, desk: Desk) -> None:
    """D73: results are stored as they are."""
    text = "0123456789abcdef" * 8 + "ü"
    shop = agent(call("refund"), "done", tools=[desk.tool(result=text)])
    runtime = await lab.runtime(shop)

    turn = await runtime.start(shop, "hi")
    await turn.settle()

    assert result_of(await turn.history()) == text


async def test_tool_budget(lab: Lab, desk: Desk) -> None:
    """D74, G129: with one tool call allowed, of two only the first runs; the reason starts with the limit and the used amount."""
    policy = ExecutionPolicy(budget=Budget(max_tool_calls=1))
    shop = agent([call("a"), call("b")], "done", tools=[desk.tool("a"), desk.tool("b")], policy=policy)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await turn.settle()

    assert (view.status, view.budget_exceeded_reason) == (Status.BUDGET_EXCEEDED, "max_tool_calls (1/1)")
    assert desk.starts == ["a"]
    history = await turn.history()
    assert open_calls(history) == []
    assert result_of(history, "call_1_0") == "refunded"


async def test_tool_budget_interrupts(lab: Lab, desk: Desk) -> None:
    """A cancellable tool started beside a call over the budget is stopped; the turn ends at once, not after a grace."""
    policy = ExecutionPolicy(budget=Budget(max_tool_calls=1))
    gate = Gate()
    tools = [desk.tool("a", cancellable=True, gate=gate), desk.tool("b")]
    shop = agent([call("a"), call("b")], "done", tools=tools, policy=policy)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    await lab.idle()
    view = await turn.view()

    assert view.status is Status.BUDGET_EXCEEDED
    assert open_calls(await turn.history()) == []
    assert len(desk.starts) == gate.left


@pytest.mark.parametrize(("effect", "attempts"), [("repeatable", [1, 2]), ("once", [1])])
async def test_timeout(lab: Lab, desk: Desk, effect: str, attempts: list[int]) -> None:
    """W-49, DESIGN 5.5: an attempt over its time: `repeatable` by retry policy, `once` into doubt, for a person to resolve."""
    policy = ExecutionPolicy(retry_policy=RetryPolicy(max_retries=1, initial_delay=1, jitter=0))
    shop = agent(call("slow"), "done", tools=[desk.tool("slow", gate=Gate(), timeout=5, effect=effect)], policy=policy)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    await lab.clock.advance(5)
    view = await turn.view()
    assert view.status is (Status.IN_DOUBT if effect == "once" else Status.RETRY_SCHEDULED)
    await lab.clock.advance(30)
    view = await turn.view()

    assert desk.attempts == attempts
    if effect == "once":
        assert [wait.type for wait in view.open_waits] == [SuspensionType.IN_DOUBT]
    else:
        assert view.status is Status.FAILED
        assert view.error is not None
        assert view.error.type == "TimeoutError"


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), ExceptionGroup("g", [ValueError("v")])])
async def test_any_exception(lab: Lab, desk: Desk, error: BaseException) -> None:
    """T95, T99, DESIGN 5.9: whatever a tool raises is the call's error, also a stray CancelledError; the turn never hangs."""
    shop = agent(call("refund"), "sorry", tools=[desk.tool(errors=[error])], policy=TELL)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await lab.during(turn.settle(), most=3)

    assert view.final_output == "sorry"
    assert type(error).__name__ in result_of(await turn.history())


async def test_told(lab: Lab, desk: Desk) -> None:
    """DESIGN 4: ToolError goes back to the model with its data, whatever the policy says of errors; it is not retried."""
    policy = ExecutionPolicy(retry_policy=RetryPolicy(max_retries=3))
    shop = agent(call("refund"), "sorry", tools=[desk.tool(errors=[ToolError("sold out", left=0)])], policy=policy)
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert (view.final_output, desk.attempts) == ("sorry", [1])
    result = json.loads(result_of(model_of(shop).requests[-1].messages))
    assert result == {"error": True, "type": "tool_error", "message": "sold out", "left": 0}


@pytest.mark.blocking("worker threads")
async def test_plain_function(lab: Lab) -> None:
    """DESIGN 4: a plain function runs in a worker thread, with its context and progress; its error is an error like others."""
    seen: list[str] = []

    @tool
    def refund(amount: int) -> str:
        """Refund."""
        seen.append(ToolContext.current().idempotency_key)
        ToolContext.current().progress_nowait("started")
        if amount > 5:
            raise ValueError("too much")
        return f"refunded {amount}"

    shop = agent([call("refund", amount=5), call("refund", amount=6)], "done", tools=[refund], policy=TELL)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await turn.settle()

    assert view.final_output == "done"
    assert sorted(seen) == [f"{turn.id}:call_1_0", f"{turn.id}:call_1_1"]
    assert result_of(await turn.history()) == "refunded 5"
    assert "too much" in result_of(await turn.history(), "call_1_1")


async def test_sensitive(lab: Lab, desk: Desk) -> None:
    """DESIGN 4: sensitive arguments are masked where people look; the tool and the model get them."""
    shop = agent(call("refund", amount=5, text="4111"), "done", tools=[desk.tool(approval=True, sensitive=("text",))])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)
    view = await turn.view()

    assert wait.call is not None
    assert (wait.call.arguments, view.pending_calls[0].arguments) == ({"amount": 5, "text": "***"},) * 2
    assert "4111" not in view.to_json().decode()
    await approved(turn, wait)
    assert desk.arguments == [{"amount": 5, "text": "4111"}]
    assert not [event for event in await stored_events(turn) if "4111" in event.to_json().decode()]


async def test_unusable_result(lab: Lab, desk: Desk) -> None:
    """A result without a JSON form is the call's error, not a half-true text; the turn goes on."""
    shop = agent(call("refund"), "sorry", tools=[desk.tool(result=object())], policy=TELL)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    assert (await turn.settle()).final_output == "sorry"
    assert "ToolResultInvalid" in result_of(await turn.history())


async def test_failing_call_fails_the_turn(lab: Lab, desk: Desk) -> None:
    """DESIGN 5.2: a call that fails the turn stops new starts, supersedes open waits and lets running calls end; then FAILED."""
    gate = Gate()
    tools = [desk.tool("boom", errors=[RuntimeError("no")]), desk.tool("slow", gate=gate), desk.tool("gated", approval=True)]
    shop = agent([call("slow"), call("gated"), call("boom")], "done", tools=tools)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await lab.idle()
    view = await turn.view()
    assert (view.status, view.open_waits) == (Status.RUNNING, ())

    gate.open()
    view = await turn.settle()

    assert (view.status, desk.starts) == (Status.FAILED, ["slow", "boom"])
    assert view.error is not None
    assert view.error.message == "no"
    history = await turn.history()
    assert open_calls(history) == []
    assert result_of(history) == "refunded"
    (ended,) = [event for event in await stored_events(turn) if event.type is EventType.WAIT_ENDED]
    assert ended.data["effect"] == "SUPERSEDED"
