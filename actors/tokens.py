"""How many tokens messages have: what the provider counted where it did, an estimate elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .chat import AiMessage, ChatMessage, SystemMessage, ToolCall, ToolMessage, Usage, UserMessage

BYTES_PER_TOKEN = 4
MESSAGE_TOKENS = 4
PART_TOKENS = 500


def tokens_of(message: ChatMessage) -> int:
    """Return the tokens of a message: of a reply what the provider counted, where it did; else an estimate.

    Estimated are a quarter of its UTF-8 bytes, 4 for its frame, 500 for each part.
    """
    text = message.content
    size, parts = len(text) if text.isascii() else _size(text), 0
    kind = type(message)
    if kind is ToolMessage or kind is SystemMessage:
        pass  # what has nothing but text, and is neither of the others: that is seen slowly
    elif isinstance(message, AiMessage):
        if message.usage is not None and message.usage.output_tokens:
            return message.usage.output_tokens
        if message.reasoning:
            size += _size(message.reasoning)
        for call in message.tool_calls:
            size += _call_size(call)
    elif isinstance(message, UserMessage):
        parts = len(message.parts)
    return -(-size // BYTES_PER_TOKEN) + MESSAGE_TOKENS + parts * PART_TOKENS


def total_tokens(messages: Iterable[ChatMessage]) -> int:
    """Return the tokens of messages."""
    return sum(map(tokens_of, messages))


def usage_of(sent: int, reply: AiMessage) -> Usage:
    """Return what a request has used: as the provider counted, or estimated from the tokens that were sent.

    :param sent: the tokens of the request's messages.
    """
    if reply.usage is not None:
        return reply.usage
    return Usage(sent, tokens_of(reply), estimated=True)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def _call_size(call: ToolCall) -> int:
    arguments = len(msgspec.json.encode(call.arguments)) if call.invalid is None else _size(call.invalid)
    return _size(call.name) + arguments
