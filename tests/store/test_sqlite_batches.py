"""Many operations in one transaction of a SQLite file: their rows are written together, and what they look at is read ahead."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import pytest

from turnhold.store import base as b
from turnhold.store.memory_core import MemoryCore
from turnhold.store.sqlite_core import SqliteCore
from turnhold.testing.conformance import make
from turnhold.testing.conformance.driver import same

from .driver import Driver

if TYPE_CHECKING:
    from pathlib import Path


class Slow(Driver):
    """A driver for which time mostly stands still, over a memory that keeps what it was asked and what it said."""

    def __init__(self, seed: int) -> None:
        self.said: list[tuple[b.Op, int, b.Reply]] = []
        super().__init__(MemoryCore(), seed=seed)

    async def apply(self, op: b.Op) -> b.Reply:
        reply = await super().apply(op)
        self.said.append((op, self.now, reply))
        return reply

    async def _step(self) -> None:
        before = self.now
        await super()._step()
        if self.random.random() < 0.8:
            self.now = before


def batches(path: Path, seed: int, steps: int, connections: int = 1) -> int:
    """Apply what memory was asked to a file, many in a transaction, by any of its connections; return how many were the most."""
    driver = Slow(seed)
    driver.run(steps, drain=False)
    cores, pick = [SqliteCore.open(path, synchronous="OFF") for _ in range(connections)], random.Random(seed)
    most = 0
    for now, same_time in itertools.groupby(driver.said, lambda said: said[1]):
        group = list(same_time)
        while group:
            count = pick.choice((1, 3, 10, 40))
            some, group = group[:count], group[count:]
            most = max(most, len(some))
            replies = pick.choice(cores).apply_all([op for op, _, _ in some], now)
            for (op, _, told), reply in zip(some, replies, strict=True):
                assert isinstance(reply, b.Reply), (op, reply)
                assert same(told, reply), op
    for core in cores:
        core.close()
    return most


@pytest.mark.parametrize("seed", range(12))
def test_many_in_one_transaction_are_answered_as_one_by_one(tmp_path: Path, seed: int) -> None:
    """What waits to be written, and what was read ahead, is seen by the operations of the same transaction."""
    assert batches(tmp_path / "turns.db", seed, 500) > 9


@pytest.mark.parametrize("seed", range(12))
def test_connections_by_turns_are_answered_as_one(tmp_path: Path, seed: int) -> None:
    """What a connection keeps between its transactions is never older than what another one has written."""
    assert batches(tmp_path / "turns.db", seed, 500, connections=2) > 9


@pytest.mark.deep
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(8000, 8040))
def test_many_in_one_transaction_are_answered_as_one_by_one_for_long(tmp_path: Path, seed: int) -> None:
    """The same, for long."""
    assert batches(tmp_path / "turns.db", seed, 3000, connections=1 + seed % 2) > 9


def test_what_another_connection_writes_is_seen(tmp_path: Path) -> None:
    """Records of turns with an owner are kept between transactions, until somebody else has written to the file."""
    one, two = (SqliteCore.open(tmp_path / "turns.db", synchronous="OFF") for _ in range(2))
    new, by = make.new(), make.by()
    owned = one.apply(b.Create(new=new, claim=by), make.START)
    assert isinstance(owned, b.Claimed)
    token = b.Token(by.activation, owned.epoch)
    assert isinstance(one.apply(make.save(new.turn, token, 0), make.START), b.Saved)
    assert two.apply(b.Abandon(turn=new.turn, token=token), make.START) == b.Done()
    late = one.apply(make.save(new.turn, token, 1), make.START)
    one.close()
    two.close()

    assert late == b.Fenced()


def test_the_time_of_another_connection_is_seen(tmp_path: Path) -> None:
    """No connection falls behind the time that another one has written."""
    one, two = (SqliteCore.open(tmp_path / "turns.db", synchronous="OFF") for _ in range(2))
    said = [core.apply(b.Create(new=make.new()), now) for core, now in ((two, 1_000), (one, 5_000), (two, 2_000), (two, 3_000))]
    one.close()
    two.close()

    assert said == [b.Created(1_000), b.Created(5_000), b.Created(5_000), b.Created(5_000)]


def test_a_transaction_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither its rows, nor what it made of records that were known before."""
    core = SqliteCore.open(tmp_path / "turns.db", synchronous="OFF")
    new, by = make.new(), make.by()
    owned = core.apply(b.Create(new=new, claim=by), make.START)
    assert isinstance(owned, b.Claimed)
    token = b.Token(by.activation, owned.epoch)
    good, bad = make.save(new.turn, token, 0), make.save(new.turn, token, 1, status="\ud800")
    assert isinstance(core.apply_all([good, bad], make.START)[1], UnicodeEncodeError)
    look = core.apply(b.Look(turn=new.turn), make.START)
    again = core.apply(make.save(new.turn, token, 1), make.START)
    core.close()

    assert isinstance(look, b.Looked)
    assert look.version == 1
    assert isinstance(again, b.Saved)
