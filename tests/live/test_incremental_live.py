"""A conversation compressed by a real model: `pytest -m live` with TURNHOLD_LIVE_BASE_URL (and _MODEL, _API_KEY) set."""

from __future__ import annotations

import os

import pytest

from turnhold import Agent, ContextWindow, ModelOptions, Runtime, UserMessage, compressors
from turnhold.models import OpenAIChatModel
from turnhold.testing import ScriptedModel

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(1800),
    pytest.mark.skipif("TURNHOLD_LIVE_BASE_URL" not in os.environ, reason="TURNHOLD_LIVE_BASE_URL is not set"),
]


async def test_a_real_summary_goes_on() -> None:
    """N297: the same conversation gives the same summary without another request; new turns move what it covers."""
    real = OpenAIChatModel(
        os.environ.get("TURNHOLD_LIVE_MODEL", "local"),
        base_url=os.environ["TURNHOLD_LIVE_BASE_URL"],
        api_key=os.environ.get("TURNHOLD_LIVE_API_KEY", "none"),
    )
    options = ModelOptions(max_output_tokens=80)
    model = ScriptedModel(lambda request: f"Order {request.messages[-1].content.split()[-1]} is in Ulm.")
    agent = Agent(
        "orders",
        model=model,
        window=ContextWindow(keep_recent_turns=1),
        compressor=compressors.incremental(compressors.model(real, options=options), over_turns=1),
    )
    try:
        async with Runtime(agents=[agent]) as runtime:
            for number in range(1, 6):
                (await runtime.run(agent, f"Where is order {number}", conversation="c")).raise_for_status()
    finally:
        await real.close()
    seen = [request.messages for request in model.requests]

    assert seen[1][0] == UserMessage("Where is order 1")
    assert len(seen[2]) == 3
    assert seen[2][1].content == seen[3][1].content
    assert seen[4][1].content.strip()
    assert seen[4][1].content != seen[3][1].content
