"""How a node leaves: claim nothing, start nothing, let effects end, put the rest back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..actors.errors import StoreUnavailable
from ..actors.machine.messages import DeadlinePassed
from ..store import base
from .log import log
from .world import gather

if TYPE_CHECKING:
    from .actor import Actor
    from .node import Node

UNTIL_DEATH = 365 * 86_400_000  # milliseconds; no process is meant to live longer than a year
LOOK = 0.01  # seconds between looks at claims under way


async def drain(node: Node) -> bool:
    """Give away all turns that live here; tell whether threads still run, whose turns keep their leases until the process ends.

    For `drain` the effects under way may end, leases are renewed, and no new effect is started. Then `once` attempts are saved as
    in doubt, `repeatable` ones as pending, and the turns handed off.
    """
    node.draining = True
    node.placement.ring()
    for actor in list(node.placement.actors.values()):
        actor.mailbox.tell(DeadlinePassed())
    await _ended(node, node.settings.drain / 1000)
    for actor in list(node.placement.actors.values()):
        actor.interrupt()
    await _ended(node, max(1.0, node.settings.operation / 1000))
    left = list(node.placement.actors.values())
    for actor in left:
        log.warning("turn_not_handed_off", turn=actor.turn_id, threads=len(actor.threads))
        actor.lose()
    await gather(list(node.placement.tasks))
    stuck = [actor for actor in left if actor.threads]
    for actor in stuck:
        await _keep(node, actor)
    return bool(stuck)


async def _keep(node: Node, actor: Actor) -> None:
    """Keep a turn whose thread runs on: nobody renews for it any more, so its lease must outlast the process.

    Others take it over when the process is proved dead. Until then its call runs, and a "rerun" would have it twice. Where nobody
    can prove that, the lease runs out as every lease does: the process most likely ends now, and its turns must not wait for ever.
    """
    if not node.store.proves_death:
        return
    try:
        await node.call(base.Renew(leases=((actor.turn_id, actor.token),), lease_ms=UNTIL_DEATH))
    except StoreUnavailable as error:
        log.warning("turn_not_kept", turn=actor.turn_id, error=str(error))


async def _ended(node: Node, seconds: float) -> None:
    """Wait for the end of all activations, at most for a time; also of those that claims under way may still bring."""
    world = node.world
    end = world.monotonic() + seconds
    while node.placement.claiming and world.monotonic() < end:
        await world.sleep(LOOK)
    for task in list(node.placement.tasks):
        left = end - world.monotonic()
        if left <= 0:
            return
        await world.wait(task, left)
