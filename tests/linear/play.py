"""Plays a concurrent run on real runtimes and a real store in virtual time, and writes down who was told what, and when."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import Any

from turnhold import (
    Agent,
    AiMessage,
    AnswerPending,
    ApprovalDecision,
    CommandRefused,
    FormDefinition,
    Receipt,
    ResumeCommand,
    Runtime,
    StoreUnavailable,
    ToolCall,
    ToolContext,
    tool,
)
from turnhold.runtime.world import World
from turnhold.store.base import TurnStore
from turnhold.testing import ScriptedModel, VirtualClock
from turnhold.testing.arena import Seat
from turnhold.testing.crashes import POINTS
from turnhold.testing.witness import Witness

from ..machine.explorer import EDITED, Story
from .search import Operation
from .turns import Ask, OneTurn, Told, error_told, receipt_told, view_told

LEASE = 10.0
FORM = FormDefinition(
    "f", description="a form", schema={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, expires_in=40
)
FIRST = AiMessage("", (ToolCall("c1", "refund"), ToolCall("c2", "notify"), ToolCall("c3", "send")))
SECOND = AiMessage("", (ToolCall("c4", "refund"),))
LAST = AiMessage("done")


@tool(approval=ApprovalDecision.require(expires_in=15), effect="repeatable")
async def notify(amount: int = 0) -> str:
    """Notify somebody, if a person agrees in time."""
    return "ok"


@tool(effect="repeatable")
async def send(amount: int = 0) -> str:
    """Send, when a form has been filled in."""
    ToolContext.current().form(FORM)
    return "ok"


def make_agent(seconds: float = 1) -> Agent:
    """Three calls at once: an approval, one that expires, a form; then an approval; then text."""

    @tool(approval=True)
    async def refund(amount: int = 0) -> str:
        """Refund an amount; once, and that may take a while."""
        await asyncio.sleep(seconds)
        return "ok"

    return Agent("shop", model=ScriptedModel(FIRST, SECOND, LAST), tools=[refund, notify, send])


def story(agent: Agent, crashes: int) -> Story:
    """What the turns of the agent do, as the machine is told of it."""
    return Story(agent, (FIRST, SECOND, LAST), forms={"send": FORM}, crashes=crashes)


WAITS = ("c1/1", "c2/1", "c3/1", "c4/1", "c1/1", "c2/1", "c4/1", "c1/2", "/1", "c1", "c2", "c3", "c4", "")
ANSWERS: tuple[Any, ...] = (
    ResumeCommand.approve_tool,
    ResumeCommand.reject_tool,
    lambda wait, **more: ResumeCommand.approve_tool(wait, arguments=EDITED, **more),
    lambda wait, **more: ResumeCommand.approve_tool(wait, arguments={"amount": "?"}, **more),
    lambda wait, **more: ResumeCommand.submit_form(wait, {"a": 1}, **more),
    lambda wait, **more: ResumeCommand.submit_form(wait, {"a": "?"}, **more),
    ResumeCommand.decline,
    lambda wait, **more: ResumeCommand.user_input("go on", wait=wait, **more),
    ResumeCommand.rerun,
    lambda wait, **more: ResumeCommand.give_result(wait, 1, **more),
)
FITTING = {"c1": (0, 1, 2, 3), "c2": (0, 1, 2), "c3": (4, 5, 6), "c4": (0, 1, 2), "": (7,)}


def machine(run: Asked) -> OneTurn:
    """What should explain a run that is over."""
    cancels = [operation for operation in run.history if operation.asked.kind == "ended"]
    flag = min((operation.began for operation in cancels), default=1 << 60)
    over = min((operation.ended or 1 << 60 for operation in cancels), default=1 << 60)
    return OneTurn(story(run.agent, run.lost), run.turn_id, run.created, run.now(), flag=flag, over=over)


class Asked:
    """A turn, the nodes of which it can be asked (the last of them runs nothing), and what was asked of it so far."""

    def __init__(self, agent: Agent, clock: VirtualClock | None) -> None:
        self.agent = agent
        self.clock = clock
        self.world = World(clock)
        self.history: list[Operation] = []
        self.receipts: dict[str, set[str]] = {}
        self.sent: list[ResumeCommand] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.moments = itertools.count(1)
        self.lost = 0
        self.turn_id = ""
        self.created = 0

    def nodes(self) -> list[Runtime]:
        """The nodes as they are now."""
        raise NotImplementedError

    def now(self) -> int:
        """Store time in milliseconds."""
        return int((time.time() if self.clock is None else self.clock.wall()) * 1000)

    def ask(self, seat: int, ask: Ask, timeout: float = 30) -> None:
        """Ask, in a task of its own."""
        nodes = self.nodes()
        place = seat % len(nodes)
        runtime, who = nodes[place], "front" if place == len(nodes) - 1 else f"node-{place}"
        at = len(self.history)
        began = next(self.moments)
        since = self.now()
        self.history.append(Operation(began, None, ask, since=since, until=1 << 60, who=who))
        self.tasks.append(self.world.spawn(self._asked(runtime, at, ask, timeout), "sender"))

    async def _asked(self, runtime: Runtime, at: int, ask: Ask, timeout: float) -> None:
        try:
            told = await self._told(runtime, ask, timeout)
        except (AnswerPending, StoreUnavailable, TimeoutError):
            return
        known = self.history[at]
        self.history[at] = Operation(
            known.began, next(self.moments), ask, told, since=known.since, until=self.now() + 1, who=known.who
        )

    async def _told(self, runtime: Runtime, ask: Ask, timeout: float) -> Told:
        turn = runtime.turn(self.turn_id)
        try:
            match ask.kind:
                case "view":
                    return view_told(await turn.view())
                case "ended":
                    return "ended", (await turn.cancel("stop", timeout=timeout)).status.value
                case "question":
                    await turn.suspend(f"q{next(self.moments)}")
                    return ("noted",)
                case _:
                    assert ask.command is not None
                    receipt = await turn.submit(ask.command, timeout)
        except CommandRefused as error:
            self._keep(getattr(error, "receipt", None))
            return error_told(error)
        self._keep(receipt)
        return "accepted", receipt_told(receipt)

    def _keep(self, receipt: Receipt | None) -> None:
        """All that are told of one wait's end are told the same, to the millisecond."""
        if receipt is not None:
            plain = receipt.from_dict({**receipt.to_dict(), "replayed": False}).to_json().decode()
            self.receipts.setdefault(receipt.suspension_id, set()).add(plain)

    def cancel(self, seat: int) -> None:
        """The flag, and the end that its sender is told of, are two things in this order."""
        self.ask(seat, Ask("ended"), 60)
        known = self.history[-1]
        self.history.append(Operation(next(self.moments), None, Ask("cancel"), since=known.since, until=1 << 60, who=known.who))

    def command(self, first: int, second: int, name: str) -> ResumeCommand:
        """An answer to a wait, mostly one that fits."""
        wait = WAITS[first % len(WAITS)]
        call = wait.partition("/")[0]
        fitting = FITTING[call]
        make = ANSWERS[fitting[second % len(fitting)] if second < 12 else second % len(ANSWERS)]
        target = f"{self.turn_id}/{wait}" if "/" in wait else wait or None
        made = make(target, command_id=name, by=f"person-{second % 2}")
        self.sent.append(made)
        return made

    def submit(self, seat: int, command: ResumeCommand, timeout: float = 30) -> None:
        """Ask by a command."""
        self.ask(seat, Ask("submit", command, at_api=seat % len(self.nodes()) == len(self.nodes()) - 1), timeout)


