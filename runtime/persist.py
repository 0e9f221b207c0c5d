"""Between the machine's drafts and the store's operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
from .settings import Settings


def release_of(draft: Draft) -> tuple[base.Mode, int | None]:
    """Return what the save does with ownership, and the next wake."""
    if draft.state.status.terminal:
        return base.Mode.END, None
    if draft.running or draft.asks_tree:
        return base.Mode.KEEP, None
    if draft.startable and not draft.context.execute:
        return base.Mode.HAND_OFF, None
    return base.Mode.SUSPEND, next_deadline(draft.state, draft.context.cancel_grace)


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
        status=state.status.value,
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
    state = draft.state
    mode, wake = release_of(draft)
    messages = base.Messages(state.message_count, codec.encode_entries(draft.messages, settings.max_message))
    events = base.Events(state.event_count, len(draft.events), codec.encode_events(draft.events))
    memory = () if state.conversation_id is None else tuple(_memory_rows(draft, messages, settings))
    state.message_count += len(draft.messages)
    state.event_count += len(draft.events)
    return base.Save(
        turn=state.turn_id,
        token=token,
        version=version,
        save_id=save_id(token, version, rewinds),
        mode=mode,
        lease_ms=settings.lease,
        wake=wake,
        schema=SCHEMA,
        status=state.status.value,
        snapshot=codec.encode_state(state, settings.max_snapshot),
        messages=messages,
        events=events,
        progress=draft.progress,
        ack_cancel=draft.took_cancel,
        consumed=tuple(consumed),
        receipts=tuple(map(_receipt_row, draft.receipts)) if draft.receipts else (),
        replies=tuple([base.ReplyRow(name, codec.encode_outcome(outcome)) for name, outcome in answered]) if answered else (),
        opened=tuple(_wait_rows(draft)) if draft.opened else (),
        closed=tuple(draft.closed),
        create=tuple([new_turn_of(child, child.digest, settings) for child in draft.children]) if draft.children else (),
        deliver=_to_parent(draft, settings) if state.status.terminal and state.parent_turn_id else (),
        cancel=tuple(draft.cancels),
        usage=usage_of(state),
        closing=codec.encode_outcome(_closing(state)) if mode is base.Mode.END else b"",
        retention_ms=settings.retention,
        batch=settings.batch,
        confirm=settings.confirm is not None and (settings.confirm == "all" or _starts_once(draft)),
        conversation=state.conversation_id if memory else None,
        memory=memory,
        relay=settings.relay and bool(memory),
    )


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
            call = draft.call(action.call_id)
            if call is not None and call.effect == "once":
                return True
    return False


def _closing(state: TurnState) -> Outcome:
    return Refusal("TurnClosed", f"turn {state.turn_id} is {state.status.value}", status=state.status.value)


def _receipt_row(receipt: Receipt) -> base.ReceiptRow:
    turn_id, correlation, _ = receipt.suspension_id.split("/")
    return base.ReceiptRow(
        wait_id=receipt.suspension_id,
        body=codec.encode_receipt(receipt),
        command_id=receipt.command_id,
        call_key=call_key(turn_id, correlation) if correlation else None,
    )


def _wait_rows(draft: Draft) -> Iterator[base.WaitRow]:
    for wait in draft.opened:
        if wait.type is not SuspensionType.CHILD_AGENT:
            yield _wait_row(draft.state, wait)


def _wait_row(state: TurnState, wait: OpenWait) -> base.WaitRow:
    suspension = suspension_of(state, wait)
    return base.WaitRow(
        id=wait.id,
        kind=wait.type.value,
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
