"""Section O: events, stored and live, cursors, streaming and listeners."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from turnhold import (
    AiMessage,
    ApprovalDecision,
    Budget,
    Delta,
    Event,
    EventType,
    ExecutionPolicy,
    ModelOverloaded,
    ModelRefused,
    ResumeCommand,
    RetryPolicy,
    Status,
    TurnNotFound,
    Usage,
)
from turnhold.actors.events import told as told_of
from turnhold.actors.record import JsonObject
from turnhold.testing import call

from .lab import Desk, Gate, Lab, agent, approved, stored_events, types, waiting

E = EventType


async def test_plain_reply(lab: Lab) -> None:
    """O301, O302, O309: a plain reply has exactly these events, numbered from 1 without a gap; both STEP events are step 1."""
    shop = agent("hello")
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await turn.settle()

    events = await stored_events(turn)

    assert [event.type for event in events] == [
        E.TURN_STARTED,
        E.STEP_STARTED,
        E.MODEL_STARTED,
        E.MODEL_COMPLETED,
        E.STEP_COMPLETED,
        E.TURN_COMPLETED,
    ]
    assert [event.sequence for event in events] == [1, 2, 3, 4, 5, 6]
    assert [event.data["step"] for event in events if event.type in (E.STEP_STARTED, E.STEP_COMPLETED)] == [1, 1]
    assert events[3].data["text"] == "hello"


async def test_approval(lab: Lab, desk: Desk) -> None:
    """O303, O310, O311: the step ends before the turn is suspended; asked < resumed < started < completed; ids are in the data."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn, wait = await waiting(first, shop)
    await approved(second.turn(turn.id), wait, by="ann")

    events = await stored_events(turn)
    seen = [event.type for event in events]

    order = [E.TOOL_APPROVAL_REQUESTED, E.STEP_COMPLETED, E.TURN_SUSPENDED, E.WAIT_ENDED, E.TURN_RESUMED, E.TOOL_STARTED]
    places = [seen.index(kind) for kind in [*order, E.TOOL_COMPLETED, E.TURN_COMPLETED]]
    assert places == sorted(places)
    by_type = {event.type: event.data for event in events}
    assert by_type[E.TOOL_STARTED].items() >= {"toolCallId": "call_1_0", "toolName": "refund"}.items()
    assert by_type[E.TURN_SUSPENDED]["suspensionId"] == wait.id
    assert (by_type[E.TURN_RESUMED]["commandType"], by_type[E.TURN_RESUMED]["by"]) == ("APPROVE_TOOL", "ann")


async def test_failure(lab: Lab) -> None:
    """O304: a failing turn starts, steps, says what failed, ends its step, and fails last."""
    shop = agent(ModelRefused("no"))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await turn.settle()

    events = await stored_events(turn)

    assert [event.type for event in events] == [
        E.TURN_STARTED,
        E.STEP_STARTED,
        E.MODEL_STARTED,
        E.MODEL_FAILED,
        E.STEP_COMPLETED,
        E.TURN_FAILED,
    ]
    assert events[3].data["error"] == "no"
    assert events[-1].data["reason"] == "no"


async def test_tool_cycle(lab: Lab, desk: Desk) -> None:
    """O305, O312: model < tool start < tool end < model; iterations are numbered; one terminal event."""
    shop = agent(call("refund"), "done", tools=[desk.tool()], version="4")
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await turn.settle()

    events = await stored_events(turn)
    seen = [event.type for event in events]

    inner = [kind for kind in seen if kind.value.startswith(("MODEL", "TOOL"))]
    assert inner == [E.MODEL_STARTED, E.MODEL_COMPLETED, E.TOOL_STARTED, E.TOOL_COMPLETED, E.MODEL_STARTED, E.MODEL_COMPLETED]
    assert [event.data["iteration"] for event in events if event.type is E.MODEL_STARTED] == [1, 2]
    assert {(event.agent_id, event.agent_version, event.turn_id) for event in events} == {("shop", "4", turn.id)}
    assert seen.count(E.TURN_COMPLETED) == 1


