"""What a witness knows of conversations: who may speak in which order, and what is remembered of each turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from ..actors.chat import ChatMessage, SystemMessage, UserMessage
from ..actors.ids import root_of
from ..actors.memory import MemoryMessage
from ..store import base
from .breach import Breach


@dataclass
class Talk:
    """One conversation: its turns in the order of their starts, and who of them has spoken, has ended, or never may speak."""

    turns: list[str] = field(default_factory=list)
    spoken: list[str] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    out: set[str] = field(default_factory=set)

    @property
    def waiting(self) -> list[str]:
        """The open turn, and behind it those that are queued."""
        return [turn for turn in self.turns if turn not in self.ended and turn not in self.out]


@final
class Talks:
    """All conversations of a race, as the replies of the store tell of them."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.known: dict[str, Talk] = {}
        self.lost = False  # the store went back: nobody knows any more who was let in
        self._note = note
        self._of: dict[str, str] = {}

    def applied(self, op: base.Op, reply: base.Reply) -> None:
        """A store has applied an operation."""
        match op:
            case base.Create() if isinstance(reply, base.Claimed | base.Created | base.Queued):
                self._created(op, queued=isinstance(reply, base.Queued))
            case base.Cancel() if not isinstance(reply, base.Gone | base.Closed):
                self._cancelled(op.turn)
            case base.Save() if isinstance(reply, base.Saved) and not reply.replayed:
                self._saved(op)
            case base.Discard() if isinstance(reply, base.Done):
                self._ended(op.turn)
            case _:
                return

    def _created(self, op: base.Create, *, queued: bool) -> None:
        new = op.new
        if new.conversation is None or new.turn in self._of:
            return
        talk = self.known.setdefault(new.conversation, Talk())
        self._of[new.turn] = new.conversation
        if queued and op.when_busy == "supersede":
            talk.out |= set(talk.waiting[1:])
        elif not queued and talk.waiting and not self.lost:
            self._note(f"turn {new.turn} was opened in {new.conversation}, where {talk.waiting[0]} is open")
        talk.turns.append(new.turn)

    def _cancelled(self, turn: str) -> None:
        talk = self.known.get(self._of.get(turn, ""))
        if talk is not None and turn in talk.waiting[1:]:
            talk.out.add(turn)

    def _saved(self, op: base.Save) -> None:
        for turn, _ in op.cancel:
            self._cancelled(turn)
        if op.conversation is not None and root_of(op.turn) == op.turn and any(row.shown for row in op.memory):
            self._spoke(op.conversation, op.turn)
        if op.mode is base.Mode.END:
            self._ended(op.turn)

    def _spoke(self, conversation: str, turn: str) -> None:
        talk = self.known.setdefault(conversation, Talk())
        if self.lost or turn in talk.spoken:
            return
        talk.spoken.append(turn)
        if turn in talk.out:
            self._note(f"turn {turn} has begun in {conversation}, although it was taken out of the queue")
        elif not talk.waiting or talk.waiting[0] != turn:
            self._note(f"turn {turn} has begun in {conversation}, where it is the turn of {talk.waiting}")

    def _ended(self, turn: str) -> None:
        talk = self.known.get(self._of.get(turn, ""))
        if talk is not None:
            talk.ended.add(turn)


def own_part(history: Sequence[ChatMessage], said: str) -> list[ChatMessage]:
    """Return what a turn has added to its conversation: its input, which nobody else has said, and all behind it."""
    places = [at for at, message in enumerate(history) if isinstance(message, UserMessage) and message.content == said]
    behind = history[places[-1] :] if places else ()
    return [message for message in behind if not isinstance(message, SystemMessage)]


def judge_memory(
    conversation: str,
    entries: Sequence[MemoryMessage],
    before: Sequence[MemoryMessage],
    histories: Mapping[str, tuple[str, Sequence[ChatMessage]]],
) -> None:
    """Judge what a conversation remembers.

    :param before: what it remembered at the last look.
    :param histories: of each of its turns, what it was told and what its history has.
    :raises Breach: if a message is missing, doubled, changed, or out of its order.
    """
    ids = [entry.id for entry in entries]
    if len(set(ids)) != len(ids) or ids[: len(before)] != [entry.id for entry in before]:
        raise Breach(f"the memory of {conversation} has changed from {[entry.id for entry in before]} to {ids}")
    said = [entry for entry in entries if entry.shown]
    speakers = [str(entry.turn_id) for entry in said]
    blocks = [name for at, name in enumerate(speakers) if at == 0 or speakers[at - 1] != name]
    if len(set(blocks)) != len(blocks):
        raise Breach(f"turns speak at the same time in {conversation}: {blocks}")
    for turn, (told, history) in histories.items():
        expected = own_part(history, told)
        found = [entry.message for entry in said if entry.turn_id == turn]
        if found != expected:
            raise Breach(f"{conversation} remembers of turn {turn} {found}, its history has {expected}")
        if expected:
            _judge_recalled(turn, history[: history.index(expected[0])], said[: speakers.index(turn)])


def _judge_recalled(turn: str, recalled: Sequence[ChatMessage], said: Sequence[MemoryMessage]) -> None:
    """A turn sees only what was said before it, and in that order."""
    left = iter([entry.message.content for entry in said if isinstance(entry.message, UserMessage)])
    for message in recalled:
        if isinstance(message, SystemMessage) or not isinstance(message, UserMessage):
            continue
        if message.content not in left:
            raise Breach(f"turn {turn} recalls {message}, which was not said before it, or not in this order")
