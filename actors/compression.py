"""What a compressor is, what it may know, and what it may give."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast, final

from .chat import AiMessage, ChatMessage, SystemMessage, ToolMessage, Usage, UserMessage
from .checks import shown
from .errors import InvalidDefinition
from .model import ChatModel
from .tokens import total_tokens

if TYPE_CHECKING:
    from .turn import TurnState

MESSAGES = (SystemMessage, UserMessage, AiMessage, ToolMessage)
Compressed: TypeAlias = "Sequence[ChatMessage] | Awaitable[Sequence[ChatMessage]]"


@final
class CompressionContext:
    """What a compressor may know beside the messages.

    `tokens` is what these have: as the provider counted, estimated elsewhere. `model` is the agent's. `usage` is what the
    compressor has spent so far; it counts for the turn.
    """

    __slots__ = ("agent_id", "conversation_id", "model", "tenant", "tokens", "turn_id", "usage")

    def __init__(
        self,
        *,
        model: ChatModel,
        turn_id: str = "",
        conversation_id: str | None = None,
        tenant: str | None = None,
        agent_id: str = "",
        tokens: int = 0,
    ) -> None:
        self.model = model
        self.turn_id = turn_id
        self.conversation_id = conversation_id
        self.tenant = tenant
        self.agent_id = agent_id
        self.tokens = tokens
        self.usage = Usage()

    @classmethod
    def of(cls, state: TurnState, model: ChatModel, messages: Sequence[ChatMessage]) -> CompressionContext:
        """Return the context in which messages of a turn's history are compressed."""
        return cls(
            model=model,
            turn_id=state.turn_id,
            conversation_id=state.conversation_id,
            tenant=state.tenant,
            agent_id=state.agent_id,
            tokens=total_tokens(messages),
        )

    def spend(self, usage: Usage) -> None:
        """Count tokens that the compressor has used."""
        self.usage = self.usage + usage


class Compressor(Protocol):
    """Anything that makes messages shorter: a function, sync or async, of the messages and a `CompressionContext`."""

    def __call__(self, messages: tuple[ChatMessage, ...], context: CompressionContext, /) -> Compressed:
        """Return what is seen in place of the messages: perhaps a SystemMessage, then a UserMessage, then others.

        :param messages: whole turns, oldest first, each with its answer; never the newest ones.
        """
        ...


def check_compressor(name: str, value: object) -> None:
    """Check a compressor. :raises InvalidDefinition: if it cannot be called with messages and a context."""
    if not callable(value):
        raise InvalidDefinition(f"{name} must be a function of messages and context, not {shown(value)}")
    try:
        inspect.signature(value).bind((), None)
    except ValueError:  # a function of C that does not say what it takes
        return
    except TypeError:
        raise InvalidDefinition(f"{name} must take messages and a context; a maker of compressors is called first") from None


async def compress(compressor: Compressor, messages: Sequence[ChatMessage], context: CompressionContext) -> list[ChatMessage]:
    """Return what a compressor makes of messages.

    :raises InvalidDefinition: if it is nothing that a model can be given.
    """
    found: object = compressor(tuple(messages), context)
    if inspect.isawaitable(found):
        found = await cast("Awaitable[object]", found)
    return checked(found)


def checked(found: object) -> list[ChatMessage]:
    """Return what a compressor gave, as a list.

    :raises InvalidDefinition: if it is not a list of messages, does not begin with (perhaps a system message and) a user message,
        or a call in it has no result behind it, or a result no call.
    """
    if isinstance(found, str | bytes | Mapping) or not isinstance(found, Iterable):
        raise InvalidDefinition(f"a compressor must give messages, not a {type(cast('object', found)).__name__}")
    messages = list(cast("Iterable[object]", found))
    pending: list[str] = []
    for index, message in enumerate(messages):
        if not isinstance(message, MESSAGES):
            raise InvalidDefinition(f"a compressor must give messages, not {shown(message)} (at {index})")
        if isinstance(message, ToolMessage):
            if message.call_id not in pending:
                raise InvalidDefinition(f"a compressor gave a result of {message.call_id!r} without its call (at {index})")
            pending.remove(message.call_id)
            continue
        if pending:
            break
        if isinstance(message, AiMessage):
            pending += [call.id for call in message.tool_calls]
    if pending:
        raise InvalidDefinition(f"a compressor gave a call without its result: {pending[0]!r}")
    kept = cast("list[ChatMessage]", messages)
    first = next(iter(kept[1:] if kept and isinstance(kept[0], SystemMessage) else kept), None)
    if not isinstance(first, UserMessage):
        raise InvalidDefinition("what a compressor gives must begin with a user message; one system message may stand before it")
    return kept
