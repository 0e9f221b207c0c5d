"""A machine that plays the world against your agent: answers at the same moment, crashes, lost leases, cancels, drains."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, TypeAlias

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ..actors.agent import Agent
from ..store.base import TurnStore
from ..store.memory import MemoryStore
from ..store.urls import open_store
from .arena import Cut
from .crashes import POINTS, Point
from .field import Field

MakeAgent: TypeAlias = Callable[[], Agent]
StoreFactory: TypeAlias = Callable[[], "str | TurnStore"]
OPERATIONS = ("*", "create", "deliver", "claim", "save", "renew", "cancel", "reap", "find", "due", "read_mail", "read_replies")
SEATS = st.integers(0, 7)
PICKS = st.integers(0, 15)
CHOICES = st.integers(0, 3)
CUTS: tuple[Cut, ...] = ("", "renew", "all")
LEASE = 10.0
HEALTH = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
DEFAULT = settings(max_examples=50, stateful_step_count=25, deadline=None, suppress_health_check=HEALTH)


class TurnRaceMachine(RuleBasedStateMachine):
    """Starts turns of an agent on several nodes and answers them, while nodes die, freeze, lose the store, and leave.

    After each step it holds: no (call, attempt) has started twice, and none whose intent was not saved; no `once` tool has started
    again without a person; no rejected tool has started, and none that the budget of its tree had no room for; a call has started
    at most one child; a wait has at most one accepted answer; a command has one answer, and keeps it; events have no gap; no model
    was shown a call without its result. At the end every turn can be brought to its end; then every call has one result, and every
    child one parent that knows it. Agents that the agent has as tools are judged like it.

    Use ``TestRaces = TurnRaceMachine.of(make_agent, nodes=2).TestCase``. Tools should be async: threads would make a run depend on
    chance.
    """

    turns: ClassVar[int] = 3

    @classmethod
    def of(
        cls, make_agent: MakeAgent, *, store: str | StoreFactory = "memory://", nodes: int = 2, turns: int = 3
    ) -> type[TurnRaceMachine]:
        """Make a machine for an agent.

        :param make_agent: makes the agent, with a model that answers the same in every process (`ScriptedModel`).
        :param store: ``memory://``, or a function that makes a new, empty store (or its URL) for each run.
        :param nodes: how many nodes share it.
        :param turns: how many turns a run may start.
        """
        if isinstance(store, str) and store != "memory://":
            raise ValueError('store must be "memory://", or a function that makes a new store for each run')
        new_store: StoreFactory = MemoryStore if isinstance(store, str) else store

        def make_field(self: TurnRaceMachine) -> Field:
            return Field(make_agent(), open_store(new_store()), nodes, LEASE)

        machine = type("TurnRaces", (cls,), {"make_field": make_field, "turns": turns})
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
        try:
            self.field.loop.run_until_complete(work)
        except BaseException:
            self._failed = True
            raise

    @initialize(seat=SEATS)
    def open(self, seat: int) -> None:
        """Let all nodes sit down, and start a first turn."""
        self._do(self.field.open())
        self._do(self.field.start(seat))

    # ----------------------------------------------------------------------------------------------------- from outside

    @precondition(lambda self: len(self.field.keys) < self.turns)
    @rule(seat=SEATS)
    def start(self, seat: int) -> None:
        """Start a turn."""
        self._do(self.field.start(seat))

    @precondition(lambda self: self.field.waits)
    @rule(seat=SEATS, pick=PICKS, choice=CHOICES, by_call=st.booleans(), at_root=st.booleans())
    def answer(self, seat: int, pick: int, choice: int, *, by_call: bool, at_root: bool) -> None:
        """Answer a wait, open or not any more, at its turn or at the root of the tree."""
        self._do(self.field.answer(seat, pick, choice, by_call=by_call, at_root=at_root))

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

    @rule(seconds=st.sampled_from([0.25, 0.5, 1.5, 4.0, 12.0, 40.0]))
    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._do(self.field.clock.advance(seconds))

    # ----------------------------------------------------------------------------------------------------------- faults

    @rule(seat=SEATS, operation=st.sampled_from(OPERATIONS), point=st.sampled_from(POINTS), nth=st.integers(1, 4))
    def arm(self, seat: int, operation: str, point: Point, nth: int) -> None:
        """Let a node die, or lose a reply, at a store call to come."""
        self.field.seat(seat).arm(operation, point, nth)

    @rule(seat=SEATS, drain=st.booleans())
    def replace(self, seat: int, *, drain: bool) -> None:
        """Let a node die or drain, now, and another take its seat."""
        self._do(self.field.replace(seat, drain=drain))

    @rule(seat=SEATS, behind=st.sampled_from(("", "*", "save", "claim", "deliver")))
    def freeze(self, seat: int, behind: str) -> None:
        """Let a node stand still before its next store call, or behind one: done, but its reply is not heard."""
        gate = self.field.seat(seat).gate
        gate.behind = behind
        if not behind:
            gate.close()

    @rule(seat=SEATS)
    def thaw(self, seat: int) -> None:
        """Let it move again, perhaps long after its leases have ended."""
        self._do(self.field.thaw(seat))

    @rule(seat=SEATS, cut=st.sampled_from(CUTS))
    def cut(self, seat: int, cut: Cut) -> None:
        """Cut a node off from the store, from its renewals only, or from nothing any more."""
        self.field.seat(seat).cut = cut

    # -------------------------------------------------------------------------------------------------------- judgement

    @invariant()
    def nothing_impossible_has_happened(self) -> None:
        """Look at everything."""
        if self.field.ready:
            self._do(self.field.check())

    def teardown(self) -> None:
        """Bring every turn to its end, and leave."""
        try:
            if self.field.ready and not self._failed:
                self._do(self.field.finish())
        finally:
            self.field.close()
