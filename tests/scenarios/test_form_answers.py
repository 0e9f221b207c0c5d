"""What a tool that asks may keep, may be told, and may say of its outcome."""

from __future__ import annotations

import json
from typing import Any

import pytest

from turnhold import (
    Effect,
    ExecutionPolicy,
    FormDeclined,
    FormDefinition,
    FormRequired,
    InvalidDefinition,
    OutcomeUnknown,
    ResumeCommand,
    RetryPolicy,
    Status,
    SuspensionType,
    ToolContext,
    tool,
)
from turnhold.testing import call

from .lab import Lab, agent, result_of, stored_events, waiting

SEAT = FormDefinition("seat", description="x", schema={"type": "string"}, tell_decline=True, expires_in=60)
MEAL = FormDefinition("meal", description="x", schema={"type": "string"}, tell_decline=True)


async def test_told_of_a_decline(lab: Lab) -> None:
    """A tool that wants to know of a decline is started again with what was said, and goes on; the receipt says declined."""
    seen: list[Any] = []

    @tool
    async def reserve(context: ToolContext) -> str:
        """Reserve."""
        try:
            return context.form(SEAT)
        except FormDeclined as declined:
            seen.append((context.attempt, declined.reason, declined.expired, dict(context.forms)))
            return "any " + context.form(MEAL)

    shop = agent(call("reserve"), "done", tools=[reserve])
    first = await lab.runtime(shop)
    turn, wait = await waiting(first, shop)
    receipt = await turn.submit(ResumeCommand.decline(wait, "no matter", by="ann"))
    view = await turn.settle()
    await lab.close(first)
    second = await lab.runtime(shop)
    view = await second.turn(turn.id).resume(ResumeCommand.submit_form(view.open_waits[0], "soup"))

    assert (receipt.effect, view.status) == (Effect.DECLINED, Status.COMPLETED)
    assert seen == [(2, "no matter", False, {}), (3, "no matter", False, {"meal": "soup"})]
    assert result_of(await second.turn(turn.id).history()) == "any soup"


@pytest.mark.parametrize("how", ["declined", "expired"])
async def test_decline_let_pass(lab: Lab, how: str) -> None:
    """A tool that lets the decline pass ends its call with the structured result; time that is over is told in the same way."""
    attempts: list[int] = []

    @tool
    async def reserve(context: ToolContext) -> str:
        """Reserve."""
        attempts.append(context.attempt)
        return context.form(SEAT)

    shop = agent(call("reserve"), "done", tools=[reserve])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)
    if how == "declined":
        view = await turn.resume(ResumeCommand.decline(wait, "no"))
    else:
        await lab.clock.advance(61)
        view = await turn.settle()

    assert (view.status, attempts) == (Status.COMPLETED, [1, 2])
    assert json.loads(result_of(await turn.history()))["status"] == how


async def test_asked_again_after_a_decline(lab: Lab) -> None:
    """A tool that asks again for what was declined is a loop, too: an error, and nobody is asked again."""

    @tool
    async def reserve() -> str:
        """Reserve."""
        raise FormRequired(SEAT)

    shop = agent(call("reserve"), "done", tools=[reserve])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)
    view = await turn.resume(ResumeCommand.decline(wait, "no"))

    assert view.error is not None
    assert view.error.type == "FormLoop"


async def test_kept(lab: Lab) -> None:
    """What an attempt keeps when it asks is there in every later one, in another process, too, until it keeps something else."""
    seen: list[Any] = []

    @tool
    async def reserve(context: ToolContext) -> str:
        """Reserve."""
        seen.append(context.kept)
        seat = context.form(SEAT, keep={"flight": [1, None]})
        meal = context.form(MEAL)
        return f"{seat} {meal}"

    shop = agent(call("reserve"), call("reserve"), "done", tools=[reserve])
    first = await lab.runtime(shop)
    turn, wait = await waiting(first, shop)
    await lab.close(first)
    second = await lab.runtime(shop)
    for answer in ("window", "soup"):
        view = await second.turn(turn.id).resume(ResumeCommand.submit_form(wait, answer))
        (wait,) = view.open_waits

    assert seen == [None, {"flight": [1, None]}, {"flight": [1, None]}, None]
    assert result_of(await second.turn(turn.id).history()) == "window soup"


def test_what_cannot_be_kept() -> None:
    """Kept is what is JSON-like and within the limit."""
    for value in (object(), "x" * 70_000):
        with pytest.raises(InvalidDefinition, match="keep"):
            FormRequired(SEAT, keep=value)  # pyright: ignore[reportArgumentType] - the subject
    with pytest.raises(InvalidDefinition, match="tell_decline"):
        FormDefinition("x", description="x", schema={"type": "string"}, tell_decline=1)  # pyright: ignore[reportArgumentType, reportCallIssue]


async def test_outcome_unknown_once(lab: Lab) -> None:
    """DESIGN 5.5: a `once` tool that says that its outcome is unknown is in doubt, and a person resolves it."""

    @tool(effect="once")
    async def refund() -> str:
        """Refund."""
        raise OutcomeUnknown("the line broke")

    shop = agent(call("refund"), "done", tools=[refund])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)
    assert wait.type is SuspensionType.IN_DOUBT
    assert "the line broke" in (wait.message or "")

    view = await turn.resume(ResumeCommand.give_result(wait, "refunded", by="ann"))

    assert (view.status, result_of(await turn.history())) == (Status.COMPLETED, "refunded")


async def test_outcome_unknown_repeatable(lab: Lab) -> None:
    """DESIGN 5.5: for a `repeatable` tool it is an exception like others: another attempt by the retry policy."""

    @tool(effect="repeatable")
    async def look(context: ToolContext) -> str:
        """Look."""
        if context.attempt == 1:
            raise OutcomeUnknown("the line broke")
        return "seen"

    shop = agent(call("look"), "done", tools=[look], policy=ExecutionPolicy(retry_policy=RetryPolicy(max_retries=1)))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await turn.settle()
    await lab.clock.advance(120)
    view = await turn.settle()

    assert (view.status, result_of(await turn.history())) == (Status.COMPLETED, "seen")
    assert "OutcomeUnknown" in [event.data.get("errorType") for event in await stored_events(turn)]
