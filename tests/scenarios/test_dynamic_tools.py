"""Sections A and D: groups of tools shown on a condition, and tools that resolvers find by name."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from turnhold import (
    ExecutionPolicy,
    InvalidDefinition,
    Middleware,
    ModelOverloaded,
    ResumeCommand,
    RetryPolicy,
    Status,
    SuspensionType,
    Tool,
    ToolGroup,
    TurnContext,
    tool,
    user_input_tool,
)
from turnhold.testing import ScriptedModel, call

from .lab import Desk, Gate, Lab, agent, approved, model_of, result_of, talk, waiting


class Finder(Middleware):
    """Resolves names by a table, and notes what it is asked."""

    def __init__(self, *tools: Tool, errors: int = 0) -> None:
        self.table = {each.name: each for each in tools}
        self.asked: list[str] = []
        self.errors = errors

    async def resolve(self, turn: TurnContext[Any], name: str) -> Tool | None:
        assert TurnContext.current().turn_id == turn.turn_id
        self.asked.append(name)
        if len(self.asked) <= self.errors:
            raise OSError("no catalogue")
        return self.table.get(name)


class Plain(Middleware):
    """A resolver that is no async function."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def resolve(self, turn, name):
        return self.answer


def always(turn: TurnContext[Any]) -> bool:
    return True


def names(shop: Any) -> list[list[str]]:
    """Return the tools that each request of an agent has offered."""
    return [[each.name for each in request.tools] for request in model_of(shop).requests]


def test_two_tools_of_one_name(desk: Desk) -> None:
    """A14: a direct tool and a group tool of one name but different objects are refused; the same object may be in both."""
    refund = desk.tool()

    with pytest.raises(InvalidDefinition, match="two tools have the name 'refund'"):
        agent("x", tools=[refund], tool_groups=[ToolGroup("g", [desk.tool()], when=always)])
    with pytest.raises(InvalidDefinition, match="two tools have the name 'refund'"):
        agent("x", tool_groups=[ToolGroup("g", [refund], when=always), ToolGroup("h", [desk.tool()], when=always)])
    both = agent("x", tools=[refund], tool_groups=[ToolGroup("g", [refund], when=always)])
    assert both.executable == (refund,)


def test_a_tool_only_in_a_group(desk: Desk) -> None:
    """A15: it is not among the tools that are always seen, but among those that can be called."""
    refund = desk.tool()
    shop = agent("x", tool_groups=[ToolGroup("g", [refund], when=always)])

    assert (shop.tools, shop.definitions, shop.executable, shop.tool("refund")) == ((), (), (refund,), refund)
    assert shop.replace(version="2").executable == (refund,)


def test_wrong_groups(desk: Desk) -> None:
    """Groups are a list of ToolGroups with names of their own, tools and a condition."""
    group = ToolGroup("g", [desk.tool()], when=always)
    for wrong in (group, [desk.tool()], "text", None, [group, ToolGroup("g", [], when=always)]):
        with pytest.raises(InvalidDefinition, match="tool_groups"):
            agent("x", tool_groups=wrong)
    with pytest.raises(InvalidDefinition, match="when must be a function"):
        ToolGroup("g", [], when=True)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidDefinition, match="neither a Tool nor a function"):
        ToolGroup("g", [3], when=always)  # pyright: ignore[reportArgumentType]


async def test_group_hidden(lab: Lab, desk: Desk) -> None:
    """A16: a tool of a group that is not shown is not in the request, and runs all the same when the model calls it."""
    seen: list[TurnContext[Any]] = []

    async def never(turn: TurnContext[Any]) -> bool:
        seen.append(turn)
        return False

    shop = agent(call("refund"), "done", tool_groups=[ToolGroup("g", [desk.tool()], when=never)])
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi", tenant="acme")

    assert (view.status, desk.starts, names(shop)) == (Status.COMPLETED, ["refund"], [[], []])
    assert [(turn.tenant, turn.turn_id, turn.step) for turn in seen] == [("acme", view.id, 1), ("acme", view.id, 2)]


async def test_group_shown(lab: Lab, desk: Desk) -> None:
    """A16: a group is asked for each request, and shown behind the agent's own tools, each tool once."""
    own, extra = desk.tool("own"), desk.tool("extra")
    group = ToolGroup("g", [own, extra], when=lambda turn: turn.step > 1)
    shop = agent(call("own"), "done", tools=[own], tool_groups=[group])
    runtime = await lab.runtime(shop)

    await runtime.run(shop, "hi")

    assert names(shop) == [["own"], ["own", "extra"]]


