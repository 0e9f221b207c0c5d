"""Plans without the turn around them: what the model is offered, what it may write, what the tasks and it are told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ..agent import Agent
from ..events import EventType
from ..model import ModelOptions, ToolDefinition
from ..plan import MAX_ERROR, Plan, PlannedTask, PlanStatus, TaskStatus
from ..policies import PlanningPolicy
from ..record import JsonObject, JsonValue
from ..tools import CREATE_PLAN, UPDATE_PLAN
from ..turn import Status, TurnState
from . import texts
from .draft import Draft

NAMES = frozenset({CREATE_PLAN, UPDATE_PLAN})
ONLY_THIS = "Do only this task, and answer with its result. Other tasks of the plan are carried out by others."


# ------------------------------------------------------------------------------------------------------ what is offered


def may_plan(state: TurnState, agent: Agent[Any] | None) -> bool:
    """Tell whether a turn may make a plan: its agent does, and it is not below a plan that has no level left."""
    if agent is None or agent.planning is None:
        return False
    return state.tree is None or state.tree.planning is None or state.tree.planning > 0


def levels_below(state: TurnState, policy: PlanningPolicy) -> int:
    """Return how many levels of plans may be made below the tasks of a turn's plan."""
    if not policy.child_planning_allowed:
        return 0
    given = None if state.tree is None else state.tree.planning
    return (policy.max_depth if given is None else min(given, policy.max_depth)) - 1


def definitions(state: TurnState, agent: Agent[Any], delegates: Mapping[str, Agent[Any]]) -> tuple[ToolDefinition, ...]:
    """Return the planning tools that the model is offered now: one to make a plan, and where that has failed one to change it."""
    if agent.planning is None or not may_plan(state, agent):
        return ()
    if state.plan is None:
        return (_create(agent, agent.planning, delegates),)
    if state.plan.status is PlanStatus.REPLANNING:
        return (_update(agent, state.plan, delegates),)
    return ()


def options_for(options: ModelOptions, offered: Iterable[ToolDefinition]) -> ModelOptions:
    """Return the options of a request: a choice of a planning tool holds only while that is offered."""
    if options.tool_choice not in NAMES or any(each.name == options.tool_choice for each in offered):
        return options
    return msgspec.structs.replace(options, tool_choice=None)


def _create(agent: Agent[Any], policy: PlanningPolicy, delegates: Mapping[str, Agent[Any]]) -> ToolDefinition:
    lines = [
        f"Split the user's request into at most {policy.max_tasks} tasks that agents carry out; the result says how each ended.",
        "Tasks run at the same time. One that names others in dependsOn starts when those have completed, and sees their results.",
        "Beside that a task is told only the goal and its own text, so say there all it needs.",
        *_agents(agent, delegates),
        *([] if policy.planning_instructions is None else [policy.planning_instructions]),
    ]
    return ToolDefinition(
        CREATE_PLAN, "\n".join(lines), _parameters("goal", "What all tasks together are for.", agent, policy.max_tasks, delegates)
    )


def _update(agent: Agent[Any], plan: Plan, delegates: Mapping[str, Agent[Any]]) -> ToolDefinition:
    lines = [
        "Change what is left of the plan: the tasks given here replace, in their order, all those that have not started.",
        changes_allowed(plan),
        *_agents(agent, delegates),
    ]
    return ToolDefinition(
        UPDATE_PLAN,
        "\n".join(lines),
        _parameters("reason", "Why the plan changes.", agent, plan.policy.max_tasks, delegates),
    )


def _agents(agent: Agent[Any], delegates: Mapping[str, Agent[Any]]) -> list[str]:
    if not delegates:
        return []
    return [
        "Agents:",
        f"- {agent.id}: you yourself; whoever is not named gets the task",
        *(f"- {each.id} / {each.name}: {each.description}" for each in delegates.values()),
    ]


def changes_allowed(plan: Plan) -> str:
    """Say how a plan may be changed."""
    policy = plan.policy
    pending = ", ".join(task.id for task in plan.having(TaskStatus.PENDING)) or "none"
    left = policy.max_tasks - (len(plan.tasks) - len(plan.having(TaskStatus.PENDING)))
    what = f"Not started: {pending}. "
    if not policy.task_revision_allowed:
        what += "They must be kept as they are. "
    what += "New ones may be added. " if policy.task_append_allowed else "No new ones may be added. "
    return f"{what}At most {left} in all."


