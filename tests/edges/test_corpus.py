"""What earlier releases have stored can be read for good; what has been cut or bent is a typed error and nothing else."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnhold import SnapshotCorrupt, SnapshotTooNew
from turnhold.actors.history import readable, unanswered
from turnhold.actors.machine.draft import Context
from turnhold.actors.machine.handle import handle
from turnhold.actors.machine.messages import Activated
from turnhold.actors.turn import SCHEMA, TurnState
from turnhold.actors.view import view_of
from turnhold.store import codec
from turnhold.store.records import MemoryEntry

CORPUS = Path(__file__).parent / "corpus"
TURNS = sorted(path.stem for path in CORPUS.glob("*.turn"))
LARGE = 1 << 20
each_turn = pytest.mark.parametrize("name", TURNS)
fuzzed = st.randoms(use_true_random=False)


def load(name: str) -> dict[str, Any]:
    return msgspec.msgpack.decode((CORPUS / f"{name}.turn").read_bytes())


def state_of(rows: dict[str, Any]) -> TurnState:
    return codec.decode_state(rows["turn"], rows["schema"], rows["snapshot"])


def within(expected: Any, found: Any) -> bool:
    """Tell whether all that was known is still there; a later release may know more."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(key in found and within(value, found[key]) for key, value in expected.items())
    if isinstance(expected, list):
        return isinstance(found, list) and len(expected) == len(found) and all(map(within, expected, found))
    return expected == found


def test_the_corpus_is_there() -> None:
    """A state that can be stored has its file."""
    assert len(TURNS) >= 20
    assert {state_of(load(name)).status.value for name in TURNS} >= {
        *("READY", "RUNNING", "WAITING_FOR_USER", "WAITING_FOR_APPROVAL", "WAITING_FOR_CHILD", "RETRY_SCHEDULED", "IN_DOUBT"),
        *("COMPLETED", "FAILED", "CANCELLED", "MAX_ITERATIONS_REACHED", "MAX_STEPS_REACHED", "BUDGET_EXCEEDED"),
    }


@each_turn
def test_snapshots(name: str) -> None:
    """A stored turn looks as it did, is the same when it is stored again, and can be taken over."""
    rows = load(name)
    state = state_of(rows)
    expected = json.loads((CORPUS / f"{name}.json").read_text())

    assert within(expected, view_of(state, version=1).to_dict())
    assert codec.decode_state(rows["turn"], SCHEMA, codec.encode_state(state, LARGE)) == state
    codec.check_counts(state, len(rows["history"]), sum(batch[1] for batch in rows["events"]))
    handle(state, [Activated()], Context(now=state.updated_at + 1, activation="new", execute=False))


@each_turn
def test_what_lies_beside(name: str) -> None:
    """History, events, waits and receipts can be read, and name the same turn."""
    rows = load(name)
    turn, state = rows["turn"], state_of(rows)
    source = codec.EventSource(turn, None, state.agent_id, state.agent_version)

    messages = readable(codec.decode_entries(turn, rows["history"]))
    events = [event for first, _, epoch, body in rows["events"] for event in codec.decode_events(source, first, epoch, body)]
    waits = [codec.decode_suspension(turn, body) for body in rows["waits"]]
    receipts = [codec.decode_receipt(turn, body) for body in rows["receipts"]]

    assert [event.sequence for event in events] == list(range(1, state.event_count + 1))
    assert {wait.turn_id for wait in waits} <= {turn}
    assert all(receipt.turn_id.startswith(turn) for receipt in receipts)
    if state.status.terminal:
        assert unanswered(messages) == []


def remembered(_: str, body: bytes) -> Any:
    entry = MemoryEntry("m", body, shown=True, place=1, version=0, change=1, at=0)
    return codec.decode_remembered(entry).message


@pytest.mark.parametrize(
    ("name", "decode"), [("mail", codec.decode_mail), ("outcomes", codec.decode_outcome), ("memory", remembered)]
)
def test_messages_and_answers(name: str, decode: Any) -> None:
    """Every kind of message and of answer that may lie in a store can be read."""
    bodies = msgspec.msgpack.decode((CORPUS / f"{name}.list").read_bytes())
    expected = json.loads((CORPUS / f"{name}.json").read_text())

    found = [decode("t", body) for body in bodies]

    assert len(found) == len(expected)
    for known, item in zip(expected, found, strict=True):
        assert within(known, msgspec.json.decode(msgspec.json.encode(item)))


