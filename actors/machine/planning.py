"""Plans at work: a call that makes or changes one, its tasks as children, and its one result when the plan is at rest.

A planning call stays open while tasks run, with a wait for each. What the tasks come to is its result, so other calls of the same
reply are as free as ever, and what children say never stands in the history as if a user had said it.
"""

from __future__ import annotations

import hashlib

import msgspec

from .. import ids
from ..agent import Agent
from ..chat import UserMessage
from ..errors import ArgumentsInvalid
from ..events import EventType
from ..plan import MAX_ERROR, Plan, PlannedTask, PlanStatus, TaskStatus, bounded
from ..record import JsonObject, JsonValue
from ..results import result_text
from ..schema import MAX_TEXT
from ..tools import CREATE_PLAN, UPDATE_PLAN
from ..turn import CallRecord, CallStatus, Status
from . import limits, plan_calls, plans, texts
from .calls import finish
from .draft import Draft
from .messages import ChildEnded, StartChild
from .policy import refuse
from .waiting import open_called

NO_RESULT = "The plan has ended without a result."
ENDS = {Status.COMPLETED: TaskStatus.COMPLETED, Status.CANCELLED: TaskStatus.CANCELLED}


def handles(draft: Draft, call: CallRecord) -> bool:
    """Tell whether a call is one of this machine's own; where the turn may not plan it is of a tool that does not exist."""
    return call.name in plans.NAMES and plans.may_plan(draft.state, draft.context.agent)


def consider(draft: Draft, call: CallRecord) -> None:
    """Take a plan, or a change of it, or tell the model what is wrong."""
    state, agent = draft.state, draft.context.agent
    assert agent is not None, "only an executor considers calls"
    if call.invalid is not None:
        return refuse(draft, call, "invalid_arguments", texts.NO_ARGUMENTS)
    if call.name == CREATE_PLAN and state.plan is not None:
        return refuse(draft, call, "plan_exists", f"There is a plan already: {state.plan.goal[:MAX_TEXT]}")
    if limits.too_deep(state):
        return refuse(draft, call, "child_too_deep", f"{call.name} did nothing: turns stand {limits.MAX_DEPTH} deep already.")
    try:
        if call.name == CREATE_PLAN:
            name = ids.call_key(state.turn_id, call.id)
            plan = plan_calls.created(name, call.id, call.effective, agent, draft.context.delegates)
        elif state.plan is not None and state.plan.status is PlanStatus.REPLANNING and not state.plan.call:
            plan = plan_calls.updated(state.plan, call.id, call.effective, agent, draft.context.delegates)
        else:
            return refuse(draft, call, "not_replanning", f"{call.name} did nothing: there is no plan that can be changed now.")
    except ArgumentsInvalid as error:
        faults: list[JsonValue] = [{"path": path, "message": text} for path, text in error.faults]
        return refuse(draft, call, "invalid_plan", "The plan was not accepted. Mend it and call again.", faults=faults)
    state.plan = plan
    draft.put(msgspec.structs.replace(call, status=CallStatus.PENDING, allowed=True, sequential=draft.policy.sequential))
    data: JsonObject = {"planId": plan.id, "goal": plan.goal, "taskCount": len(plan.tasks)}
    if call.name == UPDATE_PLAN:
        data |= {"revisionCount": plan.revisions, "reason": plan.reason}
    draft.emit(EventType.PLAN_UPDATED if call.name == UPDATE_PLAN else EventType.PLAN_CREATED, data)
    return None


def begin(draft: Draft, call: CallRecord) -> None:
    """Let the tasks start."""
    plan = draft.state.plan
    assert plan is not None
    draft.put(msgspec.structs.replace(call, status=CallStatus.AWAITING))
    draft.state.plan = msgspec.structs.replace(plan, status=PlanStatus.RUNNING)
    advance(draft)


def _open(draft: Draft) -> tuple[Plan, CallRecord] | None:
    """Return the plan that is carried out, and the call that will get its outcome."""
    plan = draft.state.plan
    call = None if plan is None or draft.state.ending is not None else draft.state.call(plan.call)
    if plan is None or call is None or call.status is not CallStatus.AWAITING:
        return None
    return plan, call


def due(draft: Draft) -> bool:
    """Tell whether a task could start now."""
    found = _open(draft)
    return found is not None and bool(found[0].startable())


