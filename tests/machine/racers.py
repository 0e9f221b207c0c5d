"""The agents that race: every kind of call, families, one that plans, one that talks."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from turnhold import (
    Agent,
    AiMessage,
    ApprovalDecision,
    Budget,
    ExecutionPolicy,
    FormDefinition,
    ModelOverloaded,
    ModelRefused,
    ModelRequest,
    PlanningPolicy,
    Tool,
    ToolCall,
    ToolContext,
    tool,
)
from turnhold.testing import ScriptedModel, call


class Slow:
    """A model that takes its time."""

    def __init__(self, model: ScriptedModel) -> None:
        self.model = model

    async def complete(self, request: ModelRequest) -> AiMessage:
        await asyncio.sleep(0.2)
        return await self.model.complete(request)


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


def make_agent() -> Agent:
    """An approval of a `once` tool, and beside a `repeatable` tool; then both kinds without a person; then text."""

    @tool(approval=True, effect="repeatable")
    async def notify(text: str) -> str:
        """Notify somebody, if a person agrees."""
        return f"sent {text}"

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
    names: dict[str, list[str]] = {"a": [], "b": [], "c": ["a", "b"]}
    tasks: Any = [{"id": name, "title": name, "description": name, "dependsOn": after} for name, after in names.items()]

    def first(request: ModelRequest) -> list[ToolCall]:
        if any(each.name == "create_task_plan" for each in request.tools):
            return [call("create_task_plan", goal="all of it", tasks=tasks), call("look_up", order="O-2")]
        return [call("refund", amount=25), call("look_up", order="O-1")]

    policy = ExecutionPolicy(budget=Budget(max_total_tokens=1_000_000, max_tool_calls=100, max_duration=3600))
    model = Slow(ScriptedModel(first, "done"))
    return Agent("races", model=model, tools=[refund, look_up], policy=policy, planning=PlanningPolicy(max_parallel=2))


def make_talker() -> Agent:
    """What waits ends in time, what fails is tried again, what runs in a thread may run on, and a form is asked for."""

    @tool(approval=ApprovalDecision.require(expires_in=timedelta(seconds=20), on_expiry="reject"))
    async def refund(amount: int) -> str:
        """Refund an amount; once."""
        await asyncio.sleep(1)
        return f"refunded {amount}"

    @tool(timeout=3)
    def look_up(order: str) -> str:
        """Look something up, in a thread."""
        return f"{order} is fine"

    @tool(effect="once", timeout=2)
    def charge(amount: int) -> str:
        """Charge in a thread; once."""
        return f"charged {amount}"

    reason = FormDefinition(
        "reason",
        description="Why?",
        schema={"type": "object", "properties": {"why": {"type": "string"}}, "required": ["why"]},
        expires_in=timedelta(seconds=30),
        on_expiry="default",
        default={"why": "nobody said"},
    )

    @tool
    async def explain() -> str:
        """Ask a person why."""
        return str(ToolContext.current().form(reason)["why"])

    @tool
    async def fickle() -> str:
        """Fail at first."""
        if ToolContext.current().attempt == 1:
            raise ConnectionError("not yet")
        return "at last"

    model = ScriptedModel(
        [call("refund", amount=25), call("look_up", order="O-1"), call("fickle")],
        ModelOverloaded("busy"),
        [call("charge", amount=1), call("explain")],
        "done",
    )
    return Agent("races", model=model, tools=[refund, look_up, charge, explain, fickle])
