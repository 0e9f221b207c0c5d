"""The scripted model: the n-th reply answers iteration n, in every process."""

from __future__ import annotations

import asyncio

import pytest

from turnhold.actors.chat import AiMessage, ToolCall, Usage
from turnhold.actors.errors import ModelError, ModelOverloaded, ModelRateLimited, ModelTimeout
from turnhold.actors.model import ChatModel, ModelRequest, StreamingChatModel
from turnhold.actors.stream import Accumulator
from turnhold.models import ScriptedModel, call


def request(iteration: int = 1, attempt: int = 1) -> ModelRequest:
    return ModelRequest(messages=(), iteration=iteration, attempt=attempt)


async def streamed(model: ScriptedModel, asked: ModelRequest) -> AiMessage:
    accumulator = Accumulator()
    async for delta in model.stream(asked):
        accumulator.add(delta)
    return accumulator.message()


async def later(asked: ModelRequest) -> ToolCall:
    return call("refund", order=f"O-{asked.iteration}")


WHOLE = AiMessage(
    "Hello,  world \n",
    (ToolCall("x", "f", {"text": "a longer argument, cut into pieces"}), ToolCall("", "", {}, "{oops")),
    "first\nthink",
    Usage(3, 4),
)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("Hello,  world \n", AiMessage("Hello,  world \n")),
        ("", AiMessage()),
        (call("f"), AiMessage(tool_calls=(ToolCall("call_1_0", "f"),))),
        (call("f", name="n", id=1), AiMessage(tool_calls=(ToolCall("call_1_0", "f", {"name": "n", "id": 1}),))),
        ([call("f"), call("g", x=[1])], AiMessage("", (ToolCall("call_1_0", "f"), ToolCall("call_1_1", "g", {"x": [1]})))),
        (WHOLE, WHOLE),
        (lambda asked: f"iteration {asked.iteration}", AiMessage("iteration 1")),
        (later, AiMessage(tool_calls=(ToolCall("call_1_0", "refund", {"order": "O-1"}),))),
    ],
)
async def test_every_kind_of_reply(reply: object, message: AiMessage) -> None:
    model = ScriptedModel(reply)  # type: ignore[arg-type]

    assert await model.complete(request()) == message
    assert await streamed(model, request()) == message


async def test_iteration_names_the_reply_whatever_was_asked_before() -> None:
    """Two models of one script, as in two processes, answer as one; asking again gives the same."""
    first, second = (ScriptedModel("one", [call("f"), call("f")], "three") for _ in range(2))

    assert (await second.complete(request(3))).content == "three"
    assert (await first.complete(request(1))).content == "one"
    assert await first.complete(request(2)) == await second.complete(request(2)) == await first.complete(request(2))
    assert [call.id for call in (await first.complete(request(2))).tool_calls] == ["call_2_0", "call_2_1"]


async def test_exceptions_stand_before_the_reply_one_for_each_attempt() -> None:
    model = ScriptedModel("one", ModelOverloaded, ModelRateLimited("slow down", retry_after=3.0), "two", ModelTimeout)

    assert (await model.complete(request(1, attempt=9))).content == "one"
    with pytest.raises(ModelOverloaded, match="attempt 1 of iteration 2"):
        await model.complete(request(2, attempt=1))
    with pytest.raises(ModelRateLimited) as raised:
        await streamed(model, request(2, attempt=2))
    assert raised.value.retry_after == 3.0
    assert (await model.complete(request(2, attempt=3))).content == "two"
    assert (await model.complete(request(2, attempt=4))).content == "two"
    with pytest.raises(ModelTimeout):
        await model.complete(request(3))
    with pytest.raises(ModelError, match="no reply for attempt 2 of iteration 3"):
        await model.complete(request(3, attempt=2))


@pytest.mark.parametrize("answer", [ValueError("no"), ValueError])
async def test_a_function_may_answer_with_an_exception(answer: object) -> None:
    with pytest.raises(ValueError, match=r"no|scripted"):
        await ScriptedModel(lambda _: answer).complete(request())  # type: ignore[arg-type, return-value]


async def test_past_the_end_the_error_names_the_iteration() -> None:
    with pytest.raises(ModelError, match=r"no reply for iteration 3: it has 2"):
        await ScriptedModel("a", "b").complete(request(3))
    with pytest.raises(ModelError, match="iteration 1"):
        await ScriptedModel().complete(request())


@pytest.mark.parametrize("reply", [3, None, [], ["text"], [call("f"), 1]])
async def test_what_is_no_reply(reply: object) -> None:
    with pytest.raises(TypeError, match="a scripted reply is"):
        await ScriptedModel(reply).complete(request())  # type: ignore[arg-type]


async def test_requests_are_kept_and_a_function_may_hold_its_reply() -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def held(_: ModelRequest) -> str:
        asked.set()
        await go.wait()
        return "released"

    model = ScriptedModel(held)
    asking = asyncio.create_task(model.complete(request()))
    await asked.wait()
    assert not asking.done()
    go.set()

    assert (await asking).content == "released"
    assert model.requests == [request()]


async def test_it_streams_word_by_word_and_calls_in_pieces() -> None:
    deltas = [delta async for delta in ScriptedModel(WHOLE).stream(request())]

    assert [delta.content for delta in deltas if delta.content] == ["Hello,  ", "world \n"]
    assert [delta.reasoning for delta in deltas if delta.reasoning] == ["first\n", "think"]
    assert len([delta for delta in deltas if delta.tool_calls]) > 4
    assert deltas[-1].usage == Usage(3, 4)


def test_it_is_a_chat_model() -> None:
    assert isinstance(ScriptedModel(), ChatModel)
    assert isinstance(ScriptedModel(), StreamingChatModel)
