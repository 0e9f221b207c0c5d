"""One turn that does one thing at a time: the machine of `actors/`, asked in some order; and what is told, in a plain form."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from turnhold import AlreadyAnswered, CommandIdReused, CommandRefused, Receipt, ResumeCommand, Status, TurnView, UserMessage
from turnhold.actors.machine import messages as m
from turnhold.actors.machine.advance import next_deadline
from turnhold.actors.machine.create import new_turn
from turnhold.actors.machine.draft import Accepted, Context, Noted, Refusal
from turnhold.actors.machine.waiting import accepts

from ..machine.explorer import Move, Story, World, results, trouble
from ..machine.judge import Judge
from .search import Operation

Told = tuple[Any, ...]
GRACE = 10_000


@dataclass(frozen=True)
class Ask:
    """What can be asked of a turn: `submit` with a command, `view`, `question`, `cancel`, or whether its tree has `ended`."""

    kind: str
    command: ResumeCommand | None = None
    at_api: bool = False

    def __str__(self) -> str:
        command = self.command
        if command is None:
            return self.kind
        more = "" if command.arguments is None else f" {command.arguments}"
        more += "" if command.value is None else f" {command.value}"
        return f"{command.command_id}: {command.type.value} {command.wait}{more}"


def receipt_told(receipt: Receipt) -> Told:
    """What of a receipt follows from the order alone."""
    return receipt.command_id, receipt.suspension_id, receipt.effect.value, receipt.by, receipt.digest


def error_told(error: CommandRefused) -> Told:
    """A refusal, with what its sender can rely on."""
    match error:
        case AlreadyAnswered():
            return "AlreadyAnswered", receipt_told(error.receipt), error.agrees
        case CommandIdReused():
            return "CommandIdReused", receipt_told(error.receipt)
        case _:
            return (type(error).__name__,)


def view_told(view: TurnView) -> Told:
    """Where a turn stands."""
    return "view", view.status.value, tuple(sorted(wait.id for wait in view.suspensions))


def outcome_told(outcome: Any) -> Told:
    """The machine's own answer, as a sender would be told it."""
    match outcome:
        case Accepted():
            return "accepted", receipt_told(outcome.receipt)
        case Noted():
            return ("noted",)
        case Refusal(error="AlreadyAnswered", receipt=Receipt() as receipt):
            return "AlreadyAnswered", receipt_told(receipt), outcome.agrees
        case Refusal(error="CommandIdReused", receipt=Receipt() as receipt):
            return "CommandIdReused", receipt_told(receipt)
        case _:
            return (outcome.error,)