async def test_group_fails(lab: Lab, desk: Desk) -> None:
    """A condition that raises is a failed request: a retryable error is retried, others end the turn, nothing spins."""
    asked: list[int] = []

    def flaky(turn: TurnContext[Any]) -> bool:
        asked.append(1)
        if len(asked) == 1:
            raise ModelOverloaded("later")
        raise ValueError("no flags")

    policy = ExecutionPolicy(retry_policy=RetryPolicy(max_retries=3))
    shop = agent("never", policy=policy, tool_groups=[ToolGroup("g", [desk.tool()], when=flaky)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await lab.during(turn.settle(through_retries=True))

    assert (view.status, view.error and view.error.message, len(asked)) == (Status.FAILED, "no flags", 2)


async def test_condition_must_say_yes_or_no(lab: Lab, desk: Desk) -> None:
    """A condition that gives no bool is an error that names its group."""
    group = ToolGroup("g", [desk.tool()], when=lambda turn: "yes")  # pyright: ignore[reportArgumentType]
    shop = agent("never", tool_groups=[group])
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert (view.status, view.error and view.error.type) == (Status.FAILED, "InvalidDefinition")


async def test_resolved(lab: Lab, desk: Desk) -> None:
    """D66: a tool that a resolver gives runs once and the turn completes; the model has not seen it, static tools win."""
    finder = Finder(desk.tool("dynamic"), desk.tool("static", result="wrong"))
    shop = agent(
        [call("dynamic", amount=3), call("static")], "done", tools=[desk.tool("static", result="right")], middleware=[finder]
    )
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await turn.settle()

    assert (view.status, sorted(desk.starts), finder.asked) == (Status.COMPLETED, ["dynamic", "static"], ["dynamic"])
    assert names(shop)[0] == ["static"]
    assert {"amount": 3, "text": ""} in desk.arguments
    assert result_of(await turn.history(), "call_1_1") == "right"


async def test_nobody_knows_it(lab: Lab, desk: Desk) -> None:
    """A name that no resolver knows goes back to the model, and so do arguments that do not fit the tool that was found."""
    shop = agent([call("unheard"), call("dynamic", amount="much")], "done", middleware=[Finder(desk.tool("dynamic"))])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await turn.settle()

    history = await turn.history()
    assert (view.status, desk.starts) == (Status.COMPLETED, [])
    assert json.loads(result_of(history, "call_1_0"))["type"] == "unknown_tool"
    assert json.loads(result_of(history, "call_1_1"))["type"] == "invalid_arguments"


async def test_ambiguous(lab: Lab, desk: Desk) -> None:
    """D67: two resolvers that answer one name: recorded and backed off as a policy that raises, then the turn fails, saying who."""
    finder, plain = Finder(desk.tool("dynamic")), Plain(desk.tool("dynamic"))
    shop = agent(call("dynamic"), "done", middleware=[finder, plain])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    assert (await turn.settle()).status is Status.RETRY_SCHEDULED

    view = await lab.during(turn.settle(through_retries=True))

    assert view.error is not None
    assert (view.status, view.error.type, desk.starts) == (Status.FAILED, "MiddlewareError", [])
    assert "'dynamic' is ambiguous: both Finder.resolve and Plain.resolve gave a tool" in view.error.message
    assert len(finder.asked) == ExecutionPolicy().max_crashes


async def test_misnamed(lab: Lab, desk: Desk) -> None:
    """D68: a resolver that gives a tool of another name: the error names both."""
    shop = agent(call("dynamic"), "done", middleware=[Plain(desk.tool("other"))])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await lab.during(turn.settle(through_retries=True))

    assert view.error is not None
    assert (view.status, desk.starts) == (Status.FAILED, [])
    assert "Plain.resolve was asked for 'dynamic' and gave 'other'" in view.error.message


async def test_wrong_answers(lab: Lab) -> None:
    """What is no tool, and a tool that starts an agent, are errors, too."""
    for answer in ("text", agent("x", id="dynamic").as_tool("dynamic")):
        shop = agent(call("dynamic"), "done", middleware=[Plain(answer)])
        runtime = await lab.runtime(shop)
        turn = await runtime.start(shop, "hi")
        view = await lab.during(turn.settle(through_retries=True))
        assert (view.status, view.error and view.error.type) == (Status.FAILED, "MiddlewareError")
        await lab.close(runtime)


async def test_resolver_recovers(lab: Lab, desk: Desk) -> None:
    """A resolver that raises is asked again later, and the turn goes on when it answers."""
    finder = Finder(desk.tool("dynamic"), errors=1)
    shop = agent(call("dynamic"), "done", middleware=[finder])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    view = await turn.settle()
    assert (view.status, view.suspension and view.suspension.message) == (
        Status.RETRY_SCHEDULED,
        "the tool resolver failed: no catalogue",
    )

    view = await lab.during(turn.settle(through_retries=True))

    assert (view.status, desk.starts, finder.asked) == (Status.COMPLETED, ["dynamic"], ["dynamic", "dynamic"])


async def test_resolved_again_elsewhere(lab: Lab, desk: Desk) -> None:
    """A resolved call that waited for approval runs in another process, where the resolver is asked again; policies hold."""
    finder = Finder(desk.tool("dynamic", approval=True, sensitive=("text",)))
    shop = agent(call("dynamic", text="secret"), "done", middleware=[finder])
    first = await lab.runtime(shop)
    turn, wait = await waiting(first, shop)
    assert (wait.type, wait.call and wait.call.arguments) == (SuspensionType.TOOL_APPROVAL, {"text": "***"})
    await lab.close(first)
    other = Finder(*finder.table.values())
    second = await lab.runtime(shop.replace(middleware=[other]))

    view = await approved(second.turn(turn.id), wait)

    assert (view.status, desk.starts, finder.asked, other.asked) == (Status.COMPLETED, ["dynamic"], ["dynamic"], ["dynamic"])
    assert desk.arguments == [{"amount": 0, "text": "secret"}]


async def test_gone_elsewhere(lab: Lab, desk: Desk) -> None:
    """Where the resolver there gives nothing, or a tool with other parameters, the model is told; nothing runs."""

    @tool(name="dynamic")
    async def changed(other: int) -> str:
        """Take something else."""
        return desk.starts.append("changed") or ""

    for there in (Finder(), Finder(changed)):
        shop = agent(call("dynamic", amount=3), "done", middleware=[Finder(desk.tool("dynamic", approval=True))])
        first = await lab.runtime(shop)
        turn, wait = await waiting(first, shop)
        await lab.close(first)
        second = await lab.runtime(shop.replace(middleware=[there]))
        view = await approved(second.turn(turn.id), wait)
        assert (view.status, desk.starts) == (Status.COMPLETED, [])
        assert json.loads(result_of(await second.turn(turn.id).history()))["error"] is True
        await lab.close(second)


async def test_resolver_fails_elsewhere(lab: Lab, desk: Desk) -> None:
    """Where the resolver there raises, an approved call waits until it answers: it has not begun, so nothing is in doubt."""
    shop = agent(call("dynamic"), "done", middleware=[Finder(desk.tool("dynamic", approval=True))])
    first = await lab.runtime(shop)
    turn, wait = await waiting(first, shop)
    await lab.close(first)
    second = await lab.runtime(shop.replace(middleware=[Finder(desk.tool("dynamic", approval=True), errors=2)]))

    view = await approved(second.turn(turn.id), wait)
    assert (view.status, desk.starts) == (Status.RETRY_SCHEDULED, [])
    view = await lab.during(second.turn(turn.id).settle(through_retries=True))

    assert (view.status, desk.starts) == (Status.COMPLETED, ["dynamic"])


async def test_resolver_fails_for_an_edited_call(lab: Lab, desk: Desk) -> None:
    """So does a call that was approved with other arguments: it is not thrown away, however often the resolver there raises."""
    shop = agent(call("dynamic", amount=1), "done", middleware=[Finder(desk.tool("dynamic", approval=True))])
    first = await lab.runtime(shop)
    turn, wait = await waiting(first, shop)
    await lab.close(first)
    finder = Finder(desk.tool("dynamic", approval=True), errors=6)
    second = await lab.runtime(shop.replace(middleware=[finder]))

    await second.turn(turn.id).submit(ResumeCommand.approve_tool(wait, arguments={"amount": 2}))
    view = await lab.during(second.turn(turn.id).settle(through_retries=True))

    assert (view.status, desk.starts, desk.arguments[0]["amount"]) == (Status.COMPLETED, ["dynamic"], 2)
    assert len(finder.asked) > 6


async def test_crash_while_a_resolved_call_runs(lab: Lab, desk: Desk) -> None:
    """A repeatable call whose owner dies starts again elsewhere, with the tool that the resolver there gives."""
    gate = Gate()
    finder = Finder(desk.tool("dynamic", gate=gate))
    shop = agent(call("dynamic"), "done", middleware=[finder])
    first = await lab.runtime(shop)
    second = await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    await lab.idle()
    await lab.kill(first)
    gate.open()
    await lab.take_over()

    view = await second.turn(turn.id).settle()

    assert (view.status, desk.attempts, finder.asked) == (Status.COMPLETED, [1, 2], ["dynamic", "dynamic"])


async def test_resolved_control_tool(lab: Lab) -> None:
    """The tool that asks for forms can be resolved as others."""
    from turnhold import FormDefinition

    form = FormDefinition("why", description="why?", schema={"type": "object"})
    shop = agent(call("request_user_input", form_key="why"), "done", middleware=[Plain(user_input_tool(form))])
    runtime = await lab.runtime(shop)

    _, wait = await waiting(runtime, shop)

    assert (wait.type, wait.form_key) == (SuspensionType.USER_INPUT, "why")


async def test_shown_by_middleware(lab: Lab, desk: Desk) -> None:
    """A middleware shows what it resolves by adding the definition to the request; tools that it brings along are always seen."""

    class Both(Finder):
        tools = (desk.tool("brought"),)

        async def around_model_call(self, request, proceed):
            more = tuple(each.definition for each in self.table.values())
            return await proceed(msgspec.structs.replace(request, tools=(*request.tools, *more)))

    model = ScriptedModel([call("brought"), call("dynamic")], "done")
    shop = agent(model=model, middleware=[Both(desk.tool("dynamic"))])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    await turn.settle()

    assert (names(shop)[0], sorted(desk.starts)) == (["brought", "dynamic"], ["brought", "dynamic"])
    assert talk(await turn.history())[1] == "assistant -> brought, dynamic"
