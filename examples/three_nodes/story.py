"""What all three processes know: the agent, and what a line of the story looks like."""

from __future__ import annotations

import asyncio
import os
import sys
import time

from turnhold import Agent, ToolContext, tool
from turnhold.models import ScriptedModel, call

LEASE = 3  # seconds; short, so that nobody has to wait long for the take-over
BEGAN = "THREE_NODES_BEGAN"  # the variable that tells all processes when the story began
COLOURS = {"A": "36", "B": "33", "C": "32"}


def say(node: str, what: str, text: str) -> None:
    """Write one line: the seconds so far, the node (none: nobody's doing), what it is about, and what happens."""
    seconds = time.time() - float(os.environ[BEGAN])
    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ and node in COLOURS
    name = f"\033[{COLOURS[node]};1m{node}\033[0m" if coloured else node or " "
    sys.stdout.write(f"{seconds:6.2f}  {name}  {what:<10} {text}\n")  # in one piece: three processes share the terminal
    sys.stdout.flush()


@tool(approval=True)  # `once`: after a crash a person decides whether it runs again
async def refund_order(context: ToolContext[str], order_id: str, amount: int) -> str:
    """Refund an order."""
    say(context.services, "tool", f"refund_order starts, attempt {context.attempt}")
    return f"{amount} dollars of {order_id} refunded"


@tool  # `repeatable`: after a crash it starts again, under the same idempotency key
async def send_mail(context: ToolContext[str], text: str) -> str:
    """Write to the customer."""
    say(context.services, "tool", f"send_mail starts, attempt {context.attempt}, key {context.idempotency_key}")
    for message in ("the mail server is slow", "it still is"):  # who comes to watch misses what was shown before
        await context.progress(message)
        await asyncio.sleep(0.5)
    return "sent"


def agent() -> Agent:
    """Return the agent: it asks for a refund, writes a mail, and says so."""
    model = ScriptedModel(
        call("refund_order", order_id="O-1001", amount=25),
        call("send_mail", text="Your 25 dollars are on their way."),
        "Refunded, and the customer knows.",
    )
    return Agent("refunds", model=model, tools=[refund_order, send_mail])
