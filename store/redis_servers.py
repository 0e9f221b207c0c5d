"""From a key to the server that has it, and from a server's refusal to what is to be done about it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Any, cast, final

from redis.crc import key_slot

from ..actors.errors import StoreUnavailable
from .redis_link import OPERATION, Answer, Call, Link, Lost, Refusal, packed
from .redis_place import Address, Place, slots_of
from .redis_scripts import Scripts

PAUSE, LONGEST_PAUSE = 0.05, 0.5
# What passes by itself, and has changed nothing. TRYAGAIN: a slot is being moved; NOREPLICAS: min-replicas-to-write is not met.
PASSING = ("TRYAGAIN", "CLUSTERDOWN", "LOADING", "READONLY", "MASTERDOWN", "BUSY", "NOREPLICAS", "UNBLOCKED")
FAULTS = (Lost, Refusal)
_log = logging.getLogger("turnhold")


@final
class Question(Call):
    """A command that is asked until it is answered: for a script, `script` is its name, and `data` calls it by its digest.

    `address`: where it goes next, if not to the master of its slot. `sent`: where it went last. It is never under way twice: each
    time it is asked it has a waiter of its own, and the one before has its answer.
    """

    slot: int = 0
    script: str | None = None
    lane: str = "main"
    address: Address | None = None
    sent: Address | None = None


@final
class Servers:
    """The links of a node to all masters."""

    def __init__(self, place: Place, scripts: Scripts) -> None:
        self._place = place
        self._scripts = scripts
        self._links: dict[Address, Link] = {}
        self._slots: dict[int, Address] = {}
        self._tags: dict[str, int] = {}
        self._learning: asyncio.Lock = asyncio.Lock()
        self._learnt = float("-inf")
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._random = random.Random()  # noqa: S311 - spreads load, keeps no secret

    @property
    def masters(self) -> list[Address]:
        """Return the addresses of all masters."""
        return list(dict.fromkeys(self._slots.values())) if self._place.cluster else [self._place.seeds[0]]

    def slot(self, key: str) -> int:
        """Return the slot of a key."""
        if not self._place.cluster:
            return 0
        tag = key[: key.index("}") + 1]
        slot = self._tags.get(tag)
        if slot is None:
            slot = self._tags[tag] = key_slot(tag.encode())
        return slot

    def address(self, slot: int) -> Address:
        """Return the master of a slot; any, where that is not known."""
        return self._slots.get(slot) or self._place.seeds[0]

    def link(self, address: Address) -> Link:
        """Return the link to a server. :raises StoreUnavailable: after `close`: a call that still repeats must not open it anew."""
        link = self._links.get(address)
        if link is None:
            if self._closed:
                raise StoreUnavailable(f"Redis at {self._place.shown}: the connection is closed")
            name = f"{address[0]}:{address[1]}"
            link = self._links[address] = Link(lambda: self._place.connection(address, timeout=OPERATION), name)
        return link

    async def close(self) -> None:
        """Close all links, for good."""
        self._closed = True
        links, self._links = self._links, {}
        for link in links.values():
            await link.close()

    # ------------------------------------------------------------------------------------------------------------ ask

    async def ask(self, questions: Sequence[Question], *, partly: bool = False) -> list[Any]:
        """Return the answers; all that is asked here leaves at once.

        :param partly: None stands for what is not answered in time, unless that is all.
        :raises StoreUnavailable: if one is not answered in time, or the server refuses it.
        """
        end = self._loop.time() + OPERATION
        waiters = [self._put(question) for question in questions]
        answers: list[Any] = []
        fault: StoreUnavailable | None = None
        try:
            for question, waiter in zip(questions, waiters, strict=True):
                try:
                    answers.append(await self._settled(question, await waiter, end))
                except StoreUnavailable as found:
                    if not partly or found.refused:
                        raise
                    fault = found
                    answers.append(None)
            if fault is not None and all(answer is None for answer in answers):
                raise fault
            return answers
        except BaseException:
            for waiter in waiters:
                waiter.cancel()  # what nobody waits for any more is not sent
            raise

    async def ask_one(self, question: Question) -> Any:
        """Return the answer to one question (see `ask`)."""
        end = self._loop.time() + OPERATION
        answer: Any = await self._put(question)
        if type(answer) is not list:  # no script's answer
            return await self._settled(question, answer, end)
        return cast("Any", answer)

    def _put(self, question: Question) -> asyncio.Future[Any]:
        question.waiter = waiter = self._loop.create_future()
        question.sent = question.address or self.address(question.slot)
        self.link(question.sent).put(question, question.lane)
        return waiter

    async def _settled(self, question: Question, answer: Any, end: float) -> Any:
        """Repeat a question that was not answered, the identical one, until it is, or time is over."""
        pause = PAUSE
        while (refusal := _refusal(answer)) is not None:
            if not await self._mended(question, refusal):
                if isinstance(refusal, Lost):
                    await self.look_around()
                wait = pause * (0.5 + self._random.random())
                if self._loop.time() + wait > end:
                    raise StoreUnavailable(f"Redis at {self._place.shown}: {refusal}")
                await asyncio.sleep(wait)
                pause = min(2 * pause, LONGEST_PAUSE)
            elif self._loop.time() > end:
                raise StoreUnavailable(f"Redis at {self._place.shown}: {refusal}")
            answer = await self._put(question)
        return answer

    async def _mended(self, question: Question, refusal: Lost | Refusal) -> bool:
        """Do what an error asks for; true where the question may be repeated at once.

        :raises StoreUnavailable: if it is an answer: repeating will not help.
        """
        question.asking, question.address = False, None
        if isinstance(refusal, Lost):
            if refusal.refused:
                raise StoreUnavailable(f"Redis at {self._place.shown}: {refusal}", refused=True)
            return False
        kind, text = refusal.kind, str(refusal)
        if kind == "NOSCRIPT" and question.script is not None:
            await self._load(question.sent or self.address(question.slot), question)  # after ASK not the slot's master
            return True
        if kind in {"MOVED", "ASK"}:
            return await self._redirected(question, kind, text)
        if kind in PASSING:
            if kind in {"READONLY", "CLUSTERDOWN"}:
                await self.look_around()
            return False
        raise StoreUnavailable(f"Redis at {self._place.shown} refuses: {text}", refused=True)

    async def _redirected(self, question: Question, kind: str, text: str) -> bool:
        if not self._place.cluster:
            raise StoreUnavailable(f"{self._place.shown} is part of a Redis Cluster: write redis+cluster://", refused=True)
        _, slot, target = text.split(" ", 2)
        host, _, port = target.rpartition(":")
        address = (host or self.address(int(slot))[0], int(port))
        if kind == "ASK":
            question.asking, question.address = True, address
            return True
        self._slots[int(slot)] = address
        await self.look_around()
        return True

    async def _load(self, address: Address, question: Question) -> None:
        """Give a server a script that it does not have (any more), on the question's lane: a renewal's must not wait for saves."""
        waiter: asyncio.Future[Any] = self._loop.create_future()
        name = str(question.script)
        data = packed("SCRIPT", "LOAD", self._scripts.sources[name])
        self.link(address).put(Call(data, waiter), question.lane)
        answer = await waiter
        if isinstance(answer, Refusal):
            raise StoreUnavailable(f"Redis at {self._place.shown} refuses the script {name}: {answer}", refused=True)

    # ------------------------------------------------------------------------------------------------------- topology

    async def learn(self) -> None:
        """Find out which master has which slot. :raises StoreUnavailable: if no server of the cluster says it."""
        if not self._place.cluster:
            return
        masters = self.masters
        why = "no server answers"
        for addresses in (masters, [seed for seed in dict.fromkeys(self._place.seeds) if seed not in masters]):
            found = await self._first_to_tell(addresses)
            if isinstance(found, dict):
                self._slots = found
                await self._leave_others()
                return
            why = found or why
        raise StoreUnavailable(f"Redis Cluster at {self._place.shown}: {why}")

    async def _first_to_tell(self, addresses: Sequence[Address]) -> dict[int, Address] | str:
        """Ask all of these servers at once, so that a silent one holds up nobody; return who has which slot, or why not."""
        asked: dict[asyncio.Future[Any], Address] = {self._loop.create_future(): address for address in addresses}
        why = ""
        try:
            for waiter, address in asked.items():
                self.link(address).put(Call(packed("CLUSTER", "SLOTS"), waiter))
            left = set(asked)
            while left:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for waiter in done:
                    answer, address = waiter.result(), asked[waiter]
                    if isinstance(answer, list) and answer:
                        return slots_of(cast("list[Any]", answer), address)
                    why = f"{address[0]}:{address[1]}: {answer if isinstance(answer, Exception) else 'it has no slots'}"
        finally:
            for waiter in asked:
                waiter.cancel()
        return why

    async def look_around(self) -> None:
        """Learn anew after a sign that something has moved; at most twice a second, once for all who ask."""
        if not self._place.cluster:
            return
        async with self._learning:
            if self._loop.time() - self._learnt < LONGEST_PAUSE:
                return
            try:
                await self.learn()
            except StoreUnavailable as error:
                _log.info("redis_cluster_unknown: %s", error)
            self._learnt = self._loop.time()

    async def _leave_others(self) -> None:
        """Close links to servers that are no masters any more; what waits there is asked again elsewhere."""
        known = {*self.masters, *self._place.seeds}
        for address in [address for address in self._links if address not in known]:
            await self._links.pop(address).close()


def _refusal(answer: Answer) -> Lost | Refusal | None:
    """Return the error in an answer, also in one that waited for a replica."""
    found: object = cast("tuple[object, object]", answer)[0] if isinstance(answer, tuple) else answer
    return found if isinstance(found, FAULTS) else None
