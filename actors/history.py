"""A stored history as its readers see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from .chat import AiMessage, CallEdited, ChatMessage, HistoryEntry, ToolMessage


def readable(entries: Iterable[HistoryEntry]) -> list[ChatMessage]:
    """Return the messages of a history; edited calls show the edited arguments and who edited them.

    The stored reply is never changed: an edit is an entry of its own behind it.
    """
    messages: list[ChatMessage] = []
    for entry in entries:
        if type(entry) is CallEdited:
            _edit(messages, entry)
        else:
            messages.append(entry)
    return messages


def edits_of(messages: Iterable[ChatMessage]) -> dict[str, str]:
    """Return who edited the arguments of which calls (by call id; an editor without a name is empty)."""
    edits: dict[str, str] = {}
    for message in messages:
        if isinstance(message, AiMessage):
            for call in message.tool_calls:
                if call.edited_by is not None:
                    edits[call.id] = call.edited_by
    return edits


def marked(messages: Sequence[ChatMessage], edits: Mapping[str, str]) -> Sequence[ChatMessage]:
    """Return messages as a model gets them: the results of edited calls say that a person edited the arguments."""
    if not edits:
        return messages
    return [
        msgspec.structs.replace(message, content=f"[{_note(edits[message.call_id])}]\n{message.content}")
        if isinstance(message, ToolMessage) and message.call_id in edits
        else message
        for message in messages
    ]


def _note(by: str) -> str:
    return f"A person{f' ({by})' if by else ''} edited the arguments of this call before it ran."


def unanswered(messages: Sequence[ChatMessage]) -> list[str]:
    """Return the ids of calls that have no result, in order; a history is only sent to a model when there are none."""
    open_calls: dict[str, None] = {}
    for message in messages:
        if isinstance(message, AiMessage):
            open_calls.update(dict.fromkeys(call.id for call in message.tool_calls))
        elif isinstance(message, ToolMessage):
            open_calls.pop(message.call_id, None)
    return list(open_calls)


def answered(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Return what of several turns' messages a model may see: no reply with a call that has no result behind it, no other results.

    Turns that have ended left none of either; but their record may have been discarded, or somebody else wrote the messages.
    """
    kept: list[ChatMessage] = []
    start, pending = 0, set[str]()
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.call_id in pending:
                pending.discard(message.call_id)
                kept.append(message)
            continue
        if pending:
            del kept[start:]
            pending.clear()
        if isinstance(message, AiMessage):
            start, pending = len(kept), {call.id for call in message.tool_calls}
        kept.append(message)
    if pending:
        del kept[start:]
    return kept


def _edit(messages: list[ChatMessage], edit: CallEdited) -> None:
    """Show an edit in the newest reply that has the call."""
    for at in range(len(messages) - 1, -1, -1):
        message = messages[at]
        if isinstance(message, AiMessage) and any(call.id == edit.call_id for call in message.tool_calls):
            messages[at] = _edited(message, edit)
            return


def _edited(message: AiMessage, edit: CallEdited) -> AiMessage:
    calls = tuple(
        msgspec.structs.replace(call, arguments=edit.arguments, edited_by=edit.by or "") if call.id == edit.call_id else call
        for call in message.tool_calls
    )
    return msgspec.structs.replace(message, tool_calls=calls)
