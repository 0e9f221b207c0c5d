"""The tasks of an actor: each effect has one, which reports to the mailbox; the actor awaits them all at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from ..actors.machine.messages import Message
from .log import log
from .world import gather

if TYPE_CHECKING:
    from .actor import Actor


def start(
    actor: Actor, work: Coroutine[object, object, Message], name: str, ended: Callable[[], None] | None = None
) -> asyncio.Task[None]:
    """Start an effect; its report goes into the mailbox. The actor owns the task."""
    begun = False

    async def report() -> None:
        nonlocal begun
        begun = True
        try:
            message = await work
        finally:
            if ended is not None:
                ended()
        actor.mailbox.tell(message)

    def over(task: asyncio.Task[None]) -> None:
        if not begun:  # cancelled before its first step
            work.close()
            if ended is not None:
                ended()
        actor.tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("effect_failed", turn=actor.turn_id, exc_info=task.exception())
            actor.lose()

    task = actor.host.world.spawn(report(), f"{name} of {actor.turn_id}")
    actor.tasks[task] = name
    task.add_done_callback(over)
    return task


async def stop(actor: Actor) -> None:
    """End every task of an actor. A thread cannot be ended: the registry remembers it until it comes back."""
    for task in list(actor.tasks):
        task.cancel()
    try:
        await gather(list(actor.tasks))
    finally:
        if actor.steps is not None:
            await actor.steps.close("lost" if actor.lost else "released")
