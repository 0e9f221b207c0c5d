"""The field on which a race is run: nodes, turns, conversations, senders, and the moves that can be made."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable
from contextlib import ExitStack
from typing import Any, TypeVar, final

from ..actors.agent import Agent
from ..actors.errors import AnswerPending, CommandRefused, StoreUnavailable, TurnNotFound
from ..actors.ids import root_of
from ..actors.view import TurnView
from ..actors.waits import Suspension, SuspensionType
from ..runtime.runtime import Runtime, node_of
from ..runtime.world import World
from ..store import base
from ..store.base import TurnStore, WhenBusy
from .answers import answer_to
from .arena import CROWD, Seat
from .breach import Breach
from .clock import VirtualClock
from .loop import VirtualLoop
from .rewinds import Past, past_of
from .senders import Begun, Sender
from .verdict import Verdict
from .witness import Witness, tools_of, watched_agent, watching

ROUNDS = 60
POINTS = {"before_apply": "died before a call", "after_apply": "died behind a call", "lost_reply": "replies lost"}
T = TypeVar("T")


def picked(items: Iterable[T], pick: int) -> T:
    """Return one of some items, of which there is at least one."""
    found = list(items)
    return found[pick % len(found)]


@final
class Field:
    """Everything of one run."""

    def __init__(self, agent: Agent, store: TurnStore, nodes: int, lease: float) -> None:
        self.witness = Witness()
        self.clock = VirtualClock(seed=0)
        self.loop = VirtualLoop(self.clock, limit=None)
        self.agent = watched_agent(agent, self.witness)
        graves: list[str] = []
        self.seats = [Seat(number, store, [self.agent], self.clock, self.witness, graves) for number in range(nodes)]
        self.starts: list[Begun] = []
        self.below: list[str] = []
        self.senders: list[Sender] = []
        self.waits: dict[str, Suspension] = {}
        self.open_waits: list[Suspension] = []
        self.views: dict[str, TurnView] = {}
        self.ready = False
        self.asked = 0
        self.past: Past | None = None
        self._store = store
        self._lease = lease
        self._world = World(self.clock)
        self._observer = Runtime(store, node="observer", execute=False, clock=self.clock, lease=lease)
        self._verdict = Verdict(self._observer, self.witness, self.agent)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stack = ExitStack()
        self.loop.set_exception_handler(self._unhandled)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.witness.note(f"an exception reached the loop: {context}")

    @property
    def turns(self) -> list[str]:
        """The roots that are known, in the order of their starts."""
        return [start.turn for start in self.starts if start.turn is not None]

    @property
    def threaded(self) -> bool:
        """Tell whether a tool runs in a thread."""
        return any(not tool.is_async for tool in tools_of(self.agent))

    @property
    def closed_waits(self) -> list[Suspension]:
        """The waits that were open once and are not any more."""
        now_open = {wait.id for wait in self.open_waits}
        return [wait for name, wait in self.waits.items() if name not in now_open]

    @property
    def deadlines(self) -> list[Suspension]:
        """The open waits that end by themselves; retries are not among them."""
        return [wait for wait in self.open_waits if wait.expires_at is not None and wait.type is not SuspensionType.RETRY]

    @property
    def retries(self) -> list[TurnView]:
        """The turns of which something is tried again later."""
        return [view for view in self.views.values() if view.next_runnable_at is not None]

    @property
    def owned(self) -> list[tuple[str, str]]:
        """The turns that a node owns, each with the name of the node."""
        return [(name, view.owner.node) for name, view in self.views.items() if view.owner is not None]

    @property
    def late(self) -> list[Seat]:
        """The seats of which a store call has not arrived yet."""
        return [seat for seat in self.seats if seat.wire.late]

    def seat(self, number: int) -> Seat:
        """Return a seat."""
        return self.seats[number % len(self.seats)]

    async def open(self, *, room: int = CROWD, polls: bool = False) -> None:
        """Let all nodes sit down.

        :param room: how many turns may live on one of them.
        :param polls: they look for work now and then, and not only when a bell rings.
        """
        for tool in tools_of(self.agent):
            self._stack.enter_context(watching(tool, self.witness.started))
        await self._observer.__aenter__()
        for seat in self.seats:
            seat.room, seat.polls = room, polls
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

    # --------------------------------------------------------------------------------------------- moves from outside

    async def start(self, seat: int, conversation: str | None = None, when_busy: WhenBusy = "refuse") -> None:
        """Start a turn under a key of its own."""
        number = len(self.starts)
        start = Begun(f"key-{number}", f"input {number}", conversation, when_busy)
        self.starts.append(start)
        self._send(start.send(self.seat(seat).runtime, self.agent.id))
        await self.clock.idle()

    async def start_again(self, seat: int, pick: int) -> None:
        """Repeat a start."""
        self._send(picked(self.starts, pick).send(self.seat(seat).runtime, self.agent.id))
        await self.clock.idle()

    async def answer(self, seat: int, wait: Suspension, choice: int, *, by_call: bool = False, at_root: bool = False) -> None:
        """Answer a wait, open or not any more, at its turn or at the root of the tree."""
        self._answer(seat, wait, choice, by_call=by_call, at_root=at_root)
        await self.clock.idle()

    def _answer(self, seat: int, wait: Suspension, choice: int, *, by_call: bool = False, at_root: bool = False) -> None:
        target = wait.correlation_id if by_call and wait.correlation_id else wait.id
        command = answer_to(wait, choice, f"command-{len(self.senders)}", f"person-{seat}", target)
        sender = Sender(wait.root_turn_id if at_root else wait.turn_id, command, wait)
        self.senders.append(sender)
        self._send(sender.send(self.seat(seat).runtime))

    async def conflict(self, seats: tuple[int, int], pick: int, choices: tuple[int, int], *, at_root: bool = False) -> None:
        """Answer an open wait twice at the same moment, perhaps once at the root of the tree."""
        wait = picked(self.open_waits, pick)
        for number, (seat, choice) in enumerate(zip(seats, choices, strict=True)):
            self._answer(seat, wait, choice, at_root=at_root and number == 0)
        await self.clock.idle()

    async def repeat(self, seat: int, pick: int) -> None:
        """Send a command again."""
        self._send(picked(self.senders, pick).send(self.seat(seat).runtime))
        await self.clock.idle()

    async def cancel(self, seat: int, pick: int) -> None:
        """Cancel a turn: a root with all below it, or a child alone."""
        turn = self.seat(seat).runtime.turn(picked([*self.turns, *self.below], pick))
        self._send(self._asked(turn.cancel("a race", timeout=60)))
        await self.clock.idle()

    async def ask(self, seat: int, pick: int) -> None:
        """Let the application ask a plain question in a turn."""
        self.asked += 1
        turn = self.seat(seat).runtime.turn(picked([*self.turns, *self.below], pick))
        self._send(self._asked(turn.suspend(f"question {self.asked}")))
        await self.clock.idle()

    async def start_child(self, seat: int, pick: int) -> None:
        """Let the application start a child of a turn."""
        self.asked += 1
        turn = self.seat(seat).runtime.turn(picked([*self.turns, *self.below], pick))
        self._send(self._asked(turn.start_child(self.agent.id, f"task {self.asked}")))
        await self.clock.idle()

    @staticmethod
    async def _asked(work: Coroutine[object, object, object]) -> None:
        try:
            await work
        except (AnswerPending, CommandRefused, StoreUnavailable, TimeoutError, TurnNotFound):
            return

    async def pass_to(self, wait: Suspension | TurnView) -> None:
        """Let time pass until a wait ends by itself, or a turn is tried again."""
        due = wait.expires_at if isinstance(wait, Suspension) else wait.next_runnable_at
        left = 0.0 if due is None else (due - self.clock.now()).total_seconds()
        await self.clock.advance(max(0.0, left) + 0.002)

    # ---------------------------------------------------------------------------------------------------------- faults

    async def replace(self, number: int, *, drain: bool) -> None:
        """Let a node die or drain, and another take its seat."""
        seat = self.seat(number)
        self.witness.counts["drained nodes" if drain else "killed nodes"] += 1
        if not drain:
            await seat.kill()
        await seat.again(self._lease)

    async def thaw(self, seat: int) -> None:
        """Let a node move again."""
        self.seat(seat).gate.open(broken=self.seat(seat).dead)
        await self.clock.idle()

    async def hear(self, seat: int) -> None:
        """Let a node hear again, also what it has not heard in time."""
        self.seat(seat).ears.hear()
        await self.clock.idle()

    async def let_go(self, seat: int) -> None:
        """Let the threads of a node end."""
        self.seat(seat).threads.let_go()
        await self.clock.idle()

    async def _by_hand(self, op: base.Op) -> None:
        reply = await node_of(self._observer).call(op)
        self.witness.applied(op, reply)
        await self.clock.idle()

    async def rob(self, pick: int) -> None:
        """Take a turn from its owner, which does not know."""
        self.witness.counts["leases taken"] += 1
        turn, node = picked(self.owned, pick)
        self.witness.robbed.add(turn)
        await self._by_hand(base.Reap(turn=turn, grace_ms=0, dead_node=node))

    async def arrive(self, pick: int) -> None:
        """Let a store call arrive that was given up long ago."""
        await self._by_hand(picked(self.late, pick).wire.late.popleft())

    def keep(self) -> None:
        """Remember what the store is now."""
        self.past = past_of(self._store)

    async def rewind(self) -> None:
        """Put the store back to what was remembered; what it has promised since then of the trees that have changed is void."""
        assert self.past is not None, "something was kept"
        self.witness.counts["rewinds"] += 1
        names = tuple({*self.witness.turns, *self.turns, *self.below})
        before = await self._versions(names)
        self.past.put_back()
        self.past = None
        after = await self._versions(names)
        self.witness.taint(root_of(name) for name in names if before[name] != after[name])
        self._verdict.forget()
        for sender in self.senders:
            sender.void = root_of(sender.turn_id) in self.witness.tainted
        for start in self.starts:
            if start.turn is not None and after.get(start.turn) == (-1, 0):
                start.turn = None
        self.waits = {name: wait for name, wait in self.waits.items() if wait.root_turn_id not in self.witness.tainted}
        await self.clock.idle()

    async def _versions(self, names: tuple[str, ...]) -> dict[str, tuple[int, int]]:
        reply = await node_of(self._observer).call(base.Versions(turns=names))
        assert isinstance(reply, base.Progress)
        return {name: row[:2] for name, row in zip(names, reply.turns, strict=True)}

    # ------------------------------------------------------------------------------------------------------- judgement

    async def check(self) -> dict[str, TurnView]:
        """Judge what can be seen now. :raises Breach: if something impossible has happened."""
        await self.clock.idle()
        self.witness.testify()
        for seat in self.seats:
            if seat.dead:
                await seat.again(self._lease)
        self.views = await self._verdict.look(self.turns, self.senders)
        self.below = [turn_id for turn_id in self.views if turn_id not in self.turns]
        self.open_waits = [wait for name in self.turns if name in self.views for wait in self.views[name].open_waits]
        self.waits.update({wait.id: wait for wait in self.open_waits})
        for name in dict.fromkeys(start.conversation for start in self.starts if start.conversation is not None):
            await self._verdict.look_at_talk(name, [start for start in self.starts if start.conversation == name])
        self.witness.testify()
        return self.views

    async def finish(self) -> None:
        """Heal everything, answer everything, and see that all turns end and all senders hear.

        :raises Breach: if they do not.
        """
        for seat in self.seats:
            if not seat.well:
                await seat.again(self._lease)
        for start in self.starts:
            if not start.refused:
                await start.send(self.seats[0].runtime, self.agent.id)
            if start.turn is None and not start.refused:
                raise Breach(f"{start} was told nothing")
        views = await self.check()
        for number in range(ROUNDS):
            if all(view.status.terminal for view in views.values()) and not self._tasks and not await self._late():
                break
            await self._push(number, views)
            views = await self.check()
        else:
            raise Breach(f"not at its end after all that time: {[view for view in views.values() if not view.status.terminal]}")
        for sender in self.senders:
            await sender.send(self.seats[-1].runtime)
            if sender.pending and root_of(sender.turn_id) not in self.witness.tainted:
                raise Breach(f"{sender.command} was never decided")
        await self._verdict.look_at_ends(await self.check(), self.starts)

    async def _late(self) -> bool:
        """Ask for the turns that starts may have made of which nobody was told; tell whether there are any now."""
        late = [start for start in self.starts if start.turn is None and start.unknown]
        for start in late:
            start.unknown = 0
            await start.send(self.seats[0].runtime, self.agent.id)
        return any(start.turn is not None or start.unknown for start in late)

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

    @property
    def counts(self) -> Counter[str]:
        """What was done, and what went wrong."""
        struck = Counter(POINTS[point] for seat in self.seats for point, crash in seat.armed if crash.happened)
        done = Counter({"examples": 1, "turns": len(self.starts), "children": len(self.below), "answers": len(self.senders)})
        return done + struck + self.witness.counts + Counter({"tool starts": len(self.witness.starts)})

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
