"""Between records and bytes: msgpack by msgspec. What cannot be read is left alone and named.

Evolution: fields are appended with defaults, tags are never reused; a change that an older release would misread raises `SCHEMA`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from operator import ne
from typing import TypeVar

import msgspec

from ..actors.cards import Card, FormMessage
from ..actors.chat import HistoryEntry, ToolCall
from ..actors.errors import SnapshotCorrupt, SnapshotTooLarge, SnapshotTooNew
from ..actors.events import Event, EventType, RawEvent, told
from ..actors.ids import is_turn_id, root_of, turn_of_wait
from ..actors.machine.draft import DEFAULT_POLICY, Outcome
from ..actors.machine.messages import MailMessage
from ..actors.memory import MemoryMessage, Remembered
from ..actors.policies import ExecutionPolicy
from ..actors.record import JsonObject, Time, utc
from ..actors.turn import SCHEMA, Ms, TurnState
from ..actors.waits import Phase, Receipt, Suspension, SuspensionType
from .records import MemoryEntry

T = TypeVar("T")
UNREADABLE = (msgspec.DecodeError, ValueError, TypeError, OverflowError, RecursionError)


def _refused(code: int, data: memoryview) -> object:
    """Refuse what no release of ours has written."""
    raise ValueError(f"an extension of type {code}")


class StoredEvent(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """An event of a save, as `RawEvent`; what the first releases have stored has no step."""

    type: EventType
    at: Ms
    data: JsonObject
    step: int = 0


_encode = msgspec.msgpack.Encoder().encode
_state = msgspec.msgpack.Decoder(TurnState, ext_hook=_refused)
_entry = msgspec.msgpack.Decoder(HistoryEntry, ext_hook=_refused)
_events = msgspec.msgpack.Decoder(list[StoredEvent], ext_hook=_refused)
_raw = msgspec.msgpack.Decoder(list[msgspec.Raw])
_mail = msgspec.msgpack.Decoder(MailMessage, ext_hook=_refused)
_outcome = msgspec.msgpack.Decoder(Outcome, ext_hook=_refused)
_receipt = msgspec.msgpack.Decoder(Receipt, ext_hook=_refused)
_suspension = msgspec.msgpack.Decoder(Suspension, ext_hook=_refused)
_remembered = msgspec.msgpack.Decoder(Remembered, ext_hook=_refused)


class StoredWait(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """An open wait in the indexes: a `Suspension` without what its id says (`turn`, `root`), or what is usual."""

    id: str
    type: SuspensionType
    agent: str
    created_at: Time
    correlation_id: str | None = None
    call: ToolCall | None = None
    message: str | None = None
    metadata: JsonObject = {}
    assignee: str | None = None
    expires_at: Time | None = None
    tenant: str | None = None
    conversation: str | None = None
    form_key: str | None = None
    schema: JsonObject | None = None
    phase: Phase = Phase.TOOLS
    ancestors: tuple[str, ...] = ()
    turn: str | None = None
    root: str | None = None


_MAPS = frozenset({bytes([first]) for first in (*range(0x80, 0x90), 0xDE, 0xDF)})
_USUAL: tuple[object, ...] = StoredWait.__struct_defaults__[::-1]
_wait = msgspec.msgpack.Decoder(StoredWait, ext_hook=_refused)


class LiveEvent(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """An event that is not stored, on its way to the watchers of other nodes; `at` is store time in milliseconds."""

    turn_id: str
    parent_turn_id: str | None
    agent_id: str
    agent_version: str
    type: EventType
    at: int
    data: JsonObject
    epoch: int


_live = msgspec.msgpack.Decoder(LiveEvent, ext_hook=_refused)


def encode_state(state: TurnState, limit: int) -> bytes:
    """Encode a snapshot. :raises SnapshotTooLarge: if it has more than `limit` bytes."""
    data = _encode(state)
    if len(data) > limit:
        raise SnapshotTooLarge("snapshot", len(data), limit)
    return data


def decode_state(turn_id: str, schema: int, data: bytes) -> TurnState:
    """Decode a snapshot.

    :raises SnapshotTooNew: if a newer release wrote it.
    :raises SnapshotCorrupt: if it cannot be read.
    """
    if schema > SCHEMA:
        raise SnapshotTooNew(turn_id, schema, SCHEMA)
    state = _decode(_state, turn_id, data)
    if state.turn_id != turn_id:
        raise SnapshotCorrupt(turn_id, f"it is of turn {state.turn_id!r}")
    if (reason := _nonsense(state)) is not None:
        raise SnapshotCorrupt(turn_id, reason)
    return state


def _nonsense(state: TurnState) -> str | None:
    """Say what no release can have stored although each field of it is well formed, and nobody could go on with."""
    if state.ending is not None and not state.ending.terminal:
        return f"it is about to end as {state.ending.value}"
    if state.cancel_at and state.ending is None and not state.status.terminal:
        return "it has taken a cancel, and does not end"
    for wait in state.waits:
        if not wait.id.startswith(f"{state.turn_id}/") or wait.id.count("/") < 2:
            return "it has a wait of another turn"
    return None


def check_counts(state: TurnState, messages: int, events: int) -> None:
    """Check that a snapshot belongs to its history and events. :raises SnapshotCorrupt: if it does not."""
    found = (state.message_count, state.event_count)
    if found != (messages, events):
        raise SnapshotCorrupt(state.turn_id, f"it counts {found} messages and events, the store {(messages, events)}")


def encode_entries(entries: Sequence[HistoryEntry], limit: int) -> tuple[bytes, ...]:
    """Encode history entries. :raises SnapshotTooLarge: if one has more than `limit` bytes."""
    bodies = tuple(map(_encode, entries))
    for body in bodies:
        if len(body) > limit:
            raise SnapshotTooLarge("message", len(body), limit)
    return bodies


def decode_entries(turn_id: str, bodies: Sequence[bytes]) -> list[HistoryEntry]:
    """Decode history entries. :raises SnapshotCorrupt: if one cannot be read."""
    try:
        return list(map(_entry.decode, bodies))
    except UNREADABLE as error:
        raise SnapshotCorrupt(turn_id, str(error)) from error


def encode_events(events: Sequence[RawEvent]) -> bytes:
    """Encode the events of one save together; what all share is taken from the record again."""
    return _encode(events) if events else b""


def join_events(bodies: Sequence[bytes]) -> bytes:
    """Join the events of several saves into those of one, untouched and in order."""
    return _encode([event for body in bodies if body for event in _raw.decode(body)]) if any(bodies) else b""


def decode_events(state: EventSource, first: int, epoch: int, body: bytes) -> list[Event]:
    """Decode the events of one save, numbered from `first`. :raises SnapshotCorrupt: if they are none that was stored."""
    events = _decode(_events, state.turn_id, body)
    if not events:
        raise SnapshotCorrupt(state.turn_id, "a batch of no events")
    return [
        event_of(state, each.type, each.at, each.data, each.step, sequence, epoch) for sequence, each in enumerate(events, first)
    ]


class EventSource(msgspec.Struct, gc=False, frozen=True):
    """What all events of a turn share; `policy` is absent where it is not known, or told already."""

    turn_id: str
    parent_turn_id: str | None
    agent_id: str
    agent_version: str
    policy: ExecutionPolicy | None = None


def source_of(state: TurnState) -> EventSource:
    """Return what all events of a turn share."""
    policy = state.policy or DEFAULT_POLICY
    return EventSource(state.turn_id, state.parent_turn_id, state.agent_id, state.agent_version, policy)


def event_of(
    source: EventSource,
    type: EventType,
    at: int | datetime,
    data: JsonObject,
    step: int | None,
    sequence: int = 0,
    epoch: int = 0,
) -> Event:
    """Return an event of a turn.

    :param step: the number of the step it happened in; `None` where the data says all already.
    :param sequence: 0 makes it a live one.
    """
    return Event(
        turn_id=source.turn_id,
        root_turn_id=root_of(source.turn_id),
        parent_turn_id=source.parent_turn_id,
        agent_id=source.agent_id,
        agent_version=source.agent_version,
        sequence=sequence,
        type=type,
        at=at if isinstance(at, datetime) else utc(at),
        data=data if step is None else told(type, data, step, source.policy),
        durable=sequence > 0,
        epoch=epoch,
    )


def encode_live(event: Event) -> bytes:
    """Encode a live event. :raises ValueError, TypeError, OverflowError, RecursionError: if its data is nothing that is stored."""
    at = round(event.at.timestamp() * 1000)
    source = (event.turn_id, event.parent_turn_id, event.agent_id, event.agent_version)
    return _encode(LiveEvent(*source, event.type, at, event.data, event.epoch))


def decode_live(root: str, body: bytes) -> Event:
    """Decode a live event of a tree. :raises SnapshotCorrupt: if it cannot be read, or is of another tree."""
    live = _decode(_live, root, body)
    source = EventSource(live.turn_id, live.parent_turn_id, live.agent_id, live.agent_version)
    try:
        event = event_of(source, live.type, live.at, live.data, None, epoch=live.epoch)
    except (ValueError, OverflowError, OSError) as error:
        raise SnapshotCorrupt(root, f"a time of {live.at} ms") from error
    if event.root_turn_id != root or not is_turn_id(event.turn_id):
        raise SnapshotCorrupt(root, f"an event of turn {live.turn_id!r}")
    return event


def encode_mail(message: MailMessage, limit: int) -> bytes:
    """Encode a message. :raises SnapshotTooLarge: if it has more than `limit` bytes."""
    data = _encode(message)
    if len(data) > limit:
        raise SnapshotTooLarge("message", len(data), limit)
    return data


def decode_mail(turn_id: str, data: bytes) -> MailMessage:
    """Decode a message. :raises SnapshotCorrupt: if it cannot be read."""
    return _decode(_mail, turn_id, data)


def encode_outcome(outcome: Outcome) -> bytes:
    """Encode the answer to a message."""
    return _encode(outcome)


def decode_outcome(turn_id: str, data: bytes) -> Outcome:
    """Decode the answer to a message. :raises SnapshotCorrupt: if it cannot be read."""
    return _decode(_outcome, turn_id, data)


def encode_receipt(receipt: Receipt) -> bytes:
    """Encode a receipt."""
    return _encode(receipt)


def decode_receipt(turn_id: str, data: bytes) -> Receipt:
    """Decode a receipt. :raises SnapshotCorrupt: if it cannot be read."""
    return _decode(_receipt, turn_id, data)


def encode_suspension(suspension: Suspension) -> bytes:
    """Encode an open wait for the indexes."""
    turn, root = turn_of_wait(suspension.id), root_of(suspension.turn_id)
    values = (  # in the order of a StoredWait
        suspension.id,
        suspension.type,
        suspension.agent_id,
        suspension.created_at,
        suspension.correlation_id,
        suspension.call,
        suspension.message,
        suspension.metadata,
        suspension.assignee,
        suspension.expires_at,
        suspension.tenant,
        suspension.conversation_id,
        suspension.form_key,
        suspension.schema,
        suspension.resume_phase,
        suspension.ancestors,
        None if suspension.turn_id == turn else suspension.turn_id,
        None if suspension.root_turn_id == root else suspension.root_turn_id,
    )
    usual = [*map(ne, values[::-1], _USUAL), True].index(True)
    return _encode(values[: len(values) - usual])


def decode_suspension(turn_id: str, data: bytes) -> Suspension:
    """Decode an open wait. :raises SnapshotCorrupt: if it cannot be read."""
    if data[:1] in _MAPS:  # as it was stored at first
        return _decode(_suspension, turn_id, data)
    wait = _decode(_wait, turn_id, data)
    turn = wait.turn or turn_of_wait(wait.id)
    return Suspension(
        id=wait.id,
        type=wait.type,
        turn_id=turn,
        root_turn_id=wait.root or root_of(turn),
        agent_id=wait.agent,
        conversation_id=wait.conversation,
        tenant=wait.tenant,
        correlation_id=wait.correlation_id,
        call=wait.call,
        message=wait.message,
        form_key=wait.form_key,
        schema=wait.schema,
        resume_phase=wait.phase,
        assignee=wait.assignee,
        metadata=wait.metadata,
        created_at=wait.created_at,
        expires_at=wait.expires_at,
        ancestors=wait.ancestors,
    )


def encode_card(card: Card, limit: int) -> bytes:
    """Encode a card; of one that has more than `limit` bytes only what says which it is, and how it ended."""
    body = _encode(card)
    if len(body) > limit:
        card = msgspec.structs.replace(card, call=None, metadata={"truncated": True})
        body = _encode(msgspec.structs.replace(card, schema={}, data=None) if isinstance(card, FormMessage) else card)
    return body


def decode_remembered(entry: MemoryEntry) -> MemoryMessage:
    """Decode an entry of a conversation's memory. :raises SnapshotCorrupt: if it cannot be read."""
    turn = entry.id.partition(":")[0]
    message = _decode(_remembered, turn, entry.body)
    if isinstance(message, Card):
        message = msgspec.structs.replace(message, version=entry.version)
    turn_id = turn if is_turn_id(turn) else None
    return MemoryMessage(id=entry.id, turn_id=turn_id, at=utc(entry.at), version=entry.version, message=message)


def _decode(decoder: msgspec.msgpack.Decoder[T], turn_id: str, data: bytes) -> T:
    try:
        return decoder.decode(data)
    except UNREADABLE as error:
        raise SnapshotCorrupt(turn_id, str(error)) from error
