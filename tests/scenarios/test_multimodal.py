"""Images, audio, video and files beside the text: what may be given, which model is asked, and what it is sent."""

from __future__ import annotations

from typing import Any

import pytest

from turnhold import (
    AiMessage,
    ContextWindow,
    EventType,
    InvalidDefinition,
    ModelRefused,
    Part,
    SnapshotTooLarge,
    Status,
    SystemMessage,
    UserMessage,
)
from turnhold.testing import ScriptedModel, call

from .lab import Desk, Lab, agent, approved, model_of

IMAGE = Part("image", "https://example.org/a.png")
FILE = Part("file", "data:application/pdf;base64,QUJD", name="a.pdf")
LOOK = UserMessage("look", (IMAGE,))


class Closing(ScriptedModel):
    """Counts how often it was closed."""

    closed = 0

    async def close(self) -> None:
        self.closed += 1


async def asked(lab: Lab, input: str | UserMessage, **options: Any) -> tuple[int, int]:
    """Run one turn and return how often the text and the multimodal model were asked."""
    eyes = ScriptedModel("seen")
    shop = agent("read", multimodal_model=eyes, **{key: value for key, value in options.items() if key != "history"})
    runtime = await lab.runtime(shop)
    view = await runtime.run(shop, input, history=options.get("history"))
    assert view.final_output == ("seen" if eyes.requests else "read")
    return len(model_of(shop).requests), len(eyes.requests)


async def test_text_is_for_the_text_model(lab: Lab) -> None:
    """A24: with both models a turn of text asks the text model only."""
    assert await asked(lab, "hi") == (1, 0)


async def test_parts_are_for_the_multimodal_model(lab: Lab) -> None:
    """A25: with both models an input with an image asks the multimodal model only."""
    assert await asked(lab, LOOK) == (0, 1)


async def test_without_a_multimodal_model(lab: Lab) -> None:
    """A26: without one the agent's only model gets the parts, too."""
    shop = agent("read")
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, UserMessage("read this", (FILE,)))

    assert view.status is Status.COMPLETED
    assert model_of(shop).requests[0].messages[-1] == UserMessage("read this", (FILE,))


async def test_what_is_out_of_sight_does_not_count(lab: Lab) -> None:
    """Only messages within the window decide."""
    history = [LOOK, AiMessage("nice")]

    assert await asked(lab, "and now?", history=history) == (0, 1)
    assert await asked(lab, "and now?", history=history, window=ContextWindow(max_turns=1)) == (1, 0)


async def test_a_turn_behind_another(lab: Lab) -> None:
    """The second turn's model sees the instructions, the first turn and the new image, in this order and nothing else."""
    eyes = ScriptedModel("a cat")
    shop = agent("hello", multimodal_model=eyes, instructions="be kind")
    runtime = await lab.runtime(shop)
    first = await runtime.start(shop, "hi")
    await first.settle()

    await runtime.run(shop, LOOK, history=await first.history())

    (request,) = eyes.requests
    system, *rest = request.messages
    assert system == SystemMessage("be kind")
    assert [(type(each).__name__, each.content) for each in rest] == [
        ("UserMessage", "hi"),
        ("AiMessage", "hello"),
        ("UserMessage", "look"),
    ]


async def test_the_whole_turn_is_for_the_multimodal_model(lab: Lab, desk: Desk) -> None:
    """Over an approval, on another node, and behind a tool's result the same model is asked."""
    eyes = ScriptedModel(call("refund"), "done")
    shop = agent("read", multimodal_model=eyes, tools=[desk.tool(approval=True)])
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn = await first.start(shop, LOOK)
    wait = (await turn.settle()).open_waits[0]
    await lab.close(first)

    view = await approved(second.turn(turn.id), wait)

    assert (view.status, view.iteration_count) == (Status.COMPLETED, 2)
    assert (len(model_of(shop).requests), len(eyes.requests)) == (0, 2)


async def test_the_multimodal_model_streams(lab: Lab) -> None:
    """Deltas are those of the model that was asked."""
    shop = agent("read", multimodal_model=ScriptedModel("I see a cat"))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, LOOK, streaming=True)

    texts = [event.data["content"] async for event in turn.events() if event.type is EventType.MODEL_TEXT_DELTA]

    assert "".join(str(text) for text in texts) == "I see a cat"


async def test_a_model_that_cannot_take_a_kind(lab: Lab) -> None:
    """It refuses, the turn fails at once with its words, and no retry is made."""
    eyes = ScriptedModel(ModelRefused("this model takes no image parts"), "seen")
    shop = agent("read", multimodal_model=eyes)
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, LOOK)

    assert (view.status, view.retry_count, len(eyes.requests)) == (Status.FAILED, 0, 1)
    assert view.error is not None
    assert (view.error.type, view.error.message) == ("ModelRefused", "this model takes no image parts")


