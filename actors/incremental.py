"""Compression that goes on with a conversation: a summary of what is over, and behind it what came since, as it was said.

What was compressed is not read again: the next compression gets the summary and what came since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, cast, final

import msgspec

from .chat import ChatMessage
from .checks import check_whole, shown
from .compression import CompressionContext, Compressor, check_compressor, compress
from .errors import CompressionFailed, InvalidDefinition
from .record import Record
from .tokens import total_tokens
from .window import ContextWindow, completed, turns_of

MOST = (1 << 53) - 1
"""Where counters stop: the largest number that every store and every JSON reader keeps exactly."""
Entries: TypeAlias = Sequence[tuple[str, ChatMessage]]
"""Messages of a conversation, oldest first, each with its id."""


class CompressionState(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How far a conversation has been compressed.

    `summary` stands for everything up to and with the message `covered_until`: so many turns and (estimated) tokens. `version`
    counts what was saved, `compressions` what was compressed.
    """

    version: int = 0
    summary: tuple[ChatMessage, ...] = ()
    covered_until: str | None = None
    compressions: int = 0
    covered_tokens: int = 0
    covered_turns: int = 0


class CompressionPending(Record, frozen=True, kw_only=True):
    """What a trigger decides on: the state so far, and how much came since."""

    state: CompressionState
    turns: int
    messages: int
    tokens: int


Trigger: TypeAlias = Callable[[CompressionPending], bool]


class CompressionStates(Protocol):
    """Where states are kept, one for each conversation."""

    async def load(self, conversation_id: str) -> CompressionState:
        """Return the state of a conversation; one of version 0 where there is none."""
        ...

    async def save(self, conversation_id: str, state: CompressionState, expected_version: int) -> bool:
        """Save a state if the stored one has the expected version; tell whether it was saved."""
        ...


class Recalled(msgspec.Struct, frozen=True):
    """What is seen of a conversation, whether it was just compressed, and the state it stands on."""

    messages: list[ChatMessage]
    compressed: bool
    state: CompressionState


@final
class Incremental:
    """A compressor that remembers (see `incremental`)."""

    def __init__(self, compressor: Compressor, trigger: Trigger, estimate: Callable[[Sequence[ChatMessage]], int]) -> None:
        self._compressor = compressor
        self._trigger = trigger
        self._estimate = estimate

    async def __call__(self, messages: tuple[ChatMessage, ...], context: CompressionContext, /) -> Sequence[ChatMessage]:
        """Compress the older turns of a window. In a conversation that was done when its history was read."""
        if context.conversation_id is not None or not self._wanted(CompressionState(), messages):
            return messages
        return await compress(self._compressor, messages, context)

    async def recall(
        self,
        conversation_id: str,
        entries: Entries,
        states: CompressionStates,
        context: CompressionContext,
        *,
        window: ContextWindow | None = None,
    ) -> Recalled:
        """Return what is seen of a conversation; what came since the last time is compressed where it is time for it.

        :param entries: at least the message that the state covers, where there is one, and all behind it.
        :param window: where given, the newest turns that it protects (one less: the new input is one, too) are not compressed,
            and it is also time where what came since would not fit in.
        :raises CompressionFailed: if the covered message is not among the entries, or somebody else saved a state meanwhile.
        :raises InvalidDefinition: if the compressor or the estimate gives what it must not.
        """
        state = await states.load(conversation_id)
        pending = _behind(state.covered_until, entries)
        messages = [message for _, message in pending]
        kept = 0 if window is None else max(0, window.keep_recent_turns - 1)
        older = _older(messages, kept)
        if not older or not (self._wanted(state, messages) or (window is not None and _over(state, messages, window))):
            return Recalled([*state.summary, *messages], False, state)
        found = await compress(self._compressor, [*state.summary, *messages[:older]], context)
        covered = messages[:older]
        new = CompressionState(
            version=state.version + 1,
            summary=tuple(found),
            covered_until=pending[older - 1][0],
            compressions=state.compressions + 1,
            covered_tokens=min(MOST, state.covered_tokens + self._tokens(covered)),
            covered_turns=min(MOST, state.covered_turns + len(turns_of(covered)[0])),
        )
        if not await states.save(conversation_id, new, state.version):
            raise CompressionFailed(f"conversation {conversation_id} was compressed by somebody else at the same time")
        return Recalled([*new.summary, *messages[older:]], True, new)

    def _wanted(self, state: CompressionState, messages: Sequence[ChatMessage]) -> bool:
        if not messages:
            return False
        turns = len(turns_of(messages)[0])
        tokens = self._tokens(messages)
        answer: object = self._trigger(CompressionPending(state=state, turns=turns, messages=len(messages), tokens=tokens))
        if not isinstance(answer, bool):
            raise InvalidDefinition(f"trigger must return a bool, not {shown(answer)}")
        return answer

    def _tokens(self, messages: Sequence[ChatMessage]) -> int:
        found = self._estimate(messages)
        check_whole("estimate's tokens", found)
        return min(MOST, found)


