"""What people see of sensitive arguments, and what they send back."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from turnhold import ResumeCommand, Status, tool
from turnhold.testing import call

from .lab import Lab, agent


async def test_edited_behind_a_mask(lab: Lab) -> None:
    """An editor sees a sensitive argument as ``***``; sent back so, it stays what the model wrote."""
    seen: list[tuple[int, str]] = []

    @tool(approval=True, sensitive=("card",))
    async def pay(amount: int, card: Annotated[str, Meta(min_length=10)]) -> str:
        """Pay."""
        seen.append((amount, card))
        return "paid"

    shop = agent(call("pay", amount=5, card="4111-1111-1111"), "done", tools=[pay])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "please")
    (wait,) = (await turn.settle()).open_waits
    assert wait.call is not None
    assert wait.call.arguments == {"amount": 5, "card": "***"}

    view = await turn.resume(ResumeCommand.approve_tool(wait, arguments={**wait.call.arguments, "amount": 4}, by="ann"))

    assert (view.status, seen) == (Status.COMPLETED, [(4, "4111-1111-1111")])
