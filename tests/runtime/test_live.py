"""What is shown live and not stored reaches those who watch a turn on other nodes, and is made for nobody else."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, Self

from hypothesis import given
from hypothesis import strategies as st

from turnhold import (
    Agent,
    Delta,
    Event,
    EventType,
    ExecutionPolicy,
    ModelOverloaded,
    RetryPolicy,
    Runtime,
    SnapshotCorrupt,
    ToolContext,
    tool,
)
from turnhold.actors.ids import child_id, root_id
from turnhold.runtime.runtime import node_of
from turnhold.store import codec
from turnhold.store.memory import MemoryStore
from turnhold.testing import ScriptedModel, VirtualClock, call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from turnhold import TurnRef

ROOT = root_id(bytes(26), None, None, "")
CHILD = child_id(ROOT, bytes(10))
_names = itertools.count()


class Stream:
    """A model that streams; exceptions are raised in their place, events waited for."""

    def __init__(self, *attempts: Sequence[Any]) -> None:
        self.attempts = attempts

    async def complete(self, request: Any) -> Any:
        raise AssertionError("this turn streams")

    async def stream(self, request: Any) -> AsyncIterator[Delta]:
        for item in self.attempts[request.attempt - 1]:
            if isinstance(item, asyncio.Event):
                await item.wait()
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item


class Hall:
    """A node that runs turns and one that only answers, on a shared memory store."""

    def __init__(self) -> None:
        self.url = f"memory://hall-{next(_names)}"
        self.store = MemoryStore.shared(self.url.removeprefix("memory://"))
        self.clock = VirtualClock()
        self.gate = asyncio.Event()

    async def open(self, agent: Agent) -> Hall:
        self.first = Runtime(self.url, agents=[agent], clock=self.clock, lease=10)
        self.second = Runtime(self.url, clock=self.clock, execute=False)
        await self.first.__aenter__()
        await self.second.__aenter__()
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.second.__aexit__(None, None, None)
        await self.first.__aexit__(None, None, None)

    async def follow(self, turn: TurnRef) -> tuple[list[Event], asyncio.Future[None]]:
        """Follow a turn on the second node."""
        seen: list[Event] = []

        async def all_of_it() -> None:
            async for event in self.second.turn(turn.id).events():
                seen.append(event)  # noqa: PERF401 - looked at while it grows

        task = asyncio.ensure_future(all_of_it())
        await self.clock.idle()
        return seen, task


async def test_deltas_on_another_node() -> None:
    """DESIGN 5.12: deltas reach a watcher on a node that does not run the turn, each tagged with its attempt."""
    hall = Hall()
    model = Stream([hall.gate, Delta(content="half"), ModelOverloaded("busy")], [Delta(reasoning="hm"), Delta(content="whole")])
    policy = ExecutionPolicy(retry_policy=RetryPolicy(max_retries=1))
    async with await hall.open(Agent("shop", model=model, policy=policy)):
        turn = await hall.first.start("shop", "hi", streaming=True)
        seen, task = await hall.follow(turn)
        hall.gate.set()
        await hall.clock.advance(60)
        await task

    live = [(event.type.value, event.data["attempt"], event.data["content"]) for event in seen if not event.durable]
    assert live == [("MODEL_TEXT_DELTA", 1, "half"), ("MODEL_REASONING_DELTA", 2, "hm"), ("MODEL_TEXT_DELTA", 2, "whole")]
    assert {(event.sequence, event.epoch > 0, event.turn_id, event.agent_id) for event in seen if not event.durable} == {
        (0, True, turn.id, "shop")
    }
    assert seen[-1].type is EventType.TURN_COMPLETED
    assert hall.store.live == {}


async def test_progress_on_another_node() -> None:
    """What a tool reports is shown there, too."""
    hall = Hall()

    @tool
    async def work() -> str:
        """Work."""
        await hall.gate.wait()
        await ToolContext.current().progress("half", percent=50)
        return "worked"

    async with await hall.open(Agent("shop", model=ScriptedModel(call("work"), "done"), tools=[work])):
        turn = await hall.first.start("shop", "hi")
        seen, task = await hall.follow(turn)
        hall.gate.set()
        await turn.settle()
        await task

    (shown,) = [event for event in seen if not event.durable]
    assert (shown.type, shown.data["message"], shown.data["percent"]) == (EventType.TOOL_PROGRESS, "half", 50)


async def test_a_slow_reader_on_another_node() -> None:
    """It loses the oldest live events, and none that is stored."""
    hall = Hall()
    model = Stream([hall.gate, *(Delta(content="x") for _ in range(3000))])
    async with await hall.open(Agent("shop", model=model)):
        turn = await hall.first.start("shop", "hi", streaming=True)
        await hall.clock.idle()
        stream = hall.second.turn(turn.id).events()
        first = await anext(stream)
        hall.gate.set()
        await turn.settle()

        rest = [event async for event in stream]
        stored = [event async for event in turn.events(live=False)]

    assert [event for event in (first, *rest) if event.durable] == stored
    assert 0 < len([event for event in rest if not event.durable]) <= 1000


async def test_nothing_is_made_where_nobody_watches() -> None:
    """A reader that leaves ends the deltas: the turn's node makes none for nobody."""
    hall = Hall()
    later = asyncio.Event()
    model = Stream([hall.gate, Delta(content="a"), later, Delta(content="b")])
    async with await hall.open(Agent("shop", model=model)):
        turn = await hall.first.start("shop", "hi", streaming=True)
        watch = node_of(hall.first).watch
        assert not watch.wants_live(turn.id)
        seen, task = await hall.follow(turn)
        assert watch.wants_live(turn.id)
        hall.gate.set()
        await hall.clock.idle()
        task.cancel()
        await asyncio.wait([task])

        assert not watch.wants_live(turn.id)
        later.set()
        await turn.settle()

    assert [event.data["content"] for event in seen if not event.durable] == ["a"]


