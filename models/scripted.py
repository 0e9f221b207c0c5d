"""A chat model that answers from a script, for tests, demos and simulations."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import NoReturn, TypeAlias

import msgspec

from ..actors.chat import AiMessage, ToolCall
from ..actors.errors import ModelError
from ..actors.model import Delta, ModelRequest, ToolCallDelta
from ..actors.record import JsonValue

Answer: TypeAlias = str | ToolCall | Sequence[ToolCall] | AiMessage | BaseException | type[BaseException]
Reply: TypeAlias = Answer | Callable[[ModelRequest], Answer | Awaitable[Answer]]

_ARGUMENT_PIECE = 12


def call(name: str, /, **arguments: JsonValue) -> ToolCall:
    """Return a scripted call of the tool `name`; `ScriptedModel` gives it its id."""
    return ToolCall(id="", name=name, arguments=arguments)


class ScriptedModel:
    """Answers iteration n with the n-th reply, so that one script serves a turn in every process it comes to.

    A reply is text, `call(...)`, a list of such calls (one reply, several calls), an `AiMessage` (given out as it is),
    an exception, or a function of the request, sync or async, that returns one of these. Exceptions (instances or
    classes) stand before the reply of their iteration, one for each attempt. Calls get the id
    ``call_<iteration>_<index>``.

    `requests` holds what was asked, in order. The model keeps nothing else, so several turns and nodes may share it.
    """

    def __init__(self, *replies: Reply) -> None:
        self.requests: list[ModelRequest] = []
        self._script = list(_by_iteration(replies))

    async def complete(self, request: ModelRequest) -> AiMessage:
        """Answer a request from the script.

        :raises ModelError: if the script has no reply for the request's iteration.
        """
        self.requests.append(request)
        answer = self._reply(request)
        if callable(answer) and not isinstance(answer, type):
            answer = answer(request)
            if inspect.isawaitable(answer):
                answer = await answer
        return _message(answer, request)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Answer a request piece by piece: reasoning and text word by word, calls in pieces, then the usage.

        :raises ModelError: if the script has no reply for the request's iteration.
        """
        for delta in pieces(await self.complete(request)):
            yield delta

    def _reply(self, request: ModelRequest) -> Reply:
        if not 1 <= request.iteration <= len(self._script):
            raise ModelError(f"the script has no reply for iteration {request.iteration}: it has {len(self._script)}")
        replies = self._script[request.iteration - 1]
        if request.attempt > len(replies) and _is_exception(replies[-1]):
            raise ModelError(
                f"the script has no reply for attempt {request.attempt} of iteration {request.iteration}: "
                f"it ends with {len(replies)} exceptions"
            )
        return replies[min(request.attempt, len(replies)) - 1]


def pieces(message: AiMessage) -> Iterator[Delta]:
    """Cut a whole reply into the deltas a provider would have streamed."""
    for word in _words(message.reasoning or ""):
        yield Delta(reasoning=word)
    for word in _words(message.content):
        yield Delta(content=word)
    for index, one in enumerate(message.tool_calls):
        yield Delta(tool_calls=(ToolCallDelta(index, one.id or None, one.name or None),))
        text = msgspec.json.encode(one.arguments).decode() if one.invalid is None else one.invalid
        for at in range(0, len(text), _ARGUMENT_PIECE):
            yield Delta(tool_calls=(ToolCallDelta(index, arguments=text[at : at + _ARGUMENT_PIECE]),))
    if message.usage is not None or message.opaque is not None:
        yield Delta(usage=message.usage, opaque=message.opaque)


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"(?<=\s)(?=\S)", text) if word]


def _is_exception(reply: object) -> bool:
    return isinstance(reply, BaseException) or (isinstance(reply, type) and issubclass(reply, BaseException))


def _by_iteration(replies: Sequence[Reply]) -> Iterator[list[Reply]]:
    """Group each reply with the exceptions that stand before it."""
    group: list[Reply] = []
    for reply in replies:
        group.append(reply)
        if not _is_exception(reply):
            yield group
            group = []
    if group:
        yield group


def _message(answer: object, request: ModelRequest) -> AiMessage:
    if _is_exception(answer):
        _throw(answer, request)
    if isinstance(answer, AiMessage):
        return answer
    if isinstance(answer, str):
        return AiMessage(answer)
    calls: list[object] = [answer] if isinstance(answer, ToolCall) else _listed(answer)
    if not calls or not all(isinstance(one, ToolCall) for one in calls):
        raise TypeError(f"a scripted reply is text, calls, an AiMessage, an exception or a function, not {answer!r}")
    return AiMessage(
        tool_calls=tuple(
            msgspec.structs.replace(one, id=one.id or f"call_{request.iteration}_{index}")
            for index, one in enumerate(calls)
            if isinstance(one, ToolCall)
        )
    )


def _listed(answer: object) -> list[object]:
    return list(answer) if isinstance(answer, list | tuple) else []  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _throw(answer: object, request: ModelRequest) -> NoReturn:
    if isinstance(answer, type):
        answer = answer(f"scripted for attempt {request.attempt} of iteration {request.iteration}")
    assert isinstance(answer, BaseException)
    raise answer
