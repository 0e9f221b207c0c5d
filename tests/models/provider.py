"""A model's endpoint on a real socket that answers exactly the bytes it is told, and breaks off where it is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


@dataclass
class Answer:
    """What the endpoint sends: a head, then the pieces of a body.

    `framing`: "length" promises all pieces and sends `cut` of them; "chunked" leaves out the last frame when cut; "close" just
    ends. `hang` keeps the connection open and silent after what was sent, `reset` breaks it off at once.
    """

    pieces: Sequence[bytes]
    status: int = 200
    kind: str | None = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    framing: str = "length"
    cut: int | None = None
    hang: bool = False
    reset: bool = False

    def sent(self) -> list[bytes]:
        pieces = list(self.pieces)
        lines = [f"HTTP/1.1 {self.status} Said", *(f"{name}: {value}" for name, value in self.headers.items())]
        if self.kind is not None:
            lines.append(f"content-type: {self.kind}")
        lines.append(
            {
                "length": f"content-length: {sum(map(len, pieces))}",
                "chunked": "transfer-encoding: chunked",
                "close": "connection: close",
            }[self.framing]
        )
        body = pieces if self.cut is None else pieces[: self.cut]
        if self.framing == "chunked":
            body = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in body if piece]
            body += [b"0\r\n\r\n"] if self.cut is None else []
        return ["\r\n".join([*lines, "", ""]).encode(), *body]


def whole(body: object, **settings: Any) -> Answer:
    return Answer([body if isinstance(body, bytes) else json.dumps(body).encode()], **settings)


def events(*bodies: object, done: bool = True) -> Answer:
    """Server-sent events, one piece each."""
    pieces = [b"data: " + json.dumps(body).encode() + b"\n\n" for body in bodies]
    pieces += [b"data: [DONE]\n\n"] if done else []
    return Answer(pieces, kind="text/event-stream", framing="chunked")


def reply(message: dict[str, Any], finish: str | None = "stop", **extra: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant"} | message, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]} | extra


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **extra: Any) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices} | extra


class Provider:
    """Plays its answers one after the other, the last one again and again; `requests` are the bodies it was sent."""

    def __init__(self, *answers: Answer) -> None:
        self.requests: list[dict[str, Any]] = []
        self.heads: list[str] = []
        self.url = ""
        self.asked = asyncio.Event()
        self._answers = list(answers)
        self._closing = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length:")[2].split("\r\n")[0] or 0)
            self.heads.append(head)
            self.requests.append(json.loads(await reader.readexactly(length)))
            self.asked.set()
            answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            for piece in answer.sent():
                writer.write(piece)
                await writer.drain()
            if answer.reset:
                writer.transport.abort()
            if answer.hang:
                await self._closing.wait()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Provider]:
        server = await asyncio.start_server(self, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        try:
            yield self
        finally:
            self._closing.set()
            server.close()
            await server.wait_closed()
