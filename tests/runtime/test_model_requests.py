"""How often a model is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from turnhold import Agent, Event, EventType, ResumeCommand, Runtime, Status, tool
from turnhold.testing import ScriptedModel, call

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_model_that_is_quicker_than_the_save_is_asked_once(streaming: bool, tmp_path: Path) -> None:
    """A request leaves while the save that holds it is under way; an answer that comes before the save's is not asked for again."""

    @tool(approval=True)
    async def refund(amount: int) -> str:
        """Refund."""
        return f"refunded {amount}"

    model, live = ScriptedModel(call("refund", amount=25), call("refund", amount=5), "All done."), list[Event]()
    agent = Agent("orders", model=model, tools=[refund])
    async with Runtime(f"sqlite:///{tmp_path}/turns.db", agents=[agent], listeners=[live.append]) as runtime:
        turn = await runtime.start("orders", "Refund 25 and 5", streaming=streaming)
        view = await turn.settle(20)
        while view.open_waits:
            view = await turn.resume(ResumeCommand.approve_tool(view.open_waits[0], by="ann"), 20)

    words = [event.data["content"] for event in live if event.type is EventType.MODEL_TEXT_DELTA]
    assert view.status is Status.COMPLETED
    assert [request.iteration for request in model.requests] == [1, 2, 3]
    assert words == (["All ", "done."] if streaming else [])