def advance(draft: Draft) -> None:
    """Start the tasks that may start, as far as limits and this node allow; where none is left, end the call."""
    if (found := _open(draft)) is None:
        return
    plan, call = found
    if plan.status is PlanStatus.RUNNING:
        plan = draft.state.plan = plan.without_orphans()
    startable = plan.startable() if draft.context.execute else []
    if startable:
        if limits.unknown(draft):
            draft.asks_tree = True
        elif limits.check(draft) and limits.begin_step(draft):
            for task in startable:
                _start(draft, call.id, task)
        return
    replanning = plan.status is PlanStatus.REPLANNING
    if plan.having(TaskStatus.RUNNING) or (plan.having(TaskStatus.PENDING) and not replanning):
        return
    status = PlanStatus.REPLANNING if replanning else PlanStatus.FINALIZING
    message = f"Change the plan by {UPDATE_PLAN}, or answer. {plans.changes_allowed(plan)}" if replanning else "All tasks are over."
    draft.state.plan = plan = msgspec.structs.replace(plan, status=status, call="", tried=False)
    draft.progress = True
    finish(draft, call, plans.outcome(plan, message))


def _agent_of(draft: Draft, task: PlannedTask) -> Agent | None:
    """Return a task's agent, if exactly its version is known here."""
    own = draft.context.agent
    for agent in (own, draft.context.delegates.get(task.agent_id)):
        if agent is not None and (agent.id, agent.version) == (task.agent_id, task.agent_version):
            return agent
    return None


def _start(draft: Draft, call_id: str, task: PlannedTask) -> None:
    """Start a task's child, and wait for it. Its id is made of plan and task: who repeats the save finds the same child."""
    state, call = draft.state, draft.state.call(call_id)
    plan, agent = state.plan, _agent_of(draft, task)
    assert plan is not None
    assert call is not None
    digest = hashlib.sha256(f"{plan.id}/{task.id}".encode()).digest()
    message = StartChild(
        child_id=ids.child_id(ids.root_of(state.turn_id), digest),
        agent_id=task.agent_id,
        agent_version=task.agent_version,
        input=UserMessage(plans.input_of(plan, task)),
        policy=None if agent is None else agent.policy,
        instructions=None if agent is None else agent.instructions,
        bound=agent is not None,
        planning=plans.levels_below(state, plan.policy),
    )
    state.plan = plan.put(msgspec.structs.replace(task, status=TaskStatus.RUNNING, child=message.child_id))
    open_called(draft, call, message.child_id, task.agent_id, {"planId": plan.id, "taskId": task.id})
    data: JsonObject = {"taskId": task.id, "childTurnId": message.child_id, "childAgentId": task.agent_id}
    draft.emit(EventType.TASK_STARTED, {**data, "title": task.title})
    draft.start_child(message, {"toolCallId": call.id, "taskId": task.id})


def ended(draft: Draft, message: ChildEnded) -> None:
    """Take in how a task has ended; where it did not complete, the failure strategy says what becomes of the others."""
    plan = draft.state.plan
    task = None if plan is None else plan.of_child(message.child_id)
    if plan is None or task is None or task.status is not TaskStatus.RUNNING:
        return
    task = msgspec.structs.replace(task, status=ENDS.get(message.status, TaskStatus.FAILED))
    if task.status is TaskStatus.COMPLETED:
        task = msgspec.structs.replace(task, result=bounded(result_text(message.output), plan.policy))
    else:
        why = message.reason if message.error is None else message.error.message
        task = msgspec.structs.replace(task, error=(why or message.status.value)[:MAX_ERROR])
    plan = plan.put(task)
    plans.tell(draft, task)
    if task.status is not TaskStatus.COMPLETED and draft.state.ending is None:
        if plan.policy.failure_strategy == "stop":
            plan = plan.moved(TaskStatus.PENDING, TaskStatus.SKIPPED)
        elif plan.replannable():
            plan = msgspec.structs.replace(plan, status=PlanStatus.REPLANNING)
    draft.state.plan = plan


def spoken(draft: Draft) -> None:
    """Somebody has said something behind the last result: only the model can answer that."""
    plan = draft.state.plan
    if plan is not None and not plan.tried:
        draft.state.plan = msgspec.structs.replace(plan, tried=True)


def answer(draft: Draft) -> str | None:
    """Return the text that answers the turn without asking the model, where the policy wants that, once for each outcome."""
    plan = draft.state.plan
    if plan is None or plan.status is not PlanStatus.FINALIZING or plan.policy.final_summary_required or plan.tried:
        return None
    draft.state.plan = msgspec.structs.replace(plan, tried=True)
    return plan.last_result() or NO_RESULT
