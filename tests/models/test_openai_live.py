"""The same on a real model: `pytest -m live` with TURNHOLD_LIVE_BASE_URL (and _MODEL, _API_KEY) set."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from turnhold.actors.chat import AiMessage, SystemMessage, ToolMessage, UserMessage
from turnhold.actors.errors import ModelOverloaded, ModelRefused
from turnhold.actors.model import ModelOptions, ModelRequest, ToolDefinition
from turnhold.actors.stream import Accumulator
from turnhold.models import OpenAIChatModel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.skipif("TURNHOLD_LIVE_BASE_URL" not in os.environ, reason="TURNHOLD_LIVE_BASE_URL is not set"),
]
NAME = os.environ.get("TURNHOLD_LIVE_MODEL", "smollm2")
REFUND = ToolDefinition(
    "refund_order",
    "Refund an order.",
    {
        "type": "object",
        "properties": {"order_id": {"type": "string"}, "amount": {"type": "integer"}},
        "required": ["order_id", "amount"],
        "additionalProperties": False,
    },
)
ASKED = (SystemMessage("You help with orders."), UserMessage("Please refund order O-1001, 25 dollars."))


def live_model(name: str = NAME) -> OpenAIChatModel:
    url, key = os.environ["TURNHOLD_LIVE_BASE_URL"], os.environ.get("TURNHOLD_LIVE_API_KEY", "none")
    return OpenAIChatModel(name, base_url=url, api_key=key)


@pytest.fixture
async def model() -> AsyncIterator[OpenAIChatModel]:
    model = live_model()
    yield model
    await model.close()


async def ask(model: OpenAIChatModel, how: str, *messages: AiMessage | ToolMessage) -> tuple[AiMessage, int]:
    """Return the reply and the number of deltas it came in."""
    request = ModelRequest(messages=(*ASKED, *messages), tools=(REFUND,), options=ModelOptions(max_output_tokens=150))
    if how == "complete":
        return await model.complete(request), 1
    accumulator, count = Accumulator(), 0
    async for delta in model.stream(request):
        accumulator.add(delta)
        count += 1
    return accumulator.message(), count


@pytest.mark.parametrize("how", ["complete", "stream"])
async def test_a_call_and_the_words_after_its_result(model: OpenAIChatModel, how: str) -> None:
    """The model calls the tool with arguments of its own, reads the result, and answers; its provider counts tokens."""
    asked, pieces = await ask(model, how)
    print(how, pieces, asked)
    (call,) = asked.tool_calls
    answered, words = await ask(model, how, asked, ToolMessage(call.id, "refunded 25 dollars"))
    print(how, words, answered)

    assert (call.name, call.invalid, set(call.arguments)) == ("refund_order", None, {"order_id", "amount"})
    assert call.id
    assert answered.content
    assert not answered.tool_calls
    for message in (asked, answered):
        assert message.usage is not None
        assert message.usage.input_tokens > 0
        assert message.usage.output_tokens > 0
    assert (pieces > 2 and words > 2) or how == "complete"


@pytest.mark.skipif(NAME != "smollm2", reason="only the small local endpoint fails on demand")
@pytest.mark.parametrize("how", ["complete", "stream"])
async def test_failures_of_a_real_endpoint(how: str) -> None:
    """A made-up 503 is one failed request, then it works; a bad request is refused."""
    model = live_model(f"{NAME}?fail=1&status=503&for={how}")
    with pytest.raises(ModelOverloaded, match="status 503: made to fail"):
        await ask(model, how)
    assert (await ask(model, how))[0].tool_calls
    with pytest.raises(ModelRefused, match="messages is required"):
        await model.complete(ModelRequest(messages=()))
    await model.close()
