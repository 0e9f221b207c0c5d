"""Section F: plain questions that the application asks."""

from __future__ import annotations

from typing import Any

import pytest

from turnhold import (
    CommandRefused,
    Effect,
    Phase,
    ResumeCommand,
    Status,
    SuspensionMismatch,
    SuspensionType,
    TurnClosed,
    WrongCommand,
)
from turnhold.testing import call

from .lab import Desk, Gate, Lab, agent, model_of, talk


async def question(lab: Lab, *replies: Any, **options: Any):
    """Return a turn that waits for a plain question asked before its first reply."""
    gate = Gate()

    async def first(request):
        await gate.passing()
        return "too late"

    shop = agent(first, *replies, **options)
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await lab.idle()
    await turn.suspend("Which order?")
    return runtime, shop, turn


async def test_question(lab: Lab) -> None:
    """F93, F94: a question of the application stops the turn before its next model request."""
    runtime, _, turn = await question(lab)
    other = await lab.runtime(execute=False)

    for ref in (turn, other.turn(turn.id), turn):
        view = await ref.settle()
        assert (view.status, view.phase) == (Status.WAITING_FOR_USER, Phase.MODEL)
        assert view.suspension is not None
        assert (view.suspension.type, view.suspension.message) == (SuspensionType.USER_INPUT, "Which order?")
        assert (view.suspension.correlation_id, view.suspension.form_key) == (None, None)
    assert view.open_waits == (await runtime.inbox()).items


async def test_answer(lab: Lab) -> None:
    """F95, R29 (W-33): the text is a new user message that the model sees; a question is answered once."""
    asked: list[list[str]] = []

    async def reply(request):
        asked.append(talk(request.messages))
        return "done"

    shop = agent(reply)
    runtime = await lab.runtime(execute=False)
    turn_id = (await _ready(lab, shop)).id
    turn = runtime.turn(turn_id)
    await turn.suspend("Which order?")
    (wait,) = (await turn.view()).open_waits

    receipt = await turn.submit(ResumeCommand.user_input("O-1", by="ann"))
    await lab.runtime(shop)
    view = await turn.settle()

    assert (receipt.effect, receipt.suspension_id) == (Effect.ANSWERED, wait.id)
    assert (view.status, asked) == (Status.COMPLETED, [["user: hi", "user: O-1"]])


async def _ready(lab: Lab, shop):
    """Start a turn that nobody runs yet."""
    starter = await lab.runtime(shop)
    starter._node.draining = True
    turn = await starter.start(shop, "hi")
    await lab.close(starter)
    return turn


@pytest.mark.parametrize(
    "command",
    [ResumeCommand.retry(), ResumeCommand.approve_tool(), ResumeCommand.rerun(), ResumeCommand.submit_form(None, {})],
    ids=lambda command: command.type.value,
)
async def test_wrong_kind(lab: Lab, command: ResumeCommand) -> None:
    """F96: another kind of command is refused; the turn still waits and its history is unchanged."""
    _, _, turn = await question(lab)
    before = await turn.history()

    with pytest.raises((WrongCommand, SuspensionMismatch)):
        await turn.submit(command)

    assert (await turn.view()).status is Status.WAITING_FOR_USER
    assert await turn.history() == before


async def test_question_cannot_be_declined(lab: Lab) -> None:
    """A plain question belongs to no call: there is nothing to decline; it is answered, or the turn cancelled."""
    _, _, turn = await question(lab)

    with pytest.raises((WrongCommand, SuspensionMismatch)):
        await turn.submit(ResumeCommand.decline())

    assert (await turn.view()).status is Status.WAITING_FOR_USER


async def test_question_while_a_tool_runs(lab: Lab, desk: Desk) -> None:
    """DESIGN 4: a plain question takes effect when the calls in flight have ended; the model sees their results and the answer."""
    gate = Gate()
    shop = agent(call("refund"), "done", tools=[desk.tool(gate=gate)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await lab.idle()

    await turn.suspend("Sure?")
    assert (await turn.view()).open_waits == ()
    gate.open()
    view = await turn.settle()
    assert view.status is Status.WAITING_FOR_USER
    view = await turn.resume(ResumeCommand.user_input("yes"))

    assert talk(model_of(shop).requests[-1].messages) == ["user: hi", "assistant -> refund", "call_1_0 = refunded", "user: yes"]
    assert view.final_output == "done"


async def test_questions_in_a_row(lab: Lab, desk: Desk) -> None:
    """DESIGN 4: no question is lost: a second one is asked when the first has been answered; the model sees both answers."""
    gate = Gate()
    shop = agent(call("refund"), "done", tools=[desk.tool(gate=gate)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await lab.idle()
    for text in ("Sure?", "Which account?", "Which account?"):
        await turn.suspend(text)
    gate.open()

    asked: list[str] = []
    while (view := await turn.settle()).open_waits:
        (wait,) = view.open_waits
        asked.append(str(wait.message))
        await turn.submit(ResumeCommand.user_input(f"answer {len(asked)}", wait=wait))

    assert asked == ["Sure?", "Which account?"]
    assert talk(model_of(shop).requests[-1].messages)[-2:] == ["user: answer 1", "user: answer 2"]
    assert view.final_output == "done"


async def test_too_many_questions(lab: Lab, desk: Desk) -> None:
    """What stands behind the next question is bounded; what is refused is not asked, and a cancel ends them all."""
    shop = agent(call("refund"), "done", tools=[desk.tool(gate=Gate(), cancellable=True)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await lab.idle()
    for number in range(17):
        await turn.suspend(f"question {number}?")

    with pytest.raises(CommandRefused, match="16 questions"):
        await turn.suspend("one more?")
    assert (await turn.cancel()).open_waits == ()
    assert (await turn.view()).status is Status.CANCELLED


async def test_question_to_a_closed_turn(lab: Lab) -> None:
    """T49: a finished turn takes no question and no answer; the sender is told."""
    shop = agent("done")
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    await turn.settle()

    with pytest.raises(TurnClosed) as closed:
        await turn.suspend("still there?")
    assert closed.value.status == "COMPLETED"
    with pytest.raises(TurnClosed):
        await turn.submit(ResumeCommand.user_input("hello"))


async def test_question_stops_the_request(lab: Lab) -> None:
    """A question posted while the model is asked takes that request back; its answer comes with the next one."""
    _, shop, turn = await question(lab)

    view = await turn.settle()

    assert (view.status, view.iteration_count, len(model_of(shop).requests)) == (Status.WAITING_FOR_USER, 0, 1)
