"""The commands on a store. They run no agents: their node has `execute=False`."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from ..actors.errors import AlreadyAnswered, AnswerPending, InvalidDefinition, InvalidFormData, SuspensionMismatch, TurnholdError
from ..actors.record import Record
from ..actors.turn import Status
from ..actors.waits import ResumeCommand
from ..runtime.runtime import Runtime
from ..store.urls import open_store
from .render import coloured_status, entry_lines, message_lines, plan_lines, receipt_text, timeline, view_lines, wait_lines, when
from .terminal import Terminal, aligned, plain

Command = Callable[[argparse.Namespace, Terminal], Coroutine[Any, Any, int]]


def run(options: argparse.Namespace) -> int:
    """Run a command; an error of ours is one line on stderr."""
    try:
        with asyncio.Runner(loop_factory=loop_of(options.command)) as runner:
            return runner.run(COMMANDS[options.command](options, Terminal()))
    except (TurnholdError, TimeoutError) as error:
        print(f"turnhold: {error_text(error)}", file=sys.stderr)
        return 1


def loop_of(command: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes a command's event loop: uvloop, where it is installed, for a server; the others are over before it pays."""
    if command != "mcp":
        return None
    try:
        return importlib.import_module("uvloop").new_event_loop
    except ImportError:
        return None


def error_text(error: Exception) -> str:
    """Return an error as one line that says what to do."""
    text = " ".join(plain(str(error)).split())
    match error:
        case AlreadyAnswered():
            return f"{text}; your answer {'was the same' if error.agrees else 'differs and was not taken'}"
        case AnswerPending():
            return f"{text} (--command-id {error.command_id})"
        case SuspensionMismatch() if error.open_waits:
            return f"{text}: --wait {' or '.join(wait.id for wait in error.open_waits)}"
        case InvalidFormData():
            return f"{text}; the wait stays open"
        case _:
            return text


@asynccontextmanager
async def node(url: str) -> AsyncGenerator[Runtime]:
    """Open a store for reading and answering; unlike an application this does not make a file that is not there."""
    store = open_store(url)
    path: Any = getattr(store, "path", None)
    if path is not None and not path.exists():
        raise InvalidDefinition(f"there is no store at {path}")
    async with Runtime(store, execute=False) as runtime:
        yield runtime


def _print_json(terminal: Terminal, records: tuple[Record, ...]) -> None:
    terminal.lines(record.to_json().decode() for record in records)


def _more(terminal: Terminal, after: str | None) -> None:
    if after is not None:
        terminal.line()
        terminal.line(f"There are more: --after {after}")


async def inbox(options: argparse.Namespace, terminal: Terminal) -> int:
    """List the open waits that people answer."""
    async with node(options.url) as runtime:
        page = await runtime.inbox(
            assignee=options.assignee, tenant=options.tenant, agent=options.agent, limit=options.limit, after=options.after
        )
    if options.json:
        _print_json(terminal, page.items)
        return 0
    for wait in page.items:
        terminal.line(f"{terminal.style('bold', wait.turn_id)}  {plain(wait.agent_id)}")
        terminal.lines(wait_lines(terminal, wait))
        terminal.line()
    count = len(page.items)
    terminal.line("Nothing waits for a person." if not count else f"{count} open wait{'s' * (count != 1)}")
    _more(terminal, page.next)
    return 0


async def turns(options: argparse.Namespace, terminal: Terminal) -> int:
    """List turns."""
    async with node(options.url) as runtime:
        page = await runtime.turns(
            status=_status(options.status),
            agent=options.agent,
            conversation=options.conversation,
            tenant=options.tenant,
            quarantined=True if options.quarantined else None,
            limit=options.limit,
            after=options.after,
        )
    if options.json:
        _print_json(terminal, page.items)
        return 0
    rows = [(view.id, when(view.created_at), f"{view.status.value:<20}", plain(view.agent_id)) for view in page.items]
    for line, view in zip(aligned(rows, ""), page.items, strict=True):
        terminal.line(line.replace(view.status.value, coloured_status(terminal, view.status), 1))
    if not rows:
        terminal.line("No turns.")
    _more(terminal, page.next)
    return 0


def _status(text: str | None) -> Status | None:
    try:
        return None if text is None else Status(text)
    except ValueError:
        raise InvalidDefinition(f"no status {text!r}; there are {', '.join(Status)}") from None


