"""One machine over all stores: the same operations at the same times, which must get the same replies.

It does what the random driver of `turnhold.testing` does: actors crash, freeze, lose replies and repeat themselves, and people are
beside them; with that come nodes, lists, and times in which everything that is kept for a while is dropped. A failure is made
smaller, and printed as the operations in their order.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from turnhold.store import base as b
from turnhold.testing.conformance import driver
from turnhold.testing.conformance.actors import AGENTS
from turnhold.testing.conformance.expect import Violation, is_a

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

MINUTE = 60_000
LONG = (11 * MINUTE, 61 * MINUTE, 25 * 60 * MINUTE, 8 * 24 * 60 * MINUTE)
STATUSES = (None, "READY", "RUNNING", "COMPLETED", "FAILED")
SEEDS = st.integers(0, 1 << 16)
COUNTS: Counter[str] = Counter()


class Disagreement(AssertionError):
    """Two stores have answered the same operation in different ways."""


def _unordered(listing: Any, *, whole: bool) -> Any:
    """Return a listing without the order of its turns; what is a page of several says only how many it has."""
    turns = sorted(listing.turns, key=lambda turn: (turn.created, turn.turn)) if whole and listing.next is None else ()
    return msgspec.structs.replace(listing, turns=tuple(turns))


class Agreement(driver.Driver):
    """The driver, over several stores at once; the first one is what the others have to be like."""

    def __init__(self, cores: dict[str, Any]) -> None:
        async def send(op: b.Op, now: int) -> b.Reply:
            return self.asked(op, now)

        super().__init__(send, seed=0, rewind=(self._take, self._put_back))
        self.cores = cores
        self.cursors: dict[object, dict[str, str | None]] = {}
        self.aged = False  # something may have been dropped: what the driver knows of the past does not hold any more

    def asked(self, op: b.Op, now: int) -> b.Reply:
        """Ask all of them."""
        note(f"{now - 1_700_000_000_000}: {op}")
        replies: dict[str, Any] = {name: core.apply(self._paged(op, name), now) for name, core in self.cores.items()}
        if isinstance(op, b.ListTurns) and self._twins(now):
            replies = {name: _unordered(reply, whole=op.after is None) for name, reply in replies.items()}
        if isinstance(op, b.ListTurns | b.ListWaits):
            replies = self._alike(replies)
        first, reply = next(iter(replies.items()))
        for name, other in replies.items():
            if not driver.same(reply, other):
                raise Disagreement(f"{op}\n  {first}: {reply}\n  {name}: {other}")
        COUNTS[f"{type(op).__name__}:{type(reply).__name__}"] += 1
        return reply

    def _paged(self, op: Any, name: str) -> Any:
        """Return an operation with the cursor that this store has given; what stands in it is its own affair."""
        cursors = self.cursors.get(getattr(op, "after", None))
        return op if cursors is None else msgspec.structs.replace(op, after=cursors[name])

    def _alike(self, replies: dict[str, Any]) -> dict[str, Any]:
        token = f"page {len(self.cursors)}"
        self.cursors[token] = {name: reply.next for name, reply in replies.items()}
        return {
            name: reply if reply.next is None else msgspec.structs.replace(reply, next=token) for name, reply in replies.items()
        }

    def _twins(self, now: int) -> bool:
        """Tell whether turns were created in one millisecond: which of them is the older one is a store's own affair."""
        listed = next(iter(self.cores.values())).apply(b.ListTurns(limit=1000), now)
        return len({turn.created for turn in listed.turns}) < len(listed.turns)

    def _take(self) -> list[Any]:
        return [core.take() for core in self.cores.values()]

    def _put_back(self, taken: list[Any]) -> None:
        for core, state in zip(self.cores.values(), taken, strict=True):
            core.put_back(state)

    def play(self, step: Callable[[], Coroutine[object, object, None]], seed: int) -> None:
        """Take one step of the driver; the same seed decides the same.

        :raises Disagreement: if the stores answer in different ways.
        :raises Violation: if they all break a rule.
        """
        self.random = random.Random(seed)
        try:
            step().send(None)
        except StopIteration:
            pass
        except (Violation, LookupError):
            if not self.aged:
                raise
        self.now += self.random.choice((0, 0, 1, 5, 20, 60))

    # -- what the driver does not do

    async def nodes(self) -> None:
        """A node says that it is there, or leaves."""
        agents = tuple(f"{name}@1" for name in AGENTS[: self.random.randrange(3)])
        await self.apply(b.Beat(node=self.random.choice(("n1", "n2", "n3")), agents=agents, leave=self._chance(0.3)))
        await self.apply(b.ListNodes())

    async def lists(self) -> None:
        """Somebody looks through the turns, page by page, through the waits, and at who is due."""
        talk = self.random.choice((None, *driver.TALKS))
        after, status, parked = None, self.random.choice(STATUSES), self.random.choice((None, None, True, False))
        limit = self.random.choice((1, 3, 100))
        for _ in range(3):
            op = b.ListTurns(status=status, conversation=talk, quarantined=parked, limit=limit, after=after)
            after = is_a(await self.apply(op), b.TurnListing).next
            if after is None:
                break
        await self.apply(b.ListTurns(root=self._any(), agent=self.random.choice((None, "alpha")), limit=100))
        await self.apply(b.ListTurns(parent=self._any(), limit=100))
        self.asked(b.ListWaits(agent=self.random.choice((None, "alpha", "beta")), without=("RETRY",), limit=1000), self.now)
        await self.apply(b.Due(limit=self.random.choice((1, 2, 64)), offset=self.random.randrange(3)))

    async def age(self) -> None:
        """Time passes in which what is kept for a while is over, and somebody drops it: some stores do that by themselves, too.

        Behind it nothing old is sent again, and no store goes back before it: whether something is known for longer than it has to
        be is a store's own affair.
        """
        self.aged = True
        self.sent.clear()
        for known in self.ghost.turns.values():
            known.ids.clear()
        for actor in self.actors:
            actor.sent.clear()
        self.now += self.random.choice(LONG)
        await self.apply(b.Prune())
        self.saved = None

    def step(self, name: str) -> Callable[[], Coroutine[object, object, None]]:
        """Return a step by its name."""
        return getattr(self, f"_{name}" if hasattr(self, f"_{name}") else name)


