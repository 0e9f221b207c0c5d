"""The race machine itself: it finds what is broken on purpose, and one run is like the other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from turnhold import Agent, Budget, ExecutionPolicy, tool
from turnhold.actors.machine import calls, commands, limits
from turnhold.actors.turn import CallStatus
from turnhold.runtime.acting import act
from turnhold.runtime.actor import Actor
from turnhold.store.memory import MemoryStore
from turnhold.testing import ScriptedModel, TurnRaceMachine, call
from turnhold.testing.field import Field
from turnhold.testing.witness import Breach

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnhold.actors.machine.draft import Draft
    from turnhold.actors.turn import CallRecord
    from turnhold.store import base


def make_agent() -> Agent:
    @tool(approval=True)
    async def refund(amount: int) -> str:
        """Refund an amount; that takes a while, so that a node can die meanwhile."""
        await asyncio.sleep(1)
        return f"refunded {amount}"

    return Agent("races", model=ScriptedModel(call("refund", amount=1), "done"), tools=[refund])


def make_family() -> Agent:
    @tool
    async def look_up(order: str) -> str:
        """Look something up."""
        await asyncio.sleep(1)
        return f"{order} is fine"

    asked = [call("look_up", order="O-1")]
    children = [Agent(f"child{at}", model=ScriptedModel(asked, "done"), tools=[look_up]) for at in range(2)]
    model = ScriptedModel([call(child.id, input="do it") for child in children], "done")
    policy = ExecutionPolicy(budget=Budget(max_tool_calls=3))
    return Agent("races", model=model, tools=[child.as_tool() for child in children], policy=policy)


def search(make: Callable[[], Agent] = make_agent) -> None:
    machine = TurnRaceMachine.of(make)
    run_state_machine_as_test(
        machine,
        settings=settings(machine.TestCase.settings, max_examples=400, phases=[Phase.generate], database=None, derandomize=True),
    )


def test_a_rejected_call_that_starts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: a rejection lets the call run."""

    def approve(draft: Draft, wait: object, asked: object) -> None:
        for record in draft.state.calls:
            draft.put(msgspec.structs.replace(record, status=CallStatus.PENDING, allowed=True, approved=True))

    monkeypatch.setitem(commands._APPLY, commands.CommandType.REJECT_TOOL, approve)
    with pytest.raises(Breach, match="rejected and started"):
        search()


def test_an_effect_before_its_intent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: what a draft asks for is done before the draft is saved."""
    commit = Actor._commit

    async def early(self: Actor, draft: Draft, batch: list) -> bool:
        before, self.state = self.state, draft.state
        act(self, draft.actions)
        self.state = before
        draft.actions.clear()
        await asyncio.sleep(0)  # a memory store is asked and answers in one step
        return await commit(self, draft, batch)

    monkeypatch.setattr(Actor, "_commit", early)
    with pytest.raises(Breach, match="was started, saved is"):
        search()


def test_an_attempt_that_starts_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: a call whose owner is gone starts again under the number it had."""

    def lost(draft: Draft, record: CallRecord, why: str) -> None:
        draft.put(msgspec.structs.replace(record, status=CallStatus.PENDING, attempt=record.attempt - 1))

    monkeypatch.setattr(calls, "lost", lost)
    with pytest.raises(Breach, match="was started twice"):
        search()


def test_a_tool_without_room_in_the_budget_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: children that have seen the same room left in the budget of their tree all take it."""
    monkeypatch.setattr(limits, "unaffordable", lambda *_: frozenset[str]())
    with pytest.raises(Breach, match="may have 3 calls"):
        search(make_family)


def test_one_seed_is_one_run() -> None:
    """The same moves make the same store calls at the same times, under the same ids."""

    def play() -> list[tuple[int, str]]:
        field, trace = Field(make_agent(), MemoryStore(), 2, 10.0), list[tuple[int, str]]()
        applied = field.witness.applied

        def noted(op: base.Op, reply: base.Reply) -> None:
            trace.append((field.clock.time.now, repr(op)))
            applied(op, reply)

        async def moves() -> None:
            await field.open()
            for seat in (0, 1, 0):
                await field.start(seat)
            await field.check()
            await field.conflict((0, 1), 1, (0, 1))
            await field.replace(1, drain=False)
            await field.clock.advance(12)
            await field.finish()

        field.witness.applied = noted
        try:
            field.loop.run_until_complete(moves())
        finally:
            field.close()
        return trace

    first = play()
    assert len(first) > 20
    assert play() == first
