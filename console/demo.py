"""`turnhold demo`: a refund that waits for a person, over processes that come and go."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec

from ..actors.errors import TurnholdError
from ..actors.view import TurnView
from ..runtime.runtime import Runtime
from .cli import LEFT, unread
from .commands import error_text
from .demo_races import RaceFailed, run_races
from .demo_speech import said
from .demo_story import DEFAULT_MODEL, STORY, Story
from .terminal import Terminal

WORKER: Final = (sys.executable, "-P", "-m", f"{__package__}.demo_worker")
MISSING: Final = "a real model needs the openai package: pip install 'turnhold[openai]'"


def demo(options: argparse.Namespace) -> int:
    """Tell the story; return 0 if it went as it should, 1 if not, 130 where the person left."""
    terminal = Terminal(width=80)
    try:
        story, hint = make_story(options)
        return _tell(story, hint, terminal)
    except BrokenPipeError:
        return unread()
    except (TurnholdError, RaceFailed, OSError) as error:
        print(f"turnhold: {error_text(error)}", file=sys.stderr)
        return 1


def make_story(options: argparse.Namespace) -> tuple[Story, str]:
    """Return what is to be told, and a hint about the model.

    :raises TurnholdError: if a real model is wanted and the `openai` package is missing.
    """
    asked = any(value is not None for value in (options.model, options.base_url, options.api_key))
    key = options.api_key or os.environ.get("OPENAI_API_KEY")
    installed = importlib.util.find_spec("openai") is not None
    hint, real = "scripted (no key, no network)", asked and not options.scripted
    if key and not asked and not options.scripted:
        real = installed
        hint = f"scripted ({MISSING.partition(': ')[2]} for a real one)"
    if real and not installed:
        raise TurnholdError(MISSING)
    if options.api_key:
        os.environ["OPENAI_API_KEY"] = options.api_key
    if real:
        name = options.model or DEFAULT_MODEL
        why = "" if asked else ", as OPENAI_API_KEY is set (--scripted for none)"
        hint = f"{name} at {options.base_url or 'OpenAI'}{why}"
    alone = not sys.stdin.isatty()
    store = options.store or Path(tempfile.mkdtemp(prefix="turnhold-demo-"), "turns.db")
    story = Story(
        store=str(Path(store).absolute()),
        yes=options.yes or alone,
        why="--yes" if options.yes else "there is no terminal to ask at",
        model=(options.model or DEFAULT_MODEL) if real else None,
        base_url=options.base_url,
        waits=options.waits,
    )
    return story, hint


def _tell(story: Story, hint: str, terminal: Terminal) -> int:
    terminal.line(terminal.style("bold", "turnhold demo: a refund that waits for a person"))
    terminal.line()
    said(terminal, "store", story.store)
    said(terminal, "ledger", str(story.ledger))
    said(terminal, "model", hint)
    turn = asyncio.run(_open_turn(story)) if Path(story.store).exists() else None
    if turn is not None:
        terminal.line()
        terminal.paragraph(f"An earlier demo left turn {turn.id} in this file, {turn.status.value}; this goes on with it.")
    else:
        _heading(terminal, 1, "A turn stops for approval, and its process exits")
        code = _run(story, terminal, "begin")
        turn = asyncio.run(_open_turn(story)) if not code else None
        if turn is None:
            return code or 1
    _heading(terminal, 2, "Another process finds the wait and answers it")
    code = _run(story, terminal, "answer", turn.id)
    if code == LEFT:
        _left(story, turn, terminal)
    if code:
        return code
    if story.waits:
        _heading(terminal, 3, f"Two processes approve one wait at the same instant, {story.waits} times")
        if not run_races(story, terminal, list(WORKER)):
            terminal.line()
            terminal.line(terminal.style("red", "  This is not as it should be."))
            return 1
    terminal.line()
    terminal.line("All of it is in the store. Look around:")
    _command(terminal, f"show {story.url}", turn.id)
    return 0


def _heading(terminal: Terminal, number: int, text: str) -> None:
    terminal.line()
    terminal.line(terminal.style("bold", f"{number}  {text}"))
    terminal.line()


async def _open_turn(story: Story) -> TurnView | None:
    """Return the newest turn of the story that has not ended."""
    found, after = None, None
    async with Runtime(story.url, execute=False) as runtime:
        while True:
            page = await runtime.turns(agent=STORY, limit=200, after=after)
            found = next((view for view in reversed(page.items) if not view.status.terminal), found)
            if (after := page.next) is None:
                return found


def _run(story: Story, terminal: Terminal, role: str, *more: str) -> int:
    """Run one process of the story at this terminal, and see that it is gone.

    Ctrl-C reaches that process too, and it is that one which decides what it means.
    """
    text = msgspec.json.encode(story).decode()
    with _no_interrupts(), subprocess.Popen([*WORKER, role, text, *more]) as process:  # noqa: S603 - our own module
        code = process.wait()
    if not code:
        gone = "gone" if _is_gone(process.pid) else "not gone"
        terminal.line()
        terminal.line(f"  Process {process.pid} is {gone} (exit code {code}).{' The turn is rows in a file.' * (role == 'begin')}")
    return code


@contextmanager
def _no_interrupts() -> Generator[None]:
    def ignore(number: int, frame: FrameType | None) -> None:
        """Wait on; a handler, unlike SIG_IGN, is not inherited."""

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, ignore)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _is_gone(pid: int) -> bool:
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except OSError:
        return True
    return False


def _left(story: Story, turn: TurnView, terminal: Terminal) -> None:
    terminal.line("You left. The turn waits on, and nothing runs. Answer it when you like:")
    _command(terminal, f"answer {story.url}", f"{turn.id} approve --by you")
    terminal.line("and let a process go on with it:")
    _command(terminal, f"demo --store {story.store}")


def program() -> str:
    """Return how to call this program again: by its name, or, where a shell would not find that, as it was called."""
    called = Path(sys.argv[0])
    if called.name != "turnhold" or not called.is_file():
        return "turnhold"
    found = shutil.which("turnhold")
    return "turnhold" if found is not None and called.samefile(found) else shlex.quote(sys.argv[0])


def _command(terminal: Terminal, *parts: str) -> None:
    """Show a command to copy, over two lines where it is long."""
    parts = (f"{program()} {parts[0]}", *parts[1:])
    text = " ".join(parts)
    terminal.line("  " + (text if len(text) <= 78 else " \\\n      ".join(parts)))