def incremental(
    compressor: Compressor,
    *,
    over_tokens: int | None = None,
    over_turns: int | None = None,
    trigger: Trigger | None = None,
    estimate: Callable[[Sequence[ChatMessage]], int] = total_tokens,
) -> Incremental:
    """Return a compressor that goes on from what it made of a conversation the last time.

    Its state is kept with the conversation, and replaced only where nobody else has replaced it. It is time to compress what came
    since when that has more than `over_tokens` tokens (4,000 where nothing else is given) or `over_turns` turns, or `trigger`
    says so; and whenever it would not fit into the agent's window. A turn without a conversation has no state: the compressor
    then works on the older turns of the window, when it is time.

    :param compressor: makes the new summary, of the old one and what came since.
    :param trigger: ``trigger(pending)`` returns a bool.
    :param estimate: ``estimate(messages)`` returns their tokens.
    :raises InvalidDefinition: if an argument is wrong.
    """
    check_compressor("incremental: compressor", compressor)
    for name, value in (("over_tokens", over_tokens), ("over_turns", over_turns)):
        if value is not None:
            check_whole(f"incremental: {name}", value)
    for name, given in (("trigger", trigger), ("estimate", estimate)):
        if given is not None and not callable(cast("object", given)):
            raise InvalidDefinition(f"incremental: {name} must be a function, not {shown(given)}")
    if over_tokens is None and over_turns is None and trigger is None:
        over_tokens = 4_000

    def due(pending: CompressionPending) -> bool:
        return (
            (over_tokens is not None and pending.tokens > over_tokens)
            or (over_turns is not None and pending.turns > over_turns)
            or (trigger is not None and trigger(pending))
        )

    return Incremental(compressor, due, estimate)


def encode_state(state: CompressionState) -> bytes:
    """Return a state as it is stored."""
    return msgspec.msgpack.encode(state)


def decode_state(body: bytes, version: int) -> CompressionState:
    """Return a stored state. :raises CompressionFailed: if it cannot be read."""
    try:
        return msgspec.structs.replace(msgspec.msgpack.decode(body, type=CompressionState), version=version)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise CompressionFailed(f"the state of the compression cannot be read: {error}") from None


def _behind(covered: str | None, entries: Entries) -> Entries:
    if covered is None:
        return entries
    for index, (name, _) in enumerate(entries):
        if name == covered:
            return entries[index + 1 :]
    raise CompressionFailed(f"message {covered}, up to which the conversation was compressed, is not in it")


def _older(messages: Sequence[ChatMessage], kept: int) -> int:
    """Return how many messages the turns have that may be compressed: all but the newest `kept`.

    One without an answer that has another behind it was discarded: it will never have one. The very newest may get it.
    """
    turns, _ = turns_of(messages)
    turns = turns[: max(0, len(turns) - kept)]
    if turns and not kept and not completed(turns[-1]):
        turns.pop()
    count = 0
    for turn in turns:
        while messages[count] is not turn[-1]:
            count += 1
        count += 1
    return count


def _over(state: CompressionState, messages: Sequence[ChatMessage], window: ContextWindow) -> bool:
    summary = len(state.summary)
    turns = len(turns_of(messages)[0]) + (summary > 0) + 1
    return turns > window.max_turns or summary + len(messages) + 1 > window.max_messages
