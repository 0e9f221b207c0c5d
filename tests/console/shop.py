"""A store in a file with turns that wait, and the command line on it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnhold import Agent, FormDefinition, Runtime, ToolContext, TurnView, tool
from turnhold.console.cli import main
from turnhold.models import ScriptedModel, call

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from turnhold import Tool
    from turnhold.actors.model import ChatModel
    from turnhold.models.scripted import Reply

PLACE = FormDefinition(
    "place",
    description="Where to.",
    schema={"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"], "additionalProperties": False},
)


@tool(approval=True)
async def refund(order_id: str, amount: int) -> str:
    """Refund an order."""
    return f"refunded {amount} of {order_id}"


@tool
async def ship(context: ToolContext) -> str:
    """Ship an order."""
    return f"shipped to {context.form(PLACE)['town']}"


REFUND: tuple[Reply, ...] = (call("refund", order_id="O-1", amount=25), "All done.")


def agent_of(model: ChatModel, *tools: Tool) -> Agent:
    return Agent("shop", model=model, tools=tools or (refund, ship), instructions="You run a shop.")


@dataclass
class Shop:
    """A store's file; `run` calls the command line on it."""

    path: Path
    capture: pytest.CaptureFixture[str]

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def start(self, *replies: Reply) -> TurnView:
        """Run a turn until it settles."""

        async def start() -> TurnView:
            async with Runtime(self.url, agents=[agent_of(ScriptedModel(*(replies or REFUND)))]) as runtime:
                return await runtime.run("shop", "Please help", timeout=20)

        return asyncio.run(start())

    def talk(self, conversation: str, *inputs: str) -> list[str]:
        """Start turns in a conversation, each behind the one before; return their ids."""

        async def start() -> list[str]:
            async with Runtime(self.url, agents=[agent_of(ScriptedModel(*REFUND))]) as runtime:
                first = await runtime.run("shop", inputs[0], conversation=conversation, timeout=20)
                more = [await runtime.start("shop", text, conversation=conversation, when_busy="queue") for text in inputs[1:]]
                return [first.id, *(turn.id for turn in more)]

        return asyncio.run(start())

    def go_on(self, turn_id: str, *replies: Reply) -> TurnView:
        """Let a process that runs the agent go on with a turn."""

        async def settle() -> TurnView:
            async with Runtime(self.url, agents=[agent_of(ScriptedModel(*(replies or REFUND)))]) as runtime:
                return await runtime.turn(turn_id).settle(20)

        return asyncio.run(settle())

    def view(self, turn_id: str) -> TurnView:
        async def look() -> TurnView:
            async with Runtime(self.url, execute=False) as runtime:
                return await runtime.turn(turn_id).view()

        return asyncio.run(look())

    def run(self, *words: str) -> tuple[int, str, str]:
        """Return exit code, output and errors of a command; the store's URL stands behind its name."""
        self.capture.readouterr()
        code = main([words[0], self.url, *words[1:]])
        out, err = self.capture.readouterr()
        return code, out, err
