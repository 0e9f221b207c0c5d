"""Looks for an order in which a machine that does one thing at a time would have given the same answers (Wing and Gong).

An operation takes effect at one moment between its call and its answer, or, where nobody heard an answer, at any moment behind its
call, or never. The machine may also take steps of its own. A history is explained by an order that keeps what was over before what
began later, and in which the machine gives every answer that was heard.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

S = TypeVar("S")


@dataclass(frozen=True)
class Operation:
    """What somebody asked for, when (`began` and `ended` number the moments of a run), and what he was told.

    Nobody heard the answer where `ended` is `None`. `since` and `until` are times by the machine's own clock.
    """

    began: int
    ended: int | None
    asked: Any
    told: Any = None
    since: int = 0
    until: int = 0
    who: str = ""

    def unheard(self) -> Operation:
        """The same, had nobody heard its answer."""
        return replace(self, ended=None, told=None)

    def __str__(self) -> str:
        end = "…" if self.ended is None else f"{self.ended}"
        told = "(nothing)" if self.ended is None else f"{self.told}"
        return f"[{self.began:>3} to {end:>3}] {self.who} {self.asked} -> {told}"


class Machine(Protocol[S]):
    """What answers one operation after the other."""

    def first(self) -> S:
        """Return the state at the beginning."""
        ...

    def key(self, state: S) -> Hashable:
        """Return what is equal for states that answer alike from now on."""
        ...

    def apply(self, state: S, operation: Operation) -> Iterable[tuple[Any, S]]:
        """Return the answers that an operation may get here, each with the state behind it."""
        ...

    def inside(self, state: S) -> Iterable[S]:
        """Return the states to which the machine may go on by itself."""
        ...


class Undecided(AssertionError):
    """The search was given up: there are more orders than it may try."""


@dataclass(frozen=True)
class Found:
    """How far an order came: the operations in it, the states that were looked at, and what others would have been told there."""

    complete: bool
    order: tuple[Operation, ...]
    looked_at: int
    instead: tuple[tuple[Operation, Any], ...] = ()


class Search(Generic[S]):
    """The search over one machine; what it has learned of the machine serves the next history of the same run, too."""

    def __init__(self, machine: Machine[S], most: int = 100_000) -> None:
        self.machine = machine
        self.most = most
        self._states: dict[Hashable, S] = {}
        self._applied: dict[tuple[Hashable, int], list[tuple[Any, Hashable]]] = {}
        self._inside: dict[Hashable, list[Hashable]] = {}

    def explain(self, history: Sequence[Operation]) -> Found:
        """Look for an order. :raises Undecided: after `most` states."""
        wanted = sum(1 << at for at, operation in enumerate(history) if operation.ended is not None)
        start = (0, self._known(self.machine.first()))
        seen: set[tuple[int, Hashable]] = {start}
        way: list[tuple[int, Iterator[tuple[int, Hashable, int | None]], int | None]] = [(0, self._next(history, *start), None)]
        best: tuple[int, Hashable, tuple[int, ...]] = (0, start[1], ())
        while way:
            taken, following, _ = way[-1]
            if taken & wanted == wanted:
                return Found(True, tuple(history[at] for *_, at in way if at is not None), len(seen))
            for now, state, by in following:
                if (now, state) in seen:
                    continue
                seen.add((now, state))
                if len(seen) > self.most:
                    raise Undecided(f"more than {self.most} states of {len(history)} operations")
                way.append((now, self._next(history, now, state), by))
                if (now & wanted).bit_count() > (best[0] & wanted).bit_count():
                    best = (now, state, tuple(at for *_, at in way if at is not None))
                break
            else:
                way.pop()
        instead = [
            (operation, told)
            for at, operation in self._possible(history, best[0])
            if operation.ended is not None
            for told, _ in self._answers(best[1], operation)
        ]
        return Found(False, tuple(history[at] for at in best[2]), len(seen), tuple(instead))

    def _possible(self, history: Sequence[Operation], taken: int) -> Iterator[tuple[int, Operation]]:
        """What may come next: whatever began before the first end of what is not in the order yet."""
        left = [(at, operation) for at, operation in enumerate(history) if not taken >> at & 1]
        first = min((operation.ended for _, operation in left if operation.ended is not None), default=None)
        for at, operation in sorted(left, key=lambda each: (each[1].ended is None, each[1].ended or 0)):
            if first is None or operation.began < first:
                yield at, operation

    def _next(self, history: Sequence[Operation], taken: int, state: Hashable) -> Iterator[tuple[int, Hashable, int | None]]:
        unheard: list[tuple[int, Operation]] = []
        for at, operation in self._possible(history, taken):
            if operation.ended is None:
                unheard.append((at, operation))
                continue
            for told, behind in self._answers(state, operation):
                if told == operation.told:
                    yield taken | 1 << at, behind, at
        for behind in self._steps(state):
            yield taken, behind, None
        for at, operation in unheard:
            for _, behind in self._answers(state, operation):
                yield taken | 1 << at, behind, at

    def _known(self, state: S) -> Hashable:
        key = self.machine.key(state)
        self._states.setdefault(key, state)
        return key

    def _answers(self, state: Hashable, operation: Operation) -> list[tuple[Any, Hashable]]:
        found = self._applied.get((state, operation.began))
        if found is None:
            answers = self.machine.apply(self._states[state], operation)
            found = self._applied[state, operation.began] = [(told, self._known(behind)) for told, behind in answers]
        return found

    def _steps(self, state: Hashable) -> list[Hashable]:
        found = self._inside.get(state)
        if found is None:
            found = self._inside[state] = [self._known(behind) for behind in self.machine.inside(self._states[state])]
        return found


def smallest(search: Search[Any], history: Sequence[Operation]) -> list[Operation]:
    """Of a history without an order, return the answers that already have none, in the order of their calls.

    An answer that nobody heard is explained by anything that explains the answer, so answers may be left out one by one.
    """
    ends = sorted(operation.ended for operation in history if operation.ended is not None)
    low, high = 0, len(ends) - 1
    while low < high:  # the first end by which it has gone wrong
        middle = (low + high) // 2
        if search.explain(_until(history, ends[middle])).complete:
            low = middle + 1
        else:
            high = middle
    left = _until(history, ends[low])
    for at, operation in enumerate(left):
        if operation.ended is not None:
            fewer = [*left[:at], operation.unheard(), *left[at + 1 :]]
            if not search.explain(fewer).complete:
                left = fewer
    return left


def _until(history: Sequence[Operation], end: int) -> list[Operation]:
    """What was asked and heard up to a moment."""
    known = [operation for operation in history if operation.began < end]
    return [each if each.ended is None or each.ended <= end else each.unheard() for each in known]


def check(search: Search[Any], history: Sequence[Operation]) -> Found:
    """Return the order that explains a history. :raises AssertionError: if there is none, telling the smallest part without one."""
    found = search.explain(history)
    if found.complete:
        return found
    left = smallest(search, history)
    found = search.explain(left)
    lines = ["no order explains what was told here:", *(f"  {each}" for each in left if each.ended is not None)]
    lines += ["whatever was told of these, or nothing:", *(f"  {each}" for each in left if each.ended is None)]
    lines += ["the longest order that goes well:", *(f"  {operation}" for operation in found.order)]
    lines += ["and there the machine would have told", *(f"  {told} to {operation}" for operation, told in found.instead)]
    raise AssertionError("\n".join(lines))
