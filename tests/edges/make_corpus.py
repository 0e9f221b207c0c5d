"""Writes tests/edges/corpus/: what the store holds of one turn per interesting state, in the schema of today.

    python tests/edges/make_corpus.py

Files that are there are left alone: a release must read what every release before it wrote. A new state gets a new file. Only
before the first release, or with a new SCHEMA, may any be deleted and written again.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec

from turnhold import (
    ActionMessage,
    Agent,
    AiMessage,
    Budget,
    CardStatus,
    CommandType,
    Effect,
    ExecutionPolicy,
    FormDefinition,
    FormMessage,
    ModelRateLimited,
    Part,
    PlanningPolicy,
    Receipt,
    ResumeCommand,
    RetryPolicy,
    Runtime,
    Status,
    SystemMessage,
    ToolCall,
    ToolContext,
    ToolError,
    ToolMessage,
    TurnRef,
    Usage,
    UserMessage,
    tool,
    user_input_tool,
)
from turnhold.actors.machine import messages as m
from turnhold.actors.machine.draft import Accepted, Noted, Refusal
from turnhold.actors.record import utc
from turnhold.actors.turn import Failure
from turnhold.store.memory import MemoryStore
from turnhold.testing import ScriptedModel, VirtualClock, call

CORPUS = Path(__file__).parent / "corpus"
ORDER = FormDefinition(
    "order",
    description="Which order?",
    schema={"type": "object", "properties": {"order": {"type": "string"}}},
    assignee="desk",
    expires_in=3600,
    on_expiry="default",
    default={"order": "none"},
)
RETRIES = ExecutionPolicy(retry_policy=RetryPolicy(max_retries=2, initial_delay=60, max_delay=600, jitter=0))
LIMITS = ExecutionPolicy(
    budget=Budget(max_duration=600, max_total_tokens=1000, max_tool_calls=5), max_steps=7, cancellation_reason="bye"
)


@tool(approval=True, sensitive=("card",), assignee="ann")
async def refund(amount: int, card: str = "") -> str:
    """Refund an amount."""
    return f"refunded {amount}"


@tool
async def look_up(name: str = "x") -> str:
    """Look something up."""
    return f"found {name}"


@tool
async def ask(question: str = "which") -> str:
    """Ask for an order."""
    return str(ToolContext.current().form(ORDER))


@tool
async def flaky() -> str:
    """Fail now and then."""
    raise ConnectionError("out of reach")


@tool
async def refusing() -> str:
    """Say no."""
    raise ToolError("no such order", order="O-1")


@tool(effect="once", timeout=1)
async def slow() -> str:
    """Take too long."""
    await asyncio.Event().wait()
    return ""


class Silent:
    """A model that never answers."""

    async def complete(self, request: Any) -> AiMessage:
        await asyncio.Event().wait()
        return AiMessage()


TOOLS = [refund, look_up, ask, flaky, refusing, slow, user_input_tool(ORDER)]


class Writer:
    """Runs turns into states and writes what the store then has."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore(namespace="corpus")

    async def run(self, name: str, replies: list[Any], *, seconds: float = 0, then: Any = None, **options: Any) -> None:
        agent_options = {key: options.pop(key) for key in ("policy", "instructions", "model", "planning") if key in options}
        model = agent_options.pop("model", None) or ScriptedModel(*replies)
        agent = Agent(name, model=model, tools=TOOLS, **agent_options)
        async with Runtime(self.store, agents=[agent], clock=self.clock, drain=0) as runtime:
            turn = await runtime.start(agent, options.pop("input", "Please refund O-1"), **options)
            await self.clock.advance(seconds)
            if then is not None:
                await then(turn)
                await self.clock.idle()
            self.write(name, turn.id, (await turn.view()).to_dict())
            work = asyncio.ensure_future(turn.cancel())
            await self.clock.advance(60)
            await work

    def write(self, name: str, turn_id: str, view: dict[str, Any]) -> None:
        record, tree = self.store.core._turns[turn_id], self.store.core._trees[turn_id[:29]]
        path = CORPUS / f"{name}.turn"
        if path.exists():
            return
        rows = {
            "turn": turn_id,
            "schema": record.schema,
            "snapshot": record.snapshot,
            "history": list(record.history.values()),
            "events": [[batch.first, batch.count, batch.epoch, batch.body] for batch in record.events.values()],
            "waits": [wait.body for wait in record.waits.values()],
            "receipts": [body for key, body in tree.receipts.items() if key.startswith("wait ")],
            "mail": [mail.body for mail in record.mail.values()],
        }
        path.write_bytes(msgspec.msgpack.encode(rows))
        changing = ("owner", "open_waits", "quarantine", "version")
        kept = {key: value for key, value in view.items() if key not in changing}
        path.with_suffix(".json").write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