async def test_what_every_event_tells(lab: Lab, desk: Desk) -> None:
    """O312: each says where the turn stood: status, phase, step and its limit; a model's events how many requests are left."""
    policy = ExecutionPolicy(max_steps=9, max_iterations=5)
    shop = agent([call("refund"), call("look")], "done", tools=[desk.tool(approval=True), desk.tool("look")], policy=policy)
    runtime = await lab.runtime(shop)
    heard: list[Event] = []
    runtime.add_listener(heard.append)
    turn, wait = await waiting(runtime, shop)
    await approved(turn, wait)

    events = await stored_events(turn)

    assert [(event.type, event.data) for event in heard] == [(event.type, event.data) for event in events]
    assert [event.data["maxSteps"] for event in events] == [9] * len(events)
    places = [(event.type, event.data["status"], event.data["phase"], event.data["stepCount"]) for event in events]
    assert places[0] == (E.TURN_STARTED, "READY", "MODEL", 0)
    assert places[-1] == (E.TURN_COMPLETED, "COMPLETED", "FINISHED", 3)
    assert (E.TURN_SUSPENDED, "WAITING_FOR_APPROVAL", "TOOLS", 1) in places
    assert (E.TOOL_STARTED, "RUNNING", "TOOLS", 2) in places
    by_type = {kind: [event.data for event in events if event.type is kind] for kind in E}
    names = ("iteration", "maxIterations", "remainingIterations")
    asked = [[data[name] for name in names] for kind in (E.MODEL_STARTED, E.MODEL_COMPLETED) for data in by_type[kind]]
    assert asked == [[1, 5, 4], [2, 5, 3]] * 2
    assert [data["hasToolCalls"] for data in by_type[E.MODEL_COMPLETED]] == [True, False]
    assert [data["toolMessageCount"] for data in by_type[E.STEP_COMPLETED]] == [0, 2, 0]
    assert by_type[E.TURN_SUSPENDED][0]["resumePhase"] == "TOOLS"


def test_events_of_a_turn_whose_snapshot_cannot_be_read() -> None:
    """They are read all the same, without the limits that stand in the snapshot."""
    data = told_of(E.MODEL_STARTED, {"iteration": 3}, 2, None)

    assert data == {"status": "RUNNING", "phase": "MODEL", "stepCount": 2, "iteration": 3}


@pytest.mark.parametrize(
    ("kind", "data", "more"),
    [
        (EventType.TURN_FAILED, {"reason": "no"}, {"status": "FAILED", "error": "no"}),
        (EventType.TURN_CANCELLED, {"reason": "no"}, {"status": "CANCELLED"}),
        (EventType.MAX_ITERATIONS_REACHED, {"reason": "r"}, {"iterations": 4}),
        (EventType.MAX_STEPS_REACHED, {"reason": "r"}, {"steps": 7}),
        (
            EventType.TURN_SUSPENDED,
            {"suspensionType": "RETRY", "resumePhase": "MODEL"},
            {"status": "RETRY_SCHEDULED", "phase": "MODEL"},
        ),
        (EventType.TURN_SUSPENDED, {"suspensionType": "WHAT"}, {"status": "RUNNING", "resumePhase": "TOOLS"}),
    ],
)
def test_what_follows_from_an_event(kind: EventType, data: JsonObject, more: JsonObject) -> None:
    """What need not be stored, as it follows from the type, the data and the limits; what is stored wins."""
    found = told_of(kind, data, 1, ExecutionPolicy(max_iterations=4, max_steps=7))

    assert found.items() >= {**data, **more}.items()


async def test_one_end_of_a_call(lab: Lab, desk: Desk) -> None:
    """R13 (W-35): a call has one end: failed or completed, not both; a denied or rejected call says so."""

    def policy(turn, call, tool):
        return {"denied": ApprovalDecision.deny(reason="no"), "gated": True}.get(call.name, False)

    tools = [desk.tool("boom", errors=[ValueError("no")]), desk.tool("denied"), desk.tool("gated")]
    shop = agent(
        [call("boom"), call("denied"), call("gated")],
        "done",
        tools=tools,
        approval=policy,
        policy=ExecutionPolicy(tool_errors="return_to_model"),
    )
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await turn.settle()
    await turn.resume(ResumeCommand.reject_tool(by="ann"))

    ends: dict[str, list[EventType]] = {}
    for event in await stored_events(turn):
        if event.type in (E.TOOL_COMPLETED, E.TOOL_FAILED, E.TOOL_REJECTED):
            ends.setdefault(str(event.data["toolName"]), []).append(event.type)
    assert ends == {"boom": [E.TOOL_FAILED], "denied": [E.TOOL_REJECTED], "gated": [E.TOOL_REJECTED]}


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
async def test_listeners(lab: Lab, error: type[BaseException]) -> None:
    """O306: a listener that raises stops nobody; one that was removed hears nothing; all hear the same stored events in order."""
    heard: list[Event] = []
    removed: list[Event] = []

    def broken(event: Event) -> None:
        raise error("listener")

    shop = agent("hello")
    runtime = await lab.runtime(shop, listeners=[broken, heard.append])
    listener = removed.append
    runtime.add_listener(listener)
    runtime.remove_listener(listener)
    runtime.remove_listener(listener)
    turn = await runtime.start(shop, "hi")
    await turn.settle()

    assert removed == []
    assert [event for event in heard if event.durable] == await stored_events(turn)