STEPS = (
    "create",
    "deliver",
    "cancel",
    "claim",
    "renew",
    "reap",
    "again",
    "discard",
    "read",
    "remember",
    "lists",
    "nodes",
    "look_due",
)


class AgreementMachine(RuleBasedStateMachine):
    """The machine; a subclass says which stores."""

    cores: Any  # a function that makes them

    def __init__(self) -> None:
        super().__init__()
        self.driver = Agreement(self.cores())
        self._failed = False

    def _play(self, name: str, seed: int) -> None:
        try:
            self.driver.play(self.driver.step(name), seed)
        except BaseException:
            self._failed = True
            raise

    @rule(seeds=st.lists(SEEDS, min_size=1, max_size=20))
    def some(self, seeds: list[int]) -> None:
        """Anything happens, as often as it does in life."""
        for seed in seeds:
            self._play("step", seed)

    @rule(what=st.sampled_from(STEPS), seed=SEEDS)
    def one(self, what: str, seed: int) -> None:
        """One thing happens."""
        self._play(what, seed)

    @precondition(lambda self: self.driver.actors)
    @rule(seeds=st.lists(SEEDS, min_size=1, max_size=8))
    def act(self, seeds: list[int]) -> None:
        """Actors save, and some of them do not hear the reply, and repeat it later."""
        for seed in seeds:
            self._play("act", seed)

    @rule(seed=SEEDS)
    def rewind(self, seed: int) -> None:
        """The stores forget their newest writes."""
        self._play("rewind", seed)

    @precondition(lambda self: len(self.driver.ghost.turns) > 4)
    @rule(seed=SEEDS)
    def age(self, seed: int) -> None:
        """Much time passes."""
        self._play("age", seed)

    def teardown(self) -> None:
        """Let good actors finish all turns."""
        try:
            if not self._failed and not self.driver.aged:
                self.driver.play(self.driver.step("drain"), 0)
        finally:
            for core in self.driver.cores.values():
                core.end()
