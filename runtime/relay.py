"""How conversations reach a memory of the user's own.

The memory in the store is written by the turns' own saves, and remembers what of it is still to be passed on. So nothing is lost,
whatever the other memory does, and no turn fails of it. Any node may pass on what any other has written; two may do it at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, final

from ..actors.cards import Card
from ..actors.errors import StoreUnavailable
from ..actors.memory import ChatMemory, MemoryMessage
from ..store import base
from .errors import Crashed
from .guard import failure_of, stray
from .log import log
from .memory import readable_entries, within
from .world import gather

if TYPE_CHECKING:
    from .host import Host

BATCH, AT_ONCE, TRIES = 64, 16, 3
FIRST_BACK_OFF, MOST_BACK_OFF = 1.0, 60.0
SOON = 1.0
FAR, AHEAD = 1024, 512
"""How many entries are read where many wait, and how many are looked ahead: one reply's results and cards are fewer."""


@final
class Relay:
    """Passes on, for one node. `own` is the memory of the user's own; without one there is nothing to do."""

    def __init__(self, host: Host, own: ChatMemory | None) -> None:
        self._host = host
        self.own = own
        self._due: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._passing: dict[str, asyncio.Task[BaseException | None]] = {}
        self._ring: asyncio.Future[None] | None = None
        self._quiet: asyncio.Future[None] | None = None

    @property
    def waiting(self) -> int:
        """Return of how many conversations this node knows that something is to be passed on."""
        return len(self._due.keys() | self._passing.keys())

    def kick(self, conversation: str | None) -> None:
        """Something was written for passing on; a conversation that is backed off stays so."""
        if self.own is not None and conversation is not None:
            self._due.setdefault(conversation, self._host.world.monotonic())
            self.ring()

    def ring(self) -> None:
        """Look at what is due."""
        if self._ring is not None and not self._ring.done():
            self._ring.set_result(None)

    async def run(self) -> None:
        """Pass on for as long as this node lives: what it hears of at once, what others have left now and then."""
        world, period = self._host.world, self._host.settings.lease / 1000
        look_at = world.monotonic()
        everything = True
        try:
            while True:
                if world.monotonic() >= look_at:
                    pause = SOON if await self._look(everything=everything) else period * (0.9 + 0.2 * world.spread())
                    everything, look_at = False, world.monotonic() + pause
                due = self._start()
                self._ring = asyncio.get_running_loop().create_future()
                if self._quiet is not None and not self._quiet.done() and not self._passing and due is None:
                    self._quiet.set_result(None)
                left = [look_at, *(at for name, at in self._due.items() if name not in self._passing)]
                await world.rest(self._ring, min(left) - world.monotonic() if len(self._passing) < AT_ONCE else None)
        finally:
            tasks = list(self._passing.values())
            for task in tasks:
                task.cancel()
            await gather(tasks)

    async def settle(self, seconds: float) -> None:
        """Wait until all that this node has heard of is passed on, or has failed once; at most some seconds."""
        if self.own is not None and self.waiting:
            self._quiet = asyncio.get_running_loop().create_future()
            self.ring()
            await self._host.world.rest(self._quiet, seconds)
            self._quiet = None

    async def _look(self, *, everything: bool) -> bool:
        """Find what others have left: at the start all there is, later what has waited for longer than a lease.

        Those that cannot be passed on wait the longest, and stand in front for ever: so many more are asked for.

        :return: whether there may be more.
        """
        host = self._host
        before = host.now() - (0 if everything else host.settings.lease)
        limit = BATCH + self.waiting
        try:
            reply = await host.call(base.Relays(before=before, limit=limit))
        except StoreUnavailable as error:
            log.warning("relays_unknown", error=str(error))
            return False
        assert isinstance(reply, base.Conversations)
        for conversation, _ in reply.waiting:
            self._due.setdefault(conversation, host.world.monotonic())
        return len(reply.waiting) >= limit

    def _start(self) -> str | None:
        """Start what is due; return one that could not be started now, but for those that are backed off."""
        now, left = self._host.world.monotonic(), None
        for conversation, at in list(self._due.items()):
            if conversation in self._passing or len(self._passing) >= AT_ONCE:
                left = conversation
            elif at <= now:
                del self._due[conversation]
                task = self._host.world.spawn(self._try(conversation), f"relay of {self._host.node}")
                self._passing[conversation] = task
                task.add_done_callback(lambda _, name=conversation: self._over(name))
        return left

    def _over(self, conversation: str) -> None:
        del self._passing[conversation]
        self.ring()

    async def _try(self, conversation: str) -> BaseException | None:
        """Pass on what waits; what fails is counted, tried again later, and returned to those who wait for this."""
        host = self._host
        try:
            await self._pass(conversation)
            self._failures.pop(conversation, None)
        except Crashed:
            pass
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and not stray():
                raise
            failures = self._failures[conversation] = self._failures.get(conversation, 0) + 1
            pause = min(MOST_BACK_OFF, FIRST_BACK_OFF * 2.0 ** min(failures - 1, 10)) * (0.75 + 0.25 * host.world.spread())
            self._due[conversation] = host.world.monotonic() + pause
            host.counters.relay_failures += 1
            log.warning("relay_failed", conversation=conversation, failures=failures, error=failure_of(error).message[:500])
            return error
        return None

    async def pass_on(self, conversation: str) -> None:
        """Pass on all that waits now; a turn does this before it reads the other memory. Raises what that raises.

        Where that is under way already, and fails, it is not tried once more: the turn has waited long enough.
        """
        task = self._passing.get(conversation)
        if task is not None:
            await self._host.world.wait(task, None)
            if not task.cancelled() and (error := task.result()) is not None:
                raise error
        await self._pass(conversation)

    async def _pass(self, conversation: str) -> None:
        """Hand over what waits, in the order of the conversation, and note it when that is done.

        What was handed over and not noted (a crash, a failure in the middle) is handed over once more, by anybody.
        """
        host, limit, more = self._host, BATCH, True
        while more:
            reply = await host.call(base.ReadRelay(conversation=conversation, limit=limit))
            assert isinstance(reply, base.Memory)
            entries, more = reply.entries, reply.more
            if more and limit == BATCH:
                limit = FAR
                continue
            while entries and not (more and len(entries) <= AHEAD):
                count = together(entries)
                for message in readable_entries(conversation, sorted(entries[:count], key=lambda entry: entry.place)):
                    await self._hand_over(conversation, message)
                    host.counters.relayed += 1
                await host.call(base.Relayed(conversation=conversation, change=entries[count - 1].change))
                entries = entries[count:]

    async def _hand_over(self, conversation: str, message: MemoryMessage) -> None:
        """Append a message, or bring the one that is there up to date; what is there and newer stays."""
        own, host = self.own, self._host
        assert own is not None
        if await within(host, own.append(conversation, message)) is True:
            return
        if not message.version and not isinstance(message.message, Card):
            return
        for _ in range(TRIES):
            found = await within(host, own.get(conversation, message.id))
            if found is None:
                raise LookupError(f"the chat memory has no message {message.id}, and does not take it")
            if found.version > message.version or found == message:
                return
            if await within(host, own.replace(conversation, message, found.version)) is True:
                return
        raise LookupError(f"the chat memory does not take version {message.version} of {message.id}")


def together(entries: Sequence[base.MemoryEntry]) -> int:
    """Return how many entries, in order of their changes, are handed over as one batch: none behind has its place among them.

    An entry that was replaced while it waited stands where its change is: an edited reply behind the results of its calls.
    """
    behind = [*accumulate((entry.place for entry in reversed(entries)), min)][::-1]
    last = 0
    for count, entry in enumerate(entries, 1):
        last = max(last, entry.place)
        if count >= BATCH and count < len(entries) and last < behind[count]:
            return count
    return len(entries)
