"""OpenAI Agents SDK: a run that stops for `needs_approval`, its `RunState` kept as JSON (`python -m bench.peers.openai_agents`)."""
# pyright: reportMissingImports=false

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, RunState, Usage, function_tool, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from .shelf import shelf
from .worker import ANSWER, INSTRUCTIONS, Place, Refunds, asked_for, main, order_in


class FakeModel(Model):
    """Asks for the tool once, then answers."""

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
        items = [{"content": input}] if isinstance(input, str) else input
        if items[-1].get("type") == "function_call_output":
            text = ResponseOutputText(text=ANSWER, type="output_text", annotations=[])
            said: Any = ResponseOutputMessage(id="msg_1", content=[text], role="assistant", status="completed", type="message")
        else:
            arguments = json.dumps({"order_id": order_in(items[-1]["content"])})
            said = ResponseFunctionToolCall(call_id="call_1", name="refund_order", arguments=arguments, type="function_call")
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


class OpenAIAgents:
    """An agent; where its run states are kept is left to the user, so each is one text on a shelf."""

    package = "openai-agents"

    def __init__(self, place: Place, refunds: Refunds) -> None:
        set_tracing_disabled(disabled=True)

        @function_tool(needs_approval=True)
        async def refund_order(order_id: str) -> str:
            """Refund an order."""
            return await refunds.run(order_id)

        self._agent = Agent("order-agent", instructions=INSTRUCTIONS, tools=[refund_order], model=FakeModel())
        self._shelf = shelf(place)

    async def open(self) -> None:
        pass

    async def start(self, order: str) -> str:
        result = await Runner.run(self._agent, asked_for(order))
        assert result.interruptions, "it waits"
        await self._shelf.put(order, result.to_state().to_string())
        return order

    async def approve(self, handle: str, by: str) -> str:
        state = await RunState.from_string(self._agent, await self._shelf.get(handle))
        for wait in state.get_interruptions():
            state.approve(wait)
        result = await Runner.run(self._agent, state)
        await self._shelf.put(handle, result.to_state().to_string())
        return result.final_output

    async def close(self) -> None:
        await self._shelf.close()


if __name__ == "__main__":
    main(OpenAIAgents)
