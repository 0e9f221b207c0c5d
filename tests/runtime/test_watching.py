"""Waiting for what other nodes do: by bells that are lost, by one question for all, and by what is shown live."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from turnhold import (
    Agent,
    Event,
    EventType,
    ExecutionPolicy,
    ModelOverloaded,
    ResumeCommand,
    RetryPolicy,
    Runtime,
    Status,
    tool,
)
from turnhold.actors.ids import child_id, root_id
from turnhold.runtime.runtime import node_of
from turnhold.runtime.watch import Watch
from turnhold.store import base
from turnhold.store.memory import MemoryStore
from turnhold.store.sqlite import SqliteStore
from turnhold.testing import ScriptedModel, VirtualClock, call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from turnhold import TurnRef

ROOT = root_id(bytes(26), None, None, "")
CHILD = child_id(ROOT, bytes(10))
_names = itertools.count()


class DeafStore:
    """A store whose bells one node does not hear; counts what that node asks, and may hold back the answers to one operation."""

    def __init__(self, inner: base.TurnStore) -> None:
        self.inner = inner
        self.namespace, self.lease_seconds = inner.namespace, inner.lease_seconds
        self.poll_seconds: float | None = 1.0
        self.partitioned = inner.partitioned
        self.proves_death = inner.proves_death
        self.ops: Counter[str] = Counter()
        self.held: type[base.Op] | None = None
        self.opened = asyncio.Event()

    async def connect(
        self, node: str, bell: base.Bell, clock: Callable[[], int], *, inline: bool = False, live: base.Live | None = None
    ) -> base.StoreConnection:
        connection = await self.inner.connect(node, lambda kind, turn: None, clock, inline=inline, live=live)
        call = connection.call

        async def counted(op: base.Op) -> base.Reply:
            self.ops[type(op).__name__] += 1
            reply = await call(op)
            if self.held is type(op):
                await self.opened.wait()
            return reply

        connection.call = counted  # type: ignore[method-assign]
        return connection


class Office:
    """Nodes on one store and one clock: some hear all, one asks once a second."""

    def __init__(self, store: base.TurnStore) -> None:
        self.store = store
        self.clock = VirtualClock()
        self.deaf = DeafStore(store)
        self.opened = asyncio.Event()
        self._open: list[Runtime] = []

    async def runtime(self, *agents: Agent, deaf: bool = False, **options: Any) -> Runtime:
        runtime = Runtime(self.deaf if deaf else self.store, agents=agents, clock=self.clock, lease=10, **options)
        if deaf:
            node_of(runtime).poll_seconds = 1.0
        await runtime.__aenter__()
        self._open.append(runtime)
        return runtime

    async def close(self) -> None:
        self.opened.set()
        for runtime in reversed(self._open):
            leaving = asyncio.ensure_future(runtime.__aexit__(None, None, None))
            while not leaving.done():
                await self.clock.advance(1)
            await leaving

    def slow(self, *replies: Any, **options: Any) -> Agent:
        """Return an agent whose model waits until the office lets it go."""
        script = ScriptedModel(*replies)
        office = self

        class Model:
            async def complete(self, request: Any) -> Any:
                await office.opened.wait()
                return await script.complete(request)

        return Agent("shop", model=Model(), **options)

    async def parked(self, runtime: Runtime, turn: str) -> None:
        """Let the owner of a turn park it."""
        node = node_of(runtime)
        token = node.placement.actors[turn].token
        assert isinstance(await node.call(base.Quarantine(turn=turn, token=token, reason="a test")), base.Done)


@pytest.fixture(params=["memory", pytest.param("sqlite", marks=pytest.mark.blocking("SQLite works on the loop of virtual time"))])
async def office(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Office]:
    store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "turns.db", synchronous="normal")
    office = Office(store)
    yield office
    await office.close()


@pytest.fixture
async def desk() -> AsyncIterator[Office]:
    """An office on the memory store alone."""
    office = Office(MemoryStore())
    yield office
    await office.close()


# ------------------------------------------------------------------------------------------------- one question for all


async def test_many_waiters_cost_one_question(desk: Office) -> None:
    """DESIGN 6: waiters do not poll; the node asks for all of them at once, a thousand a call; who is over hears it from that."""
    shop = desk.slow("done")
    first, second = await desk.runtime(shop), await desk.runtime(deaf=True, execute=False)
    turns = [await first.start(shop, f"hi {number}") for number in range(1500)]
    settled = [asyncio.ensure_future(second.turn(turn.id).settle()) for turn in turns]
    await desk.clock.idle()
    desk.deaf.ops.clear()

    await desk.clock.advance(5)
    assert desk.deaf.ops == {"Versions": 10}

    desk.opened.set()
    await desk.clock.advance(1)
    assert {task.result().status for task in settled} == {Status.COMPLETED}
    assert desk.deaf.ops == {"Versions": 12, "Look": 1500}
    await desk.clock.advance(5)
    assert desk.deaf.ops == {"Versions": 12, "Look": 1500}


async def test_those_who_live_here_are_not_asked_about(desk: Office) -> None:
    """A turn that runs and settles on the node of its waiter costs no question."""
    shop = desk.slow("done")
    runtime = await desk.runtime(shop, deaf=True)
    turn = await runtime.start(shop, "hi")
    settled = asyncio.ensure_future(turn.settle())

    await desk.clock.advance(5)
    desk.opened.set()

    assert (await settled).status is Status.COMPLETED
    assert not {"Versions", "Look"} & desk.deaf.ops.keys()


async def test_settle_and_events_without_bells(office: Office) -> None:
    """A waiter and a reader elsewhere learn of a suspension and of the end from the question alone."""

    @tool(approval=True)
    async def refund() -> str:
        """Refund."""
        return "refunded"

    shop = office.slow(call("refund"), "done", tools=[refund])
    first, second = await office.runtime(shop), await office.runtime(deaf=True, execute=False)
    turn = await first.start(shop, "hi")
    far = second.turn(turn.id)
    settled = asyncio.ensure_future(far.settle())
    seen = [asyncio.ensure_future(_all(far)), asyncio.ensure_future(_all(far))]
    await office.clock.advance(3)
    assert not settled.done()

    office.opened.set()
    await office.clock.advance(1)
    view = await settled
    assert view.status is Status.WAITING_FOR_APPROVAL
    await turn.resume(ResumeCommand.approve_tool(view.open_waits[0]))
    await office.clock.advance(1)

    first_seen, second_seen = [await task for task in seen]
    assert first_seen == second_seen
    assert first_seen[-1].type is EventType.TURN_COMPLETED


async def _all(turn: TurnRef) -> list[Event]:
    return [event async for event in turn.events(live=False)]


async def test_readers_of_a_quiet_turn_cost_nothing(desk: Office) -> None:
    """Who reads events elsewhere looks once more when the turn is asked about the first time, then only when it has changed."""
    leaf = desk.slow("leaf").replace(id="leaf")
    first, second = await desk.runtime(leaf), await desk.runtime(deaf=True, execute=False)
    turn = await first.start(leaf, "hi")
    readers = [asyncio.ensure_future(_all(second.turn(turn.id))) for _ in range(3)]
    await desk.clock.advance(2)
    desk.deaf.ops.clear()

    await desk.clock.advance(30)

    assert desk.deaf.ops == {"Versions": 30}
    desk.opened.set()
    await desk.clock.advance(1)
    assert len({len(await reader) for reader in readers}) == 1


async def test_what_children_save_shows_at_their_root(office: Office) -> None:
    """A tree settles when its last child stops to ask a person, which changes nothing of the root."""

    @tool(approval=True)
    async def refund() -> str:
        """Refund."""
        return "refunded"

    leaf = office.slow(call("refund"), "done", tools=[refund]).replace(id="leaf")
    shop = Agent("shop", model=ScriptedModel(call("refund"), "done"), tools=[refund])
    first, second = await office.runtime(shop, leaf), await office.runtime(deaf=True, execute=False)
    turn = await first.start(shop, "hi")
    await turn.settle()
    await turn.start_child("leaf", "hi")
    settled = asyncio.ensure_future(second.turn(turn.id).settle())
    await office.clock.advance(3)
    assert not settled.done()

    office.opened.set()
    await office.clock.advance(1)

    assert len((await settled).open_waits) == 2


async def test_a_wake_settles_nothing_by_itself(office: Office) -> None:
    """With `through_retries` a waiter sleeps through the retry's wake and hears of what it led to; without, it returns before."""
    shop = Agent(
        "shop",
        model=ScriptedModel(ModelOverloaded("busy"), "done"),
        policy=ExecutionPolicy(retry_policy=RetryPolicy(max_retries=2, initial_delay=60)),
    )
    first, second = await office.runtime(shop), await office.runtime(deaf=True, execute=False)
    turn = await first.start(shop, "hi")
    far = second.turn(turn.id)
    whole = asyncio.ensure_future(far.settle(through_retries=True))
    await office.clock.idle()
    assert (await far.settle()).status is Status.RETRY_SCHEDULED

    await office.clock.advance(20)
    assert not whole.done()
    await office.clock.advance(200)

    assert (await whole).status is Status.COMPLETED


