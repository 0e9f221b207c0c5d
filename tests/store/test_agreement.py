"""Memory, SQLite and Redis are one store to their users: the machine of `agreement.py`, and what it finds."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from turnhold.store import base as b
from turnhold.store import redis_scripts
from turnhold.store.sqlite_core import SqliteCore

from . import agreement
from .agreement import AgreementMachine, Disagreement
from .cores import Memory, Sqlite
from .lua_mutants import MUTANTS, LuaMutant
from .redis_core import RedisCore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..tally import Tally

pytestmark = pytest.mark.redis

SOURCES = redis_scripts.Scripts().sources

DEFAULT = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


def machine_of(folder: Path, client: redis.Redis | None = None) -> type[Any]:
    """Return a machine whose runs begin with empty stores; without a client Redis is not among them."""
    numbers, core = count(), None if client is None else RedisCore(client)

    def cores() -> dict[str, Any]:
        found: dict[str, Any] = {"memory": Memory(), "SQLite": Sqlite(folder / f"{next(numbers)}.db")}
        if core is not None:
            core.clear()
            found["Redis"] = core
        return found

    return type("Stores", (AgreementMachine,), {"cores": staticmethod(cores)})


def test_the_stores_agree(client: redis.Redis, tmp_path: Path) -> None:
    """Every reply of one is that of the others."""
    run_state_machine_as_test(machine_of(tmp_path, client), settings=DEFAULT)


@pytest.mark.deep
@pytest.mark.timeout(3000)
def test_the_stores_agree_for_long(client: redis.Redis, tmp_path: Path, tally: Tally) -> None:
    """The same, for long; and the replies that are rare come up."""
    agreement.COUNTS.clear()
    run_state_machine_as_test(machine_of(tmp_path, client), settings=settings(DEFAULT, max_examples=2 * settings().max_examples))
    tally.update({"examples": 2 * settings().max_examples, "operations on each store": sum(agreement.COUNTS.values())})
    wanted = (
        "Save:Behind Save:Conflict Save:Fenced Claim:Held Claim:NotDue Claim:TooNew Claim:UnknownAgent Create:Busy Create:Queued"
    )
    wanted += " Create:KeyReused Deliver:Claimed Deliver:Closed Deliver:Full Deliver:Known Deliver:Replied Reap:Reaped Prune:Done"
    assert [name for name in wanted.split() if not agreement.COUNTS[name]] == []


def put_in(mutant: LuaMutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(redis_scripts._TEXTS, mutant.script, mutant.applied())
    monkeypatch.setattr(redis_scripts, "_PARTS", redis_scripts._shared_parts())


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_faults_of_scripts_fit(mutant: LuaMutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their texts stand where they are looked for, and a server is given what stands there instead."""
    put_in(mutant, monkeypatch)
    assert redis_scripts.Scripts().sources != SOURCES


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_in_a_script_is_found(
    mutant: LuaMutant, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine finds each, as often as it looks by default, or a few times more."""
    put_in(mutant, monkeypatch)
    search = settings(DEFAULT, max_examples=1500, phases=[Phase.generate], database=None)
    with pytest.raises((Disagreement, redis.ResponseError)):
        run_state_machine_as_test(machine_of(tmp_path, client), settings=search)


# -- it can fail


def forgets_the_queue(reply: Any) -> Any:
    return b.Created(reply.now) if isinstance(reply, b.Queued) else reply


def hides_a_mail(reply: Any) -> Any:
    return msgspec.structs.replace(reply, mail=()) if isinstance(reply, b.Saved | b.Claimed) else reply


def forgets_what_was_said(reply: Any) -> Any:
    return msgspec.structs.replace(reply, entries=()) if isinstance(reply, b.Memory) else reply


FAULTS: list[Callable[[Any], Any]] = [forgets_the_queue, hides_a_mail, forgets_what_was_said]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_store_that_differs_is_found(fault: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And told in operations."""
    apply = SqliteCore.apply
    monkeypatch.setattr(SqliteCore, "apply", lambda self, op, now: fault(apply(self, op, now)))
    search = settings(DEFAULT, max_examples=300, phases=[Phase.generate], database=None, derandomize=True)
    with pytest.raises(Disagreement, match="SQLite: "):
        run_state_machine_as_test(machine_of(tmp_path), settings=search)
