"""What the rules of the race machine are for: each finds something that is broken on purpose."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from turnhold import Agent, ContextWindow, tool
from turnhold.actors.machine import calls, commands, handle, recall
from turnhold.actors.machine.messages import ToolFailed
from turnhold.runtime import memory, persist
from turnhold.store.memory_core import MemoryCore
from turnhold.testing import ScriptedModel, TurnRaceMachine, call
from turnhold.testing.breach import Breach

from ..machine.steps import END, play

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnhold.actors.machine.draft import Draft

Patch = pytest.MonkeyPatch


def talker() -> Agent:
    """An agent that asks before it refunds, and otherwise talks."""

    @tool(approval=True)
    async def refund(amount: int) -> str:
        """Refund an amount."""
        await asyncio.sleep(1)
        return f"refunded {amount}"

    return Agent("races", model=ScriptedModel(call("refund", amount=1), "done"), tools=[refund], window=ContextWindow(max_turns=9))


def threaded() -> Agent:
    """An agent whose tool runs in a thread, for which it waits two seconds."""

    @tool(effect="once", timeout=2)
    def charge(amount: int) -> str:
        """Charge an amount."""
        return f"charged {amount}"

    return Agent("races", model=ScriptedModel(call("charge", amount=1), "done"), tools=[charge])


def two_open_turns(patch: Patch) -> None:
    """A conversation that has an open turn lets another in."""
    patch.setattr(MemoryCore, "_wait_behind", lambda self, busy, conversation, op, now: self.create(_alone(op), now))


def _alone(op: Any) -> Any:
    return msgspec.structs.replace(op, new=msgspec.structs.replace(op.new, conversation=None))


def newest_first(patch: Patch) -> None:
    """A queue gives the conversation to who came last."""
    found = MemoryCore.queue_of

    def reversed_queue(self: MemoryCore, conversation: str, limit: int | None = None) -> tuple[str, ...]:
        queue = found(self, conversation)
        return queue[::-1][:limit] if limit == 1 else queue

    patch.setattr(MemoryCore, "queue_of", reversed_queue)


def nobody_is_next(patch: Patch) -> None:
    """The end of the open turn frees the conversation, and wakes nobody."""
    patch.setattr(MemoryCore, "_free", lambda self, conversation, now: self.set_open_turn(conversation, None))


def blocked_by_the_dead(patch: Patch) -> None:
    """The end of the open turn leaves it where it is."""
    patch.setattr(MemoryCore, "_free", lambda self, conversation, now: None)


def superseded_ones_stay(patch: Patch) -> None:
    """Who supersedes the open turn waits behind all others."""
    wait_behind = MemoryCore._wait_behind

    def queued(self: MemoryCore, busy: str, conversation: str, op: Any, now: int) -> Any:
        queue = op if op.when_busy != "supersede" else msgspec.structs.replace(op, when_busy="queue")
        return wait_behind(self, busy, conversation, queue, now)

    patch.setattr(MemoryCore, "_wait_behind", queued)


def remembered_twice(patch: Patch) -> None:
    """A turn adds what it has recalled to the memory, too."""
    begin = recall.begin

    def began(draft: Draft, agent: Any, recalled: Any = ()) -> None:
        begin(draft, agent, recalled)
        draft.known = 0

    patch.setattr(recall, "begin", began)


def forgotten(patch: Patch) -> None:
    """The save that ends a turn remembers nothing."""
    rows = persist._memory_rows
    patch.setattr(persist, "_memory_rows", lambda draft, *more: () if draft.state.status.terminal else rows(draft, *more))


def recalled_backwards(patch: Patch) -> None:
    """A turn sees what was said in the wrong order."""
    recalled = memory._recalled

    async def turned(*arguments: Any) -> Any:
        return list(await recalled(*arguments))[::-1]

    patch.setattr(memory, "_recalled", turned)


def edit_ignored(patch: Patch) -> None:
    """A call that a person has edited runs with what the model wrote."""
    kind = commands.CommandType.APPROVE_TOOL
    approve = commands._APPLY[kind]
    patch.setitem(
        commands._APPLY, kind, lambda draft, wait, asked: approve(draft, wait, msgspec.structs.replace(asked, arguments=None))
    )


def thread_given_up(patch: Patch) -> None:
    """A `once` call whose thread takes too long is tried again, as a repeatable one would be."""

    def again(draft: Draft, message: Any) -> None:
        record = draft.state.call(message.call_id)
        if record is not None and message.kind == "timeout":
            draft.put(msgspec.structs.replace(record, status=calls.CallStatus.PENDING))
        else:
            failed(draft, message)

    failed = handle._TAKE[ToolFailed]
    patch.setitem(handle._TAKE, ToolFailed, again)


@dataclass(frozen=True)
class Found:
    """A fault, and steps of the machine behind `open` that find it."""

    mutant: Callable[[Patch], None]
    steps: tuple[str, ...]
    said: str
    make: Callable[[], Agent] = talker

    def __str__(self) -> str:
        return self.mutant.__name__


QUEUE, SUPERSEDE = "talk(seat=1, talk=0, when_busy='queue')", "talk(seat=0, talk=0, when_busy='supersede')"
FOUND = [
    Found(two_open_turns, (QUEUE,), "was opened in|held by"),
    Found(newest_first, (QUEUE, QUEUE, "cancel(seat=0, pick=0)"), "held by|where it is the turn of"),
    Found(nobody_is_next, (QUEUE, "cancel(seat=0, pick=0)"), "nobody has"),
    Found(blocked_by_the_dead, ("cancel(seat=0, pick=0)",), "is blocked by"),
    Found(superseded_ones_stay, (QUEUE, SUPERSEDE), "held by"),
    Found(remembered_twice, (QUEUE, END), "remembers of turn"),
    Found(forgotten, (END,), "remembers of turn"),
    Found(recalled_backwards, (QUEUE, QUEUE, END), "not in this order|without a result"),
    Found(edit_ignored, ("answer(seat=1, pick=0, choice=2, by_call=False, at_root=False)", END), "approved was"),
    Found(thread_given_up, ("hold_threads(seat=0)", "start(seat=0)", "advance(seconds=4.0)", END), "started again", threaded),
]


@pytest.mark.parametrize("found", FOUND, ids=str)
def test_the_steps_that_find_it(monkeypatch: pytest.MonkeyPatch, found: Found) -> None:
    """The machine finds it in these steps, and nothing in them where all is well."""
    played(found)
    found.mutant(monkeypatch)
    with pytest.raises(Breach, match=found.said):
        played(found)


def played(found: Found) -> None:
    machine = TurnRaceMachine.of(found.make, turns=4, conversations=1)
    play(machine, ("open(seat=0, room=10_000, polls=False, talks=True)", *found.steps))


@pytest.mark.deep
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("found", FOUND, ids=str)
def test_the_search_finds_it(monkeypatch: pytest.MonkeyPatch, found: Found) -> None:
    """The machine finds it at random, too."""
    found.mutant(monkeypatch)
    machine = TurnRaceMachine.of(found.make, turns=5, conversations=1)
    many = settings(machine.TestCase.settings, max_examples=2_000, phases=[Phase.generate], database=None)
    with pytest.raises(Breach):
        run_state_machine_as_test(machine, settings=many)
