"""Stored values that are well formed and make no sense, and what comes over a wire: a typed error, a parked turn, or a value."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnhold import (
    Agent,
    AnswerPending,
    FormDefinition,
    InvalidDefinition,
    ModelError,
    ResumeCommand,
    Runtime,
    SnapshotCorrupt,
    Status,
    ToolContext,
    TurnholdError,
    TurnRef,
    tool,
)
from turnhold.actors.history import readable
from turnhold.actors.machine.draft import Context
from turnhold.actors.machine.handle import handle
from turnhold.actors.machine.messages import Activated
from turnhold.actors.stream import Accumulator
from turnhold.actors.turn import SCHEMA
from turnhold.actors.view import view_of
from turnhold.models import anthropic, anthropic_wire, openai, openai_wire
from turnhold.runtime import actor, inputs
from turnhold.runtime.runtime import node_of
from turnhold.store import base, codec
from turnhold.store.memory import MemoryStore
from turnhold.store.records import MemoryEntry
from turnhold.store.urls import open_store
from turnhold.testing import ScriptedModel, VirtualClock, call
from turnhold.testing.loop import VirtualLoop

from .bending import FOREIGN, LISTS, TURNS, bent, packed

SETTINGS = node_of(Runtime()).settings
SEEDS = st.integers(0, 1 << 32).map(random.Random)

# ------------------------------------------------------------------------------------------------------ what is decoded


def state_at_work(turn: str, body: bytes) -> None:
    """A snapshot that can be read can be looked at, taken over and stored."""
    state = codec.decode_state(turn, SCHEMA, body)
    view_of(state, version=1).to_json()
    draft = handle(state, [Activated()], Context(now=state.updated_at + 1, activation="new", execute=False))
    view_of(draft.state, version=2).to_json()
    codec.encode_state(draft.state, 1 << 20)


def events_at_work(turn: str, body: bytes) -> None:
    for event in codec.decode_events(codec.EventSource(turn, None, "a", "1"), 1, 1, body):
        event.to_json()


def remembered(_: str, body: bytes) -> None:
    codec.decode_remembered(MemoryEntry("m", body, shown=True, place=1, version=0, change=1, at=0)).to_json()


READERS: dict[str, Any] = {
    "snapshot": state_at_work,
    "history": lambda turn, body: readable(codec.decode_entries(turn, [body])),
    "events": events_at_work,
    "waits": lambda turn, body: codec.decode_suspension(turn, body).to_json(),
    "receipts": lambda turn, body: codec.decode_receipt(turn, body).to_json(),
    "mail": codec.decode_mail,
    "outcomes": codec.decode_outcome,
    "memory": remembered,
}


def bodies(kind: str) -> list[tuple[str, bytes]]:
    if kind in LISTS:
        return [("t", body) for body in LISTS[kind]]
    if kind == "snapshot":
        return [(rows["turn"], rows["snapshot"]) for rows in TURNS.values()]
    return [(rows["turn"], each[3] if kind == "events" else each) for rows in TURNS.values() for each in rows[kind]]


@pytest.mark.parametrize("kind", READERS)
@settings(max_examples=60)
@given(chance=SEEDS)
def test_bent_values(kind: str, chance: random.Random) -> None:
    """Fields of wrong types, out of range, moved, doubled or missing are `SnapshotCorrupt`, or can be worked with."""
    turn, body = chance.choice(bodies(kind))

    with contextlib.suppress(SnapshotCorrupt):
        READERS[kind](turn, packed(chance, body))


@pytest.mark.parametrize("at", [-1, 253_402_300_800_000, 2**63])
def test_events_out_of_time(at: int) -> None:
    """A time that no calendar has is corrupt, not an error of the calendar's."""
    with pytest.raises(SnapshotCorrupt):
        events_at_work("t", msgspec.msgpack.encode([["STEP_STARTED", at, {}]]))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ending": Status.RUNNING}, "about to end as RUNNING"),
        ({"cancel_at": 1}, "has taken a cancel"),
        ({"turn": "another"}, "a wait of another turn"),
        ({"wait": "x"}, "a wait of another turn"),
    ],
)
def test_states_that_no_release_has_stored(changes: dict[str, Any], words: str) -> None:
    """Fields that are well formed each, and together leave a turn that nobody could end, are corrupt."""
    rows = TURNS["approval"]
    state = codec.decode_state(rows["turn"], SCHEMA, rows["snapshot"])
    (wait,) = state.waits
    for name, value in changes.items():
        if name in ("turn", "wait"):
            state.waits = (msgspec.structs.replace(wait, id=value if name == "wait" else f"{value}/c/1"),)
        else:
            setattr(state, name, value)

    with pytest.raises(SnapshotCorrupt, match=words):
        codec.decode_state(rows["turn"], SCHEMA, codec.encode_state(state, 1 << 20))