async def answered(turn: TurnRef) -> None:
    """Approve the first of several calls with other arguments, reject the second."""
    first, second, *_ = (await turn.settle()).open_waits
    await turn.submit(
        ResumeCommand.approve_tool(first, arguments={"amount": 4, "card": "42"}, by="ann", command_id="c1", metadata={"a": 1})
    )
    await turn.submit(ResumeCommand.reject_tool(second, "too much", by="bob"))


async def with_child(turn: TurnRef) -> None:
    agent_id = (await turn.view()).agent_id
    await turn.start_child(agent_id, UserMessage("Look", (Part("image", "https://x/y.png", "image/png"),)), {"b": 2})


async def planned(request: Any) -> Any:
    """Make a plan; of its tasks the first is done, the second is not."""
    if any(each.name == "create_task_plan" for each in request.tools):
        names: Any = {"a": [], "b": [], "c": ["a", "b"]}
        tasks: Any = [{"id": name, "title": name, "description": name, "dependsOn": after} for name, after in names.items()]
        return call("create_task_plan", goal="all of it", tasks=tasks)
    if "Task: a" in request.messages[-1].content:
        return "a done"
    return await Silent().complete(request)


async def terminal(writer: Writer) -> None:
    """One turn of each end."""
    usage = AiMessage("Done.", usage=Usage(100, 20), reasoning="Easy.")
    await writer.run(
        "completed", [[call("look_up", name="ä"), call("refusing")], usage], metadata={"n": [1, {"x": None}]}, conversation="c1"
    )
    await writer.run("failed", [call("flaky")])
    await writer.run("cancelled", [call("refund", amount=1)], then=lambda turn: turn.cancel("not needed"), policy=LIMITS)
    await writer.run("max_iterations", [call("look_up"), call("look_up")], policy=ExecutionPolicy(max_iterations=1))
    await writer.run("max_steps", [call("look_up"), call("look_up")], policy=ExecutionPolicy(max_steps=1))
    await writer.run("budget", [usage], policy=ExecutionPolicy(budget=Budget(max_total_tokens=10)))


async def waiting(writer: Writer) -> None:
    """One turn of each wait."""
    both = [call("refund", amount=5, card="4111"), call("refund", amount=6), call("refund", amount=7)]
    await writer.run("approval", [both[:1]], instructions="Be kind.", tenant="t", conversation="c2", policy=LIMITS, streaming=True)
    await writer.run("several_approvals", [both])
    await writer.run("partly_answered", [both, "Done."], then=answered)
    await writer.run("form_of_the_model", [call("request_user_input", form_key="order")])
    await writer.run("form_of_a_tool", [[call("ask"), call("look_up")]])
    await writer.run("form_answered", [[call("ask"), call("refund", amount=1)]], then=form_answered)
    await writer.run("question", ["unread"], model=Silent(), then=lambda turn: turn.suspend("Which one?"))
    await writer.run("child", ["unread"], model=Silent(), then=with_child)
    planning = PlanningPolicy(max_parallel=2, max_replans=1, task_append_allowed=True, failure_strategy="continue")
    await writer.run("plan", [planned], planning=planning)
    await writer.run("retry_of_the_model", [ModelRateLimited("slow down", retry_after=90), "Done."], policy=RETRIES)
    await writer.run("retry_of_a_call", [call("flaky"), "Done."], policy=RETRIES)
    await writer.run("in_doubt", [call("slow"), "Done."], seconds=2)


async def form_answered(turn: TurnRef) -> None:
    form = next(wait for wait in (await turn.settle()).open_waits if wait.form_key)
    await turn.submit(ResumeCommand.submit_form(form, {"order": "O-1"}, by="ann"))


