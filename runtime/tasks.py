"""The tasks of an actor: each effect has one, which reports to the mailbox; the actor awaits them all at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from ..actors.machine.messages import Message
from .log import log
from .world import gather

if TYPE_CHECKING:
    from .actor import Actor


def start(actor: Actor, work: Coroutine[object, object, Message], name: str) -> asyncio.Task[Message]:
    """Start an effect; its report goes into the mailbox when it has ended. The actor owns the task."""

    def over(task: asyncio.Task[Message]) -> None:
        del actor.tasks[task]
        if task is actor.model_task:
            actor.model_ended()
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            actor.mailbox.tell(task.result())
        else:
            log.error("effect_failed", turn=actor.turn_id, exc_info=error)
            actor.lose()

    task = actor.host.world.spawn(work, f"{name} of {actor.turn_id}")
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
