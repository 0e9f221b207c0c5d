"""turnhold itself, as a peer among peers (`python -m bench.peers.turnhold`)."""

from __future__ import annotations

from turnhold import Agent, AiMessage, ResumeCommand, Runtime, ToolCall, UserMessage, tool
from turnhold.actors.model import ModelRequest

from .worker import ANSWER, INSTRUCTIONS, Place, Refunds, asked_for, main, order_in


class Model:
    """Asks for the tool once, then answers."""

    async def complete(self, request: ModelRequest) -> AiMessage:
        if request.iteration > 1:
            return AiMessage(ANSWER)
        text = next(message.content for message in request.messages if isinstance(message, UserMessage))
        return AiMessage(tool_calls=(ToolCall("call_1", "refund_order", {"order_id": order_in(text)}),))


class Turnhold:
    """A `Runtime` on a store."""

    package = "turnhold"

    def __init__(self, place: Place, refunds: Refunds) -> None:
        @tool(approval=True)
        async def refund_order(order_id: str) -> str:
            """Refund an order."""
            return await refunds.run(order_id)

        urls = {"memory": "memory://", "sqlite": f"sqlite:///{place.url}?synchronous=full", "redis": place.url}
        agent = Agent("order-agent", model=Model(), tools=[refund_order], instructions=INSTRUCTIONS)
        self._runtime = Runtime(urls[place.store], agents=[agent])

    async def open(self) -> None:
        await self._runtime.__aenter__()

    async def start(self, order: str) -> str:
        turn = await self._runtime.start("order-agent", asked_for(order))
        view = await turn.settle(60)
        return f"{turn.id} {view.open_waits[0].id}"

    async def approve(self, handle: str, by: str) -> str:
        turn, wait = handle.split()
        view = await self._runtime.turn(turn).resume(ResumeCommand.approve_tool(wait, by=by), 60)
        return str(view.final_output)

    async def close(self) -> None:
        await self._runtime.__aexit__(None, None, None)


if __name__ == "__main__":
    main(Turnhold)