async def test_a_listener_hears_only_of_its_own_node() -> None:
    """What another node publishes is for those who watch the turn."""
    hall = Hall()
    heard: list[Event] = []
    async with await hall.open(Agent("shop", model=Stream([hall.gate, Delta(content="a")]))):
        hall.second.add_listener(heard.append)
        turn = await hall.first.start("shop", "hi", streaming=True)
        seen, task = await hall.follow(turn)
        hall.gate.set()
        await turn.settle()
        await task

    assert [event.data["content"] for event in seen if not event.durable] == ["a"]
    assert heard == []


async def test_garbage_is_no_event() -> None:
    """What cannot be read, and what is of another tree, is ignored; the watcher goes on."""
    hall = Hall()
    async with await hall.open(Agent("shop", model=Stream([hall.gate, Delta(content="a")]))):
        turn = await hall.first.start("shop", "hi", streaming=True)
        seen, task = await hall.follow(turn)
        foreign = codec.encode_live(_live())
        for body in (b"", b"\xff", b"\x91\x01", foreign):
            for show in list(hall.store.live[turn.id]):
                show(turn.id, body)
        hall.gate.set()
        await turn.settle()
        await task

    assert [event.data["content"] for event in seen if not event.durable] == ["a"]


def _live(**changes: Any) -> Event:
    source = codec.EventSource(CHILD, ROOT, "shop", "1")
    return codec.event_of(source, EventType.TOOL_PROGRESS, 1_234_567_890_123, {"message": "é", "deep": [{"n": None}]}, 2, epoch=7)


def test_a_live_event_crosses_nodes_whole() -> None:
    """All that an event carries is there on the other side."""
    event = _live()

    assert codec.decode_live(ROOT, codec.encode_live(event)) == event


@given(st.binary(max_size=200), st.randoms(use_true_random=False))
def test_hostile_bytes_are_a_typed_error(noise: bytes, random: Any) -> None:
    """Whatever arrives on the channel is an event of that tree, not stored, or a typed error."""
    body = bytearray(codec.encode_live(_live()))
    for _ in range(random.randrange(4)):
        body[random.randrange(len(body))] = random.randrange(256)
    for data in (noise, bytes(body), bytes(body[: random.randrange(len(body))])):
        try:
            event = codec.decode_live(ROOT, data)
        except SnapshotCorrupt:
            continue
        assert (event.root_turn_id, event.durable, event.sequence) == (ROOT, False, 0)
        event.to_json()


async def test_an_event_that_cannot_be_sent_is_shown_here() -> None:
    """Data that no bytes hold hurts neither the tool nor who watches on its own node."""
    store = MemoryStore()
    clock = VirtualClock()
    shown: list[tuple[str, bytes]] = []
    other = await store.connect("other", lambda kind, turn: None, lambda: 0, live=lambda root, body: shown.append((root, body)))
    async with Runtime(store, agents=[], execute=False, clock=clock) as runtime:
        watch = node_of(runtime).watch
        mine = watch.add(CHILD, live=True)
        other.watch(ROOT, live=True)
        bad = codec.event_of(codec.EventSource(CHILD, ROOT, "shop", "1"), EventType.TOOL_PROGRESS, 0, {"message": "\ud800"}, 1)
        watch.publish(bad)
        watch.publish(_live())
        watch.drop(mine)
    await other.close()

    assert list(mine.live) == [bad, _live()]
    assert [root for root, _ in shown] == [ROOT]
