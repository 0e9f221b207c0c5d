"""Google ADK: a tool that requires confirmation, sessions in a database (`python -m bench.peers.google_adk`)."""
# pyright: reportMissingImports=false

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import DatabaseSessionService
from google.adk.tools import FunctionTool
from google.genai import types

from .worker import ANSWER, INSTRUCTIONS, Place, Refunds, asked_for, main, order_in

CONFIRMATION = "adk_request_confirmation"
USER = "customer"


class FakeModel(BaseLlm):
    """Asks for the tool once, then answers."""

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncIterator[LlmResponse]:
        last = llm_request.contents[-1].parts[-1]
        if last.function_response:
            part = types.Part(text=ANSWER)
        else:
            arguments = {"order_id": order_in(last.text)}
            part = types.Part(function_call=types.FunctionCall(name="refund_order", args=arguments))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


class GoogleADK:
    """An app with resumability; a session is a turn."""

    package = "google-adk"

    def __init__(self, place: Place, refunds: Refunds) -> None:
        warnings.simplefilter("ignore")

        async def refund_order(order_id: str) -> str:
            """Refund an order."""
            return await refunds.run(order_id)

        tools: list[Any] = [FunctionTool(refund_order, require_confirmation=True)]
        agent = LlmAgent(name="order_agent", model=FakeModel(model="fake"), instruction=INSTRUCTIONS, tools=tools)
        app = App(name="orders", root_agent=agent, resumability_config=ResumabilityConfig(is_resumable=True))
        self._sessions = DatabaseSessionService(f"sqlite+aiosqlite:///{place.url}")
        self._runner = Runner(app=app, session_service=self._sessions)

    async def open(self) -> None:
        pass

    async def start(self, order: str) -> str:
        await self._sessions.create_session(app_name="orders", user_id=USER, session_id=order)
        events = await self._run(order, types.Part(text=asked_for(order)))
        calls = [(event.invocation_id, call) for event in events for call in event.get_function_calls()]
        invocation, asked = next((invocation, call) for invocation, call in calls if call.name == CONFIRMATION)
        return f"{order} {asked.id} {invocation}"

    async def approve(self, handle: str, by: str) -> str:
        order, call, invocation = handle.split()
        response = types.FunctionResponse(id=call, name=CONFIRMATION, response={"confirmed": True})
        events = await self._run(order, types.Part(function_response=response), invocation)
        return "".join(part.text or "" for event in events if event.content for part in event.content.parts)

    async def close(self) -> None:
        await self._runner.close()

    async def _run(self, session: str, part: types.Part, invocation: str | None = None) -> list[Any]:
        message = types.Content(role="user", parts=[part])
        run = self._runner.run_async(user_id=USER, session_id=session, new_message=message, invocation_id=invocation)
        return [event async for event in run]


if __name__ == "__main__":
    main(GoogleADK)
