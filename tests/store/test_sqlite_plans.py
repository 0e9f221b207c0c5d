"""What the SQLite store asks of the database for conversations: by an index, and nothing where there is no conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from turnhold.store import base as b
from turnhold.store.sqlite_core import SqliteCore
from turnhold.testing.conformance import make

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TALK = "talk"
BESIDE = ("conversations", "queue", "shelves", "memory", "notes")


class Listening:
    """A core that tells which statements it has run."""

    def __init__(self, path: Path) -> None:
        self.core = SqliteCore.open(path, synchronous="OFF")
        self.said: list[str] = []
        self.core.connection.set_trace_callback(self.said.append)

    def __call__(self, op: b.Op) -> Any:
        return self.core.apply(op, make.START)

    def start(self, **more: Any) -> tuple[str, b.Token]:
        new, claim = make.new(**more), make.by()
        return new.turn, b.Token(claim.activation, self(b.Create(new=new, claim=claim)).epoch)

    def plans(self) -> list[tuple[str, str]]:
        """Return each statement with each step of its plan."""
        said, self.said = self.said, []
        self.core.connection.set_trace_callback(None)
        run = self.core.connection.execute
        told = [text for text in said if text.split()[0] in {"SELECT", "UPDATE", "DELETE"}]
        return [(text, row[3]) for text in told for row in run(f"EXPLAIN QUERY PLAN {text}")]


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Listening]:
    core = Listening(tmp_path / "turns.db")
    yield core
    core.core.close()


def test_conversations_are_read_by_indexes(core: Listening) -> None:
    """Nothing looks through all turns, all conversations, or all entries of one; clearing alone touches each entry."""
    turn, token = core.start(conversation=TALK)
    rows = tuple(b.MemoryRow(name, b"body") for name in "abc")
    ops: list[b.Op] = [
        *(b.Create(new=make.new(conversation=TALK), when_busy="queue") for _ in range(2)),
        b.Create(new=make.new(conversation=TALK), when_busy="supersede", cause="newer"),
        b.ListQueue(conversation=TALK),
        make.save(turn, token, 0, conversation=TALK, memory=rows, relay=True),
        make.save(turn, token, 1, b.Mode.END, conversation=TALK, memory=(*rows, b.MemoryRow("a", b"new")), relay=True),
        b.WriteMemory(conversation=TALK, row=b.MemoryRow("d", b"body")),
        b.ReadMemory(conversation=TALK, before="c", shown=True),
        b.FindMemory(conversation=TALK, ids=("a", "b")),
        b.ReadRelay(conversation=TALK),
        b.Relays(before=make.START),
        b.Relayed(conversation=TALK, change=make.START + 1),
        b.WriteNote(conversation=TALK, name="n", body=b"note", expected=0),
        b.ReadNote(conversation=TALK, name="n"),
    ]
    for op in ops:
        assert not isinstance(core(op), b.Fenced | b.Behind | b.Conflict | b.Busy)

    plans = core.plans()
    plans = [(text, step) for text, step in plans if step != "SCAN v" and "CONSTANT ROW" not in step]  # values in a statement
    assert [(text, step) for text, step in plans if "SCAN" in step or "memory USING PRIMARY KEY (shelf=?)" in step] == []
    assert {index for index in ("memory_entry", "memory_waits", "shelves_since") if any(index in step for _, step in plans)} == {
        "memory_entry",
        "memory_waits",
        "shelves_since",
    }


def test_without_a_conversation_nothing_is_asked(core: Listening) -> None:
    """A turn that starts, waits, gets mail, is cancelled and ends touches none of the tables of conversations."""
    turn, token = core.start()
    core(make.save(turn, token, 0, b.Mode.SUSPEND))
    claim = make.by()
    owned = core(b.Deliver(turn=turn, mail=make.mail("m1"), claim=claim))
    token = b.Token(claim.activation, owned.epoch)
    core(make.save(turn, token, 1, b.Mode.SUSPEND, consumed=("m1",)))
    owned = core(b.Cancel(turn=turn, cause="stop", claim=claim))
    core(make.save(turn, b.Token(claim.activation, owned.epoch), 2, b.Mode.END))

    assert core(b.Look(turn=turn)).state == "T"
    assert [text for text in core.said for table in BESIDE if f" {table}" in text] == []


def test_a_turn_that_had_an_owner_is_not_looked_for_in_the_queue(core: Listening) -> None:
    """Mail and cancels to a turn that waits ask nothing of its conversation."""
    turn, token = core.start(conversation=TALK)
    core(make.save(turn, token, 0, b.Mode.SUSPEND))
    core.said.clear()
    claim = make.by()
    owned = core(b.Deliver(turn=turn, mail=make.mail("m1"), claim=claim))
    core(make.save(turn, b.Token(claim.activation, owned.epoch), 1, b.Mode.SUSPEND, consumed=("m1",)))
    core(b.Cancel(turn=turn, cause="stop"))

    assert core(b.Look(turn=turn)).state == "R"
    assert [text for text in core.said for table in BESIDE if f" {table}" in text] == []
