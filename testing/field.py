"""The field on which a race is run: nodes, turns, senders, and the judgement over them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import Any, final

from ..actors.agent import Agent
from ..actors.chat import ToolMessage
from ..actors.errors import StoreUnavailable
from ..actors.events import TERMINAL_EVENTS, Event, EventType
from ..actors.view import TurnView
from ..actors.waits import ResumeCommand, Suspension, SuspensionType
from ..runtime.runtime import Runtime
from ..runtime.world import World
from ..store.base import TurnStore
from .arena import Seat
from .clock import VirtualClock
from .loop import VirtualLoop
from .senders import Sender, judge, rejected_calls, reruns
from .witness import Breach, Witness, tools_of, unanswered, watched_agent, watching

ROUNDS = 60


def answer_to(wait: Suspension, choice: int, name: str, by: str, target: str) -> ResumeCommand:
    """Return an answer to a wait; the choice is taken among those that its kind has."""
    options: list[ResumeCommand]
    match wait.type:
        case SuspensionType.TOOL_APPROVAL:
            options = [
                ResumeCommand.approve_tool(target, command_id=name, by=by),
                ResumeCommand.reject_tool(target, "no", command_id=name, by=by),
            ]
        case SuspensionType.IN_DOUBT:
            options = [
                ResumeCommand.rerun(target, command_id=name, by=by),
                ResumeCommand.give_result(target, "known", command_id=name, by=by),
                ResumeCommand.fail_call(target, command_id=name, by=by),
            ]
        case SuspensionType.RETRY:
            options = [ResumeCommand.retry(target, force=bool(choice % 2), command_id=name, by=by)]
        case _ if wait.form_key is not None:
            options = [ResumeCommand.decline(target, command_id=name, by=by)]
        case _:
            options = [ResumeCommand.user_input("go on", command_id=name, by=by)]
    return options[choice % len(options)]


def children_of(events: list[Event]) -> list[str]:
    """Return the children that a turn says it has started."""
    return [str(event.data["childTurnId"]) for event in events if event.type is EventType.CHILD_STARTED]


@final
class Field:
    """Everything of one run."""

    def __init__(self, agent: Agent, store: TurnStore, nodes: int, lease: float) -> None:
        self.witness = Witness()
        self.clock = VirtualClock(seed=0)
        self.loop = VirtualLoop(self.clock, limit=None)
        self.agent = watched_agent(agent, self.witness)
        self.seats = [Seat(number, store, [self.agent], self.clock, self.witness) for number in range(nodes)]
        self.keys: list[str] = []
        self.turns: list[str] = []
        self.below: list[str] = []
        self.senders: list[Sender] = []
        self.waits: dict[str, Suspension] = {}
        self.open_waits: list[Suspension] = []
        self.ready = False
        self._lease = lease
        self._world = World(self.clock)
        self._observer = Runtime(store, node="observer", execute=False, clock=self.clock, lease=lease)
        self._events: dict[str, list[Event]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stack = ExitStack()
        self.loop.set_exception_handler(self._unhandled)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.witness.note(f"an exception reached the loop: {context}")

    def seat(self, number: int) -> Seat:
        """Return a seat."""
        return self.seats[number % len(self.seats)]

    async def open(self) -> None:
        """Let all nodes sit down."""
        for tool in tools_of(self.agent):
            self._stack.enter_context(watching(tool, self.witness.started))
        await self._observer.__aenter__()
        for seat in self.seats:
            await seat.open(self._lease)
        self.ready = True

    def _send(self, work: Coroutine[object, object, None]) -> None:
        """Do something from outside; whoever does it waits by himself."""
        task = self._world.spawn(work, "sender")
        self._tasks.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.witness.note(f"{error!r}")

    # ----------------------------------------------------------------------------------------------------------- moves

    async def replace(self, number: int, *, drain: bool) -> None:
        """Let a node die or drain, and another take its seat."""
        seat = self.seat(number)
        if not drain:
            await seat.kill()
        await seat.again(self._lease)

    async def start(self, seat: int) -> None:
        """Start a turn under a key of its own."""
        key = f"key-{len(self.keys)}"
        self.keys.append(key)
        self._send(self._start(self.seat(seat).runtime, key))
        await self.clock.idle()

    async def _start(self, runtime: Runtime, key: str) -> None:
        try:
            turn = await runtime.start(self.agent.id, "go", idempotency_key=key)
        except StoreUnavailable:
            return
        if turn.id not in self.turns:
            self.turns.append(turn.id)

    async def answer(self, seat: int, pick: int, choice: int, *, by_call: bool, at_root: bool = False) -> None:
        """Answer a wait, open or not any more, at its turn or at the root of the tree."""
        wait = list(self.waits.values())[pick % len(self.waits)]
        self._answer(seat, wait, choice, by_call=by_call, at_root=at_root)
        await self.clock.idle()

    def _answer(self, seat: int, wait: Suspension, choice: int, *, by_call: bool = False, at_root: bool = False) -> None:
        target = wait.correlation_id if by_call and wait.correlation_id else wait.id
        name = f"command-{len(self.senders)}"
        sender = Sender(wait.root_turn_id if at_root else wait.turn_id, answer_to(wait, choice, name, f"person-{seat}", target))
        self.senders.append(sender)
        self._send(sender.send(self.seat(seat).runtime))

    async def conflict(self, seats: tuple[int, int], pick: int, choices: tuple[int, int], *, at_root: bool = False) -> None:
        """Answer an open wait twice at the same moment, perhaps once at the root of the tree."""
        wait = self.open_waits[pick % len(self.open_waits)]
        for number, (seat, choice) in enumerate(zip(seats, choices, strict=True)):
            self._answer(seat, wait, choice, at_root=at_root and number == 0)
        await self.clock.idle()

    async def repeat(self, seat: int, pick: int) -> None:
        """Send a command again."""
        sender = self.senders[pick % len(self.senders)]
        self._send(sender.send(self.seat(seat).runtime))
        await self.clock.idle()

    async def cancel(self, seat: int, pick: int) -> None:
        """Cancel a turn: a root with all below it, or a child alone."""
        every = [*self.turns, *self.below]
        self._send(self._cancel(self.seat(seat).runtime, every[pick % len(every)]))
        await self.clock.idle()

    @staticmethod
    async def _cancel(runtime: Runtime, turn_id: str) -> None:
        try:
            await runtime.turn(turn_id).cancel("a race", timeout=60)
        except (StoreUnavailable, TimeoutError):
            return

    async def thaw(self, seat: int) -> None:
        """Let a node move again."""
        self.seat(seat).gate.open(broken=self.seat(seat).dead)
        await self.clock.idle()

    # ------------------------------------------------------------------------------------------------------- judgement

    async def check(self) -> dict[str, TurnView]:
        """Judge what can be seen now. :raises Breach: if something impossible has happened."""
        await self.clock.idle()
        self.witness.testify()
        for seat in self.seats:
            if seat.dead:
                await seat.again(self._lease)
        views: dict[str, TurnView] = {}
        left = list(self.turns)
        while left:
            turn = self._observer.turn(left.pop(0))
            views[turn.id] = await turn.view()
            self._judge_events(turn.id, [event async for event in turn.events(live=False, follow=False)])
            left += children_of(self._events[turn.id])
        self.below = [turn_id for turn_id in views if turn_id not in self.turns]
        self.open_waits = [wait for turn_id in self.turns for wait in views[turn_id].open_waits]
        self.waits.update({wait.id: wait for wait in self.open_waits})
        judge(self.senders, self._events)
        for turn_id, events in self._events.items():
            self._judge_calls(turn_id, events)
        self._judge_budgets()
        self.witness.testify()
        return views

    def _judge_events(self, turn_id: str, events: list[Event]) -> None:
        before = self._events.get(turn_id, [])
        if [event.sequence for event in events] != list(range(1, len(events) + 1)):
            raise Breach(f"the events of turn {turn_id} have a gap: {events}")
        if events[: len(before)] != before:
            raise Breach(f"the events of turn {turn_id} have changed from {before} to {events}")
        if any(event.type in TERMINAL_EVENTS for event in events[:-1]):
            raise Breach(f"turn {turn_id} went on behind its end: {events}")
        self._events[turn_id] = events

    def _judge_calls(self, turn_id: str, events: list[Event]) -> None:
        for call_id in rejected_calls(events):
            if self.witness.starts_of(turn_id, call_id):
                raise Breach(f"call {call_id} of turn {turn_id} was rejected and started")
        for call_id in self.witness.once_calls(turn_id):
            if self.witness.starts_of(turn_id, call_id) > 1 + reruns(events, call_id):
                raise Breach(f"the once call {call_id} of turn {turn_id} was started again without a person")

        started = [event.data for event in events if event.type is EventType.CHILD_STARTED and "toolCallId" in event.data]
        calls = [(str(data["toolCallId"]), str(data.get("taskId"))) for data in started]
        if len(set(calls)) != len(calls):
            raise Breach(f"a call of turn {turn_id}, or a task of its plan, has started two children: {events}")

    def _judge_budgets(self) -> None:
        most = self.agent.policy.budget.max_tool_calls
        for root in self.turns if most is not None else ():
            if calls := self.witness.overdrawn(root, most or 0):
                raise Breach(f"{', '.join(calls)} were started in the tree of turn {root}, which may have {most} calls")

    async def _judge_ends(self, views: dict[str, TurnView]) -> None:
        """Judge trees that have ended: each call has one result, a parent knows its children, a root what its tree has used."""
        for turn_id, view in views.items():
            turn = self._observer.turn(turn_id)
            history = await turn.history()
            results = [message.call_id for message in history if isinstance(message, ToolMessage)]
            if unanswered(history) or len(set(results)) != len(results):
                raise Breach(f"the history of turn {turn_id} is not closed, or has a result twice: {history}")
            children = {ref.id for ref in await turn.children()}
            if children != set(children_of(self._events[turn_id])):
                raise Breach(f"turn {turn_id} has the children {children}, its events say {self._events[turn_id]}")
            used = [state.tool_call_count for name, state in self.witness.saved.items() if name.startswith(turn_id)]
            if view.parent_turn_id is None and view.tool_call_count > sum(used):
                raise Breach(f"the tree of turn {turn_id} has used {used}, not {view.tool_call_count} calls")

    async def finish(self) -> None:
        """Heal everything, answer everything, and see that all turns end and all senders hear.

        :raises Breach: if they do not.
        """
        for seat in self.seats:
            if not seat.well:
                await seat.again(self._lease)
        for key in self.keys:
            await self._start(self.seats[0].runtime, key)
        if len(self.turns) != len(self.keys):
            raise Breach(f"{len(self.keys)} starts have made {len(self.turns)} turns")
        views = await self.check()
        for number in range(ROUNDS):
            if all(view.status.terminal for view in views.values()) and not self._tasks:
                break
            await self._push(number, views)
            views = await self.check()
        else:
            raise Breach(f"not at its end after all that time: {[view for view in views.values() if not view.status.terminal]}")
        for sender in self.senders:
            await sender.send(self.seats[-1].runtime)
            if sender.pending:
                raise Breach(f"{sender.command} was never decided")
        await self._judge_ends(await self.check())

    async def _push(self, number: int, views: dict[str, TurnView]) -> None:
        """Answer what is open, wake what is parked, and let time pass."""
        for seat in self.seats:
            if not seat.well:  # a crash point that was armed before
                await seat.again(self._lease)
        for view in views.values():
            if view.quarantine is not None:
                await self._observer.turn(view.id).revive()
        for wait in self.open_waits:
            if wait.type is not SuspensionType.RETRY:
                self._answer(number, wait, number % 3, at_root=number % 2 == 1)
        await self.clock.advance(self._lease)

    def close(self) -> None:
        """Leave, whatever has happened."""
        self._stack.close()
        try:
            if self.ready:
                self.loop.run_until_complete(self._leave())
        finally:
            self.loop.close()

    async def _leave(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for seat in self.seats:
            await seat.kill()
            await seat.leave()
        await self._observer.__aexit__(None, None, None)