async def test_a_parked_turn_settles_without_bells(office: Office) -> None:
    """Quarantine changes the state and no version: the question shows it."""
    shop = office.slow("done")
    first, second = await office.runtime(shop), await office.runtime(deaf=True, execute=False)
    turn = await first.start(shop, "hi")
    settled = asyncio.ensure_future(second.turn(turn.id).settle())
    await office.clock.advance(3)

    await office.parked(first, turn.id)
    await office.clock.advance(1)

    assert (await settled).quarantine is not None


async def test_a_turn_parked_between_two_questions_settles(office: Office) -> None:
    """A sleeping turn that was claimed and parked looks as before to the question; who waits for it looks again in a while."""
    shop = Agent(
        "shop",
        model=ScriptedModel(ModelOverloaded("busy"), "done"),
        policy=ExecutionPolicy(retry_policy=RetryPolicy(max_retries=2, initial_delay=60)),
    )
    first, second = await office.runtime(shop), await office.runtime(deaf=True, execute=False)
    turn = await first.start(shop, "hi")
    await turn.settle()
    settled = asyncio.ensure_future(second.turn(turn.id).settle(through_retries=True))
    await office.clock.advance(3)
    node = node_of(first)
    by = node.placement.claim_by()

    claimed = await node.call(base.Deliver(turn=turn.id, mail=base.Mail("m", b""), cap=9, claim=by))
    assert isinstance(claimed, base.Claimed)
    token = base.Token(by.activation, claimed.epoch)
    assert isinstance(await node.call(base.Quarantine(turn=turn.id, token=token, reason="a test")), base.Done)
    await office.clock.advance(11)

    assert (await settled).quarantine is not None


