"""Pydantic AI: a run that ends with `DeferredToolRequests`, its messages kept as JSON (`python -m bench.peers.pydantic_ai`)."""
# pyright: reportMissingImports=false

from __future__ import annotations

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ModelMessagesTypeAdapter
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from .shelf import shelf
from .worker import ANSWER, INSTRUCTIONS, Place, Refunds, asked_for, main, order_in


async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Ask for the tool once, then answer."""
    part = messages[-1].parts[-1]
    if isinstance(part, ToolReturnPart):
        return ModelResponse(parts=[TextPart(ANSWER)])
    assert isinstance(part, UserPromptPart)
    return ModelResponse(parts=[ToolCallPart("refund_order", {"order_id": order_in(str(part.content))}, "call_1")])


class PydanticAI:
    """An agent; where its messages are kept is left to the user, so each conversation is one text on a shelf."""

    package = "pydantic-ai-slim"

    def __init__(self, place: Place, refunds: Refunds) -> None:
        self._agent = Agent(FunctionModel(model), instructions=INSTRUCTIONS, output_type=[str, DeferredToolRequests])

        @self._agent.tool_plain(requires_approval=True)
        async def refund_order(order_id: str) -> str:
            """Refund an order."""
            return await refunds.run(order_id)

        self._shelf = shelf(place)

    async def open(self) -> None:
        pass

    async def start(self, order: str) -> str:
        result = await self._agent.run(asked_for(order))
        assert isinstance(result.output, DeferredToolRequests)
        await self._shelf.put(order, result.all_messages_json().decode())
        return f"{order} {result.output.approvals[0].tool_call_id}"

    async def approve(self, handle: str, by: str) -> str:
        order, call = handle.split()
        messages = ModelMessagesTypeAdapter.validate_json(await self._shelf.get(order))
        result = await self._agent.run(message_history=messages, deferred_tool_results=DeferredToolResults(approvals={call: True}))
        await self._shelf.put(order, result.all_messages_json().decode())
        return str(result.output)

    async def close(self) -> None:
        await self._shelf.close()


if __name__ == "__main__":
    main(PydanticAI)
