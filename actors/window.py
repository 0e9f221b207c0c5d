"""What a model sees of a history: the newest turns, whole, within limits.

A *turn* here is a user's input and all that follows until the next one: replies, calls and their results, answers to questions,
outcomes of children. Histories are cut between turns only, so no call is ever seen without its result. The newest turn, the one
that runs, is always seen whole, and so is the request it began with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from .chat import AiMessage, ChatMessage, SystemMessage, ToolMessage, UserMessage
from .checks import check_flag, check_whole
from .history import edits_of, marked
from .record import Record
from .tokens import total_tokens

Turn: TypeAlias = list[ChatMessage]


class ContextWindow(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How much of a history a model sees; the instructions are always in front and are not counted.

    The last `max_turns` turns, and of those as many of the newest, whole, as have `max_messages` messages together; the newest one
    is always there. The last `keep_recent_turns` (the newest one counts, and is always among them) are seen as they are; of older
    ones with `compact_completed_tool_turns` only what was said, not the calls and results in between, once they have their answer.

    :raises InvalidDefinition: if a value is of a wrong type or out of bounds.
    """

    max_turns: int = 10
    max_messages: int = 100
    compact_completed_tool_turns: bool = True
    keep_recent_turns: int = 2

    def __post_init__(self) -> None:
        for name, least in (("max_turns", 1), ("max_messages", 1), ("keep_recent_turns", 0)):
            check_whole(f"ContextWindow.{name}", getattr(self, name), least)
        check_flag("ContextWindow.compact_completed_tool_turns", self.compact_completed_tool_turns)


class Selection(msgspec.Struct, frozen=True, gc=False):
    """The turns of a history that are within `max_turns`, older ones compacted.

    `older` ones may be compressed, `recent` ones (at least the newest) stay as they are. `sure` is false where the beginning of a
    part of a history shows that it was cut in the middle of a turn that it seems to have whole.
    """

    system: list[ChatMessage]
    older: list[Turn]
    recent: list[Turn]
    sure: bool = True

    @property
    def size(self) -> int:
        """Return the number of messages, the instructions not counted."""
        return sum(map(len, self.older)) + sum(map(len, self.recent))

    @property
    def compressible(self) -> list[ChatMessage]:
        """Return the messages of the older turns, if there are any and each has its answer."""
        return _flat(self.older) if all(map(completed, self.older)) else []


def completed(turn: Sequence[ChatMessage]) -> bool:
    """Tell whether a turn ends with an answer: a reply that says something and calls nothing."""
    last = turn[-1]
    return isinstance(last, AiMessage) and not last.tool_calls and bool(last.content or last.reasoning)


def compacted(turn: Turn) -> Turn:
    """Return a turn without its tool traffic; one without an answer, or without tool traffic, as it is."""
    if not completed(turn) or not any(isinstance(message, ToolMessage) or _calls(message) for message in turn):
        return turn
    return [message for message in turn if not isinstance(message, ToolMessage) and not _calls(message)]


def turns_of(messages: Iterable[ChatMessage]) -> tuple[list[Turn], bool]:
    """Cut messages into turns; what stands before the first one is dropped, and so are results that nobody called for.

    :return: the turns, and whether there was no such result within them.
    """
    turn: Turn = []
    turns: list[Turn] = []
    pending: set[str] = set()
    sure = True
    for message in messages:
        if isinstance(message, UserMessage):
            if message.kind == "input" and not pending:
                turn = []
                turns.append(turn)
        elif isinstance(message, AiMessage):
            for call in message.tool_calls:
                pending.add(call.id)
        elif isinstance(message, ToolMessage):
            if message.call_id not in pending:
                sure = sure and not turns
                continue
            pending.discard(message.call_id)
        turn.append(message)
    return turns or ([turn] if turn else []), sure


