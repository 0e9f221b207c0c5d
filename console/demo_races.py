"""Two processes approve one wait at the same instant, many times; and how that is counted."""

from __future__ import annotations

import sys
from collections import Counter
from subprocess import PIPE, Popen
from typing import Final, final

import msgspec

from ..actors.errors import AlreadyAnswered, TurnholdError
from ..actors.ids import turn_of_wait
from ..actors.waits import ResumeCommand
from ..runtime.runtime import Runtime
from ..runtime.world import World
from .demo_story import RACE, REQUEST, Story, race_agent, read_ledger, turn_of_key
from .terminal import Terminal

NAMES: Final = ("ann", "bob")
PATIENCE: Final = 60


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of one answer: accepted, or refused with the receipt of the other one, or something else (which is a fault)."""

    accepted: bool = False
    decided_by: str | None = None
    fault: str | None = None


# --------------------------------------------------------------------------------------------------------- in the processes


async def prepare(story: Story) -> int:
    """Start turns until each waits, print the ids of their waits, and go away."""
    async with Runtime(story.url, agents=[race_agent(story)]) as runtime:
        turns = [await runtime.start(RACE, REQUEST) for _ in range(story.waits)]
        views = [await turn.settle(PATIENCE) for turn in turns]
    sys.stdout.write(msgspec.json.encode([view.open_waits[0].id for view in views]).decode())
    return 0


async def race(story: Story, name: str) -> int:
    """Approve each wait that is named on standard input, at once; then see that all these turns end."""
    world, turns = World(), list[str]()
    async with Runtime(story.url, agents=[race_agent(story)]) as runtime:
        _tell("ready")
        while wait := (await world.thread(sys.stdin.readline)).strip():
            turns.append(turn_of_wait(wait))
            try:
                await runtime.turn(turns[-1]).submit(ResumeCommand.approve_tool(wait, by=name), PATIENCE)
                outcome = Outcome(accepted=True)
            except AlreadyAnswered as refusal:
                outcome = Outcome(decided_by=refusal.receipt.by)
            except TurnholdError as error:
                outcome = Outcome(fault=f"{type(error).__name__}: {error}")
            _tell(msgspec.json.encode(outcome).decode())
        for turn in turns:
            await runtime.turn(turn).settle(PATIENCE)
    return 0


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


# --------------------------------------------------------------------------------------------------------------- from outside


@final
class Racer:
    """One of the two processes, as the demo drives it."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self.process = Popen([*command, name], stdin=PIPE, stdout=PIPE, text=True)  # noqa: S603 - our own module

    def send(self, line: str) -> None:
        """Name a wait to the process."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def read(self) -> str:
        """Read a line. :raises RaceFailed: if the process has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RaceFailed(f"the process of {self.name} ended (exit code {self.process.wait()})")
        return line.strip()

    def end(self) -> int:
        """Let the process end, and return its exit code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.read()
        self.process.stdout.close()
        return self.process.wait()


class RaceFailed(Exception):
    """A process of the races ended before its time."""


@final
class Tally:
    """What came of all races."""

    def __init__(self) -> None:
        self.races: list[tuple[str, dict[str, Outcome]]] = []

    def add(self, wait: str, outcomes: dict[str, Outcome]) -> None:
        """Take in one race."""
        self.races.append((wait, outcomes))

    @property
    def wins(self) -> Counter[str]:
        """Whose answers were accepted, how often."""
        return Counter(name for _, outcomes in self.races for name, outcome in outcomes.items() if outcome.accepted)

    @property
    def decided(self) -> int:
        """How many waits have exactly one accepted answer."""
        return sum(sum(outcome.accepted for outcome in outcomes.values()) == 1 for _, outcomes in self.races)

    @property
    def told(self) -> int:
        """How many refused answers name the one who won."""
        return sum(
            outcome.decided_by is not None and outcomes[outcome.decided_by].accepted
            for _, outcomes in self.races
            for outcome in outcomes.values()
        )

    @property
    def faults(self) -> list[str]:
        """Other answers than these two."""
        return [outcome.fault for _, outcomes in self.races for outcome in outcomes.values() if outcome.fault is not None]

    def runs(self, story: Story) -> Counter[int]:
        """How many tools ran how often, by the ledger."""
        ran = Counter(turn_of_key(entry.key) for entry in read_ledger(story.races))
        return Counter(ran[turn_of_wait(wait)] for wait, _ in self.races)

    def right(self, story: Story) -> bool:
        """Tell whether every tool ran once, and every process got its one answer."""
        count = len(self.races)
        return self.runs(story) == {1: count} and self.decided == self.told == count == story.waits and not self.faults


def run_races(story: Story, terminal: Terminal, command: list[str]) -> bool:
    """Run the races and show the tally; tell whether it is right.

    :param command: how to start a process of the demo; a role, the story and an argument are appended.
    :raises RaceFailed: if one of the processes ended before its time.
    """
    text = msgspec.json.encode(story).decode()
    with Popen([*command, "prepare", text], stdout=PIPE) as process:  # noqa: S603 - our own module
        waits = process.communicate()[0]
    if process.returncode:
        raise RaceFailed(f"the turns could not be started (exit code {process.returncode})")
    tally = Tally()
    racers = [Racer(name, [*command, "race", text]) for name in NAMES]
    try:
        for racer in racers:
            racer.read()
        terminal.line("  " + " and ".join(f"process {racer.process.pid} ({racer.name})" for racer in racers))
        for number, wait in enumerate(msgspec.json.decode(waits, type=list[str])):
            for racer in racers if number % 2 else reversed(racers):
                racer.send(wait)
            tally.add(wait, {racer.name: msgspec.json.decode(racer.read(), type=Outcome) for racer in racers})
    finally:
        codes = [racer.end() for racer in racers]
    if any(codes):
        raise RaceFailed(f"a process ended with exit code {max(codes)}")
    show(tally, story, terminal)
    return tally.right(story)


def show(tally: Tally, story: Story, terminal: Terminal) -> None:
    """Show the tally."""
    runs, wins, more = tally.runs(story), tally.wins, len(tally.faults)
    rows: list[tuple[str, int, str, bool]] = [
        ("waits", len(tally.races), "each approved by both at the same instant", True),
        ("tool ran once", runs[1], "", runs[1] == len(tally.races)),
        ("tool ran twice", sum(count for times, count in runs.items() if times > 1), "", not set(runs) - {0, 1}),
        ("tool never ran", runs[0], "", not runs[0]),
        ("answers accepted", wins.total(), ", ".join(f"{name} {wins[name]}" for name in NAMES), tally.decided == len(tally.races)),
        ("losers told who won", tally.told, "AlreadyAnswered, with the winner's receipt", tally.told == len(tally.races)),
    ]
    if more:
        rows.append(("other answers", more, terminal.fit(tally.faults[0], 34), False))
    terminal.line()
    for name, count, note, right in rows:
        number = terminal.style("green" if right else "red", f"{count:>5}")
        terminal.line(f"  {name:<22}{number}  {terminal.style('dim', note)}")
