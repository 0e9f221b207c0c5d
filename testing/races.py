"""A machine that plays the world against your agent: answers at the same moment, conversations, crashes, lost leases, drains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, TypeAlias

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ..actors.agent import Agent
from ..store.base import TurnStore, WhenBusy
from ..store.memory import MemoryStore
from ..store.urls import open_store
from .arena import CROWD
from .field import Field, picked
from .weather import PICKS, SEATS, Weather

MakeAgent: TypeAlias = Callable[[], Agent]
StoreFactory: TypeAlias = Callable[[], "str | TurnStore"]
CHOICES = st.integers(0, 3)
WHEN_BUSY: tuple[WhenBusy, ...] = ("refuse", "queue", "supersede")
ASKED = 2
LEASE = 10.0
HEALTH = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
DEFAULT = settings(max_examples=50, stateful_step_count=25, deadline=None, suppress_health_check=HEALTH)


class TurnRaceMachine(Weather, RuleBasedStateMachine):
    """Starts turns of an agent on several nodes and answers them, while nodes die, freeze, lose the store, and leave.

    After each step it holds: no (call, attempt) has started twice, and none whose intent was not saved; no `once` tool has started
    again without a person; no rejected tool has started, none with other arguments than were approved, and none that the budget of
    its tree had no room for; a call has started at most one child; a wait has at most one accepted answer; a command has one
    answer, and keeps it; a start that is repeated finds its turn; events have no gap; no model was shown a call without its result.
    Of each conversation one turn is open, which has not ended; the others run in the order of their starts, and those that were
    superseded or cancelled before not at all; its memory has what its turns have said, once and in order, and they see no more
    than that.

    At the end every turn can be brought to its end; then every call has one result, every child one parent that knows it, and every
    conversation is free. Agents that the agent has as tools are judged like it.

    Use ``TestRaces = TurnRaceMachine.of(make_agent, nodes=2).TestCase``. Threads are virtual: plain functions are done at once.
    """

    turns: ClassVar[int] = 3
    conversations: ClassVar[int] = 2
    rewinds: ClassVar[bool] = False
    totals: ClassVar[Counter[str]] = Counter()
    """What all runs of the machine have done, and what went wrong in them."""

    @classmethod
    def of(
        cls,
        make_agent: MakeAgent,
        *,
        store: str | StoreFactory = "memory://",
        nodes: int = 2,
        turns: int = 3,
        conversations: int = 2,
        rewinds: bool = False,
    ) -> type[TurnRaceMachine]:
        """Make a machine for an agent.

        :param make_agent: makes the agent, with a model that answers the same in every process (`ScriptedModel`).
        :param store: ``memory://``, or a function that makes a new, empty store (or its URL) for each run.
        :param nodes: how many nodes share it.
        :param turns: how many turns a run may start.
        :param conversations: in how many conversations they may be, beside those that are in none.
        :param rewinds: the store may also forget its newest writes, as in a failover; it is ``memory://`` or a SQLite file. What
            was promised of the trees concerned is void then; that they end, and what the others were promised, is not.
        """
        if isinstance(store, str) and store != "memory://":
            raise ValueError('store must be "memory://", or a function that makes a new store for each run')
        new_store: StoreFactory = MemoryStore if isinstance(store, str) else store

        def make_field(self: TurnRaceMachine) -> Field:
            return Field(make_agent(), open_store(new_store()), nodes, LEASE)

        machine = type(
            "TurnRaces",
            (cls,),
            {"make_field": make_field, "turns": turns, "conversations": conversations, "rewinds": rewinds, "totals": Counter()},
        )
        machine.TestCase.settings = DEFAULT
        return machine

    def make_field(self) -> Field:
        """Make what a run is played on."""
        raise TypeError("use TurnRaceMachine.of(make_agent)")

    def __init__(self) -> None:
        super().__init__()
        self.field = self.make_field()
        self._failed = False

    def _do(self, work: Coroutine[object, object, Any]) -> None:
        async def judged() -> None:
            self.field.witness.counts["steps"] += 1
            await work
            await self.field.check()

        try:
            self.field.loop.run_until_complete(judged())
        except BaseException:
            self._failed = True
            raise

    @initialize(seat=SEATS, room=st.sampled_from((CROWD, CROWD, 2, 1)), polls=st.booleans(), talks=st.booleans())
    def open(self, seat: int, room: int, *, polls: bool, talks: bool) -> None:
        """Let all nodes sit down, and start a first turn."""
        self.field.loop.run_until_complete(self.field.open(room=room, polls=polls))
        self._do(self.field.start(seat, "talk-0" if talks and self.conversations else None))

    # ----------------------------------------------------------------------------------------------------- from outside

    @precondition(lambda self: len(self.field.starts) < self.turns)
    @rule(seat=SEATS)
    def start(self, seat: int) -> None:
        """Start a turn that belongs to no conversation."""
        self._do(self.field.start(seat))

    @precondition(lambda self: self.conversations and len(self.field.starts) < self.turns)
    @rule(seat=SEATS, talk=PICKS, when_busy=st.sampled_from(WHEN_BUSY))
    def talk(self, seat: int, talk: int, when_busy: WhenBusy) -> None:
        """Start a turn in a conversation, whether it is busy or not."""
        self._do(self.field.start(seat, f"talk-{talk % self.conversations}", when_busy))

    @rule(seat=SEATS, pick=PICKS)
    def start_again(self, seat: int, pick: int) -> None:
        """Repeat a start under its key."""
        self._do(self.field.start_again(seat, pick))

    @precondition(lambda self: self.field.open_waits)
    @rule(seat=SEATS, pick=PICKS, choice=CHOICES, by_call=st.booleans(), at_root=st.booleans())
    def answer(self, seat: int, pick: int, choice: int, *, by_call: bool, at_root: bool) -> None:
        """Answer an open wait, at its turn or at the root of the tree; approvals perhaps with other arguments."""
        self._do(self.field.answer(seat, picked(self.field.open_waits, pick), choice, by_call=by_call, at_root=at_root))

    @precondition(lambda self: self.field.closed_waits)
    @rule(seat=SEATS, pick=PICKS, choice=CHOICES, by_call=st.booleans())
    def answer_late(self, seat: int, pick: int, choice: int, *, by_call: bool) -> None:
        """Answer a wait that is not open any more."""
        self._do(self.field.answer(seat, picked(self.field.closed_waits, pick), choice, by_call=by_call))

    @precondition(lambda self: self.field.open_waits)
    @rule(first=SEATS, second=SEATS, pick=PICKS, choices=st.tuples(CHOICES, CHOICES), at_root=st.booleans())
    def conflict(self, first: int, second: int, pick: int, choices: tuple[int, int], *, at_root: bool) -> None:
        """Answer an open wait twice at the same moment, on two nodes, perhaps once at the root of the tree."""
        self._do(self.field.conflict((first, second), pick, choices, at_root=at_root))

    @precondition(lambda self: self.field.senders)
    @rule(seat=SEATS, pick=PICKS)
    def repeat(self, seat: int, pick: int) -> None:
        """Send a command again, under its id."""
        self._do(self.field.repeat(seat, pick))

    @precondition(lambda self: self.field.turns)
    @rule(seat=SEATS, pick=PICKS)
    def cancel(self, seat: int, pick: int) -> None:
        """Cancel a turn: a root with all below it, or a child alone."""
        self._do(self.field.cancel(seat, pick))

    @precondition(lambda self: self.field.turns and self.field.asked < ASKED)
    @rule(seat=SEATS, pick=PICKS)
    def ask(self, seat: int, pick: int) -> None:
        """Let the application ask a plain question in a turn."""
        self._do(self.field.ask(seat, pick))

    @precondition(lambda self: self.field.turns and self.field.asked < ASKED)
    @rule(seat=SEATS, pick=PICKS)
    def start_child(self, seat: int, pick: int) -> None:
        """Let the application start a child of a turn, of the same agent."""
        self._do(self.field.start_child(seat, pick))

    # ------------------------------------------------------------------------------------------------------------- time

    @rule(seconds=st.sampled_from([0.25, 0.5, 1.5, 4.0, 12.0, 40.0]))
    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._do(self.field.clock.advance(seconds))

    @precondition(lambda self: self.field.deadlines)
    @rule(pick=PICKS)
    def expire(self, pick: int) -> None:
        """Let time pass until a wait ends by itself."""
        self._do(self.field.pass_to(picked(self.field.deadlines, pick)))

    @precondition(lambda self: self.field.retries)
    @rule(pick=PICKS)
    def retry_due(self, pick: int) -> None:
        """Let time pass until something is tried again."""
        self._do(self.field.pass_to(picked(self.field.retries, pick)))

    # -------------------------------------------------------------------------------------------------------------- end

    def teardown(self) -> None:
        """Bring every turn to its end, and leave."""
        try:
            if self.field.ready and not self._failed:
                self.field.loop.run_until_complete(self.field.finish())
        finally:
            self.totals.update(self.field.counts)
            self.field.close()