async def test_both_models_are_closed(lab: Lab) -> None:
    """The Runtime closes what it used, each model once."""
    text, eyes = Closing("read"), Closing("seen")
    runtime = await lab.runtime(agent("x").replace(model=text, multimodal_model=eyes), agent("x", id="same", multimodal_model=eyes))
    await runtime.run("shop", "hi")
    await runtime.run("same", LOOK)
    await lab.close(runtime)

    assert (text.closed, eyes.closed) == (1, 1)


async def test_what_a_model_wants_back_is_kept(lab: Lab, desk: Desk) -> None:
    """What a reply has for its own model class is stored and comes back with the history, on another node as well."""
    kept = {"model": "m", "thinking": [{"signature": "c2ln", "length": 6}]}
    reply = AiMessage("", (call("refund"),), "I see.", opaque=kept)
    shop = agent(reply, "done", tools=[desk.tool(approval=True)])
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    wait = (await turn.settle()).open_waits[0]
    await lab.close(first)

    await approved(second.turn(turn.id), wait)

    said = model_of(shop).requests[1].messages[1]
    assert isinstance(said, AiMessage)
    assert (said.opaque, said.reasoning) == (kept, "I see.")


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (Part("image", "http://example.org/a.png"), "https or a data URL"),
        (Part("image", "ftp://example.org/a.png"), "https or a data URL"),
        (Part("image", ""), "https or a data URL"),
        (Part("image", "https://"), "https or a data URL"),
        (Part("image", "https://example.org/a b"), "https or a data URL"),
        (Part("image", "data:image/png"), "https or a data URL"),
        (Part("image", "data:image/png;base64,abc?"), "base64, which it is not"),
        (Part("image", "data:image/png;base64,abc"), "base64, which it is not"),
        (Part("image", "data:application;base64,QUJD"), "a media type is like"),
        (Part("image", "https://example.org/a", media_type="png"), "a media type is like"),
        (Part("image", "data:audio/wav;base64,QUJD"), "of the kind image"),
        (Part("audio", "https://example.org/a", media_type="text/plain"), "of the kind audio"),
        (Part("file", "https://example.org/a", name=""), "name"),
        (Part("smell", "https://example.org/a"), "smell"),  # type: ignore[arg-type]
    ],
)
async def test_wrong_parts(lab: Lab, part: Part, says: str) -> None:
    """They are refused when the turn is started, or its history is given; nothing is stored."""
    shop = agent("read")
    runtime = await lab.runtime(shop)

    with pytest.raises(InvalidDefinition, match=says):
        await runtime.start(shop, UserMessage("look", (part,)))
    with pytest.raises(InvalidDefinition, match=r"history\[0\]"):
        await runtime.start(shop, "hi", history=[UserMessage("look", (part,)), AiMessage("nice")])
    assert (await runtime.turns()).items == ()


@pytest.mark.parametrize(
    "part",
    [
        Part("image", "https://example.org/ü.png?size=1#x", "image/png"),
        Part("image", "data:;base64,QUJD", media_type="image/png"),
        Part("audio", "data:application/ogg;base64,QUI="),
        Part("file", "data:text/plain;charset=utf-8,hello%20you", name="hello.txt"),
        Part("file", "data:,"),
        Part("file", "https://example.org/a", media_type="text/plain; charset=utf-8"),
    ],
)
async def test_right_parts(lab: Lab, part: Part) -> None:
    """They reach the model as they are."""
    shop = agent("read")
    runtime = await lab.runtime(shop)

    await runtime.run(shop, UserMessage("", (part,)))

    assert model_of(shop).requests[0].messages[-1] == UserMessage("", (part,))


async def test_parts_count_for_the_size_of_a_message(lab: Lab) -> None:
    """Data over the message limit is refused."""
    shop = agent("read")
    runtime = await lab.runtime(shop)

    with pytest.raises(SnapshotTooLarge):
        await runtime.start(shop, UserMessage("look", (Part("image", "data:image/png;base64," + "QUJD" * 3_000_000),)))


@pytest.mark.parametrize("wrong", [3, "gpt", ScriptedModel])
def test_wrong_multimodal_models(wrong: Any) -> None:
    """They are refused when the agent is built."""
    with pytest.raises(InvalidDefinition, match="multimodal_model"):
        agent("x", multimodal_model=wrong)
