"""What the demo is about: a refund agent, its tool, and the ledger that shows how often the tool ran."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec

from ..actors.agent import Agent
from ..actors.chat import ToolMessage
from ..actors.context import ToolContext
from ..actors.events import Event, EventType
from ..actors.model import ChatModel, ModelOptions, ModelRequest
from ..actors.policies import ExecutionPolicy, RetryPolicy
from ..actors.tools import Tool, tool
from ..models.scripted import ScriptedModel, call

STORY: Final = "refund-agent"
RACE: Final = "refund-race"
REQUEST: Final = "Please refund order O-1001, 25 dollars."
INSTRUCTIONS: Final = (
    "You are a refund clerk. To refund an order, call refund_order once. When it has answered, tell the customer the result in one "
    "short sentence."
)
DEFAULT_MODEL: Final = "gpt-4.1-mini"


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the demo, as its processes hand it on. A key is never part of it: that travels in the environment."""

    store: str
    yes: bool = False
    why: str = ""
    model: str | None = None
    base_url: str | None = None
    waits: int = 50

    @property
    def url(self) -> str:
        """The store's URL."""
        return f"sqlite:///{quote(self.store)}"

    @property
    def ledger(self) -> Path:
        """The file to which the story's tool appends."""
        return Path(f"{self.store}.ledger")

    @property
    def races(self) -> Path:
        """The file to which the tool of the races appends."""
        return Path(f"{self.store}.races")


class Entry(msgspec.Struct, frozen=True):
    """One line of a ledger: one run of the tool."""

    key: str
    order_id: str
    amount: int
    pid: int


def refund_tool(ledger: Path) -> Tool[..., Any]:
    """Return the tool: a payment system that only keeps a list."""

    @tool(approval=True)
    def refund_order(
        order_id: Annotated[str, msgspec.Meta(min_length=1, description="The order, as in O-1001.")],
        amount: Annotated[int, msgspec.Meta(ge=1, le=10_000, description="Whole dollars.")],
    ) -> str:
        """Refund an order and change its payment state."""
        entry = Entry(ToolContext.current().idempotency_key, order_id, amount, os.getpid())
        with ledger.open("ab") as file:
            file.write(msgspec.json.encode(entry) + b"\n")
        return f"Order {order_id} was refunded: {amount} dollars."

    return refund_order


def read_ledger(ledger: Path) -> list[Entry]:
    """Return every run of the tool."""
    lines = ledger.read_bytes().splitlines() if ledger.exists() else []
    return [msgspec.json.decode(line, type=Entry) for line in lines if line]


def runs_of(ledger: Path, turn_id: str) -> list[Entry]:
    """Return the runs of one turn's tool."""
    return [entry for entry in read_ledger(ledger) if turn_of_key(entry.key) == turn_id]


def turn_of_key(key: str) -> str:
    """Return the turn that an idempotency key belongs to."""
    return key.partition(":")[0]


def story_agent(story: Story) -> Agent:
    """Return the agent of the story.

    :raises ImportError: if a real model is wanted and the `openai` package is missing.
    :raises InvalidDefinition: if the model's name or URL is wrong.
    """
    return Agent(
        STORY,
        model=_model(story),
        instructions=INSTRUCTIONS,
        tools=[refund_tool(story.ledger)],
        policy=ExecutionPolicy(max_iterations=6, retry_policy=RetryPolicy(max_retries=2)),
        options=ModelOptions() if story.model is None else ModelOptions(temperature=0, max_output_tokens=300, timeout=180),
    )


def race_agent(story: Story) -> Agent:
    """Return the agent of the races."""
    script = ScriptedModel(call("refund_order", order_id="O-1001", amount=25), "Done.")
    return Agent(RACE, model=script, tools=[refund_tool(story.races)])


def _model(story: Story) -> ChatModel:
    if story.model is None:
        return ScriptedModel(call("refund_order", order_id="O-1001", amount=25), _closing_words)
    from ..models.openai import OpenAIChatModel

    return OpenAIChatModel(story.model, base_url=story.base_url)


def _closing_words(request: ModelRequest) -> str:
    """Say what a model would say of the tool's result."""
    last = request.messages[-1]
    result = last.content if isinstance(last, ToolMessage) else ""
    try:
        refused = json.loads(result)
    except ValueError:
        return f"All done. {result.splitlines()[-1] if result else ''}"
    return f"I did not refund the order: {refused.get('message', 'it was refused')}"


def verdict(story: Story, turn_id: str, events: Sequence[Event]) -> str | None:
    """Return what is wrong with the ledger, or None: one line for each approval, no key twice; alone, exactly one line."""
    entries = runs_of(story.ledger, turn_id)
    approvals = sum(event.type is EventType.WAIT_ENDED and event.data.get("effect") == "APPROVED" for event in events)
    if len({entry.key for entry in entries}) != len(entries):
        return "a call ran twice"
    if len(entries) != approvals:
        return f"{approvals} calls were approved, and the ledger has {len(entries)} lines"
    return "the ledger has no line" if story.yes and not entries else None