# ------------------------------------------------------------------------------------------------------------- bent ones


@each_turn
def test_cut_off(name: str) -> None:
    """A snapshot that ends early, anywhere, is corrupt; so is one with something behind it."""
    rows = load(name)

    for size in range(len(rows["snapshot"])):
        with pytest.raises(SnapshotCorrupt):
            codec.decode_state(rows["turn"], SCHEMA, rows["snapshot"][:size])
    with pytest.raises(SnapshotCorrupt):
        codec.decode_state(rows["turn"], SCHEMA, rows["snapshot"] + b"\0")


@each_turn
@settings(max_examples=100)
@given(random=fuzzed, count=st.integers(1, 6))
def test_bent(name: str, random: Any, count: int) -> None:
    """Bytes that were changed either make it corrupt, or a turn that can be looked at and stored."""
    rows = load(name)
    body = bytearray(rows["snapshot"])
    for _ in range(count):
        body[random.randrange(len(body))] = random.randrange(256)

    try:
        state = codec.decode_state(rows["turn"], SCHEMA, bytes(body))
    except SnapshotCorrupt:
        return
    view_of(state, version=1).to_json()
    codec.encode_state(state, LARGE)


DECODERS: dict[str, Any] = {
    "snapshot": lambda body: codec.decode_state("t", SCHEMA, body),
    "entry": lambda body: codec.decode_entries("t", [body]),
    "events": lambda body: codec.decode_events(codec.EventSource("t", None, "a", "1"), 1, 1, body),
    "mail": lambda body: codec.decode_mail("t", body),
    "outcome": lambda body: codec.decode_outcome("t", body),
    "receipt": lambda body: codec.decode_receipt("t", body),
    "suspension": lambda body: codec.decode_suspension("t", body),
}


@pytest.mark.parametrize("decode", list(DECODERS.values()), ids=list(DECODERS))
@given(body=st.binary(max_size=200))
def test_noise(decode: Any, body: bytes) -> None:
    """Noise is a typed error, whatever it was meant to be."""
    with pytest.raises(SnapshotCorrupt):
        decode(body)


@pytest.mark.parametrize("decode", list(DECODERS.values()), ids=list(DECODERS))
@pytest.mark.parametrize(
    "body",
    [b"\x91" * 100_000, b"\x81\xa1a" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc1"],
    ids=["deep lists", "deep dicts", "a list of 4 billion", "a dict of 4 billion", "4 GB of bytes", "no type"],
)
def test_bombs(decode: Any, body: bytes) -> None:
    """Neither depth nor an announced size costs more than an error."""
    with pytest.raises(SnapshotCorrupt):
        decode(body)


@pytest.mark.parametrize("kind", ["mail", "outcomes"])
@settings(max_examples=200)
@given(random=fuzzed)
def test_bent_messages(kind: str, random: Any) -> None:
    """A message or an answer that was changed is one, or is corrupt."""
    bodies = msgspec.msgpack.decode((CORPUS / f"{kind}.list").read_bytes())
    body = bytearray(random.choice(bodies))
    body[random.randrange(len(body))] = random.randrange(256)

    with contextlib.suppress(SnapshotCorrupt):
        (codec.decode_mail if kind == "mail" else codec.decode_outcome)("t", bytes(body))


def test_a_newer_schema() -> None:
    """A snapshot of a newer release is told apart from a corrupt one, without looking into it."""
    with pytest.raises(SnapshotTooNew) as caught:
        codec.decode_state("t", SCHEMA + 1, b"anything")

    assert (caught.value.schema, caught.value.known) == (SCHEMA + 1, SCHEMA)


def test_a_snapshot_of_another_turn() -> None:
    """A snapshot under the wrong name is corrupt."""
    rows = load("approval")

    with pytest.raises(SnapshotCorrupt, match="it is of turn"):
        codec.decode_state("another", SCHEMA, rows["snapshot"])