class OneTurn:
    """One turn of a story, asked one thing after the other. By itself it takes the steps of `tests/machine/explorer.py`.

    `story.crashes` is how often an owner may have been lost; `end` is when the run was over; `flag` is the moment from which on the
    turn may have been cancelled, `over` the one at which somebody was told that this is done.
    """

    def __init__(self, story: Story, turn_id: str, created: int, end: int, *, flag: int = 0, over: int = 0) -> None:
        self.story = story
        self.turn_id = turn_id
        self.judge = Judge(story)
        self._created = created
        self._end = end
        self.flag = flag
        self.over = over

    def first(self) -> World:
        """Return the turn as it is created and claimed."""
        story, agent = self.story, self.story.agent
        context = Context(now=self._created, activation="a1", agent=agent, cancel_grace=GRACE, delegates={agent.id: agent})
        draft = new_turn(self.turn_id, agent.id, agent.version, UserMessage("hi"), context, policy=agent.policy)
        empty = World(draft.state, now=self._created, left=(0, story.crashes, 0, 0, 0))
        return self.judge.step(Move("start", "start", empty, ()), draft)

    def key(self, state: World) -> Hashable:
        """Return what the world is, when, and who has ended its waits."""
        return state.key(), state.now, tuple(receipt_told(receipt) for receipt in state.receipts.values())

    def apply(self, state: World, operation: Operation) -> Iterator[tuple[Told, World]]:
        """Return what the turn may answer, and what it is then."""
        if state.now > operation.until:
            return
        ask: Ask = operation.asked
        world = replace(state, now=max(state.now, operation.since))
        match ask.kind:
            case "view":
                yield ("view", world.state.status.value, tuple(sorted(wait.id for wait in world.state.waits))), world
            case "ended":
                if world.state.status.terminal:
                    yield ("ended", world.state.status.value), world
            case "cancel":
                if world.state.status.terminal:
                    yield (), world
                else:
                    yield (), self._step(world, m.CancelRequested("stop"))[1]
            case "question":
                asked = m.Received(f"q{operation.began}", m.Suspend(f"q{operation.began}"), world.now)
                yield self._step(world, asked)
            case _:
                yield from self._submit(world, operation)

    def _submit(self, world: World, operation: Operation) -> Iterator[tuple[Told, World]]:
        """A command is delivered at some time between its call and its answer; deadlines lie before or behind that."""
        known = any(receipt.command_id == operation.asked.command.command_id for receipt in world.receipts.values())
        if world.state.status.terminal and not known:  # mail that was unread at the end; asked again, its wait's receipt is found
            yield ("TurnClosed",), world
        if world.state.status is Status.CANCELLED and self._meets_the_end(operation):  # read together with the flag
            yield ("NotSuspended",), world
        if world.state.waits and all(wait.created >= operation.since for wait in world.state.waits):
            yield (
                ("NotSuspended",),
                world,
            )  # read together with what ended the wait before: the next one opens when both are taken in
        times = {world.now} | {
            wait.expires for wait in world.state.waits if wait.expires and world.now < wait.expires <= operation.until
        }
        for at in sorted(times):
            there = replace(world, now=at)
            for command in self._addressed(world, operation.asked.command):
                mail = self._mail(world, command, at)
                yield self._step(there, mail)
                if operation.asked.at_api and not world.owned:
                    yield self._step(there, mail, api=True)

    def _meets_the_end(self, operation: Operation) -> bool:
        """Tell whether an operation may have found the turn ending: its waits are closed, and it is not over yet."""
        return operation.began < self.over and (operation.ended is None or operation.ended > self.flag)

    def _addressed(self, world: World, command: ResumeCommand) -> Iterator[ResumeCommand]:
        """A command without the id of a wait is first given one; that wait may have ended meanwhile."""
        yield command
        if command.wait is None or "/" not in command.wait:
            named = [wait.id for wait in world.state.waits if command.wait is not None or accepts(wait, command.type)]
            for wait in (*named, *world.receipts):
                if command.wait in {None, wait.split("/")[1]}:
                    yield msgspec.structs.replace(command, wait=wait)

    def _mail(self, world: World, command: ResumeCommand, at: int) -> m.Received:
        """Bring a command with the receipt that the store has for it: its own, else that of the wait, or of the call's newest."""
        for receipt in world.receipts.values():
            if receipt.command_id == command.command_id:
                return m.Received(f"m{command.command_id}", m.Resume(command), at, receipt, "command")
        for wait, receipt in reversed(world.receipts.items()):
            if command.wait in {wait, wait.split("/")[1] or None} and command.wait is not None:
                return m.Received(f"m{command.command_id}", m.Resume(command), at, receipt, "wait")
        return m.Received(f"m{command.command_id}", m.Resume(command), at)

    def _step(self, world: World, message: m.Message, *, api: bool = False) -> tuple[Told, World]:
        move = Move("asked", "asked", world, (message,), api=api)
        draft = world.after(move.batch, self.story.agent, api=api)
        told = outcome_told(draft.answers[0][1]) if draft.answers else ()
        return told, self.judge.step(move, draft)

    def inside(self, state: World) -> Iterator[World]:
        """Return what may happen without anybody asking: results, an owner that is lost, one that goes on, a deadline."""
        moves = [*results(self.story, state), *(move for move in trouble(self.story, state) if move.kind == "crash")]
        if state.wakes:
            moves.append(Move("another owner", "claim", state, ()))
        due = next_deadline(state.state, GRACE)
        if due is not None and due <= self._end and not state.state.status.terminal:
            moves.append(Move("time passes", "time", replace(state, now=max(due, state.now)), (m.DeadlinePassed(),)))
        for move in moves:
            draft = move.before.after(move.batch, self.story.agent)
            yield self.judge.step(move, draft)