async def running(writer: Writer) -> None:
    """Turns with something under way, and one that nobody has begun."""
    await writer.run("asking_the_model", [], model=Silent(), history=[UserMessage("Hi"), AiMessage("Hello.")])
    await writer.run("running_a_tool", [[call("slow"), call("look_up")]])
    async with Runtime(writer.store, execute=False, clock=writer.clock) as front:
        announced = Runtime(
            writer.store, agents=[Agent("later", model=Silent(), instructions="Late.")], clock=writer.clock, max_active=1
        )
        async with announced:
            blocker = await announced.start("later", "hold the one place")
            turn = await front.start(
                "later", UserMessage("Hi", (Part("file", "https://x/y"),)), metadata={"a": 1}, conversation="c3"
            )
            writer.write("started_elsewhere", turn.id, (await turn.view()).to_dict())
            given = [UserMessage("Hi"), AiMessage("Hello.")]
            queued = await front.start("later", "And?", conversation="c3", when_busy="queue", history=given)
            writer.write("queued", queued.id, (await queued.view()).to_dict())
            await asyncio.gather(blocker.cancel(), front.turn(turn.id).cancel(), queued.cancel())


def messages() -> None:
    """One message of each kind to a turn, and one answer of each kind."""
    turn, at = f"00-{'a' * 26}", utc(1_893_456_000_000)
    receipt = Receipt(turn_id=turn, suspension_id=f"{turn}/c/1", at=at, effect=Effect.APPROVED, command_id="c1", digest="d")
    command = ResumeCommand(
        type=CommandType.APPROVE_TOOL,
        wait="w",
        turn_id=turn,
        arguments={"a": [1]},
        value={"b": None},
        text="ä",
        force=True,
        command_id="c1",
        by="ann",
        metadata={"m": 0.5},
    )
    child = m.StartChild(f"{turn}{'b' * 16}", "a", "1", UserMessage("x"), LIMITS, "Be kind.", {"a": 1})
    refusals = [
        Refusal("AlreadyAnswered", "late", receipt=receipt, agrees=True),
        Refusal("InvalidFormData", "no", faults=(("$.a", "is too small"),)),
        Refusal("RetryNotDue", "early", due=1_893_456_000_000),
        Refusal("TurnClosed", "over", status="FAILED"),
        Refusal("SuspensionMismatch", "which?", open_waits=("w1", "w2")),
    ]
    mail: list[Any] = [m.Resume(command), *(m.Resume(ResumeCommand(type=kind)) for kind in CommandType), m.Suspend("Which?"), child]
    mail += [m.ChildEnded(child.child_id, "a", Status.FAILED, {"x": 1}, Failure("E", "e"))]
    card: Any = {
        "message_id": "m",
        "turn_id": turn,
        "action_id": f"{turn}/c/1",
        "content": "May it run?",
        "assignee": "desk",
        "call": ToolCall("c", "refund", {"amount": 1}, edited_by="ann"),
        "expires_at": at,
        "operator": "ann",
        "reason": "ä",
        "ended_at": at,
        "metadata": {"answer": {"n": 1}},
    }
    said: list[Any] = [UserMessage("Hi", (Part("file", "https://x/y"),)), UserMessage("yes", kind="answer"), SystemMessage("x")]
    said += [AiMessage("", (ToolCall("c", "refund", {"a": [1]}, edited_by="ann"),), "why", Usage(1, 2)), ToolMessage("c", "done")]
    said += [ActionMessage(**card, status=status) for status in CardStatus]
    said += [ActionMessage(**card, actions=(CommandType.APPROVE_TOOL, CommandType.REJECT_TOOL))]
    said += [FormMessage(**card, status=CardStatus.SUBMITTED, form_key="k", schema={"type": "object"}, data={"x": None})]
    for name, items in (("mail", mail), ("outcomes", [Accepted(receipt), Noted(), *refusals]), ("memory", said)):
        path = CORPUS / f"{name}.list"
        if not path.exists():
            path.write_bytes(msgspec.msgpack.encode([msgspec.msgpack.encode(item) for item in items]))
            path.with_suffix(".json").write_text(json.dumps([msgspec.to_builtins(item) for item in items], indent=1) + "\n")


async def main() -> None:
    CORPUS.mkdir(exist_ok=True)
    messages()
    writer = Writer()
    await terminal(writer)
    await waiting(writer)
    await running(writer)
    print(len(list(CORPUS.glob("*.turn"))), "turns")


if __name__ == "__main__":
    asyncio.run(main())
