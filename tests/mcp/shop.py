"""A real server of the SDK, run as a program: ``shop.py stdio``, or ``shop.py http PORT``; its key outlives it if KEY is set."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.server.request_state import RequestStateSecurity
from mcp.types import ToolAnnotations
from pydantic import BaseModel, Field

KEY = os.environ.get("SHOP_KEY")
server = MCPServer("shop", request_state_security=RequestStateSecurity(keys=[KEY]) if KEY else None)


def note(text: str) -> None:
    """Write down what has happened where the test can read it."""
    path = os.environ.get("SHOP_NOTES")
    if path:
        with Path(path).open("a") as file:
            file.write(text + "\n")


class Table(BaseModel):
    """What a person says."""

    seats: int = Field(ge=1, le=8)


def ask_table() -> Elicit[Table]:
    return Elicit("How many seats?", Table)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def price(item: str) -> str:
    """Return the price of an item."""
    return f"{item}: 25"


@server.tool()
def book(day: str, table: Annotated[Table, Resolve(ask_table)]) -> str:
    """Book a table; how large, a person says."""
    note(f"booked {table.seats} on {day}")
    return f"{table.seats} seats on {day}"


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
async def order(dish: str, ctx: Context) -> str:
    """Order a dish; a person says how spicy, in the middle of the call (before 2026-07-28)."""
    note("asked")
    answer = await ctx.elicit("How spicy?", Table)
    note(f"{answer.action}")
    return f"{dish} {answer.data.seats if answer.action == 'accept' else answer.action}"


@server.tool()
async def slow(ctx: Context) -> str:
    """Never return."""
    note("slow has begun")
    await ctx.report_progress(1, 2, "half way")
    try:
        await asyncio.Event().wait()
    finally:
        note("slow was stopped")
    return ""


@server.tool()
def die(code: int = 1) -> str:
    """End the process."""
    note("died")
    os._exit(code)


@server.tool()
def fail(text: str) -> str:
    """Fail."""
    raise ValueError(text)


@server.tool()
def key(ctx: Context) -> str:
    """Return the key of the call."""
    meta = ctx.request_context.meta or {}
    return f"{meta['io.turnhold/idempotency-key']} {meta['io.turnhold/attempt']}"


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", port=int(sys.argv[2]))
