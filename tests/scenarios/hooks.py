"""Middleware for scenarios: one that notes what it stands around, one of hooks that a test gives, and hooks that go wrong."""

from __future__ import annotations

import asyncio
from typing import Any

from turnhold import (
    Middleware,
    ModelRequest,
    StepEnd,
)


class Diary(Middleware):
    """Notes each hook, before and after."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes
        self.ends: list[StepEnd] = []

    async def around_step(self, turn, proceed):
        self.notes.append(f"{self.name} > step {turn.step}")
        try:
            end = await proceed()
            self.ends.append(end)
            self.notes.append(f"{self.name} < step {turn.step} {end.outcome}")
        except BaseException as error:
            self.notes.append(f"{self.name} < step {turn.step} {type(error).__name__}")
            raise
        return end

    async def around_model_call(self, request, proceed):
        self.notes.append(f"{self.name} > model {request.iteration}")
        reply = await proceed(request)
        self.notes.append(f"{self.name} < model {request.iteration}")
        return reply

    async def around_tool_call(self, context, proceed):
        self.notes.append(f"{self.name} > {context.tool.name}")
        value = await proceed()
        self.notes.append(f"{self.name} < {context.tool.name}")
        return value


class Around(Middleware):
    """A hook of each kind that a test gives."""

    def __init__(self, *, step: Any = None, model: Any = None, tool: Any = None) -> None:
        for name, hook in (("around_step", step), ("around_model_call", model), ("around_tool_call", tool)):
            if hook is not None:
                setattr(self, name, hook)


async def again(subject: Any, proceed: Any) -> Any:
    """Call proceed twice, one after the other."""
    args = (subject,) if isinstance(subject, ModelRequest) else ()
    await proceed(*args)
    return await proceed(*args)


async def beside(subject: Any, proceed: Any) -> Any:
    """Call proceed twice, at the same time."""
    args = (subject,) if isinstance(subject, ModelRequest) else ()
    return (await asyncio.gather(proceed(*args), proceed(*args)))[0]
