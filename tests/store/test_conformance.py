"""Our own stores hold to what `turnhold.testing.check_store` asks of any; and what it asks is worth its name."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from turnhold.store import base as b
from turnhold.store.memory import MemoryStore
from turnhold.store.memory_core import MemoryCore
from turnhold.store.redis import RedisStore
from turnhold.store.sqlite import SqliteStore
from turnhold.testing import StoreCheck, check_store, checks

from .mutants import MUTANTS, Mutant
from .virtual_redis import VirtualRedisStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class InlineStore(SqliteStore):
    """SQLite as it is used in virtual time."""

    async def connect(self, node: str, bell: b.Bell, clock: Callable[[], int], **more: Any) -> b.StoreConnection:
        return await super().connect(node, bell, clock, inline=True, live=more.get("live"))


SPACES = count()


def on_disk(kind: str, folder: Path) -> Callable[[], b.TurnStore]:
    """Return a function that makes new stores of a kind, in memory or in files."""
    numbers = count()
    if kind == "memory":
        return MemoryStore
    store = InlineStore if kind == "sqlite inline" else SqliteStore
    return lambda: store(folder / f"{next(numbers)}.db", synchronous="normal")


def on_redis(kind: type[RedisStore], url: str, many: int) -> Callable[[], b.TurnStore]:
    """Return a function that gives stores in namespaces of their own; they are made now, for that reads files."""
    return iter([kind(f"{url}?namespace=check{next(SPACES)}") for _ in range(many)]).__next__


@pytest.fixture
def virtual_redis(redis_url: str) -> Callable[[], b.TurnStore]:
    """Redis in our time."""
    return on_redis(VirtualRedisStore, redis_url, 2)


@pytest.fixture
def real_redis(redis_url: str) -> Callable[[], b.TurnStore]:
    """Redis as it is."""
    return on_redis(RedisStore, redis_url, 2 * len(checks()))


STORES = [
    "memory",
    "sqlite",
    pytest.param("sqlite inline", marks=pytest.mark.blocking("inline is meant to use the file on the loop")),
]


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("check", checks(), ids=str)
async def test_our_stores(check: StoreCheck, store: str, tmp_path: Path) -> None:
    """Each store passes each check."""
    assert await check.run(on_disk(store, tmp_path))


@pytest.mark.redis
@pytest.mark.parametrize("check", checks(), ids=str)
async def test_redis(check: StoreCheck, virtual_redis: Callable[[], b.TurnStore]) -> None:
    """So does Redis, where its scripts get our time."""
    assert await check.run(virtual_redis)


@pytest.mark.redis
async def test_redis_by_its_own_clock(real_redis: Callable[[], b.TurnStore]) -> None:
    """And by the server's, all but what moves time."""
    report = await check_store(real_redis)

    assert report.left_out == tuple(check.name for check in checks() if check.timed)


async def test_all_at_once() -> None:
    """The report names every check that ran."""
    report = await check_store(MemoryStore)

    assert report.passed == tuple(check.name for check in checks())
    assert report.left_out == ()


def test_each_check_has_a_name_and_says_what_it_asks() -> None:
    """One name, one line."""
    names = [check.name for check in checks()]

    assert len(set(names)) == len(names)
    assert [check.name for check in checks() if not check.says or "\n" in check.says] == []


# -- a check can fail


def faulty(core: type[Any]) -> Callable[[], b.TurnStore]:
    def make() -> b.TurnStore:
        store = MemoryStore()
        store.core = core()
        return store

    return make


async def first_failed(core: type[Any]) -> str | None:
    for check in checks():
        try:
            await check.run(faulty(core))
        except Exception:
            return check.name
    return None


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
async def test_each_fault_is_caught(mutant: Mutant) -> None:
    """A store with this fault fails a check that is not a random one."""
    failed = await first_failed(mutant.core())

    assert failed is not None
    assert not failed.startswith("random_actors")


class Forgetful(MemoryCore):
    """Answers no message."""

    def put_reply(self, *_: object) -> None:
        """Forget it."""


async def test_a_broken_store_is_told_what_it_breaks() -> None:
    """The message names each failed check with its reason; each has its own exception, with what the check says."""
    with pytest.raises(ExceptionGroup) as caught:
        await check_store(faulty(Forgetful))

    message = str(caught.value)
    assert "a_reply_answers_its_message: expected Found(bodies=(None, b'refused')), found Found(bodies=(None, None))" in message
    assert "mail_comes_once" not in message
    notes = [note for fault in caught.value.exceptions for note in fault.__notes__]
    assert any(note.startswith("check a_reply_answers_its_message: The owner's answer is found") for note in notes)


class ServerTime(MemoryStore):
    """Has a clock of its own."""

    async def connect(self, node: str, bell: b.Bell, clock: Callable[[], int], **more: Any) -> Any:
        return await super().connect(node, bell, lambda: 1_900_000_000_000, **more)


async def test_what_moves_time_is_left_out_where_time_is_not_ours() -> None:
    """And only that; the report says what."""
    report = await check_store(ServerTime)

    assert report.left_out == tuple(check.name for check in checks() if check.timed)
    assert 0 < len(report.left_out) < len(report.passed) / 2


class Deaf(MemoryStore):
    """Rings no bell."""

    async def connect(self, node: str, bell: b.Bell, clock: Callable[[], int], **more: Any) -> Any:
        return await super().connect(node, lambda kind, turn: None, clock, **more)


async def test_a_bell_that_never_rings_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check that listens fails, in bounded time."""
    monkeypatch.setattr("turnhold.testing.conformance.ops.BELL_SECONDS", 0.01)
    failed = []
    for check in checks():
        try:
            await check.run(Deaf)
        except AssertionError as fault:
            failed.append((check.name, "no bell" in str(fault)))

    wanted = ["the_next_turn_rings", "new_turns_ring_for_executors", "mail_rings_for_the_owner", "a_save_rings_for_those_who_watch"]
    assert failed == [(name, True) for name in (*wanted, "a_refused_operation_rings_nothing")]


async def test_a_call_that_never_comes_back_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check is ended and says so."""
    monkeypatch.setattr("turnhold.testing.conformance.check.SECONDS", 0.05)

    async def never(_: Any) -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(AssertionError, match="did not come back"):
        await StoreCheck("never", "Never.", timed=False, body=never).run(MemoryStore)
