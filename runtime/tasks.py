"""The tasks of an actor: each effect has one, which reports to the mailbox; the actor awaits them all at its end."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import TYPE_CHECKING, TypeVarTuple

from ..actors.machine.messages import Message
from .log import log
from .world import gather

if TYPE_CHECKING:
    from .actor import Actor

Ts = TypeVarTuple("Ts")


def start(
    actor: Actor, name: str, work: Callable[[Actor, *Ts], Coroutine[object, object, Message]], *arguments: *Ts
) -> asyncio.Task[None]:
    """Start an effect, whose report goes into the mailbox. The actor owns the task."""
    task = actor.host.world.spawn(_reported(actor, work, *arguments), f"{name} of {actor.turn_id}")
    actor.tasks[task] = name
    return task


async def _reported(actor: Actor, work: Callable[[Actor, *Ts], Coroutine[object, object, Message]], *arguments: *Ts) -> None:
    """Carry an effect out and report; an effect that fails (each reports what it can foresee) ends the activation."""
    try:
        message = await work(actor, *arguments)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        log.error("effect_failed", turn=actor.turn_id, exc_info=error)
        actor.lose()
        if not isinstance(error, Exception):
            raise
    else:
        actor.mailbox.tell(message)
    finally:
        _over(actor)


def _over(actor: Actor) -> None:
    """Forget the task that runs: nothing of it is left but its return."""
    task = asyncio.current_task()
    assert task is not None
    del actor.tasks[task]
    if task is actor.model_task:
        actor.model_ended()


def begun(task: asyncio.Task[None]) -> bool:
    """Tell whether a task has taken its first step: one that is cancelled before that takes none, and reports nothing."""
    work = task.get_coro()
    return not (isinstance(work, CoroutineType) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED)


async def stop(actor: Actor) -> None:
    """End every task of an actor. A thread cannot be ended: the registry remembers it until it comes back."""
    for task in list(actor.tasks):
        task.cancel()
    try:
        await gather(list(actor.tasks))
    finally:
        if actor.steps is not None:
            await actor.steps.close("lost" if actor.lost else "released")
