"""How a process of the demo shows what happens in it while it happens."""

from __future__ import annotations

import re
from typing import Final, final

from ..actors.events import Event, EventType
from ..actors.record import JsonObject
from .terminal import Terminal, plain

LABEL: Final = 10
WIDTH: Final = 78


def said(terminal: Terminal, who: str, text: str) -> None:
    """Write a line with a label."""
    terminal.line(f"  {who:<{LABEL - 2}}{text}")


@final
class Speaker:
    """Shows deltas as they arrive, and what the tool does; a listener of a Runtime.

    A model request may leave while the save in front of it is under way, so its first deltas may come before that save's events.
    Those that come while a tool seems to run are held back until it is told to have returned, which keeps the story in order.
    """

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._column = 0
        self._gap = False
        self._shown = 0
        self._running = 0
        self._held: list[str] = []

    def __call__(self, event: Event) -> None:
        """Take in an event."""
        data = event.data
        match event.type:
            case EventType.MODEL_TEXT_DELTA:
                self._delta(str(data["content"]))
            case EventType.MODEL_TOOL_CALL_DELTA:
                self._call_delta(data)
            case EventType.MODEL_COMPLETED:
                if not self._shown and data.get("text"):
                    self._write(str(data["text"]))
                self.end()
            case EventType.MODEL_FAILED:
                self.end()
                self._say("model", "red", f"{data.get('errorType')}: {data.get('error')}")
            case EventType.RETRY_SCHEDULED:
                self._say("model", "yellow", "a retry is scheduled")
            case EventType.TOOL_STARTED:
                self._running += 1
                self._say("tool", "cyan", f"{data.get('toolName')} starts; the store knew before")
            case EventType.TOOL_COMPLETED:
                self._say("tool", "cyan", f"{data.get('toolName')} has returned")
                self._returned()
            case EventType.TOOL_FAILED | EventType.TOOL_IN_DOUBT:
                self._say("tool", "red", f"{data.get('toolName')}: {data.get('error', 'in doubt')}")
                self._returned()
            case _:
                pass

    def end(self) -> None:
        """End the line of a reply, if one is open."""
        if self._column:
            count = f"  ({self._shown} delta{'s' * (self._shown != 1)})" if self._shown else ""
            self._terminal.line(self._terminal.style("dim", count))
        self._column = self._shown = 0
        self._gap = False

    def _say(self, who: str, style: str, text: str) -> None:
        said(self._terminal, who, self._terminal.style(style, self._terminal.fit(text, LABEL)))

    def _call_delta(self, data: JsonObject) -> None:
        piece = data["toolCall"]
        assert isinstance(piece, dict)
        name = piece.get("name")
        self._delta((f" {name} " if name else "") + str(piece.get("arguments") or ""))

    def _returned(self) -> None:
        self._running = max(0, self._running - 1)
        if not self._running:
            held, self._held = self._held, []
            for text in held:
                self._delta(text)

    def _delta(self, text: str) -> None:
        if self._running:
            self._held.append(text)
            return
        self._shown += 1
        self._write(text)

    def _write(self, text: str) -> None:
        """Write on, breaking lines between words."""
        for word in re.findall(r"\s+|\S+", plain(text)):
            if word.isspace():
                self._gap = self._column > LABEL
                continue
            if self._column + self._gap + len(word) > WIDTH and self._column > LABEL:
                self._terminal.piece("\n" + " " * LABEL)
                self._column = LABEL
            elif not self._column:
                self._terminal.piece(f"  {'model':<{LABEL - 2}}")
                self._column = LABEL
            elif self._gap:
                self._terminal.piece(" ")
                self._column += 1
            self._gap = False
            self._terminal.piece(word)
            self._column += len(word)