# ----------------------------------------------------------------------------------------------------- a turn that has it


FORM = FormDefinition("f", description="a form", schema={"type": "object"}, expires_in=40)


@tool(approval=True)
async def refund(amount: int = 0) -> str:
    """Refund an amount."""
    return "ok"


@tool
async def ask() -> str:
    """Ask for a form."""
    return str(ToolContext.current().form(FORM))


def shop() -> Agent:
    return Agent("shop", model=ScriptedModel([call("refund", amount=1), call("ask")], "done"), tools=[refund, ask])


async def bend(chance: random.Random, kind: str, store: MemoryStore, runtime: Runtime, turn: TurnRef) -> None:
    """Change something behind the runtime's back."""
    record = store.core._turns[turn.id]
    if kind == "snapshot":
        for _ in range(20):
            body = packed(chance, record.snapshot)
            with contextlib.suppress(SnapshotCorrupt):
                codec.decode_state(turn.id, SCHEMA, body)
                record.snapshot = body
                return
    elif kind == "history":
        record.history[0] = packed(chance, record.history[0])
    elif kind == "mail":
        body = packed(chance, chance.choice(LISTS["mail"])).replace(b"00-" + b"a" * 26, turn.id.encode())
        await runtime._node.call(base.Deliver(turn=turn.id, mail=base.Mail("m", body, "c", None)))
    elif kind == "outcomes":
        runtime._node.new_id = lambda: "m"
        store.core._trees[turn.id].replies["m"] = packed(chance, chance.choice(LISTS["outcomes"]))
    else:
        receipts = store.core._trees[turn.id].receipts
        for key in [key for key in receipts if not key.startswith("call ")]:
            receipts[key] = packed(chance, receipts[key])


async def live(chance: random.Random, kind: str, clock: VirtualClock) -> None:
    store = MemoryStore()
    async with Runtime(store, agents=[shop()], clock=clock, lease=10, drain=0) as runtime:
        turn = await runtime.start("shop", "hi")
        await turn.settle(5)
        if kind == "receipts":
            await turn.submit(ResumeCommand.approve_tool("call_1_0", command_id="c1"))
            await clock.advance(1)
        await bend(chance, kind, store, runtime, turn)
        wait = f"{turn.id}/call_1_0/1"
        for command in (ResumeCommand.approve_tool("call_1_0", command_id="c1"), ResumeCommand.reject_tool(wait, command_id="c2")):
            with contextlib.suppress(TurnholdError):
                await turn.submit(command, timeout=3)
        await clock.advance(100)
        claims = runtime.statistics().claims
        await clock.advance(100)
        assert runtime.statistics().claims - claims < 8, "it is taken up again and again"
        for look in (turn.view, turn.history, runtime.turns, runtime.inbox):
            with contextlib.suppress(TurnholdError):
                await look()
        with contextlib.suppress(TimeoutError):
            await turn.cancel(timeout=20)
        view = await turn.view()
        assert view.status.terminal or view.quarantine is not None, f"nobody can end it: {view}"


def lived(chance: random.Random, kind: str) -> None:
    clock = VirtualClock(seed=0)
    loop = VirtualLoop(clock, limit=None)
    reached: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: reached.append(context))
    try:
        loop.run_until_complete(live(chance, kind, clock))
    finally:
        loop.close()
    assert reached == []


@pytest.mark.parametrize("kind", ["snapshot", "history", "mail", "outcomes", "receipts"])
@settings(max_examples=12)
@given(chance=SEEDS)
def test_turns_over_bent_values(kind: str, chance: random.Random) -> None:
    """Who asks gets a typed error; the turn ends, or is parked where somebody can discard it; it is never taken up without end."""
    lived(chance, kind)


@pytest.mark.deep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["snapshot", "history", "mail", "outcomes", "receipts"])
@given(chance=SEEDS)
def test_turns_over_bent_values_long(kind: str, chance: random.Random) -> None:
    """The same, long."""
    lived(chance, kind)