def _parameters(text: str, about: str, agent: Agent[Any], most: int, delegates: Mapping[str, Agent[Any]]) -> JsonObject:
    names: list[JsonValue] = [agent.id, *delegates]
    item: JsonObject = {
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "A short name, unique in the plan."},
            "title": {"type": "string"},
            "description": {"type": "string", "description": "What is to be done."},
            "expectedOutput": {"type": "string", "description": "What the result should look like."},
            "assignedAgentId": {"type": "string", "enum": names, "description": "Who carries it out."},
            "dependsOn": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Ids of the tasks whose results this one needs.",
            },
        },
        "required": ["id", "title", "description"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {
            text: {"type": "string", "description": about},
            "tasks": {"type": "array", "items": item, "minItems": 1, "maxItems": most},
        },
        "required": [text, "tasks"],
        "additionalProperties": False,
    }


# ------------------------------------------------------------------------------------------------------- what is told


def input_of(plan: Plan, task: PlannedTask) -> str:
    """Return what a task's child is asked."""
    parts = [f"Goal: {plan.goal}", f"Task: {task.title}\n{task.description}"]
    if task.expected_output is not None:
        parts.append(f"Expected output: {task.expected_output}")
    for name in task.depends_on:
        other = plan.task(name)
        if other is not None:
            parts.append(f"Result of the task {other.title}:\n{other.result or ''}")
    return "\n\n".join([*parts, ONLY_THIS])


def outcome(plan: Plan, message: str) -> str:
    """Return the result of the call that made, or changed, a plan."""
    tasks: Iterable[JsonValue] = (_told(task) for task in plan.tasks)
    return texts.dump({"accepted": True, "planId": plan.id, "status": plan.status.value, "message": message, "tasks": list(tasks)})


def _told(task: PlannedTask) -> JsonObject:
    told: JsonObject = {"id": task.id, "title": task.title, "status": task.status.value, "agentId": task.agent_id}
    for key, value in (("childTurnId", task.child), ("result", task.result), ("error", task.error)):
        if value is not None:
            told[key] = value
    return told


# ----------------------------------------------------------------------------------------------------------- how it ends


def tell(draft: Draft, task: PlannedTask) -> None:
    """Say in an event how a task has ended."""
    data: JsonObject = {"taskId": task.id, "childTurnId": task.child, "taskStatus": task.status.value}
    for key, value in (("result", task.result), ("error", task.error)):
        if value is not None:
            data[key] = value
    draft.emit(EventType.TASK_COMPLETED if task.status is TaskStatus.COMPLETED else EventType.TASK_FAILED, data)


def shorten(draft: Draft) -> None:
    """Forget what the tasks came to, where no save has room for it; their children have it all."""
    plan = draft.state.plan
    if plan is not None:
        short = (msgspec.structs.replace(task, result=None, error=None) for task in plan.tasks)
        draft.state.plan = msgspec.structs.replace(plan, tasks=tuple(short))


def close(draft: Draft, status: Status, reason: str) -> None:
    """The turn ends: so does its plan. What still runs is being cancelled; nobody will hear how it ends."""
    plan = draft.state.plan
    if plan is None:
        return
    left = TaskStatus.CANCELLED if status is Status.CANCELLED else TaskStatus.SKIPPED
    plan = plan.moved(TaskStatus.PENDING, left)
    for running in plan.having(TaskStatus.RUNNING):
        task = msgspec.structs.replace(running, status=TaskStatus.CANCELLED, error=reason[:MAX_ERROR])
        plan = plan.put(task)
        tell(draft, task)
    over = {Status.COMPLETED: PlanStatus.COMPLETED, Status.CANCELLED: PlanStatus.CANCELLED}.get(status, PlanStatus.FAILED)
    error = None if status is Status.COMPLETED else reason[:MAX_ERROR]
    draft.state.plan = msgspec.structs.replace(plan, status=over, error=error)
