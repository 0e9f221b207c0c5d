"""The faults of a race: what happens to nodes, their threads, their way to the store, and the store itself."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from .arena import Cut
from .crashes import POINTS, Point
from .field import Field

OFTEN = ("*", "save", "deliver", "claim", "create")
OPERATIONS = (*OFTEN, *OFTEN, "renew", "cancel", "reap", "find", "due", "read_mail", "read_replies")
REPEATABLE = ("deliver", "claim", "save", "renew", "cancel", "reap", "abandon")
SLOW = ("*", "save", "claim", "deliver", "renew")
SEATS = st.integers(0, 7)
PICKS = st.integers(0, 15)
CUTS: tuple[Cut, ...] = ("", "renew", "all")


class Weather:
    """Rules for a machine that has a field."""

    field: Field
    rewinds: ClassVar[bool]

    def _do(self, work: Coroutine[object, object, Any]) -> None:
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------------ of a node

    @rule(seat=SEATS, operation=st.sampled_from(OPERATIONS), point=st.sampled_from(POINTS), nth=st.integers(1, 3))
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

    @precondition(lambda self: any(seat.gate.shut or seat.gate.behind for seat in self.field.seats))
    @rule(seat=SEATS)
    def thaw(self, seat: int) -> None:
        """Let it move again, perhaps long after its leases have ended."""
        self._do(self.field.thaw(seat))

    @precondition(lambda self: self.field.threaded)
    @rule(seat=SEATS)
    def hold_threads(self, seat: int) -> None:
        """Let the threads of a node run on, although what they do is done."""
        self.field.seat(seat).threads.held = True

    @precondition(lambda self: any(seat.threads.held for seat in self.field.seats))
    @rule(seat=SEATS)
    def let_threads_go(self, seat: int) -> None:
        """Let the threads of a node end."""
        self._do(self.field.let_go(seat))

    # ---------------------------------------------------------------------------------------------- between node and store

    @rule(seat=SEATS, cut=st.sampled_from(CUTS))
    def cut(self, seat: int, cut: Cut) -> None:
        """Cut a node off from the store, from its renewals only, or from nothing any more."""
        self.field.seat(seat).cut = cut

    @precondition(lambda self: self.field.owned)
    @rule(pick=PICKS)
    def lose_lease(self, pick: int) -> None:
        """Take a turn from its owner, which goes on and does not know."""
        self._do(self.field.rob(pick))

    @rule(seat=SEATS, operation=st.sampled_from(SLOW), delay=st.sampled_from((0.0, 0.1, 1.0, 6.0)))
    def slow(self, seat: int, operation: str, delay: float) -> None:
        """Let store calls of a node take their time, so that others overtake them; or none any more."""
        wire = self.field.seat(seat).wire
        wire.slow, wire.delay = operation if delay else "", delay

    @rule(seat=SEATS, operation=st.sampled_from(REPEATABLE))
    def lose(self, seat: int, operation: str) -> None:
        """Let the next store call of a kind count as lost, and be repeated, while it is under way still."""
        self.field.seat(seat).wire.losing = operation

    @precondition(lambda self: self.field.late)
    @rule(pick=PICKS)
    def arrive(self, pick: int) -> None:
        """Let it arrive, behind its own repetition, perhaps long after."""
        self._do(self.field.arrive(pick))

    @rule(seat=SEATS, lost=st.booleans())
    def muffle(self, seat: int, *, lost: bool) -> None:
        """Let the bells for a node be late; or lost, where nodes look now and then without one."""
        ears = self.field.seat(seat).ears
        ears.slow, ears.deaf = True, lost and self.field.seat(seat).polls

    @precondition(lambda self: not all(seat.ears.open for seat in self.field.seats))
    @rule(seat=SEATS)
    def hear(self, seat: int) -> None:
        """Let a node hear again, and now what was late, in the wrong order."""
        self._do(self.field.hear(seat))

    # ------------------------------------------------------------------------------------------------------ of the store

    @precondition(lambda self: self.rewinds and self.field.past is None)
    @rule()
    def keep(self) -> None:
        """Remember what the store is."""
        self.field.keep()

    @precondition(lambda self: self.field.past is not None)
    @rule()
    def rewind(self) -> None:
        """Let the store forget what it was told since then."""
        self._do(self.field.rewind())