@pytest.mark.blocking("the log shows a traceback with its source")
async def test_a_state_that_the_machine_cannot_work_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where even failing the turn fails, it is parked, not taken up again and again; and it can be discarded."""

    def broken(*_: Any) -> Any:
        raise LookupError("no release has stored this")

    clock, store = VirtualClock(), MemoryStore()
    async with Runtime(store, agents=[shop()], clock=clock, lease=10, drain=0) as runtime:
        turn = await runtime.start("shop", "hi")
        await clock.idle()
        (wait, _) = (await turn.view()).open_waits
        monkeypatch.setattr(actor, "handle", broken)

        with pytest.raises(AnswerPending):
            await turn.submit(ResumeCommand.approve_tool(wait), timeout=0)
        await clock.advance(60)

        view = await turn.view()
        assert view.quarantine is not None
        assert "cannot be worked with: LookupError" in view.quarantine.reason
        work = asyncio.ensure_future(turn.cancel(timeout=5))
        await clock.advance(600)
        with pytest.raises(TimeoutError):
            await work
        assert runtime.statistics().claims < 6
        await turn.discard("beyond repair")
        assert (await turn.view()).status.terminal


# -------------------------------------------------------------------------------------------------------------- the wires

CHAT = {
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"content": "x", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
            "delta": {
                "content": [{"text": "a"}],
                "reasoning": "r",
                "tool_calls": [{"function": {"name": "g", "arguments": {"a": 1}}}],
            },
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
}
MESSAGE = {
    "type": "message",
    "content": [
        {"type": "text", "text": "x"},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
        {"type": "thinking", "thinking": "t", "signature": "s"},
        {"type": "redacted_thinking", "data": "d"},
    ],
    "stop_reason": "max_tokens",
    "usage": {"input_tokens": 1},
}
EVENTS = (
    {"type": "message_start", "message": {"usage": {"input_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a":'}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "thinking", "thinking": "t", "signature": "s"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 3}},
    {"type": "error", "error": {"type": "overloaded_error", "message": "m"}},
)


def folded(reader: Any, pieces: list[Any]) -> Any:
    whole = Accumulator()
    for piece in pieces:
        whole.add(reader.read(piece))
    whole.add(reader.end())
    return whole.message()


WIRES: dict[str, Any] = {
    "chat completions, whole": (openai._border, lambda chance: openai_wire.whole_reply(bent(chance, CHAT, FOREIGN))),
    "chat completions, streamed": (
        openai._border,
        lambda chance: folded(openai_wire.Reader(), [bent(chance, CHAT, FOREIGN) for _ in range(3)]),
    ),
    "messages, whole": (anthropic._border, lambda chance: anthropic_wire.whole_reply(bent(chance, MESSAGE, FOREIGN), "m")),
    "messages, streamed": (
        anthropic._border,
        lambda chance: folded(anthropic_wire.Reader("m"), [bent(chance, chance.choice(EVENTS), FOREIGN) for _ in range(6)]),
    ),
}


@pytest.mark.parametrize("wire", WIRES)
@settings(max_examples=60)
@given(chance=SEEDS)
def test_bent_replies(wire: str, chance: random.Random) -> None:
    """Whatever a provider sends is a `ModelError`, or a message; one whose calls can be stored, unless the runtime says why not."""
    border, read = WIRES[wire]
    reply = None

    with contextlib.suppress(ModelError), border():
        reply = read(chance)
    if reply is not None:
        with contextlib.suppress(InvalidDefinition):
            inputs.checked_message("reply", reply, SETTINGS)


PIECES = (
    *(
        "redis://",
        "rediss://",
        "redis+cluster://",
        "unix://",
        "sqlite:",
        "sqlite:///",
        "memory://",
        "host",
        "[::1",
        "[::1]",
        "[",
        "]",
    ),
    *("6379", "99999", "-1", "/", "?", "&", "=", "%", "%00", "%ff", "%zz", "namespace", "synchronous", "full", "socket_timeout"),
    *("\ud800", "\0", "\n", ":", "@", " ", "é", "#", "..", "a" * 300, "db", "1e9", "ssl_cert_reqs", "username", "\u2028"),
)


@settings(max_examples=150)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=8))
def test_urls(pieces: list[str]) -> None:
    """A text is the URL of a store, or an `InvalidDefinition`."""
    with contextlib.suppress(InvalidDefinition):
        open_store("".join(pieces))