async def test_a_reaped_turn_settles_without_bells(office: Office) -> None:
    """A turn that lost too many owners is parked by whoever took the last one off."""
    shop = office.slow("done")
    first, second = await office.runtime(shop), await office.runtime(deaf=True, execute=False)
    third = await office.runtime(execute=False)
    turn = await first.start(shop, "hi")
    settled = asyncio.ensure_future(second.turn(turn.id).settle())
    await office.clock.advance(1)
    await node_of(first).kill()
    await office.clock.advance(15)
    assert not settled.done()

    reaped = await node_of(third).call(base.Reap(turn=turn.id, grace_ms=0, max_crashes=0))
    assert isinstance(reaped, base.Reaped)
    await office.clock.advance(1)

    assert (await settled).quarantine is not None


async def test_a_discarded_turn_ends_its_events_without_bells(office: Office) -> None:
    """A discard writes no event: the state says that there will be none."""
    shop = office.slow("done")
    first, second = await office.runtime(shop), await office.runtime(deaf=True, execute=False)
    turn = await first.start(shop, "hi")
    seen = asyncio.ensure_future(_all(second.turn(turn.id)))
    await office.clock.advance(2)

    await office.parked(first, turn.id)
    await turn.discard("a test")
    await office.clock.advance(1)

    assert EventType.TURN_STARTED in {event.type for event in await seen}


async def test_a_tree_settles_without_bells(office: Office) -> None:
    """What children save shows at their root; a child that is parked is found a lease later."""
    held = asyncio.Event()

    @tool
    async def hold() -> str:
        """Hold."""
        await held.wait()
        return "held"

    leaf = office.slow("leaf").replace(id="leaf")
    shop = Agent("shop", model=ScriptedModel(call("hold"), "done"), tools=[hold])
    first, second = await office.runtime(shop, leaf), await office.runtime(deaf=True, execute=False)
    turn = await first.start(shop, "hi")
    await office.clock.idle()
    children = [await turn.start_child("leaf", "hi") for _ in range(2)]
    held.set()
    settled = [asyncio.ensure_future(second.turn(ref.id).settle()) for ref in (turn, *children)]
    await office.clock.advance(3)

    await office.parked(first, children[0].id)
    await office.clock.advance(11)
    assert [task.done() for task in settled] == [False, True, False]
    office.opened.set()
    await office.clock.advance(1)

    views = [await task for task in settled]
    assert [view.status for view in views] == [Status.WAITING_FOR_CHILD, Status.RUNNING, Status.COMPLETED]


