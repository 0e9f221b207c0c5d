"""What the worker's agents do. Every start of a tool's function is a line in the ledger, written in one piece.

The points at which a process may wait, or be killed: ``model 1`` and so on, the requests of a turn; ``tool``, behind the line of
its start; ``effect``, when all is done but the return.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

from turnhold import Agent, AiMessage, Budget, ExecutionPolicy, PlanningPolicy, Tool, ToolCall, ToolContext, Usage, tool
from turnhold.models import ScriptedModel, call

_event: Callable[..., None]
_ledger = -1
_gate = _die = ""
_opened: asyncio.Event
_opened_for_threads = threading.Event()


def setup(ledger: str, gate: str, die: str, event: Callable[..., None]) -> None:
    """Say where the ledger is, where functions wait, and which point kills this process."""
    global _ledger, _gate, _die, _event, _opened  # noqa: PLW0603
    _ledger = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    _gate, _die, _event = gate, die, event
    _opened = asyncio.Event()


def release() -> None:
    _opened.set()
    _opened_for_threads.set()


def close(point: str) -> None:
    """Let those wait who come to a point from now on; who waits at another is let go."""
    global _gate, _opened  # noqa: PLW0603
    release()
    _gate = point
    _opened = asyncio.Event()
    _opened_for_threads.clear()


def _started(context: ToolContext) -> None:
    os.write(_ledger, f"{context.idempotency_key} {context.attempt} {os.getpid()}\n".encode())
    _event("tool", turn=context.turn_id, call=context.call_id, attempt=context.attempt)
    _killed("tool")


def _killed(point: str) -> None:
    if point == _die:
        os.kill(os.getpid(), signal.SIGKILL)


async def _pass(point: str) -> None:
    _killed(point)
    if point == _gate:
        await _opened.wait()


async def pay(context: ToolContext, amount: int = 0) -> str:
    """Pay somebody."""
    _started(context)
    try:
        await _pass("tool")
        await _pass("effect")
    except asyncio.CancelledError:
        _event("stopped", turn=context.turn_id, call=context.call_id, attempt=context.attempt)
        raise
    return f"paid in attempt {context.attempt}"


def pay_in_thread(context: ToolContext, amount: int = 0) -> str:
    """Pay somebody, in a thread that nobody can end."""
    _started(context)
    if _gate == "tool":
        _opened_for_threads.wait()
    return f"paid in attempt {context.attempt}"


async def poison(context: ToolContext, amount: int = 0) -> str:
    """End the process."""
    _started(context)
    os._exit(9)


async def _poisoned(request: Any) -> Any:
    _event("model", turn=request.turn_id, iteration=request.iteration, attempt=request.attempt)
    os._exit(9)


async def _model(request: Any, *calls: str) -> Any:
    point = f"model {request.iteration}"
    _event("model", turn=request.turn_id, iteration=request.iteration, attempt=request.attempt)
    await _pass(point)
    return [call(name, amount=25) for name in calls] if calls else "done"


def _agent(id: str, *tools: Tool, calls: int = 1, **options: Any) -> Agent:
    async def first(request: Any) -> Any:
        return await _model(request, *(name.name for name in tools for _ in range(calls)))

    async def last(request: Any) -> Any:
        return await _model(request)

    return Agent(id, model=ScriptedModel(first, last), tools=tools, **options)


def _spends(id: str, *names: str, tools: Sequence[Tool] = (), **options: Any) -> Agent:
    """An agent whose every reply costs ten tokens: first one call of each of these tools, if there are any, then text."""

    async def reply(request: Any) -> Any:
        await _model(request)
        if request.iteration > 1 or not names:
            return AiMessage(f"{id} done", usage=Usage(10))
        calls = [ToolCall(f"call_1_{at}", name, {"input": "please"} if name != "pay" else {}) for at, name in enumerate(names)]
        return AiMessage("", tuple(calls), usage=Usage(10))

    return Agent(id, model=ScriptedModel(reply, reply), tools=tools, **options)


def family() -> list[Agent]:
    """An agent whose three tools are agents: one just answers, one has a tool that runs once, one has a tool to be approved.

    The budget is what the tree needs, to the token and to the call. Another makes a plan with a task for each of the three.
    """
    kids = [
        _spends("plain"),
        _spends("careful", "pay", tools=[tool(pay, effect="once")]),
        _spends("gated", "pay", tools=[tool(pay, approval=True)]),
    ]
    names = tuple(kid.id for kid in kids)
    policy = ExecutionPolicy(budget=Budget(max_total_tokens=70, max_tool_calls=5))
    parent = _spends("family", *names, tools=[kid.as_tool() for kid in kids], policy=policy)
    return [parent, _planner(names, ExecutionPolicy(budget=Budget(max_total_tokens=70, max_tool_calls=2)))]


def _planner(names: tuple[str, ...], policy: ExecutionPolicy) -> Agent:
    tasks: Any = [{"id": name, "title": name, "description": "please", "assignedAgentId": name} for name in names]

    async def reply(request: Any) -> Any:
        await _model(request)
        if request.iteration > 1:
            return AiMessage("planner done", usage=Usage(10))
        return AiMessage("", (ToolCall("plan", "create_task_plan", {"goal": "all", "tasks": tasks}),), usage=Usage(10))

    planning = PlanningPolicy(allowed_agent_ids=names)
    return Agent("planner", model=ScriptedModel(reply, reply), policy=policy, planning=planning)


def agents(version: str = "1") -> list[Agent]:
    """Return the agents, new ones for each runtime."""
    free = tool(pay, name="pay_now", approval=False, effect="repeatable")
    once, twice = ExecutionPolicy(max_crashes=1), ExecutionPolicy(max_crashes=2)
    found = [
        _agent("once", tool(pay, approval=True)),
        _agent("repeatable", tool(pay, approval=True, effect="repeatable")),
        _agent("free-once", tool(pay, effect="once")),
        _agent("free-repeatable", free),
        _agent("thread", tool(pay_in_thread, effect="once")),
        _agent("both", free, tool(pay, approval=True)),
        _agent("briefed", free, instructions="Speak briefly.", policy=ExecutionPolicy(max_iterations=1)),
        Agent("talk", model=ScriptedModel("hello")),
        _agent("poison-tool", tool(poison, approval=False, effect="repeatable"), policy=twice),
        Agent("poison-model", model=ScriptedModel(_poisoned), policy=once),
        *family(),
    ]
    return [agent.replace(version=version) for agent in found]
