"""The search for an order: it finds one where there is one, and says which answers contradict each other where there is none."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .search import Operation, Search, Undecided, check, smallest


class Cell:
    """A number that can be read, and written if it is still what the writer believes; by itself it may jump from 5 to 6."""

    def first(self) -> int:
        return 0

    def key(self, state: int) -> int:
        return state

    def apply(self, state: int, operation: Operation) -> Iterator[tuple[object, int]]:
        kind, *values = operation.asked
        if kind == "read":
            yield state, state
        elif state == values[0]:
            yield True, values[1]
        else:
            yield False, state

    def inside(self, state: int) -> Iterator[int]:
        if state == 5:
            yield 6


def read(began: int, ended: int | None, told: int | None = None) -> Operation:
    return Operation(began, ended, ("read",), told)


def swap(began: int, ended: int | None, old: int, new: int, told: bool | None = None) -> Operation:
    return Operation(began, ended, ("swap", old, new), told)


def explained(*history: Operation) -> bool:
    return Search(Cell()).explain(history).complete


def test_one_after_the_other() -> None:
    """Answers in the order of the calls are explained; a read of what was never there, or is gone, is not."""
    assert explained()
    assert explained(swap(1, 2, 0, 3, True), read(3, 4, 3), swap(5, 6, 0, 4, False))
    assert not explained(swap(1, 2, 0, 3, True), read(3, 4, 0))
    assert not explained(read(1, 2, 7))


def test_at_the_same_time() -> None:
    """What overlaps may be put in any order, what was over before something else began may not."""
    assert explained(swap(1, 4, 0, 3, True), read(2, 3, 0), read(5, 6, 3))
    assert explained(swap(1, 4, 0, 3, True), read(2, 3, 3))
    assert not explained(swap(1, 6, 0, 3, True), read(2, 3, 3), read(4, 5, 0))
    assert not explained(swap(1, 4, 0, 3, True), swap(2, 3, 0, 4, True))


def test_an_answer_that_nobody_heard() -> None:
    """It may have been given, at any time behind its call, or never."""
    assert explained(swap(1, None, 0, 3), read(2, 3, 0), read(4, 5, 3), read(6, 7, 3))
    assert explained(swap(1, None, 0, 3), read(2, 3, 0))
    assert not explained(read(1, 2, 3), swap(3, None, 0, 3))
    assert not explained(swap(1, None, 0, 3), read(2, 3, 3), read(4, 5, 0))


def test_steps_of_its_own() -> None:
    """The machine may have gone on by itself between two answers."""
    assert explained(swap(1, 2, 0, 5, True), read(3, 4, 5), read(5, 6, 6))
    assert not explained(swap(1, 2, 0, 5, True), read(3, 4, 6), read(5, 6, 5))


def test_the_smallest_part_without_an_order_is_told() -> None:
    """Of a long history only the answers are shown that contradict each other, and what the machine would have said."""
    noise = [read(100 + 2 * at, 101 + 2 * at, 4) for at in range(8)]
    history = [read(1, 2, 0), swap(3, 8, 0, 3, True), swap(4, 7, 0, 4, True), read(5, 6, 0), *noise]

    left = [operation for operation in smallest(Search(Cell()), history) if operation.ended is not None]

    assert left == [history[1], history[2]]
    with pytest.raises(AssertionError) as caught:
        check(Search(Cell()), history)
    said = str(caught.value)
    assert said.startswith("no order explains what was told here:\n  [  3 to   8]  ('swap', 0, 3) -> True\n  [  4 to   7]")
    assert "the machine would have told\n  False to [  3 to   8]" in said
    assert "100" not in said


def test_it_gives_up() -> None:
    """A search that would take too long ends with an error of its own; it does not say that there is no order."""
    history = [swap(1 + at, 100 + at, at, at + 1, True) for at in range(12)] + [read(1000, 1001, 7)]

    with pytest.raises(Undecided, match="more than 10 states of 13 operations"):
        Search(Cell(), most=10).explain(history)
    assert not Search(Cell()).explain(history).complete


def brute(history: Sequence[Operation]) -> bool:
    """The same by trying everything."""
    heard = [operation for operation in history if operation.ended is not None]
    unheard = [operation for operation in history if operation.ended is None]
    for count in range(len(unheard) + 1):
        for some in itertools.combinations(unheard, count):
            for order in itertools.permutations([*heard, *some]):
                places = {operation.began: place for place, operation in enumerate(order)}
                early = [
                    (one, other)
                    for one, other in itertools.permutations(order, 2)
                    if one.ended is not None and one.ended < other.began and places[one.began] > places[other.began]
                ]
                if not early and possible(order):
                    return True
    return False


def possible(order: Sequence[Operation]) -> bool:
    states = {0}
    for operation in order:
        states |= {6} if 5 in states else set()
        told = [(answer, behind) for state in states for answer, behind in Cell().apply(state, operation)]
        states = {behind for answer, behind in told if operation.ended is None or answer == operation.told}
    return bool(states)


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    count = draw(st.integers(1, 4))
    ends = draw(st.permutations([at for at in range(count) for _ in range(2)]))
    moments: dict[int, list[int]] = {}
    for moment, at in enumerate(ends, 1):
        moments.setdefault(at, []).append(moment)
    number = st.sampled_from([0, 1, 5, 6])
    made: list[Operation] = []
    for began, ended in moments.values():
        heard = draw(st.booleans()) or draw(st.booleans())
        if draw(st.booleans()):
            made.append(read(began, ended if heard else None, draw(number) if heard else None))
        else:
            made.append(swap(began, ended if heard else None, draw(number), draw(number), draw(st.booleans()) if heard else None))
    return made


@given(history=histories())
def test_it_says_the_same_as_trying_everything(history: list[Operation]) -> None:
    """On small histories the search and all permutations agree."""
    assert explained(*history) == brute(history)
