"""Tools in unit tests, and the watch over their starts."""

from __future__ import annotations

import pytest

from turnhold import Agent, ExecutionPolicy, ResumeCommand, RetryPolicy, Runtime, ToolContext, tool
from turnhold.testing import ScriptedModel, VirtualClock, assert_once, call, tool_context
from turnhold.testing.tools import StartedTwice


@tool
async def pay(amount: int) -> str:
    return f"{amount} under {ToolContext.current().idempotency_key}"


async def test_a_tool_is_called_in_a_context() -> None:
    """`tool_context` makes the context that a tool asks for; what is not given has a plain value."""
    with tool_context(tool=pay, turn_id="00-abc", call_id="c9", metadata={"a": 1}) as context:
        assert await pay(3) == "3 under 00-abc:c9"

    assert context.metadata == {"a": 1}
    assert context.call.name == "pay"
    with pytest.raises(LookupError):
        ToolContext.current()


async def test_starts_are_listed_under_their_keys() -> None:
    """Each start in a turn is listed; a call of the plain function is not."""
    agent = Agent("a", model=ScriptedModel([call("pay", amount=1), call("pay", amount=2)], "done"), tools=[pay])
    with assert_once(pay) as starts:
        async with Runtime(agents=[agent], clock=VirtualClock()) as runtime:
            view = await runtime.run("a", "go")
        with pytest.raises(LookupError):
            await pay(3)

    assert sorted(starts) == [f"{view.id}:call_1_0", f"{view.id}:call_1_1"]


async def test_a_second_start_under_a_key_fails() -> None:
    """A repeatable tool that fails and is started again is found."""

    @tool
    async def flaky() -> str:
        if ToolContext.current().attempt == 1:
            raise OSError("first")
        return "ok"

    policy = ExecutionPolicy(retry_policy=RetryPolicy(max_retries=1))
    agent = Agent("a", model=ScriptedModel(call("flaky"), "done"), tools=[flaky], policy=policy)

    async def program() -> None:
        with assert_once(flaky):
            async with Runtime(agents=[agent], clock=VirtualClock()) as runtime:
                turn = await runtime.start("a", "go")
                await turn.settle()
                await turn.resume(ResumeCommand.retry(force=True))

    with pytest.raises(StartedTwice, match="call_1_0"):
        await program()
    assert flaky.function.__name__ == "flaky"
