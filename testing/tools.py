"""For tools in tests: a context to call one in, and a watch over its starts."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from ..actors.chat import ToolCall
from ..actors.context import ToolContext, current_context
from ..actors.tools import Tool, tool
from .witness import watching

TURN = "00-aaaaaaaaaaaaaaaa"


@tool
def unnamed_tool() -> None:
    """Stand for the tool where a test names none."""


class StartedTwice(AssertionError):
    """A tool was started again under an idempotency key that it had been started under."""


@contextmanager
def tool_context(**fields: Any) -> Generator[ToolContext[Any]]:
    """Make a `ToolContext` the current one, to call a tool, or what it calls, in a unit test.

    :param fields: fields of the context; the others get plain values. ``arguments`` and ``call_id`` go into its ``call``.
    """
    of: Tool[..., Any] = fields.pop("tool", unnamed_tool)
    call = ToolCall(fields.pop("call_id", "call_1"), of.name, fields.pop("arguments", {}))
    turn = fields.get("turn_id", TURN)
    plain: dict[str, Any] = {
        "turn_id": turn,
        "root_turn_id": turn,
        "agent_id": "agent",
        "agent_version": "1",
        "tool": of,
        "call": call,
    }
    context: ToolContext[Any] = ToolContext(**{**plain, **fields})
    with current_context(context):
        yield context


@contextmanager
def assert_once(tool: Tool[..., Any]) -> Generator[list[str]]:
    """Watch the starts of a tool in runtimes of this process: no idempotency key may start it twice while the block lasts.

    Gives the list of keys, in the order of the starts. A call of the function itself, outside of a turn, does not count.

    :raises StartedTwice: at the end of the block.
    """
    starts: list[str] = []
    with watching(tool, lambda context: starts.append(context.idempotency_key)):
        yield starts
    twice = sorted({key for key in starts if starts.count(key) > 1})
    if twice:
        raise StartedTwice(f"{tool.name} was started more than once under {', '.join(twice)}")
