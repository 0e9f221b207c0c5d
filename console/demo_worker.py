"""The processes of the demo: one that starts the turn, one that answers and completes it, and those of the races.

Run as ``python -m turnhold.console.demo_worker ROLE STORY [ARGUMENT]``, where STORY is a `Story` in JSON.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Final

import msgspec

from ..actors.errors import CommandRefused, InvalidFormData, TurnholdError
from ..actors.events import Event, EventType
from ..actors.turn import Status
from ..actors.view import TurnView
from ..actors.waits import ResumeCommand, Suspension, SuspensionType
from ..runtime.runtime import Runtime
from .cli import LEFT, own_process, unread
from .commands import error_text
from .demo_prompt import Left, ask
from .demo_races import prepare, race
from .demo_speech import Speaker, said
from .demo_story import REQUEST, STORY, Story, runs_of, story_agent, verdict
from .render import call_text, coloured_status, timeline, when
from .terminal import Terminal

PATIENCE: Final = 600
STEPS: Final = frozenset({EventType.STEP_STARTED, EventType.STEP_COMPLETED})


async def begin(story: Story, terminal: Terminal) -> int:
    """Start the turn and run it until it waits for a person."""
    speaker = Speaker(terminal)
    said(terminal, "process", str(os.getpid()))
    said(terminal, "user", REQUEST)
    async with Runtime(story.url, agents=[story_agent(story)], listeners=[speaker], drain=5) as runtime:
        turn = await runtime.start(STORY, REQUEST, streaming=True)
        view = await turn.settle(PATIENCE, through_retries=True)
    said(terminal, "turn", f"{view.id} {coloured_status(terminal, view.status)}")
    if view.status is Status.WAITING_FOR_APPROVAL:
        return 0
    terminal.line()
    terminal.paragraph(terminal.style("red", _why_not(view)))
    return 1


def _why_not(view: TurnView) -> str:
    """Say why a turn has not come to its approval: a model does what it likes."""
    if view.status is Status.COMPLETED:
        return "The model answered without a proper call of refund_order, so there is nothing to approve. Nothing was refunded."
    reason = f": {view.error.type}: {view.error.message}" if view.error is not None else ""
    return f"The turn did not come to an approval, it is {view.status.value}{reason}. Nothing was refunded."


def answer(story: Story, terminal: Terminal, turn_id: str) -> int:
    """Show what waits, take the answer, complete the turn; then show what has happened.

    The store is closed while the person thinks. Nothing has to run for a turn to wait.
    """
    said(terminal, "process", str(os.getpid()))
    view = asyncio.run(_look(story, turn_id))
    approved = idle = False
    while not view.status.terminal and not idle:
        wait = next((wait for wait in view.open_waits if wait.type is SuspensionType.TOOL_APPROVAL), None)
        idle = wait is None
        command = None if wait is None else _decide(story, terminal, wait, again=approved)
        approved = True
        view = asyncio.run(_go_on(story, terminal, turn_id, command))
    return asyncio.run(_conclude(story, terminal, view))


def _decide(story: Story, terminal: Terminal, wait: Suspension, *, again: bool) -> ResumeCommand:
    call = "" if wait.call is None else call_text(wait.call)
    said(terminal, "inbox", f"1 open wait, since {when(wait.created_at)}")
    terminal.line()
    terminal.line(f"      {terminal.style('bold', call)}")
    terminal.line(f"      {terminal.fit(wait.message or '', 6)}")
    terminal.line()
    if not story.yes:
        terminal.line(terminal.style("dim", "  Take your time. Nothing runs while it waits; Ctrl-C leaves it waiting."))
        return ask(terminal, wait)
    if again:
        said(terminal, "answer", f"reject, by itself ({story.why}): it approves one refund only")
        return ResumeCommand.reject_tool(wait, "One refund was approved already.", by="demo")
    said(terminal, "answer", f"approve, by itself ({story.why})")
    return ResumeCommand.approve_tool(wait, by="demo")


async def _look(story: Story, turn_id: str) -> TurnView:
    async with Runtime(story.url, execute=False) as runtime:
        return await runtime.turn(turn_id).view()


async def _go_on(story: Story, terminal: Terminal, turn_id: str, command: ResumeCommand | None) -> TurnView:
    """Deliver an answer and run the turn until it settles again. What is refused is shown; the turn is as it was."""
    speaker = Speaker(terminal)
    async with Runtime(story.url, agents=[story_agent(story)], listeners=[speaker], drain=5) as runtime:
        turn = runtime.turn(turn_id)
        if command is not None:
            try:
                await turn.submit(command)
            except CommandRefused as refusal:
                terminal.paragraph(terminal.style("yellow", error_text(refusal)))
                terminal.line()
                if isinstance(refusal, InvalidFormData):
                    return await turn.view()
        view = await turn.settle(PATIENCE, through_retries=True)
    speaker.end()
    return view


async def _conclude(story: Story, terminal: Terminal, view: TurnView) -> int:
    """Show the ledger and the timeline, and judge them."""
    async with Runtime(story.url, execute=False) as runtime:
        events: list[Event] = [event async for event in runtime.turn(view.id).events(live=False, follow=False)]
    said(terminal, "turn", f"{view.id} {coloured_status(terminal, view.status)}")
    entries = runs_of(story.ledger, view.id)
    runs = {0: "never ran", 1: "ran once"}.get(len(entries), f"ran {len(entries)} times")
    said(terminal, "ledger", terminal.style("bold", f"{len(entries)} line{'s' * (len(entries) != 1)}: refund_order {runs}"))
    for entry in entries:
        said(terminal, "", f"{terminal.fit(entry.order_id, 60)}, {entry.amount} dollars, by process {entry.pid}")
        said(terminal, "", f"key {entry.key}")
    terminal.line()
    terminal.line("  What happened, as every process can read it (without the steps):")
    terminal.line()
    terminal.lines(timeline(terminal, events, without=STEPS))
    fault = verdict(story, view.id, events)
    if fault is None and view.status is not Status.COMPLETED:
        fault = f"the turn is {view.status.value}" + (f": {view.error.message}" if view.error is not None else "")
    if fault is None:
        return 0
    terminal.line()
    terminal.paragraph(terminal.style("red", f"This is not as it should be: {fault}."))
    return 1


def main(arguments: list[str]) -> int:
    """Play one role."""
    own_process()
    role, text, *more = arguments
    story = msgspec.json.decode(text, type=Story)
    terminal = Terminal(width=80)
    try:
        match role:
            case "begin":
                return asyncio.run(begin(story, terminal))
            case "answer":
                return answer(story, terminal, more[0])
            case "prepare":
                return asyncio.run(prepare(story))
            case _:
                return asyncio.run(race(story, more[0]))
    except (KeyboardInterrupt, Left):
        terminal.line()
        return LEFT
    except BrokenPipeError:
        return unread()
    except (TurnholdError, TimeoutError) as error:
        terminal.line()
        print(f"turnhold: {error_text(error)}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