# ------------------------------------------------------------------------------------------------------------- answers


class Busy:
    """A turn with a tool that runs until it is let go and eight calls that wait for a person."""

    def __init__(self, office: Office) -> None:
        @tool
        async def long() -> str:
            """Run long."""
            await office.opened.wait()
            return "long"

        @tool(approval=True)
        async def refund() -> str:
            """Refund."""
            return "refunded"

        calls = [call("long"), *(call("refund") for _ in range(8))]
        self.agent = Agent("shop", model=ScriptedModel(calls, "done"), tools=[long, refund])


async def _submits(office: Office) -> list[asyncio.Future[Any]]:
    """Let a deaf node submit eight answers to a turn that another node owns."""
    shop = Busy(office).agent
    first, second = await office.runtime(shop), await office.runtime(deaf=True, execute=False)
    turn = await first.start(shop, "hi")
    await office.clock.idle()
    waits = (await turn.view()).open_waits
    office.deaf.ops.clear()
    far = second.turn(turn.id)
    commands = [ResumeCommand.approve_tool(wait, by=f"p{number}") for number, wait in enumerate(waits)]
    submits: list[asyncio.Future[Any]] = [asyncio.ensure_future(far.submit(command, 20)) for command in commands]
    await office.clock.idle()
    return submits


async def test_answers_without_bells_are_read_together(office: Office) -> None:
    """Each sender looks once; then one question, and one read for all of the tree."""
    submits = await _submits(office)
    assert not any(task.done() for task in submits)

    await office.clock.advance(1)

    assert [task.result().by for task in submits] == [f"p{number}" for number in range(8)]
    assert office.deaf.ops == {"Deliver": 8, "ReadReplies": 9, "Versions": 1}


async def test_a_cancelled_reader_leaves_the_answers_to_the_others(desk: Office) -> None:
    """Whoever reads for all may be cancelled; another reads again."""
    submits = await _submits(desk)
    desk.deaf.held = base.ReadReplies
    await desk.clock.advance(1)
    assert desk.deaf.ops["ReadReplies"] == 9

    submits[0].cancel()
    await desk.clock.idle()
    assert desk.deaf.ops["ReadReplies"] == 10
    desk.deaf.held = None
    desk.deaf.opened.set()
    await desk.clock.idle()

    assert [task.result().by for task in submits[1:]] == [f"p{number}" for number in range(1, 8)]


# ------------------------------------------------------------------------------------------------------- subscriptions


class Noted:
    """A connection that notes what is watched through it."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, bool]] = []

    def watch(self, root: str, *, live: bool) -> None:
        self.said.append(("watch", root, live))

    def unwatch(self, root: str, *, live: bool) -> None:
        self.said.append(("unwatch", root, live))


def test_one_watch_for_each_tree_and_kind() -> None:
    """The store hears of the first and the last watcher of a tree, plain and live apart, not of who waits for this node only."""
    watch, store = Watch(), Noted()
    watch.connect(store)  # type: ignore[arg-type]
    here, plain, child, live = watch.add(ROOT), watch.add(ROOT), watch.add(CHILD), watch.add(ROOT, live=True)
    for subscription in (plain, child, live, live):
        watch.listen(subscription)
    assert store.said == [("watch", ROOT, False), ("watch", ROOT, True)]

    store.said.clear()
    for subscription in (here, live, plain, child):
        watch.drop(subscription)

    assert store.said == [("unwatch", ROOT, True), ("unwatch", ROOT, False)]
    assert watch.trees == 0


def test_a_new_connection_hears_of_all_who_watch() -> None:
    """Who waits over a restart of the node is watched for again; what was watched through the old connection is gone with it."""
    watch, old, new = Watch(), Noted(), Noted()
    watch.connect(old)  # type: ignore[arg-type]
    subscription = watch.add(ROOT)
    watch.listen(subscription)
    watch.disconnect()
    assert subscription.rung

    watch.connect(new)  # type: ignore[arg-type]
    watch.drop(subscription)

    assert old.said == [("watch", ROOT, False)]
    assert new.said == [("watch", ROOT, False), ("unwatch", ROOT, False)]
