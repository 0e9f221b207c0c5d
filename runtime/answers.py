"""Who waits in this process for the answers that owners on other nodes store; bells are hints, the node's poll is the guarantee."""

from __future__ import annotations

from ..store import base
from .host import Host
from .watch import Subscription


class Asked:
    """One message whose answer is waited for."""

    __slots__ = ("body", "subscription")

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.body: bytes | None = None


class Answers:
    """The messages under way to other nodes, by tree: whoever is rung first reads for all of the tree that were rung."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._trees: dict[str, dict[str, Asked]] = {}

    async def wait(self, turn_id: str, message_id: str, end: float) -> bytes | None:
        """Return the answer that a save of a turn stored under a message id; `None` if there is none by `end` (monotonic)."""
        watch, world = self._host.watch, self._host.world
        subscription = watch.add(turn_id, each=True)
        watch.listen(subscription)
        asked = Asked(subscription)
        tree = self._trees.setdefault(subscription.root, {})
        tree[message_id] = asked
        try:
            late = False
            while asked.body is None and not late:
                await world.rest(subscription.armed(), end - world.monotonic(), exact=False)
                late = end <= world.monotonic()
                if asked.body is None and (late or subscription.rung):
                    subscription.rung = True
                    await self._read(turn_id, tree)
            return asked.body
        finally:
            watch.drop(subscription)
            del tree[message_id]
            if not tree:
                del self._trees[subscription.root]

    async def _read(self, turn_id: str, tree: dict[str, Asked]) -> None:
        """Read what is stored for all that were rung. Bells that ring meanwhile count for the next time."""
        rung = {name: asked for name, asked in tree.items() if asked.subscription.rung}
        for asked in rung.values():
            asked.subscription.rung = False
        try:
            reply = await self._host.call(base.ReadReplies(turn=turn_id, message_ids=tuple(rung)))
        except BaseException:  # a cancelled or failed reader leaves the question to the others
            for asked in rung.values():
                asked.subscription.ring()
            raise
        assert isinstance(reply, base.Found)
        for asked, body in zip(rung.values(), reply.bodies, strict=True):
            if body is not None:
                asked.body = body
                asked.subscription.ring()
