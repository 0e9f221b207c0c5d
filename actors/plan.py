"""Plans: the tasks into which a model splits its work, as they are stored and as their readers see them.

A stored plan is bounded: what a model writes into it, changes included, by `checks.MAX_DATA`, the results of its tasks by
`MAX_RESULTS` together.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from .policies import PlanningPolicy
from .record import Record
from .waits import Suspension

MAX_RESULTS = 131_072
MAX_ERROR = 1000


class PlanStatus(enum.StrEnum):
    """The statuses of a plan."""

    READY = "READY"  # accepted, no task has started
    RUNNING = "RUNNING"
    WAITING = "WAITING"  # all that runs waits; only in views
    REPLANNING = "REPLANNING"  # a task has failed; nothing new starts until the model has changed the plan, or answered
    FINALIZING = "FINALIZING"  # all tasks are over, the turn is not
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class TaskStatus(enum.StrEnum):
    """The statuses of a task."""

    PENDING = "PENDING"
    READY = "READY"  # could start, but as many as may are running; only in views
    RUNNING = "RUNNING"
    WAITING = "WAITING"  # it runs, and something in it waits; only in views
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    CANCELLED = "CANCELLED"


UNDONE = frozenset({TaskStatus.FAILED, TaskStatus.SKIPPED, TaskStatus.CANCELLED})


class PlannedTask(msgspec.Struct, gc=False, frozen=True, array_like=True, omit_defaults=True):
    """A task as it is stored. The agent's version is that of the moment in which the task was accepted; `child` is its turn."""

    id: str
    title: str
    description: str
    agent_id: str
    agent_version: str
    expected_output: str | None = None
    depends_on: tuple[str, ...] = ()
    status: TaskStatus = TaskStatus.PENDING
    child: str | None = None
    result: str | None = None
    error: str | None = None


class Plan(msgspec.Struct, gc=False, frozen=True, array_like=True, omit_defaults=True):
    """A plan as it is stored.

    `policy` is the one it was made under, without its instructions. `call` is the call that will get the outcome of what runs now,
    empty while nothing may run. `tried`: the last result is no answer to the turn (any more): it has been tried, or somebody has
    spoken since.
    """

    id: str
    goal: str
    policy: PlanningPolicy
    tasks: tuple[PlannedTask, ...]
    status: PlanStatus = PlanStatus.READY
    call: str = ""
    revisions: int = 0
    reason: str | None = None
    error: str | None = None
    tried: bool = False

    def task(self, id: str) -> PlannedTask | None:
        """Return the task of an id."""
        return next((task for task in self.tasks if task.id == id), None)

    def of_child(self, child: str) -> PlannedTask | None:
        """Return the task that a child turn carries out."""
        return next((task for task in self.tasks if task.child == child), None)

    def having(self, status: TaskStatus) -> list[PlannedTask]:
        """Return the tasks of a status."""
        return [task for task in self.tasks if task.status is status]

    def put(self, changed: PlannedTask) -> Plan:
        """Return the plan with a task changed."""
        return msgspec.structs.replace(self, tasks=tuple(changed if task.id == changed.id else task for task in self.tasks))

    def moved(self, old: TaskStatus, new: TaskStatus) -> Plan:
        """Return the plan with all tasks of one status in another."""
        tasks = (msgspec.structs.replace(task, status=new) if task.status is old else task for task in self.tasks)
        return msgspec.structs.replace(self, tasks=tuple(tasks))

    def startable(self) -> list[PlannedTask]:
        """Return the tasks that may start now: what they depend on has completed, and not too many run."""
        if self.status is not PlanStatus.RUNNING:
            return []
        free = self.policy.max_parallel - len(self.having(TaskStatus.RUNNING))
        return self.ready()[: max(0, free)]

    def ready(self) -> list[PlannedTask]:
        """Return the pending tasks whose dependencies have all completed."""
        done = {task.id for task in self.having(TaskStatus.COMPLETED)}
        return [task for task in self.having(TaskStatus.PENDING) if done.issuperset(task.depends_on)]

    def without_orphans(self) -> Plan:
        """Return the plan with those tasks skipped that can never start, because one that they depend on did not complete."""
        lost = {task.id for task in self.tasks if task.status in UNDONE}
        orphans = [task for task in self.having(TaskStatus.PENDING) if not lost.isdisjoint(task.depends_on)]
        if not orphans:
            return self
        plan = self
        for task in orphans:
            plan = plan.put(msgspec.structs.replace(task, status=TaskStatus.SKIPPED))
        return plan.without_orphans()

    def replannable(self) -> bool:
        """Tell whether the model may change what is left of the plan."""
        policy = self.policy
        if policy.failure_strategy != "continue" or self.revisions >= policy.max_replans:
            return False
        revisable = policy.task_revision_allowed and self.having(TaskStatus.PENDING)
        return bool(revisable) or (policy.task_append_allowed and len(self.tasks) < policy.max_tasks)

    def written(self) -> int:
        """Return how many bytes of it the model has written."""
        texts = [self.goal]
        for task in self.tasks:
            texts += (task.id, task.title, task.description, task.expected_output or "", *task.depends_on)
        return sum(len(text.encode()) for text in texts)

    def last_result(self) -> str | None:
        """Return the newest result that is not empty."""
        return next((task.result for task in reversed(self.tasks) if task.result), None)


