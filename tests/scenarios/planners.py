"""What the scenarios of plans share: a lead that plans, a worker that does tasks, and short forms of plans."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from turnhold import Agent, ChatMessage, ModelRefused, PlanningPolicy, TaskPlan, TurnView
from turnhold.testing import call

from .lab import Gate, agent, result_of

TASK = re.compile(r"Task: Do (\w+)")


def task(id: str, *after: str, agent: str | None = "worker", **more: Any) -> dict[str, Any]:
    """A task as a model writes it."""
    item: dict[str, Any] = {"id": id, "title": f"Do {id}", "description": f"The work of {id}."}
    if agent is not None:
        item["assignedAgentId"] = agent
    if after:
        item["dependsOn"] = list(after)
    return {**item, **more}


def plans(*tasks: dict[str, Any], goal: str = "all of it") -> Any:
    """A call that makes a plan."""
    return call("create_task_plan", goal=goal, tasks=list(tasks))


def revises(*tasks: dict[str, Any], reason: str = "it failed") -> Any:
    """A call that changes a plan."""
    return call("update_task_plan", reason=reason, tasks=list(tasks))


def titled(request: Any) -> str:
    """The id of the task that a child was given."""
    found = TASK.search(request.messages[-1].content)
    assert found is not None, request.messages[-1].content
    return found[1]


def worker(
    *,
    gates: Mapping[str, Gate] | None = None,
    failing: Iterable[str] = (),
    seen: list[str] | None = None,
    says: Mapping[str, Any] | None = None,
    **options: Any,
) -> Agent:
    """An agent that says ``<task> done``, or fails; `seen` gets the tasks in the order of their starts."""

    async def reply(request: Any) -> Any:
        name = titled(request)
        if seen is not None:
            seen.append(name)
        if gates is not None and name in gates:
            await gates[name].passing()
        if name in failing:
            raise ModelRefused(f"{name} broke")
        return (says or {}).get(name, f"{name} done")

    return agent(*options.pop("replies", [reply]), id=options.pop("id", "worker"), **options)


def lead(*replies: Any, tools: Any = (), policy: Any = None, **planning: Any) -> Agent:
    """An agent that may give tasks to the worker."""
    planning.setdefault("allowed_agent_ids", ("worker",))
    more = {} if policy is None else {"policy": policy}
    return agent(*replies, id="lead", tools=tools, planning=PlanningPolicy(**planning), **more)


def statuses(view: TurnView | TaskPlan) -> dict[str, str]:
    """The status of each task."""
    plan = view.plan if isinstance(view, TurnView) else view
    assert plan is not None
    return {each.id: each.status.value for each in plan.tasks}


def outcome(messages: Iterable[ChatMessage], call_id: str = "call_1_0") -> Any:
    """What the model was told of a planning call."""
    return json.loads(result_of(messages, call_id))


def offered(request: Any) -> list[str]:
    """The names of the tools that a model was offered."""
    return [definition.name for definition in request.tools]