async def test_many_turns(lab: Lab) -> None:
    """O307: turns that run at the same time each have a sequence of their own, from 1, rising."""
    heard: list[Event] = []
    shop = agent("hello")
    runtime = await lab.runtime(shop, listeners=[heard.append])

    turns = await asyncio.gather(*(runtime.start(shop, f"hi {number}") for number in range(8)))
    await asyncio.gather(*(turn.settle() for turn in turns))

    for turn in turns:
        assert [event.sequence for event in heard if event.turn_id == turn.id and event.durable] == [1, 2, 3, 4, 5, 6]


async def test_events_are_copies(lab: Lab, desk: Desk) -> None:
    """O308, Q339: what a listener does to an event changes neither what others hear nor what is stored; an event has its time."""

    def spoil(event: Event) -> None:
        event.data["spoiled"] = True

    shop = agent("hello")
    runtime = await lab.runtime(shop, listeners=[spoil])
    turn = await runtime.start(shop, "hi")
    await turn.settle()

    events = await stored_events(turn)

    assert not [event for event in events if "spoiled" in event.data]
    assert {event.at for event in events} == {lab.clock.now()}


async def test_cursor(lab: Lab, desk: Desk) -> None:
    """T123, T14: from any cursor, on any node, during and after the turn, what follows comes, each once; then the stream ends."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    first, second = await lab.runtime(shop), await lab.runtime(execute=False)
    turn, wait = await waiting(first, shop)
    halves: list[Event] = []

    async def follow() -> None:
        async for event in second.turn(turn.id).events(3, live=False):
            halves.append(event)  # noqa: PERF401 - looked at while it grows

    follower = asyncio.ensure_future(follow())
    await lab.idle()
    assert halves[-1].type is E.TURN_SUSPENDED
    await approved(turn, wait)
    await lab.during(follower)

    events = await stored_events(turn)
    assert halves == events[3:]
    for after in range(len(events) + 2):
        assert [event async for event in second.turn(turn.id).events(after)] == events[after:]


async def test_watch_while_suspended(lab: Lab, desk: Desk) -> None:
    """DESIGN 5.12: a suspended turn can be watched; a watcher that stops leaves nothing behind."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    turn, _ = await waiting(runtime, shop)
    seen: list[EventType] = []

    async def watch() -> None:
        async for event in turn.events():
            seen.append(event.type)  # noqa: PERF401 - looked at when it is cancelled

    watcher = asyncio.ensure_future(watch())
    await lab.idle()
    watcher.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watcher

    assert seen[-1] is E.TURN_SUSPENDED
    assert runtime.statistics().watched_trees == 0


async def test_no_turn(lab: Lab) -> None:
    """Events of no turn are refused, also where the id has no shape."""
    runtime = await lab.runtime(agent("hello"))

    for name in ("00-" + "a" * 26, "nonsense"):
        with pytest.raises(TurnNotFound):
            await stored_events(runtime.turn(name))


# ------------------------------------------------------------------------------------------------------------ streaming


class Stream:
    """A model that streams what it is told to; exceptions are raised in their place."""

    def __init__(self, *attempts: list[Any]) -> None:
        self.attempts = attempts
        self.closed = 0

    async def complete(self, request):
        raise AssertionError("this turn streams")

    async def stream(self, request):
        try:
            for item in self.attempts[request.attempt - 1]:
                if isinstance(item, Gate):
                    await item.passing()
                elif isinstance(item, BaseException):
                    raise item
                else:
                    yield item
        finally:
            self.closed += 1


async def streamed(lab: Lab, model: Any, **options: Any):
    """Run a streaming turn to its end, and return its view and all events a watcher saw."""
    shop = agent(model=model, **options)
    runtime = await lab.runtime(shop)
    seen: list[Event] = []
    runtime.add_listener(seen.append)
    turn = await runtime.start(shop, "hi", streaming=True)
    view = await lab.during(turn.settle(through_retries=True))
    return turn, view, seen


async def test_deltas(lab: Lab) -> None:
    """DESIGN 5.12: text and reasoning come in pieces, tagged with the attempt, live only; the stored event has the whole text."""
    pieces = [Delta(reasoning="hm "), Delta(content="a "), Delta(content="b"), Delta(usage=Usage(1, 2))]

    turn, view, seen = await streamed(lab, Stream(pieces))

    live = [event for event in seen if not event.durable]
    assert [(event.type, event.data["content"]) for event in live] == [
        (EventType.MODEL_REASONING_DELTA, "hm "),
        (EventType.MODEL_TEXT_DELTA, "a "),
        (EventType.MODEL_TEXT_DELTA, "b"),
    ]
    assert {(event.data["iteration"], event.data["attempt"], event.sequence) for event in live} == {(1, 1, 0)}
    assert (view.final_output, view.usage) == ("a b", Usage(1, 2))
    assert not [kind for kind in await types(turn) if kind.value.endswith("DELTA")]


