"""Ready-made compressors, what they may give, and how tokens are counted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from turnhold import (
    AiMessage,
    ChatMessage,
    CompressionContext,
    InvalidDefinition,
    ModelError,
    ModelRequest,
    Part,
    SystemMessage,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
    compressors,
)
from turnhold.actors.compression import check_compressor, checked, compress
from turnhold.actors.tokens import tokens_of, usage_of
from turnhold.testing import ScriptedModel

TALK = [
    UserMessage("Where is O-1?"),
    AiMessage("I look.", (ToolCall("c", "look", {"id": "O-1"}),)),
    ToolMessage("c", "in Ulm"),
    AiMessage("It is in Ulm.", reasoning="hm", usage=Usage(50, 9)),
    UserMessage("And O-2?", (Part("image", "https://x/y.png"),)),
    AiMessage("In Bonn."),
]


def context(*replies: Any) -> CompressionContext:
    return CompressionContext(model=ScriptedModel(*replies), turn_id="t", agent_id="shop")


async def test_identity() -> None:
    """Everything is as it was."""
    assert await compress(compressors.identity(), TALK, context()) == TALK


async def test_compact_completed_turns() -> None:
    """Seven turns with tools become question and answer; one without an answer stays whole."""
    open_turn = TALK[:3]

    assert await compress(compressors.compact_completed_turns(), TALK * 7, context()) == [TALK[0], *TALK[3:]] * 7
    assert await compress(compressors.compact_completed_turns(), open_turn + TALK, context()) == [*open_turn, TALK[0], *TALK[3:]]


async def test_text_excerpt() -> None:
    """One user message, with the end of the text."""
    (short,) = await compress(compressors.text_excerpt(30), TALK, context())
    (long,) = await compress(compressors.text_excerpt(10_000), TALK, context())

    assert short == UserMessage("An excerpt of the conversation so far:\n…? [image]\nassistant: In Bonn.")
    assert len(short.content.partition("\n")[2]) == 30
    assert long.content.splitlines()[1:] == [
        "user: Where is O-1?",
        "assistant: I look.",
        "tool: in Ulm",
        "assistant: It is in Ulm.",
        "user: And O-2? [image]",
        "assistant: In Bonn.",
    ]


async def test_model() -> None:
    """One request without tools writes a summary; its tokens are counted, by estimate where the provider does not."""
    counting, silent = context(AiMessage("O-1 is in Ulm.", usage=Usage(70, 5))), context("O-1 is in Ulm.")
    short = compressors.model()

    assert await compress(short, TALK, counting) == [UserMessage("Summarise our conversation so far."), AiMessage("O-1 is in Ulm.")]
    await compress(short, TALK, silent)

    assert counting.usage == Usage(70, 5)
    assert (silent.usage.estimated, silent.usage.output_tokens) == (True, 8)
    assert isinstance(counting.model, ScriptedModel)
    (request,) = counting.model.requests
    assert (request.tools, request.turn_id, [type(each) for each in request.messages]) == ((), "t", [SystemMessage, UserMessage])
    assert "tool: in Ulm" in request.messages[1].content


async def test_model_of_its_own_above_a_size() -> None:
    """A model of its own is asked, and only where the messages have more tokens than was said."""
    own, unused = ScriptedModel("short"), context()

    assert await compress(compressors.model(own, over_tokens=10_000), TALK, unused) == TALK
    assert await compress(compressors.model(own, over_tokens=10), TALK, unused) != TALK
    assert len(own.requests) == 1


async def test_an_empty_summary_is_none() -> None:
    """A model that says nothing has not summarised."""
    with pytest.raises(ModelError, match="empty"):
        await compress(compressors.model(), TALK, context(" "))


def shorten(request: ModelRequest) -> str:
    rows = json.loads(request.messages[-1].content)
    return f"```json\n{json.dumps([{'id': row['id'], 'summary': row['text'][:5]} for row in rows])}\n```"


async def test_per_message_model() -> None:
    """Each text is shortened; count, roles, parts and tool traffic stay."""
    found = await compress(compressors.per_message_model(), TALK, context(shorten))

    assert found == [UserMessage("Where"), *TALK[1:3], AiMessage("It is"), UserMessage("And O", TALK[4].parts), AiMessage("In Bo")]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ("nothing", "no JSON array"),
        ('[{"id": 0}]', "no JSON array"),
        ('[{"id": 77, "summary": "x"}]', "message 77"),
        ("[[[", "no JSON"),
    ],
)
async def test_per_message_model_with_wrong_replies(reply: str, words: str) -> None:
    """What cannot be told apart is an error."""
    with pytest.raises(ModelError, match=words):
        await compress(compressors.per_message_model(), TALK, context(reply))


async def test_per_message_model_leaves_what_was_left_out() -> None:
    """A message without a summary, or with a blank one, is as it was."""
    found = await compress(
        compressors.per_message_model(), TALK, context('[{"id": 5, "summary": "Bonn"}, {"id": 0, "summary": " "}]')
    )

    assert found == [*TALK[:5], AiMessage("Bonn")]


async def test_chain() -> None:
    """Each gets what the one before it gave, sync or async."""
    both = compressors.chain(compressors.compact_completed_turns(), compressors.model())
    told = context("ok")

    assert await compress(both, TALK, told) == [UserMessage("Summarise our conversation so far."), AiMessage("ok")]
    assert isinstance(told.model, ScriptedModel)
    assert "in Ulm\n" not in told.model.requests[0].messages[1].content


CALL = AiMessage("", (ToolCall("c", "look"),))
ODD: Any = [
    ([], "begin with a user message"),
    ([SystemMessage("s")], "begin with a user message"),
    ([AiMessage("x")], "begin with a user message"),
    ([SystemMessage("s"), SystemMessage("s"), UserMessage("x")], "begin with a user message"),
    ([UserMessage("x"), ToolMessage("c", "r")], "result of 'c' without its call"),
    ([UserMessage("x"), CALL, ToolMessage("d", "r")], "result of 'd' without its call"),
    ([UserMessage("x"), CALL, ToolMessage("c", "r"), ToolMessage("c", "r")], "result of 'c' without its call"),
    ([UserMessage("x"), CALL], "call without its result: 'c'"),
    ([UserMessage("x"), CALL, UserMessage("y"), ToolMessage("c", "r")], "call without its result: 'c'"),
    ([UserMessage("x"), "y"], "must give messages, not 'y'"),
    ("text", "must give messages, not a str"),
    (None, "must give messages, not a NoneType"),
    ({}, "must give messages, not a dict"),
]


@pytest.mark.parametrize(("given", "words"), ODD)
def test_what_no_model_can_be_given(given: Any, words: str) -> None:
    """Output of a compressor that a provider would refuse is refused before."""
    with pytest.raises(InvalidDefinition, match=words):
        checked(given)


def test_what_a_model_can_be_given() -> None:
    """One system message may stand before the first user message."""
    kept: list[ChatMessage] = [SystemMessage("s"), *TALK]

    assert checked(iter(kept)) == kept


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: compressors.text_excerpt(0), "max_chars must be"),
        (lambda: compressors.text_excerpt("9"), "max_chars must be"),  # type: ignore[arg-type]
        (compressors.chain, "at least one"),
        (lambda: compressors.chain(compressors.identity(), 5), "compressor 1 must be a function"),  # type: ignore[arg-type]
        (lambda: compressors.chain(compressors.identity), "a maker of compressors is called first"),  # type: ignore[arg-type]
        (lambda: compressors.model(ScriptedModel), "complete"),  # type: ignore[arg-type]
        (lambda: compressors.model(instructions=" "), "instructions must not be blank"),
        (lambda: compressors.model(options={}), "options must be ModelOptions"),  # type: ignore[arg-type]
        (lambda: compressors.per_message_model(over_tokens=-1), "over_tokens must be"),
        (lambda: check_compressor("x", lambda messages: messages), "must take messages and a context"),
    ],
)
def test_wrong_compressors(build: Any, words: str) -> None:
    """A wrong argument is named when the compressor is made."""
    with pytest.raises(InvalidDefinition, match=words):
        build()


def test_tokens() -> None:
    """A quarter of the bytes and a frame; of a reply what its provider counted; parts by the piece."""
    assert tokens_of(UserMessage("x" * 40)) == 14
    assert tokens_of(UserMessage("漢字漢字")) == 7
    assert tokens_of(UserMessage("", (Part("image", "data:," + "x" * 9999),))) == 504
    assert tokens_of(AiMessage("x" * 40)) == 14
    assert tokens_of(AiMessage("x" * 40, usage=Usage(1000, 12))) == 12
    assert usage_of(100, AiMessage("x" * 40)) == Usage(100, 14, estimated=True)
    assert usage_of(100, AiMessage("x" * 40, usage=Usage(7, 8))) == Usage(7, 8)
    assert Usage(1, 2) + Usage(3, 4, estimated=True) == Usage(4, 6, estimated=True)
