"""A lead that plans for two agents on a real model: ``plan_shop.py start DB``, then elsewhere ``plan_shop.py answer DB TURN``.

A tiny model needs help to plan. It gets it in the open: instructions, a call that is required, and a narrower form of the tool (two
tasks, no optional fields, one of the two agents). What it writes into that form is its own, and goes the way of every plan.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, final

import msgspec

from turnhold import (
    Agent,
    AiMessage,
    ExecutionPolicy,
    ModelOptions,
    ModelRequest,
    PlanningPolicy,
    ResumeCommand,
    Runtime,
    ToolDefinition,
    TurnView,
    tool,
)
from turnhold.models import OpenAIChatModel

PATIENCE = 800
REQUESTS = (
    "Refund order O-1001 (clerk) and write Ann a short letter about it (writer).",
    "Ann wants her money back for order O-1001 (clerk). Write her a letter (writer).",
    "Order O-1001 must be refunded by the clerk. The writer tells Ann in a short letter.",
)


@final
class Helped:
    """A model that must plan while it can, in the narrow form."""

    def __init__(self, model: OpenAIChatModel) -> None:
        self.model = model

    async def complete(self, request: ModelRequest) -> AiMessage:
        if any(each.name == "create_task_plan" for each in request.tools):
            options = msgspec.structs.replace(request.options, tool_choice="required")
            request = msgspec.structs.replace(request, options=options, tools=tuple(map(narrow, request.tools)))
        return await self.model.complete(request)


def narrow(definition: ToolDefinition) -> ToolDefinition:
    """The same tool with nothing left out, and nothing to be left out."""
    parameters: Any = json.loads(json.dumps(definition.parameters))
    tasks = parameters["properties"]["tasks"]
    tasks["minItems"] = 2
    item = tasks["items"]
    item["properties"] = {name: item["properties"][name] for name in ("id", "title", "description", "assignedAgentId")}
    item["properties"]["assignedAgentId"]["enum"].remove("lead")
    item["required"] = list(item["properties"])
    return ToolDefinition(definition.name, definition.description, parameters)


def agents(ledger: Path) -> list[Agent]:
    @tool(approval=True)
    def refund(order_id: str) -> str:
        """Refund an order."""
        with ledger.open("a") as file:
            file.write(json.dumps({"order": order_id, "pid": os.getpid()}) + "\n")
        return f"Order {order_id} is refunded."

    name = os.environ.get("TURNHOLD_LIVE_MODEL", "smollm2")
    key = os.environ.get("TURNHOLD_LIVE_API_KEY", "none")
    model = OpenAIChatModel(name, base_url=os.environ["TURNHOLD_LIVE_BASE_URL"], api_key=key)
    options = ModelOptions(temperature=0, timeout=600, max_output_tokens=400)
    planning = PlanningPolicy(
        allowed_agent_ids=("clerk", "writer"),
        max_tasks=2,
        planning_instructions="Make two tasks: one for clerk, who refunds the order, then one for writer, who writes a letter.",
    )
    policy = ExecutionPolicy(max_iterations=4)
    return [
        Agent("lead", model=Helped(model), planning=planning, policy=policy, options=options),
        Agent("clerk", model=model, description="Refunds orders.", tools=[refund], policy=policy, options=options),
        Agent("writer", model=model, description="Writes letters.", policy=policy, options=options),
    ]


def usable(view: TurnView) -> bool:
    """Tell whether the model has made a plan with a task for each."""
    return view.plan is not None and sorted(task.agent_id for task in view.plan.tasks) == ["clerk", "writer"]


async def start(db: str) -> dict[str, Any]:
    """Ask until the plan has both agents in it, and stop where a person is needed."""
    async with Runtime(f"sqlite:///{db}", agents=agents(Path(db + ".ledger"))) as runtime:
        for number, text in enumerate(REQUESTS, 1):
            turn = await runtime.start("lead", text)
            view = await turn.settle(PATIENCE)
            if usable(view) and len(view.open_waits) == 1:
                return {"turn": turn.id, "tries": number, "pid": os.getpid(), "view": view.to_dict()}
            await turn.cancel("not the plan that was asked for")
    raise SystemExit("the model has made no usable plan")


async def answer(db: str, turn_id: str) -> dict[str, Any]:
    """Approve at the root, and see the plan through."""
    async with Runtime(f"sqlite:///{db}", agents=agents(Path(db + ".ledger"))) as runtime:
        turn = runtime.turn(turn_id)
        (wait,) = (await turn.view()).open_waits
        view = await turn.resume(ResumeCommand.approve_tool(wait, by="ann"), timeout=PATIENCE)
        return {"pid": os.getpid(), "view": view.to_dict(), "results": [each.to_dict() for each in await turn.history()]}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(start(sys.argv[2]) if sys.argv[1] == "start" else answer(*sys.argv[2:4]))))