def select(messages: Sequence[ChatMessage], window: ContextWindow) -> Selection:
    """Return the turns of a history that are within `max_turns`.

    :param messages: a history, or the newest part of one, in which every call has its result.
    """
    first = 0
    while first < len(messages) and isinstance(messages[first], SystemMessage):
        first += 1
    turns, sure = turns_of(messages[first:])
    turns = turns[-window.max_turns :]
    kept = max(1, window.keep_recent_turns)
    older = turns[:-kept]
    if older and window.compact_completed_tool_turns:
        older = [compacted(turn) for turn in older]
    return Selection(list(messages[:first]), older, turns[-kept:], sure)


def suffices(found: Selection, window: ContextWindow, *, compressed: bool) -> bool:
    """Tell whether what lies before the newest part of a history would not be seen anyway.

    :param compressed: whether a compressor wants to see all turns, also those beyond `max_messages`.
    """
    if not found.sure or not found.recent or not _opens(found.recent[0][0]):
        return False
    return len(found.older) + len(found.recent) >= window.max_turns or (not compressed and found.size >= window.max_messages)


def cut(messages: Sequence[ChatMessage], window: ContextWindow) -> list[ChatMessage]:
    """Return what a model sees of a history, where nothing is compressed."""
    return list(View(select(messages, window), window).messages())


def recalled(
    earlier: Sequence[ChatMessage], opening: Sequence[ChatMessage], window: ContextWindow, *, compressed: bool
) -> list[ChatMessage]:
    """Return what a new turn takes along of what was said before its opening: whole turns, those that its model will see.

    :param compressed: whether a compressor wants to see all turns, also those beyond `max_messages`.
    """
    found = select([*earlier, *opening], window)
    turns = [*found.older, *found.recent]
    own = turns.pop()
    size = len(own) + sum(map(len, turns))
    while turns and size > window.max_messages and not compressed:
        size -= len(turns.pop(0))
    return _flat(turns)


class View:
    """What a model sees of a history that goes on. A new message costs what it is, not what stands before it.

    :param compressed: what is seen in place of the older turns.
    """

    __slots__ = ("_counted", "_edits", "_first", "_limit", "_seen", "_tokens", "_units")

    def __init__(self, found: Selection, window: ContextWindow, compressed: Sequence[ChatMessage] | None = None) -> None:
        older = found.older if compressed is None else [list(compressed)]
        turns = [*older, *found.recent]
        self._first = len(found.system)
        self._limit = window.max_messages
        self._edits: dict[str, str] = {}  # in the end those of the newest turn
        self._seen: list[ChatMessage] = [*found.system]
        for turn in turns:
            self._edits = edits_of(turn)
            self._seen += marked(turn, self._edits)
        self._units = list(map(len, turns[:-1]))  # the newest one always stays
        self._counted = self._tokens = 0
        self._fit()

    @property
    def tokens(self) -> int:
        """Return how many tokens the messages have; each is counted once, with the first question."""
        new = self._seen[self._counted :] if self._counted else self._seen
        if new:
            self._tokens += total_tokens(new)
            self._counted += len(new)
        return self._tokens

    def add(self, message: ChatMessage) -> None:
        """Append a message to the newest turn; older turns make room, the oldest first."""
        if self._edits and isinstance(message, ToolMessage) and message.call_id in self._edits:
            message = marked([message], self._edits)[0]
        self._seen.append(message)
        self._fit()

    def messages(self) -> tuple[ChatMessage, ...]:
        """Return what the model sees now."""
        return tuple(self._seen)

    def _fit(self) -> None:
        while self._units and len(self._seen) - self._first > self._limit:
            end = self._first + self._units.pop(0)
            if self._counted:  # the new ones, too, as what is counted are the first
                self._tokens = self.tokens - total_tokens(self._seen[self._first : end])
                self._counted -= end - self._first
            del self._seen[self._first : end]


def _opens(message: ChatMessage) -> bool:
    return isinstance(message, UserMessage) and message.kind == "input"


def _calls(message: ChatMessage) -> bool:
    return isinstance(message, AiMessage) and bool(message.tool_calls)


def _flat(turns: Iterable[Turn]) -> list[ChatMessage]:
    return [message for turn in turns for message in turn]
