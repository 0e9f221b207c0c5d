"""Between the machine's drafts and the store's operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ..actors.chat import CallEdited, SystemMessage
from ..actors.events import Event
from ..actors.ids import call_key
from ..actors.machine.advance import next_deadline
from ..actors.machine.draft import ChildTurn, Draft, Outcome, Refusal, RunTool
from ..actors.machine.messages import ChildEnded
from ..actors.turn import SCHEMA, OpenWait, Status, TurnState
from ..actors.used import total_of, usage_of
from ..actors.view import suspension_of
from ..actors.waits import Receipt, SuspensionType
from ..store import base, codec
from ..store.records import END, HAND_OFF, KEEP, SUSPEND
from .settings import Settings


def release_of(draft: Draft) -> tuple[base.Mode, int | None]:
    """Return what the save does with ownership, and the next wake."""
    if draft.state.status.terminal:
        return END, None
    if draft.running or draft.asks_tree:
        return KEEP, None
    if draft.startable and not draft.context.execute:
        return HAND_OFF, None
    return SUSPEND, next_deadline(draft.state, draft.context.cancel_grace)


def new_turn_of(turn: Draft | ChildTurn, digest: str, settings: Settings) -> base.NewTurn:
    """Return a new turn as the store takes it. :raises SnapshotTooLarge: if a part of it is over the limit."""
    state = turn.state
    if isinstance(turn, Draft):
        state.message_count, state.event_count = len(turn.messages), len(turn.events)
    return base.NewTurn(
        turn=state.turn_id,
        parent=state.parent_turn_id,
        agent=state.agent_id,
        agent_version=state.agent_version,
        conversation=state.conversation_id,
        tenant=state.tenant,
        digest=digest,
        schema=SCHEMA,
        status=str(state.status),
        snapshot=codec.encode_state(state, settings.max_snapshot),
        messages=base.Messages(0, codec.encode_entries(turn.messages, settings.max_message)),
        events=base.Events(0, len(turn.events), codec.encode_events(turn.events)),
    )


def first_events(turn: Draft | ChildTurn) -> Iterator[Event]:
    """Yield the events that a new turn was created with, as the store has them: no activation saved them."""
    state = turn.state
    source = codec.source_of(state)
    for sequence, (kind, at, data, step) in enumerate(turn.events, 1):
        yield codec.event_of(source, kind, at, data, step, sequence)


def save_of(
    draft: Draft,
    token: base.Token,
    version: int,
    settings: Settings,
    answered: Sequence[tuple[str, Outcome]],
    consumed: Sequence[str],
    rewinds: int = 0,
) -> base.Save:
    """Return the one save that carries a draft.

    :param answered: answers to mail (not to local messages), to be stored as replies.
    :param rewinds: how often the store has gone back under this activation.
    :raises SnapshotTooLarge: if a part of it is over the limit; nothing of it may be used then.
    """
    state, entries, events = draft.state, draft.messages, draft.events
    mode, wake = release_of(draft)
    messages = base.Messages(state.message_count, codec.encode_entries(entries, settings.max_message))
    numbered = base.Events(state.event_count, len(events), codec.encode_events(events))
    state.message_count += len(entries)
    state.event_count += len(events)
    op = base.Save(
        turn=state.turn_id,
        token=token,
        version=version,
        save_id=save_id(token, version, rewinds),
        mode=mode,
        lease_ms=settings.lease,
        schema=SCHEMA,
        status=str(state.status),
        snapshot=codec.encode_state(state, settings.max_snapshot),
        messages=messages,
        events=numbered,
        progress=draft.progress,
        ack_cancel=draft.took_cancel,
        usage=usage_of(state),
        batch=settings.batch,
    )
    if wake is not None:
        op = replace(op, wake=wake)
    if draft.opened:
        op = replace(op, opened=_wait_rows(draft))
    if consumed or draft.receipts or draft.closed:
        op = _with_answers(op, draft, answered, consumed)
    if draft.children or draft.cancels:
        op = _with_children(op, draft, settings)
    if mode is END:
        op = _with_end(op, draft, settings)
    if settings.confirm is not None:
        op = replace(op, confirm=settings.confirm == "all" or _starts_once(draft))
    return op if state.conversation_id is None else _with_memory(op, draft, settings)


def _with_answers(op: base.Save, draft: Draft, answered: Sequence[tuple[str, Outcome]], consumed: Sequence[str]) -> base.Save:
    """Add the mail that was taken in, what is said to it, and the waits that end."""
    return replace(
        op,
        consumed=tuple(consumed),
        receipts=tuple(map(_receipt_row, draft.receipts)),
        replies=tuple([base.ReplyRow(name, codec.encode_outcome(outcome)) for name, outcome in answered]),
        closed=draft.closed,
    )


def _with_children(op: base.Save, draft: Draft, settings: Settings) -> base.Save:
    """Add the children that begin, and those that are to end."""
    create = tuple([new_turn_of(child, child.digest, settings) for child in draft.children])
    return replace(op, create=create, cancel=draft.cancels)


def _with_end(op: base.Save, draft: Draft, settings: Settings) -> base.Save:
    """Add what those are told who have something to do with a turn that ends."""
    state = draft.state
    return replace(
        op,
        deliver=_to_parent(draft, settings) if state.parent_turn_id else (),
        closing=codec.encode_outcome(_closing(state)),
        retention_ms=settings.retention,
    )


def _with_memory(op: base.Save, draft: Draft, settings: Settings) -> base.Save:
    """Add what the turn's conversation is to remember, if there is anything."""
    memory = tuple(_memory_rows(draft, op.messages, settings))
    return replace(op, conversation=draft.state.conversation_id, memory=memory, relay=settings.relay) if memory else op