async def test_stream_breaks(lab: Lab) -> None:
    """O313: a stream that breaks after a piece: the piece was shown, the turn is FAILED with that error, one terminal event."""
    model = Stream([Delta(content="par"), ModelRefused("broken")])

    turn, view, seen = await streamed(lab, model)

    assert [event.data["content"] for event in seen if event.type is E.MODEL_TEXT_DELTA] == ["par"]
    assert view.status is Status.FAILED
    assert view.error is not None
    assert (view.error.message, model.closed) == ("broken", 1)
    assert (await types(turn))[-2:] == [E.STEP_COMPLETED, E.TURN_FAILED]


async def test_only_a_final_piece(lab: Lab) -> None:
    """O314: a stream of one piece shows its text once and completes."""
    _, view, seen = await streamed(lab, Stream([Delta(content="whole", usage=Usage(1, 1))]))

    assert [event.data["content"] for event in seen if event.type is E.MODEL_TEXT_DELTA] == ["whole"]
    assert view.final_output == "whole"


async def test_stream_does_not_open(lab: Lab) -> None:
    """O315: a stream that fails before its first piece ends the turn FAILED; it never hangs."""
    _, view, seen = await streamed(lab, Stream([ConnectionError("refused")]))

    assert view.status is Status.FAILED
    assert not [event for event in seen if event.type is E.MODEL_TEXT_DELTA]


async def test_streamed_again(lab: Lab) -> None:
    """W-30: a retried stream is told apart by its attempt, so a page can drop what the failed one had shown."""
    model = Stream([Delta(content="half"), ModelOverloaded("busy")], [Delta(content="whole")])

    _, view, seen = await streamed(lab, model, policy=ExecutionPolicy(retry_policy=RetryPolicy(max_retries=1)))

    shown = [(event.data["attempt"], event.data["content"]) for event in seen if event.type is E.MODEL_TEXT_DELTA]
    assert shown == [(1, "half"), (2, "whole")]
    assert view.final_output == "whole"


async def test_nothing_after_the_end(lab: Lab) -> None:
    """R23 (W-30): a stream over the time budget is closed; nothing of it is shown behind the terminal event."""
    gate = Gate()
    model = Stream([Delta(content="a"), gate, Delta(content="b")])

    _, view, seen = await streamed(lab, model, policy=ExecutionPolicy(budget=Budget(max_duration=5)))
    gate.open()
    await lab.idle()

    assert (view.status, model.closed) == (Status.BUDGET_EXCEEDED, 1)
    assert [event.type for event in seen][-1] is E.BUDGET_EXCEEDED
    assert [event.data["content"] for event in seen if event.type is E.MODEL_TEXT_DELTA] == ["a"]


async def test_tokens_seen_before_a_cancel(lab: Lab) -> None:
    """R28 (W-34), T94: tokens that a stream had reported when it was stopped are counted."""
    gate = Gate()
    shop = agent(model=Stream([Delta(content="a", usage=Usage(100, 20)), gate]))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi", streaming=True)
    await gate.entered.wait()

    view = await turn.cancel()

    assert (view.status, view.usage) == (Status.CANCELLED, Usage(100, 20))


async def test_deltas_of_calls(lab: Lab, desk: Desk) -> None:
    """K211: calls come in pieces, too, and are put together as the call that runs."""
    shop = agent(call("refund", amount=12, text="a longer text than one piece"), "done", tools=[desk.tool()])
    runtime = await lab.runtime(shop)
    seen: list[Event] = []
    runtime.add_listener(seen.append)
    turn = await runtime.start(shop, "hi", streaming=True)
    await turn.settle()

    assert len([event for event in seen if event.type is E.MODEL_TOOL_CALL_DELTA]) > 2
    assert desk.arguments == [{"amount": 12, "text": "a longer text than one piece"}]


async def test_slow_reader(lab: Lab) -> None:
    """DESIGN 5.12: a slow reader loses live events, never stored ones."""
    gate = Gate()
    model = Stream([gate, *(Delta(content="x") for _ in range(3000))])
    shop = agent(model=model)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi", streaming=True)
    stream = turn.events()
    first = await anext(stream)
    gate.open()
    view = await turn.settle()

    rest = [event async for event in stream]

    assert view.final_output == "x" * 3000
    assert [event for event in (first, *rest) if event.durable] == await stored_events(turn)
    assert len([event for event in rest if not event.durable]) <= 1000


async def test_reply_is_whole(lab: Lab) -> None:
    """A model that cannot stream serves a streaming turn as well: its text is shown once."""

    class Plain:
        async def complete(self, request):
            return AiMessage("whole")

    _, view, _ = await streamed(lab, Plain())

    assert view.final_output == "whole"