async def show(options: argparse.Namespace, terminal: Terminal) -> int:
    """Show one turn."""
    async with node(options.url) as runtime:
        turn = runtime.turn(_turn(options))
        view = await turn.view()
        events = [event async for event in turn.events(live=False, follow=False)]
        history = await turn.history() if options.history else []
    if options.json:
        _print_json(terminal, (view, *history, *events))
        return 0
    terminal.lines(view_lines(terminal, view))
    if view.plan is not None:
        terminal.line()
        terminal.line(terminal.style("bold", "plan"))
        terminal.lines(plan_lines(terminal, view.plan))
    for wait in view.open_waits:
        terminal.line()
        terminal.line(terminal.style("bold", "open wait"))
        terminal.lines(wait_lines(terminal, wait))
    if history:
        terminal.line()
        terminal.line(terminal.style("bold", "messages"))
    for message in history:
        terminal.lines(message_lines(terminal, message))
    terminal.line()
    terminal.line(terminal.style("bold", "events"))
    terminal.lines(timeline(terminal, events))
    return 0


async def conversation(options: argparse.Namespace, terminal: Terminal) -> int:
    """Show a conversation: which turn is open, which wait, and what the store remembers of it."""
    async with node(options.url) as runtime:
        found = runtime.conversation(options.id)
        messages = await found.messages(options.limit, options.before)
        open_turn, queued = await found.open_turn(), await found.queued()
    if options.json:
        _print_json(terminal, tuple(messages))
        return 0
    if open_turn is not None:
        terminal.line(f"open    {open_turn.id}")
    for turn in queued:
        terminal.line(f"queued  {turn.id}")
    for entry in messages:
        terminal.lines(entry_lines(terminal, entry))
    if not messages:
        terminal.line("Nothing is remembered.")
    elif len(messages) == options.limit:
        terminal.line()
        terminal.line(f"There may be more: --before {plain(messages[0].id)}")
    return 0


async def answer(options: argparse.Namespace, terminal: Terminal) -> int:
    """Answer a wait and print the receipt."""
    command = _command(options)
    async with node(options.url) as runtime:
        turn = runtime.turn(_turn(options))
        receipt = await turn.submit(command, options.timeout)
        view = await turn.view()
    if options.json:
        _print_json(terminal, (receipt,))
        return 0
    terminal.line(receipt_text(receipt))
    agent = plain(f"{view.agent_id}@{view.agent_version}")
    later = "" if view.status.terminal or view.open_waits else f"; a process that runs {agent} goes on with it"
    terminal.line(f"turn {view.id} is {coloured_status(terminal, view.status)}{later}")
    return 0


def _turn(options: argparse.Namespace) -> str:
    """Return the turn that is meant; a wait's id begins with it."""
    return str(options.turn).partition("/")[0]


def _command(options: argparse.Namespace) -> ResumeCommand:
    wait = options.wait or (options.turn if "/" in options.turn else None)
    given: dict[str, Any] = {"command_id": options.command_id, "by": options.by}
    reason = options.reason or ""
    data = None if options.data is None else options.data.value
    match options.verb:
        case "approve":
            arguments = None if options.arguments is None else options.arguments.value
            return ResumeCommand.approve_tool(wait, arguments=arguments, **given)
        case "reject":
            return ResumeCommand.reject_tool(wait, reason, **given)
        case "say":
            return ResumeCommand.user_input(options.text, wait=wait, **given)
        case "submit":
            return ResumeCommand.submit_form(wait, data, **given)
        case "decline":
            return ResumeCommand.decline(wait, reason, **given)
        case "retry":
            return ResumeCommand.retry(wait, force=bool(options.force), **given)
        case "rerun":
            return ResumeCommand.rerun(wait, **given)
        case "result":
            return ResumeCommand.give_result(wait, data, **given)
        case _:
            return ResumeCommand.fail_call(wait, reason, **given)


async def cancel(options: argparse.Namespace, terminal: Terminal) -> int:
    """Cancel a turn; where its owner lets a tool end first, this takes a while."""
    async with node(options.url) as runtime:
        turn = runtime.turn(_turn(options))
        try:
            view = await turn.cancel(options.reason, options.timeout)
        except TimeoutError:
            print(f"turnhold: turn {turn.id} has not ended within {options.timeout:g} s; the cancel stands", file=sys.stderr)
            return 1
    if options.json:
        _print_json(terminal, (view,))
    else:
        terminal.line(f"turn {view.id} is {coloured_status(terminal, view.status)}")
    return 0


async def mcp(options: argparse.Namespace, terminal: Terminal) -> int:
    """Serve a store to MCP clients until they are gone, or the process is told to stop."""
    from ..protocols.mcp import serve_mcp

    async with node(options.url) as runtime:
        await serve_mcp(
            runtime,
            "stdio" if options.port is None else "http",
            by=options.by,
            agents=options.agents,
            tenant=options.tenant,
            host=options.host,
            port=options.port or 0,
        )
    return 0


COMMANDS: dict[str, Command] = {
    "inbox": inbox,
    "turns": turns,
    "show": show,
    "conversation": conversation,
    "answer": answer,
    "cancel": cancel,
    "mcp": mcp,
}
