"""Types, functions and a context that several tests use; annotations must be found at module level."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import msgspec

from turnhold.actors.chat import ToolCall
from turnhold.actors.context import ToolContext


class Item(msgspec.Struct):
    sku: str
    count: int = 1


@dataclass
class Node:
    value: int
    next: Node | None = None


class Address(TypedDict):
    street: str
    zip: NotRequired[str]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Services:
    answer = 42


class Opaque:
    """Has no JSON form."""


class Desk:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def book(self, seat: int) -> int:
        """Book a seat."""
        self.calls.append(seat)
        return seat

    def unbound(self, seat: int) -> int:
        return seat

    @staticmethod
    def price(seat: int) -> int:
        """Tell a price."""
        return seat * 10


class Greeter:
    """Greets people."""

    def __call__(self, name: str) -> str:
        return f"hello {name}"


def context(tool: Any, arguments: dict | None = None, **fields: Any) -> ToolContext[Any]:
    """A context such as a runtime makes."""
    call = ToolCall("c1", tool.name, arguments or {})
    names = {"turn_id": "00-t", "root_turn_id": "00-r", "agent_id": "shop", "agent_version": "2", "tool": tool, "call": call}
    return ToolContext(**(names | fields))
