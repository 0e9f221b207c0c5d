"""A store that forgets its newest writes under running actors: what was saved is saved again, what was started stays started."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnhold import (
    ActionMessage,
    Agent,
    AiMessage,
    AnswerPending,
    CardStatus,
    CommandRefused,
    EventType,
    ResumeCommand,
    Runtime,
    Status,
    SuspensionType,
    ToolCall,
    ToolContext,
    TurnholdError,
    TurnRef,
    TurnView,
    tool,
)
from turnhold.runtime import actor as actor_module
from turnhold.runtime import rewind, saving
from turnhold.runtime.runtime import node_of
from turnhold.store import base, codec
from turnhold.testing.loop import run
from turnhold.testing.witness import unanswered

from .failover import Failover

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnhold.testing import VirtualClock

LEASE = 10.0
Mutant: TypeAlias = "Callable[[pytest.MonkeyPatch], None]"


class Provider:
    """A model that names every call anew, as providers do."""

    def __init__(self, *steps: tuple[str, ...]) -> None:
        self.steps = steps
        self.calls = 0

    async def complete(self, request: Any) -> AiMessage:
        assert unanswered(request.messages) == [], "the model was shown a call without its result"
        await asyncio.sleep(0.3)
        if request.iteration > len(self.steps):
            return AiMessage("done")
        calls: list[ToolCall] = []
        for name in self.steps[request.iteration - 1]:
            self.calls += 1
            calls.append(ToolCall(f"c{self.calls}", name, {"input": "help"} if name == "child" else {}))
        return AiMessage("", tuple(calls))


class Case:
    """Two nodes on a store that goes back, a turn with approvals, `once` tools and children, and everything that was started."""

    def __init__(self, store: Failover, clock: VirtualClock) -> None:
        self.store = store
        self.starts: list[tuple[str, str, int, str]] = []
        self.reruns: Counter[tuple[str, str]] = Counter()
        self.told: list[Any] = []
        self.wrong: list[str] = []
        store.fits, store.saved = self.fits, self.saved

        def started() -> None:
            context = ToolContext.current()
            self.starts.append((context.turn_id, context.call_id, context.attempt, context.tool.effect or "once"))

        @tool(approval=True)
        async def pay() -> str:
            """Pay."""
            started()
            await asyncio.sleep(1.0)
            return "paid"

        @tool(effect="once")
        async def note() -> str:
            """Note."""
            started()
            await asyncio.sleep(2.0)
            return "noted"

        @tool(effect="repeatable")
        async def look() -> str:
            """Look."""
            started()
            await asyncio.sleep(0.5)
            return "fine"

        self.child = Agent("child", model=Provider(("note",), ("pay",)), tools=[pay, note])
        steps = Provider(("pay", "note", "look"), ("look", "note", "child"), ("pay",))
        self.parent = Agent("parent", model=steps, tools=[pay, note, look, self.child.as_tool()])
        agents = [self.parent, self.child]
        self.nodes = [Runtime(store, agents=agents, clock=clock, lease=LEASE, listeners=[self.told.append]) for _ in range(2)]

    def saved(self, turn: str) -> None:
        """What must be true behind every save: the index has the waits that the state has open."""
        record = self.store.core._turns[turn]
        state = codec.decode_state(turn, record.schema, record.snapshot)
        waits = {wait.id for wait in state.waits if wait.type is not SuspensionType.CHILD_AGENT}
        if set(record.waits) != waits:
            self.wrong.append(f"{turn}: open are {waits}, listed {set(record.waits)}")
        if not {*state.children} <= {*self.store.core._turns}:
            self.wrong.append(f"{turn} waits for {state.children}, which are not there")

    def live(self) -> dict[str, Any]:
        return {turn: actor for node in self.nodes for turn, actor in node_of(node).placement.actors.items() if not actor.lost}

    def fits(self, core: Any) -> bool:
        """Tell whether somebody is left who knows what would be forgotten.

        A turn that lives here keeps its claim, or is found waiting as before it (or not at all); of others nothing is forgotten, or
        everything.
        """
        live, roots = self.live(), 0
        for turn, record in self.store.core._turns.items():
            old = core._turns.get(turn)
            if old is None:
                continue
            roots += old.parent is None
            same = old.activation is not None and (old.activation, old.epoch) == (record.activation, record.epoch)
            waiting = old.activation is None and old.wake is None and old.state != "T"
            if turn in live:
                if not (same or waiting) or old.version < self.store.claimed[turn]:
                    return False
            elif old.version != record.version or {*old.mail} != {*record.mail} or not (same or old.activation is None):
                return False
        return roots > 0

    async def play(self) -> TurnRef:
        a, b = self.nodes
        async with a, b:
            turn = await a.start(self.parent, "go", conversation="c")
            await self.start_child(turn)
            seen = 0
            for number in range(120):
                view = await self.settled(turn, 30 if number % 3 == 2 else 0.9)
                if view.status.terminal:
                    break
                if self.store.rewinds != seen:
                    seen = self.store.rewinds
                    await asyncio.sleep(2 * LEASE)  # who knows more than the store finds that out by its next renewal
                else:
                    await self.answer(self.nodes[number % 2], view)
            assert view.status is Status.COMPLETED
            await asyncio.sleep(6 * LEASE)
            await self.check(turn)
            return turn

    async def start_child(self, turn: TurnRef) -> None:
        await asyncio.sleep(0.8)  # while calls run, so that the parent lives on
        with suppress(TimeoutError, CommandRefused):
            await turn.start_child(self.child, "help")

    async def settled(self, turn: TurnRef, timeout: float) -> TurnView:
        """Return the turn at rest, or (calls run on) as it is: waits may be answered beside running calls."""
        try:
            return await turn.settle(timeout=timeout)
        except TimeoutError:
            return await turn.view()

    async def answer(self, node: Runtime, view: TurnView) -> None:
        for wait in view.open_waits:
            command = {
                SuspensionType.TOOL_APPROVAL: lambda wait: ResumeCommand.approve_tool(wait, by="ann"),
                SuspensionType.IN_DOUBT: lambda wait: ResumeCommand.rerun(wait, by="ann"),
            }.get(wait.type, lambda wait: ResumeCommand.retry(wait, force=True))(wait)
            if wait.type is SuspensionType.IN_DOUBT:
                self.reruns[wait.turn_id, wait.correlation_id or ""] += 1
            seen = self.store.rewinds
            with suppress(CommandRefused, AnswerPending):
                await node.turn(wait.turn_id).submit(command, timeout=30)
            if self.store.rewinds != seen:
                return

    async def check(self, turn: TurnRef) -> None:
        """What must be true at the end, however often the store has gone back."""
        once = Counter((turn_id, call) for turn_id, call, _, effect in self.starts if effect == "once")
        assert len({start[:3] for start in self.starts}) == len(self.starts), "one (call, attempt) has started twice"
        assert all(count <= 1 + self.reruns[call] for call, count in once.items()), (once, self.reruns)
        for record in self.store.core._turns.values():
            state = codec.decode_state(record.turn, record.schema, record.snapshot)
            codec.check_counts(state, record.message_count, record.event_count)
            events = sum(batch.count for batch in record.events.values())
            assert (len(record.history), events) == (record.message_count, record.event_count)
            assert record.state == "T", state
        events = [event async for event in turn.events(live=False)]
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        ended = [str(event.data["suspensionId"]) for event in events if event.type is EventType.WAIT_ENDED]
        assert len({*ended}) == len(ended), "a wait has ended twice"
        receipts = self.store.core._trees[turn.id].receipts
        assert {*ended} <= {key.removeprefix("wait ") for key in receipts}, "a wait has ended without a receipt"
        told = [(event.turn_id, event.sequence, event.epoch) for event in self.told if event.durable]
        # who claims behind a lost claim, at the same millisecond of this clock, gets the same epoch again
        assert any(node.statistics().lost for node in self.nodes) or len({*told}) == len(told), "an event was told twice"
        assert not self.wrong
        assert unanswered(await turn.history()) == []
        assert (await self.nodes[0].inbox()).items == ()
        self.check_memory(turn)

    def check_memory(self, turn: TurnRef) -> None:
        """The conversation has what the history has, each entry once, and no card of a wait that has ended is open."""
        reply = self.store.core.apply(base.ReadMemory(conversation="c", limit=1000), 0)
        entries = {entry.id: entry.body for entry in reply.entries if entry.shown}
        history = self.store.core._turns[turn.id].history
        assert entries == {f"{turn.id}:{place}": body for place, body in history.items()}
        cards = [codec.decode_remembered(entry).message for entry in reply.entries if not entry.shown]
        assert all(isinstance(card, ActionMessage) and card.status is not CardStatus.PENDING for card in cards), cards


def played(plan: dict[int, tuple[str, int]], **options: Any) -> Case:
    async def whole(clock: VirtualClock) -> Case:
        case = Case(Failover(plan, **options), clock)
        await case.play()
        return case

    return run(whole)


PLANS = st.dictionaries(st.integers(1, 30), st.tuples(st.sampled_from(["before", "after"]), st.integers(1, 9)), max_size=5)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=PLANS, log=st.sampled_from([1, 3, 256]))
def test_the_store_goes_back_anywhere(plan: dict[int, tuple[str, int]], log: int) -> None:
    """Wherever the store goes back, and whatever the owner still remembers: no attempt starts twice, all turns end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewind, "LOG_SAVES", log)
        played(plan)


