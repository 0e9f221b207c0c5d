"""How the demo asks its person: approve, edit or reject."""

from __future__ import annotations

import getpass
import json

from ..actors.record import JsonObject, JsonValue
from ..actors.waits import ResumeCommand, Suspension
from .render import json_text
from .terminal import Terminal


class Left(Exception):
    """The person left at the prompt; the turn still waits."""


def ask(terminal: Terminal, wait: Suspension) -> ResumeCommand:
    """Ask until there is an answer. :raises Left: at Ctrl-C or the end of the input."""
    by = user()
    while True:
        match read("  approve, edit or reject? [a/e/r] ").strip().lower():
            case "a" | "approve" | "y" | "yes":
                return ResumeCommand.approve_tool(wait, by=by)
            case "e" | "edit":
                return ResumeCommand.approve_tool(wait, arguments=edited(terminal, wait), by=by)
            case "r" | "reject" | "n" | "no":
                return ResumeCommand.reject_tool(wait, read("  why? ").strip(), by=by)
            case _:
                terminal.line("  Type a, e or r.")


def edited(terminal: Terminal, wait: Suspension) -> JsonObject:
    """Ask for each argument; an empty line keeps it."""
    terminal.line("  Enter keeps a value.")
    before: JsonObject = {} if wait.call is None else wait.call.arguments
    return {key: _value(read(f"    {key} [{json_text(value)}] "), value) for key, value in before.items()}


def _value(text: str, before: JsonValue) -> JsonValue:
    """Return what was typed: text where text was before, else JSON if it is that."""
    if not text.strip():
        return before
    if isinstance(before, str):
        return text.strip()
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()


def read(prompt: str) -> str:
    """Read a line. :raises Left: at Ctrl-C or the end of the input."""
    try:
        return input(prompt)
    except (KeyboardInterrupt, EOFError):
        raise Left from None


def user() -> str:
    """Return a name for the person at the terminal."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return "you"