class Run(Asked):
    """One run in virtual time: nodes that may die and freeze, and their one turn."""

    def __init__(self, store: TurnStore, clock: VirtualClock, seats: int = 2) -> None:
        super().__init__(make_agent(), clock)
        self.time = clock
        self.seats = [Seat(number, store, [self.agent], clock, Witness()) for number in range(seats)]
        self.front = Runtime(store, node="front", execute=False, clock=clock, lease=LEASE)

    def nodes(self) -> list[Runtime]:
        """The nodes as they are now."""
        return [*(seat.runtime for seat in self.seats), self.front]

    async def open(self) -> None:
        """Let all sit down, and start the turn."""
        await self.front.__aenter__()
        for seat in self.seats:
            await seat.open(LEASE)
        self.created = self.now()
        self.turn_id = (await self.seats[0].runtime.start(self.agent.id, "hi")).id

    async def move(self, name: str, seat: int, first: int, second: int) -> None:
        """Do one thing; see `tests/linear/test_commands.py` for what the numbers are drawn from."""
        place = self.seats[seat % len(self.seats)]
        match name:
            case "answer":
                self.submit(seat, self.command(first, second, f"k{len(self.sent)}"))
            case "hasty":
                self.submit(seat, self.command(first, second, f"k{len(self.sent)}"), 0)
            case "reused":
                self.submit(seat, self.command(first, second, f"k{second % 3}"))
            case "again" if self.sent:
                self.submit(seat, self.sent[first % len(self.sent)])
            case "view" | "question":
                self.ask(seat, Ask(name))
            case "cancel":
                self.cancel(seat)
            case "advance":
                await self.time.advance((0.001, 0.5, 1, 4, 12, 30)[first % 6])
            case "spin":
                for _ in range(first):
                    await asyncio.sleep(0)
            case "arm":
                place.arm(("*", "save", "deliver", "claim")[first % 4], POINTS[second % 3], 1)
                self.lost += 1
            case "kill":
                self.lost += 1
                await place.kill()
                await place.again(LEASE)
            case "freeze":
                self.lost += 1
                place.gate.close()
            case "thaw":
                place.gate.open(broken=place.dead)
            case _:
                pass

    async def finish(self) -> None:
        """Heal what is ill, let all that was asked be answered, and ask everything once more."""
        await self.time.idle()
        for seat in self.seats:
            if not seat.well:
                self.lost += 1
                await seat.again(LEASE)
        await self.time.advance(70)
        for task in self.tasks:
            assert task.done(), "somebody waits for ever"
            await task
        for command in {str(command): command for command in self.sent}.values():
            self.submit(0, command)
            await self.time.advance(2)
        self.ask(1, Ask("view"))
        await self.time.advance(2)

    async def close(self) -> None:
        """Leave."""
        for task in self.tasks:
            task.cancel()
        for seat in self.seats:
            await seat.kill()
            await seat.leave()
        await self.front.__aexit__(None, None, None)


async def play(run: Run, moves: Sequence[tuple[str, int, int, int]]) -> None:
    """Play a run to its end."""
    try:
        await run.open()
        for move in moves:
            await run.move(*move)
        await run.finish()
    finally:
        await run.close()