def without(part: str) -> Mutant:
    """A repeated save lacks a part of those that were forgotten."""

    def mutant(patch: pytest.MonkeyPatch) -> None:
        def merged(forgotten: Any, op: base.Save, *rest: Any) -> base.Save:
            return msgspec.structs.replace(rewind.merged(forgotten, op, *rest), **{part: getattr(op, part)})

        patch.setattr(saving, "merged", merged)

    return mutant


def without_history(patch: pytest.MonkeyPatch) -> None:
    """A repeated save has the positions, but not the entries."""

    def merged(forgotten: Any, op: base.Save, behind: base.Behind, *rest: Any) -> base.Save:
        whole = rewind.merged(forgotten, op, behind, *rest)
        return msgspec.structs.replace(whole, messages=base.Messages(behind.message_count, op.messages.bodies))

    patch.setattr(saving, "merged", merged)


def reopened(patch: pytest.MonkeyPatch) -> None:
    """A repeated save opens waits that have ended."""

    def merged(forgotten: list[base.Save], op: base.Save, *rest: Any) -> base.Save:
        opened = tuple(wait for save in [*forgotten, op] for wait in save.opened)
        return msgspec.structs.replace(rewind.merged(forgotten, op, *rest), opened=opened)

    patch.setattr(saving, "merged", merged)


def untold(patch: pytest.MonkeyPatch) -> None:
    """Nobody is told of starts that the store has forgotten."""

    async def recover(actor: Any) -> None:
        pass

    patch.setattr(actor_module, "recover", recover)


MUTANTS: dict[str, Mutant] = {
    "no memory": without("memory"),
    "no receipts": without("receipts"),
    "no waits": without("opened"),
    "no children": without("create"),
    "no history": without_history,
    "ended waits": reopened,
    "nobody told": untold,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_repetition_is_noticed(name: str) -> None:
    """Each fault of the repetition breaks one of the promises in some of the runs."""
    chance = random.Random(3)
    for log in [256, 1] * 60:
        plan = {chance.randint(1, 30): (chance.choice(["before", "after"]), chance.randint(1, 9)) for _ in range(6)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rewind, "LOG_SAVES", log)
            MUTANTS[name](patch)
            try:
                played(plan)
            except (AssertionError, ExceptionGroup, TurnholdError):
                return
    raise AssertionError(f"nothing notices: {name}")