def save_id(token: base.Token, version: int, rewinds: int) -> str:
    """Return the name of the one save of a version that an activation sends, perhaps several times, until the store goes back."""
    name = f"{token.activation[:16]}.{version}"
    return f"{name}.r{rewinds}" if rewinds else name


def _memory_rows(draft: Draft, messages: base.Messages, settings: Settings) -> Iterator[base.MemoryRow]:
    """Yield what the draft's conversation is to remember: of a root what it adds to its history, of every turn its cards.

    Edits are no entries of their own there: the edited reply takes the place of the one that the model gave.
    """
    state = draft.state
    if state.parent_turn_id is None:
        for index in range(draft.known, len(draft.messages)):
            if not isinstance(draft.messages[index], SystemMessage | CallEdited):
                yield base.MemoryRow(f"{state.turn_id}:{messages.at + index}", messages.bodies[index])
        if draft.reply is not None:
            place, reply = draft.reply
            (body,) = codec.encode_entries([reply], 2 * settings.max_message)
            yield base.MemoryRow(f"{state.turn_id}:{place}", body)
    for card in draft.cards.values():
        yield base.MemoryRow(card.message_id, codec.encode_card(card, settings.max_message), shown=False)


def _starts_once(draft: Draft) -> bool:
    for action in draft.actions:
        if isinstance(action, RunTool):
            call = draft.state.call(action.call_id)
            if call is not None and call.effect == "once":
                return True
    return False


def _closing(state: TurnState) -> Outcome:
    status = str(state.status)
    return Refusal("TurnClosed", f"turn {state.turn_id} is {status}", status=status)


def _receipt_row(receipt: Receipt) -> base.ReceiptRow:
    turn_id, correlation, _ = receipt.suspension_id.split("/")
    return base.ReceiptRow(
        wait_id=receipt.suspension_id,
        body=codec.encode_receipt(receipt),
        command_id=receipt.command_id,
        call_key=call_key(turn_id, correlation) if correlation else None,
    )


def _wait_rows(draft: Draft) -> tuple[base.WaitRow, ...]:
    return tuple([_wait_row(draft, wait) for wait in draft.opened if wait.type is not SuspensionType.CHILD_AGENT])


def _wait_row(draft: Draft, wait: OpenWait) -> base.WaitRow:
    state = draft.state
    suspension = suspension_of(state, wait)
    draft.shown = (*draft.shown, suspension)
    return base.WaitRow(
        id=wait.id,
        kind=str(wait.type),
        created=wait.created,
        body=codec.encode_suspension(suspension),
        agent=state.agent_id,
        tenant=state.tenant,
        assignee=wait.assignee,
    )


def _to_parent(draft: Draft, settings: Settings) -> tuple[tuple[str, base.Mail], ...]:
    state = draft.state
    assert state.parent_turn_id is not None
    reason = state.cancel_reason if state.status is Status.CANCELLED else state.budget_exceeded_reason
    message = ChildEnded(
        state.turn_id,
        state.agent_id,
        state.status,
        state.final_output,
        state.error,
        reason,
        usage=total_of(state),
        spans=state.spans,
    )
    mail = base.Mail(f"{state.turn_id}/end", codec.encode_mail(message, settings.max_message))
    return ((state.parent_turn_id, mail),)
