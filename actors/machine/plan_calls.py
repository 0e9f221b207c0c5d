"""What a model may write into a plan: read, checked, and told all that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from ..agent import Agent
from ..checks import MAX_DATA, MAX_ID
from ..errors import ArgumentsInvalid
from ..plan import UNDONE, Plan, PlannedTask, PlanStatus, TaskStatus
from ..policies import PlanningPolicy
from ..record import JsonObject
from ..schema import MAX_FAULTS, MAX_TEXT
from ..tools import CREATE_PLAN, UPDATE_PLAN

P = TypeVar("P")


class _Item(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    id: str
    title: str
    description: str
    expected_output: str | None = None
    assigned_agent_id: str | None = None
    depends_on: tuple[str, ...] | None = None


class _Created(msgspec.Struct, forbid_unknown_fields=True):
    goal: str
    tasks: tuple[_Item, ...]


class _Updated(msgspec.Struct, forbid_unknown_fields=True):
    reason: str
    tasks: tuple[_Item, ...]


class _Faults:
    """Collects what is wrong with a plan: the first 20 faults, each in 300 characters, whatever the plan is."""

    def __init__(self, call: str) -> None:
        self._call = call
        self._found: list[tuple[str, str]] = []

    def read(self, arguments: JsonObject, kind: type[P]) -> P:
        """Return arguments as what they must be."""
        try:
            found = msgspec.convert(arguments, kind)
        except msgspec.ValidationError as error:
            message, _, path = str(error).partition(" - at `")
            raise ArgumentsInvalid(self._call, [(path.rstrip("`") or "$", message[:MAX_TEXT])]) from None
        if (size := len(msgspec.json.encode(arguments))) > MAX_DATA:
            raise ArgumentsInvalid(self._call, [("$", f"is {size} bytes long, the limit is {MAX_DATA}")])
        return found

    def note(self, path: str, message: str, *, wrong: bool = True) -> None:
        """Note a fault, if it is one."""
        if wrong and len(self._found) < MAX_FAULTS:
            self._found.append((path, message[:MAX_TEXT]))

    def none(self) -> None:
        """Pass, if there is no fault. :raises ArgumentsInvalid: if there is one."""
        if self._found:
            raise ArgumentsInvalid(self._call, self._found)


def created(plan_id: str, call_id: str, arguments: JsonObject, agent: Agent[Any], delegates: Mapping[str, Agent[Any]]) -> Plan:
    """Return the plan that a call of `create_task_plan` describes.

    :raises ArgumentsInvalid: if it is none.
    """
    policy = agent.planning
    assert policy is not None, "the tool is offered where there is one"
    faults = _Faults(CREATE_PLAN)
    asked = faults.read(arguments, _Created)
    faults.note("$.goal", "must not be blank", wrong=not asked.goal.strip())
    stored = msgspec.structs.replace(policy, planning_instructions=None)
    empty = Plan(plan_id, asked.goal, stored, (), call=call_id)
    return msgspec.structs.replace(empty, tasks=_tasks(faults, empty, asked.tasks, agent, delegates))


def updated(plan: Plan, call_id: str, arguments: JsonObject, agent: Agent[Any], delegates: Mapping[str, Agent[Any]]) -> Plan:
    """Return the plan that a call of `update_task_plan` makes of one.

    :raises ArgumentsInvalid: if it asks for what is not allowed.
    """
    faults = _Faults(UPDATE_PLAN)
    asked = faults.read(arguments, _Updated)
    faults.note("$.reason", "must not be blank", wrong=not asked.reason.strip())
    if not plan.policy.task_revision_allowed:
        named = {item.id for item in asked.tasks}
        for task in plan.having(TaskStatus.PENDING):
            faults.note("$.tasks", f"task {task.id!r} must be kept, removing is not allowed", wrong=task.id not in named)
    changed = msgspec.structs.replace(
        plan,
        tasks=_tasks(faults, plan, asked.tasks, agent, delegates),
        call=call_id,
        status=PlanStatus.READY,
        revisions=plan.revisions + 1,
        reason=asked.reason,
    )
    size = changed.written()
    faults.note("$", f"makes the whole plan {size} bytes long, the limit is {MAX_DATA}", wrong=size > MAX_DATA)
    faults.none()
    return changed


def _tasks(
    faults: _Faults, plan: Plan, items: tuple[_Item, ...], agent: Agent[Any], delegates: Mapping[str, Agent[Any]]
) -> tuple[PlannedTask, ...]:
    """Return the tasks of a plan with those that have not started replaced."""
    over = [task for task in plan.tasks if task.status is not TaskStatus.PENDING]
    pending = {task.id: task for task in plan.having(TaskStatus.PENDING)}
    most = plan.policy.max_tasks
    faults.note("$.tasks", "must have at least one task", wrong=not items)
    count = len(over) + len(items)
    faults.note("$.tasks", f"a plan has at most {most} tasks, this one would have {count}", wrong=count > most)
    agents = {agent.id: agent, **delegates}
    found: dict[str, PlannedTask] = {}
    for index, item in enumerate(items):
        path = f"$.tasks[{index}]"
        _check_words(faults, path, item)
        taken = item.id in found or any(task.id == item.id for task in over)
        faults.note(f"{path}.id", f"{item.id!r} is the id of another task", wrong=taken)
        task = _task(faults, path, item, pending.get(item.id), agent, agents)
        if plan.tasks:
            _check_change(faults, path, plan.policy, pending.get(item.id), task)
        found[item.id] = task
    faults.none()
    _check_dependencies(faults, found, pending, {task.id: task for task in over})
    return (*over, *found.values())


def _check_words(faults: _Faults, path: str, item: _Item) -> None:
    for name in ("id", "title", "description"):
        faults.note(f"{path}.{name}", "must not be blank", wrong=not getattr(item, name).strip())
    faults.note(f"{path}.id", f"has more than {MAX_ID} bytes", wrong=len(item.id.encode()) > MAX_ID)


def _task(
    faults: _Faults, path: str, item: _Item, old: PlannedTask | None, agent: Agent[Any], agents: Mapping[str, Agent[Any]]
) -> PlannedTask:
    """Return what an item means; what it leaves out is as it was in the task that it replaces."""
    if not item.assigned_agent_id and old is not None:
        who = (old.agent_id, old.agent_version)
    else:
        found = agents.get(item.assigned_agent_id or agent.id)
        allowed = ", ".join(agents)
        message = f"tasks may not be assigned to {item.assigned_agent_id!r}, only to {allowed}"
        faults.note(f"{path}.assignedAgentId", message, wrong=found is None)
        who = (agent.id, agent.version) if found is None else (found.id, found.version)
    before = () if old is None else old.depends_on
    return PlannedTask(
        item.id,
        item.title,
        item.description,
        *who,
        expected_output=item.expected_output or (None if old is None else old.expected_output),
        depends_on=before if item.depends_on is None else tuple(dict.fromkeys(item.depends_on)),
    )


def _check_change(faults: _Faults, path: str, policy: PlanningPolicy, old: PlannedTask | None, new: PlannedTask) -> None:
    if old is None:
        message = f"adding tasks is not allowed, and {new.id!r} is new"
        faults.note(f"{path}.id", message, wrong=not policy.task_append_allowed)
    elif old != new and not policy.task_revision_allowed:
        faults.note(path, f"changing tasks is not allowed, {new.id!r} must stay as it is")


def _check_dependencies(
    faults: _Faults, tasks: Mapping[str, PlannedTask], pending: Mapping[str, PlannedTask], over: Mapping[str, PlannedTask]
) -> None:
    """Each dependency must be a task of the plan that can still complete; one that a task kept as it was had before may be lost."""
    for index, task in enumerate(tasks.values()):
        path = f"$.tasks[{index}].dependsOn"
        for name in task.depends_on:
            faults.note(path, f"{task.id!r} depends on itself", wrong=name == task.id)
            faults.note(path, f"there is no task {name!r}", wrong=name not in tasks and name not in over)
            lost = name in over and over[name].status in UNDONE and pending.get(task.id) != task
            faults.note(path, f"task {name!r} did not complete", wrong=lost)
    faults.none()
    left = dict(tasks)
    while free := [task.id for task in left.values() if left.keys().isdisjoint(task.depends_on)]:
        for name in free:
            del left[name]
    faults.note("$.tasks", f"these tasks wait for each other: {', '.join(left)}", wrong=bool(left))
    faults.none()
