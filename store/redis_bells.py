"""Bells over Redis: what a node listens to, and the live events it shows to others.

The bell of every partition is always heard. The news of a partition (one message a save) are heard only while somebody here watches
a tree of it, the live events of a tree only while somebody watches them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from typing import Any, final

import msgspec

from ..actors.errors import StoreUnavailable
from ..actors.ids import PARTITIONS, root_of
from .base import Bell, Live
from .redis_ear import Ear
from .redis_keys import Keys
from .redis_link import OPERATION, packed
from .redis_place import Address, Place
from .redis_servers import Question, Servers

LINGER = 5.0  # seconds for which the news of a partition are still heard when nobody watches any more
SILENCE = 1.0  # seconds for which nothing is shown of a tree that nobody was found to watch
SHOWN = 1000  # live events of a tree that wait to be sent
NOWHERE: Address = ("", 0)
_log = logging.getLogger("turnhold")


@final
class Bells:
    """The ears of a node. A method that starts with ``_on_`` is called by an ear."""

    def __init__(self, place: Place, servers: Servers, keys: Keys, me: str, bell: Bell, live: Live | None) -> None:
        self._place, self._servers, self._keys, self._me = place, servers, keys, me
        self._bell, self._live = bell, live
        self._loop = asyncio.get_running_loop()
        self._ears: dict[Address, Ear] = {}
        self._where: dict[str, Address] = {}
        self._roots: dict[str, Counter[str]] = {}  # by channel: who waits for it to stand
        self._missing: set[str] = set()
        self._all_stand: asyncio.Future[None] = self._loop.create_future()
        self._outgoing: dict[str, deque[bytes]] = {}
        self._silent: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._opened = self._closed = False

    async def open(self) -> None:
        """Listen to the bells of all partitions; where that takes too long, polls have to do until it stands."""
        bells = [self._keys.bell(partition) for partition in range(PARTITIONS)]
        self._missing = set(bells)
        for channel in bells:
            self._want(channel)
        try:
            async with asyncio.timeout(OPERATION):
                await asyncio.shield(self._all_stand)
        except TimeoutError:
            _log.warning("redis_bells_late: %d of %d partitions are not heard yet", len(self._missing), PARTITIONS)
        self._opened = True

    async def close(self) -> None:
        """Listen no more, and show nothing more."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        ears, self._ears = self._ears, {}
        for ear in ears.values():
            await ear.close()

    # ---------------------------------------------------------------------------------------------------------- watch

    def watch(self, root: str, *, live: bool) -> None:
        """Hear of a tree from now on (see `base.StoreConnection`)."""
        for channel in self._channels(root, live=live):
            known = self._roots.get(channel)
            if known is None:
                self._roots[channel] = Counter({root: 1})
                self._want(channel)
            else:
                known[root] += 1
                if channel not in self._missing:
                    self._loop.call_soon(self._bell, "saved", root)

    def unwatch(self, root: str, *, live: bool) -> None:
        """Undo one `watch`."""
        for channel in self._channels(root, live=live):
            known = self._roots.get(channel)
            if known is None:
                continue
            known[root] -= 1
            if known[root] <= 0:
                del known[root]
            if not known:
                self._loop.call_later(LINGER, self._leave, channel)

    def _channels(self, root: str, *, live: bool) -> list[str]:
        news = self._keys.news(root)
        return [news, self._keys.live(root)] if live else [news]

    def _leave(self, channel: str) -> None:
        known = self._roots.get(channel)
        if self._closed or known is None or known:
            return
        del self._roots[channel]
        self._missing.discard(channel)
        ear = self._ears.get(self._where.pop(channel, NOWHERE))
        if ear is not None:
            ear.drop(channel)

    # ----------------------------------------------------------------------------------------------------------- ears

    def _want(self, channel: str) -> None:
        self._missing.add(channel)
        address = self._servers.address(self._servers.slot(channel))
        self._where[channel] = address
        self._ear(address).want(channel)

    def _ear(self, address: Address) -> Ear:
        ear = self._ears.get(address)
        if ear is None:
            name = f"{address[0]}:{address[1]}"
            ear = Ear(
                lambda: self._place.connection(address, timeout=OPERATION),
                self._on_message,
                self._on_standing,
                self._on_moved,
                name,
            )
            self._ears[address] = ear
        return ear

    def _on_standing(self, channel: str) -> None:
        """A subscription stands, perhaps anew: what was rung before may have been lost."""
        again = self._opened or channel not in self._missing
        self._missing.discard(channel)
        if not self._missing and not self._all_stand.done():
            self._all_stand.set_result(None)
        roots = list(self._roots.get(channel, ()))
        for root in roots:
            self._bell("saved", root)
        if channel.endswith(":bell"):
            if again:
                self._bell("any", "")
        elif roots and channel == self._keys.live(roots[0]):
            self._announce(roots[0])

    def _on_moved(self, channel: str) -> None:
        """A slot is served by another master now, or may be."""
        if channel in self._where:
            self._where[channel] = NOWHERE  # nobody listens to it, also where the servers do not know yet that it has moved
        if self._place.cluster:
            self._start(self._settle_anew(at_once=bool(channel)))

    async def _settle_anew(self, *, at_once: bool) -> None:
        """Learn where the slots are, and listen there; leave servers at which there is nothing to hear."""
        try:
            await (self._servers.learn() if at_once else self._servers.look_around())
        except StoreUnavailable as error:
            _log.info("redis_bells_moved: %s", error)
        for channel, before in list(self._where.items()):
            address = self._servers.address(self._servers.slot(channel))
            if address != before:
                if (ear := self._ears.get(before)) is not None:
                    ear.drop(channel)
                self._want(channel)
        masters = self._servers.masters
        for address in [address for address, ear in self._ears.items() if ear.idle and address not in masters]:
            await self._ears.pop(address).close()

    def _on_message(self, channel: str, body: bytes) -> None:
        if channel.endswith(":bell"):
            kind, _, rest = body.decode(errors="replace").partition(" ")
            if kind == "live":
                self._silent.pop(rest, None)
            elif kind in {"work", "due"}:
                self._bell(kind, rest)
        elif channel.endswith(":news"):
            turn = body.decode(errors="replace").split(" ")[1]
            if root_of(turn) in self._roots.get(channel, ()):
                self._bell("saved", turn)
        elif self._live is not None and self._roots.get(channel):
            root = channel.rpartition(":")[2]
            try:
                sender, bodies = msgspec.msgpack.decode(body, type=tuple[str, list[bytes]])
            except msgspec.MsgspecError as fault:
                _log.warning("redis_live_unreadable: %s", fault)
                return
            if sender != self._me:
                for shown in bodies:
                    self._live(root, shown)

    # ------------------------------------------------------------------------------------------------------ live events

    def wants(self, root: str) -> bool:
        """Tell whether somebody on another node may watch the live events of a tree."""
        until = self._silent.get(root)
        return until is None or until <= self._loop.time()

    def publish(self, root: str, body: bytes) -> None:
        """Show a live event to other nodes; what comes while one message is under way leaves with the next."""
        if self._closed or not self.wants(root):
            return
        waiting = self._outgoing.get(root)
        if waiting is not None:
            waiting.append(body)
            return
        self._outgoing[root] = deque([body], maxlen=SHOWN)
        self._start(self._show(root))

    async def _show(self, root: str) -> None:
        waiting = self._outgoing[root]
        channel = self._keys.live(root)
        heard = int(channel in self._where)  # we are one of those who hear it
        try:
            while waiting:
                body = msgspec.msgpack.encode((self._me, list(waiting)))
                waiting.clear()
                if await self._say(channel, body) <= heard:
                    self._be_silent(root)
                    return
        except StoreUnavailable as error:
            _log.info("redis_live_lost: %s", error)
            self._be_silent(root)
        finally:
            del self._outgoing[root]

    def _be_silent(self, root: str) -> None:
        now = self._loop.time()
        if len(self._silent) > 10_000:
            self._silent = {name: until for name, until in self._silent.items() if until > now}
        self._silent[root] = now + SILENCE

    def _announce(self, root: str) -> None:
        """Tell the owner of a tree, whoever that is, that somebody watches now."""

        async def tell() -> None:
            try:
                await self._say(self._keys.tag(root) + "bell", f"live {root}".encode())
            except StoreUnavailable as error:
                _log.info("redis_live_lost: %s", error)

        self._start(tell())

    async def _say(self, channel: str, body: bytes) -> int:
        question = Question(packed("SPUBLISH", channel, body), slot=self._servers.slot(channel))
        return int(await self._servers.ask_one(question))

    def _start(self, work: Any) -> None:
        if self._closed:
            work.close()
            return
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