def bounded(text: str, policy: PlanningPolicy) -> str:
    """Return a result as a plan keeps it; a mark at its end says that it was cut."""
    short = text if policy.task_result_max_length is None else text[: policy.task_result_max_length]
    room = MAX_RESULTS // policy.max_tasks
    if len(short.encode()) > room:
        short = short.encode()[:room].decode(errors="ignore")
    return text if short == text else f"{short} [cut: {len(short)} of {len(text)} characters]"


class Task(Record, frozen=True, kw_only=True):
    """A task of a plan.

    `depends_on` are ids of other tasks. `result` is the output of its child turn, cut where the policy or a stored plan has no room
    for more; the child has all of it. `error` says why a task did not complete.
    """

    id: str
    title: str
    description: str
    expected_output: str | None = None
    depends_on: tuple[str, ...] = ()
    agent_id: str
    status: TaskStatus
    child_turn_id: str | None = None
    result: str | None = None
    error: str | None = None


class TaskPlan(Record, frozen=True, kw_only=True):
    """The plan of a turn, and how far it is. `completed` and `failed` count tasks of `total`."""

    id: str
    goal: str
    status: PlanStatus
    tasks: tuple[Task, ...]
    revision_count: int = 0
    revision_reason: str | None = None
    completed: int = 0
    failed: int = 0
    total: int = 0
    error: str | None = None


def plan_view(plan: Plan, open_waits: Iterable[Suspension]) -> TaskPlan:
    """Return a plan as its readers see it: a task waits where a turn of it, or one below that, has an open wait."""
    waiting: set[str] = set()
    for wait in open_waits:
        waiting.update((wait.turn_id, *wait.ancestors))
    ready = {task.id for task in plan.ready()} if plan.status is PlanStatus.RUNNING else set[str]()
    tasks = tuple(_task_view(task, waiting, ready) for task in plan.tasks)
    running = [task for task in tasks if task.status in (TaskStatus.RUNNING, TaskStatus.WAITING)]
    all_wait = bool(running) and all(task.status is TaskStatus.WAITING for task in running)
    return TaskPlan(
        id=plan.id,
        goal=plan.goal,
        status=PlanStatus.WAITING if all_wait and plan.status is PlanStatus.RUNNING else plan.status,
        tasks=tasks,
        revision_count=plan.revisions,
        revision_reason=plan.reason,
        completed=len(plan.having(TaskStatus.COMPLETED)),
        failed=len(plan.having(TaskStatus.FAILED)),
        total=len(tasks),
        error=plan.error,
    )


def _task_view(task: PlannedTask, waiting: set[str], ready: set[str]) -> Task:
    status = task.status
    if status is TaskStatus.RUNNING and task.child in waiting:
        status = TaskStatus.WAITING
    elif status is TaskStatus.PENDING and task.id in ready:
        status = TaskStatus.READY
    return Task(
        id=task.id,
        title=task.title,
        description=task.description,
        expected_output=task.expected_output,
        depends_on=task.depends_on,
        agent_id=task.agent_id,
        status=status,
        child_turn_id=task.child,
        result=task.result,
        error=task.error,
    )
