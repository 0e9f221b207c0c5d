"""Limits: what is too large, too many or too long is refused or fails the turn, with a typed error and nothing half done."""

# pyright: reportArgumentType=false

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from turnhold import (
    Agent,
    AiMessage,
    AlreadyAnswered,
    ChatMessage,
    Effect,
    ExecutionPolicy,
    FormDefinition,
    InvalidDefinition,
    InvalidFormData,
    ModelRateLimited,
    ResumeCommand,
    RetryPolicy,
    Runtime,
    SnapshotTooLarge,
    Status,
    SuspensionType,
    ToolCall,
    ToolContext,
    ToolError,
    ToolMessage,
    TurnRef,
    TurnView,
    Usage,
    UserMessage,
    tool,
    user_input_tool,
)
from turnhold.testing import ScriptedModel, call

from .hostile import DEEP, Rude, Word
from .place import Place, gated, picture, plain, waiting

SMALL = 4096


def closed(messages: list[ChatMessage]) -> bool:
    """Tell whether every call of a history has exactly one result, behind it."""
    open_calls: set[str] = set()
    for message in messages:
        if isinstance(message, AiMessage):
            open_calls |= {item.id for item in message.tool_calls}
        if isinstance(message, ToolMessage):
            if message.call_id not in open_calls:
                return False
            open_calls.remove(message.call_id)
    return not open_calls


async def failed(turn: TurnRef, kind: str, words: str = "") -> TurnView:
    """Check that a turn has failed with this error, that its history is closed and that its last event says so."""
    view = await turn.settle()
    assert view.status is Status.FAILED
    assert view.error is not None
    assert view.error.type == kind, view.error
    assert words in view.error.message
    assert view.open_waits == ()
    assert closed(await turn.history())
    assert [event.type async for event in turn.events()][-1] == "TURN_FAILED"
    return view


# ------------------------------------------------------------------------------------------------------------------ ids


@pytest.mark.parametrize(("field", "limit"), [("tenant", 128), ("conversation", 256), ("idempotency_key", 256)])
@pytest.mark.parametrize("letter", ["x", "ä", "\N{GRINNING FACE}"])
async def test_names_up_to_their_limit(any_place: Place, field: str, limit: int, letter: str) -> None:
    """A name of as many bytes as it may have works everywhere; one more is refused."""
    runtime = await any_place.runtime(gated())
    longest = letter * (limit // len(letter.encode()))

    turn, _ = await waiting(runtime, **{field: longest})
    with pytest.raises(InvalidDefinition, match=f"{field} has {limit + 1} bytes, the limit is {limit}"):
        await runtime.start("shop", "x", **{field: "x" * (limit + 1)})

    if field == "tenant":
        assert [wait.turn_id for wait in (await runtime.inbox(tenant=longest)).items] == [turn.id]
    if field == "conversation":
        assert await runtime.conversation(longest).open_turn() == turn
        assert [view.id for view in (await runtime.turns(conversation=longest)).items] == [turn.id]
    if field == "idempotency_key":
        assert await runtime.start("shop", "please", idempotency_key=longest) == turn


async def test_command_ids_up_to_their_limit(any_place: Place) -> None:
    """The longest command id and name of a person are kept whole."""
    runtime = await any_place.runtime(gated())
    turn, wait = await waiting(runtime)

    receipt = await turn.submit(ResumeCommand.approve_tool(wait, command_id="c" * 128, by="b" * 128))

    assert (receipt.command_id, receipt.by) == ("c" * 128, "b" * 128)
    assert (await turn.submit(ResumeCommand.approve_tool(wait, command_id="c" * 128, by="b" * 128))).replayed


async def test_the_longest_names_of_agents(any_place: Place) -> None:
    """Agent ids and versions of 128 bytes each are found again."""
    agent = gated(id="a" * 128, version="v" * 128)
    runtime = await any_place.runtime(agent)

    turn, _ = await waiting(runtime, "a" * 128)

    assert (await turn.resume(ResumeCommand.approve_tool())).agent_version == "v" * 128
    assert (await runtime.nodes())[0].agents == (agent.key,)


# ------------------------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize("limit", [SMALL, 1 << 20])
async def test_an_input_over_the_limit(any_place: Place, limit: int) -> None:
    """The input and each message of the history have a limit; nothing is started over it."""
    runtime = await any_place.runtime(plain(), max_snapshot=limit)
    large = "x" * (limit + 1)

    for arguments in ({"input": large}, {"input": UserMessage(large)}, {"input": "x", "history": [UserMessage(large)]}):
        with pytest.raises(SnapshotTooLarge) as caught:
            await runtime.start("plain", **arguments)
        assert caught.value.what in {"input", "history[0]"}
        assert caught.value.size > caught.value.limit == limit

    assert (await runtime.turns()).items == ()
    view = await runtime.run("plain", "x" * (limit - 100), history=[UserMessage("x" * (limit - 100))] * 2)
    assert view.status is Status.COMPLETED


async def test_metadata_that_the_snapshot_cannot_hold(any_place: Place) -> None:
    """A turn whose first snapshot would be over the limit is not started, and leaves its conversation free."""
    runtime = await any_place.runtime(plain(), max_snapshot=SMALL)

    with pytest.raises(SnapshotTooLarge, match=f"snapshot has .* bytes, the limit is {SMALL}"):
        await runtime.start("plain", "x", metadata={"a": "x" * SMALL}, conversation="c")

    assert (await runtime.turns()).items == ()
    assert (await runtime.run("plain", "x", conversation="c")).status is Status.COMPLETED


@pytest.mark.parametrize(
    "reply",
    [
        AiMessage("x" * SMALL),
        AiMessage(reasoning="x" * SMALL),
        AiMessage(tool_calls=(ToolCall("c1", "refund", {"amount": "x" * SMALL}),)),
        AiMessage(tool_calls=(ToolCall("c1", "refund", {}, invalid="x" * SMALL),)),
    ],
    ids=["text", "reasoning", "arguments", "invalid"],
)
@pytest.mark.parametrize("streaming", [False, True])
async def test_a_reply_over_the_limit(any_place: Place, reply: AiMessage, streaming: bool) -> None:
    """The turn fails with what the limit is; another turn of the same node goes on."""
    runtime = await any_place.runtime(gated(reply), gated(id="other"), max_snapshot=SMALL)
    other, wait = await waiting(runtime, "other")

    turn = await runtime.start("shop", "x", streaming=streaming)

    view = await failed(turn, "SnapshotTooLarge", f"the limit is {SMALL}")
    assert view.iteration_count == 0
    assert (await other.resume(ResumeCommand.approve_tool(wait))).status is Status.COMPLETED


async def test_a_snapshot_that_grows_over_the_limit(any_place: Place) -> None:
    """Calls whose arguments fit one by one, but not together, fail the turn; its history is closed."""
    calls = [call("refund", amount=number) for number in range(60)]
    runtime = await any_place.runtime(gated(calls), max_snapshot=SMALL)

    turn = await runtime.start("shop", "x")

    await failed(turn, "SnapshotTooLarge", "snapshot has")
    assert (await runtime.inbox()).items == ()


@pytest.mark.parametrize("count", [128, 129])
async def test_calls_of_one_reply(any_place: Place, count: int) -> None:
    """A reply may have 128 calls, all of them open at once; one more fails the turn."""
    runtime = await any_place.runtime(gated([call("refund", amount=number) for number in range(count)], "done"))

    turn = await runtime.start("shop", "x")

    if count > 128:
        await failed(turn, "ModelError", "the model's response has 129 calls, the limit is 128")
        return
    waits = (await turn.settle()).open_waits
    assert len(waits) == 128
    for wait in waits[:-1]:
        await turn.submit(ResumeCommand.reject_tool(wait))
    assert (await turn.resume(ResumeCommand.reject_tool(waits[-1]))).status is Status.COMPLETED
    assert closed(await turn.history())


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (lambda _: AiMessage("\ud800"), "cannot be stored"),
        (lambda _: AiMessage(Word("x")), "cannot be stored"),
        (lambda _: AiMessage(5), "content must be text"),  # type: ignore[arg-type]
        (lambda _: AiMessage(tool_calls=(ToolCall("c", "refund", {"amount": float("nan")}),)), "is nan"),
        (lambda _: AiMessage(tool_calls=(ToolCall("c", "refund", {"amount": 2**70}),)), "cannot be stored"),
        (lambda _: AiMessage(tool_calls=(ToolCall("c", "refund", {"amount": Rude()}),)), "cannot be stored"),  # type: ignore[dict-item]
        (lambda _: AiMessage(tool_calls=(ToolCall("c", "refund", {"amount": b"x"}),)), "is a bytes"),  # type: ignore[dict-item]
        (lambda _: AiMessage(tool_calls=(ToolCall("c", "refund", {"amount": DEEP}),)), "cannot be stored"),  # type: ignore[dict-item]
        (lambda _: AiMessage(tool_calls=(ToolCall("c", "refund", None),)), "cannot be stored"),  # type: ignore[arg-type]
        (lambda _: AiMessage(tool_calls=(Rude(),)), "cannot be stored"),  # type: ignore[arg-type]
        (lambda _: AiMessage(tool_calls=5), "cannot be stored"),  # type: ignore[arg-type]
        (lambda _: AiMessage("x", usage=Usage(-1, 5)), "usage.input_tokens must be a whole number of at least 0"),
        (lambda _: AiMessage("x", usage=Usage(1 << 41, 0)), "usage.input_tokens must be at most"),
        (lambda _: AiMessage("x", usage=Usage(1.5, 0)), "cannot be stored"),  # type: ignore[arg-type]
    ],
    ids=range(14),
)
async def test_replies_that_cannot_be_stored(any_place: Place, reply: Any, words: str) -> None:
    """Whatever a model returns, the turn fails with what is wrong about it, and is not tried again and again."""
    runtime = await any_place.runtime(gated(reply))

    turn = await runtime.start("shop", "x")

    view = await failed(turn, "ModelError", words)
    assert view.error is not None
    assert len(view.error.message) < 1000


@pytest.mark.parametrize("reply", [None, "text", {"content": "x"}, Rude()], ids=["none", "text", "a dict", "rude"])
async def test_replies_that_are_none(any_place: Place, reply: Any) -> None:
    """A model that returns something else than a message fails the turn."""

    class Model:
        async def complete(self, request: Any) -> Any:
            return reply

    runtime = await any_place.runtime(Agent("odd", model=Model()))

    await failed(await runtime.start("odd", "x"), "ModelError", "not an AiMessage")


@pytest.mark.parametrize("wish", [None, -1, float("nan"), float("inf"), 1e300, "soon", True])
async def test_wishes_that_are_no_duration(any_place: Place, wish: Any) -> None:
    """A provider's odd retry-after is ignored; the policy's own delay stands."""
    policy = ExecutionPolicy(retry_policy=RetryPolicy(max_retries=1, initial_delay=1, jitter=0))
    runtime = await any_place.runtime(plain(ModelRateLimited("slow down", retry_after=wish), "done", policy=policy))
    turn = await runtime.start("plain", "x")

    (wait,) = (await turn.settle()).suspensions
    await any_place.clock.advance(2)

    assert wait.type is SuspensionType.RETRY
    assert (await turn.view()).status is Status.COMPLETED


# ---------------------------------------------------------------------------------------------------------------- tools


class Mute(Exception):
    """Cannot say what is wrong."""

    def __str__(self) -> str:
        raise RuntimeError("mute")


def bad_tool(result: Any = None, error: BaseException | None = None, **options: Any) -> Any:
    async def run() -> Any:
        """Return or raise something odd."""
        if error is not None:
            raise error
        return result

    return tool(run, name="run", **options)


@pytest.mark.parametrize("told", [False, True], ids=["fail", "return_to_model"])
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: bad_tool("x" * SMALL), "SnapshotTooLarge"),
        (lambda: bad_tool({"a": ["x" * SMALL]}), "SnapshotTooLarge"),
        (lambda: bad_tool("\ud800"), "ToolResultInvalid"),
        (lambda: bad_tool({"a": "\udfff"}), "ToolResultInvalid"),
        (lambda: bad_tool(Rude()), "ToolResultInvalid"),
        (lambda: bad_tool(Word("x")), "ToolResultInvalid"),
        (lambda: bad_tool(DEEP), "ToolResultInvalid"),
        (lambda: bad_tool(error=Mute()), "Mute"),
        (lambda: bad_tool(error=ValueError("\ud800" * 10_000)), "ValueError"),
        (lambda: bad_tool(error=BaseExceptionGroup("many", [KeyError(number) for number in range(1000)])), "ExceptionGroup"),
    ],
    ids=range(10),
)
async def test_results_that_cannot_be_stored(any_place: Place, make: Any, kind: str, told: bool) -> None:
    """Whatever a tool returns or raises, the turn fails, or the model is told, by policy."""
    policy = ExecutionPolicy(tool_errors="return_to_model" if told else "fail")
    agent = Agent("odd", model=ScriptedModel(call("run"), "done"), tools=[make()], policy=policy)
    runtime = await any_place.runtime(agent, max_snapshot=3 * SMALL if kind == "ValueError" else SMALL)

    turn = await runtime.start("odd", "x")

    if not told:
        await failed(turn, kind)
        return
    assert (await turn.settle()).status is Status.COMPLETED
    history = await turn.history()
    assert closed(history)
    assert any(isinstance(message, ToolMessage) and kind in message.content for message in history)


async def test_a_failure_that_cannot_be_stored_ends_at_once(any_place: Place) -> None:
    """The step that told the end of a call is thrown away; the turn does not wait for a call that is over."""
    agent = Agent("odd", model=ScriptedModel(call("run"), "done"), tools=[bad_tool(error=ValueError("\ud800" * 10_000))])
    runtime = await any_place.runtime(agent, max_snapshot=2 * SMALL)
    turn = await runtime.start("odd", "x")

    await any_place.clock.idle()

    await failed(turn, "SnapshotTooLarge")


async def test_odd_data_of_a_tool_error(any_place: Place) -> None:
    """A ToolError whose data has no JSON form is told without it."""
    agent = Agent(
        "odd", model=ScriptedModel(call("run"), "done"), tools=[bad_tool(error=ToolError("no \ud800", a=Rude(), b="\ud800"))]
    )
    runtime = await any_place.runtime(agent)

    turn = await runtime.start("odd", "x")

    assert (await turn.settle()).status is Status.COMPLETED
    assert '"no ?"' in next(message.content for message in await turn.history() if isinstance(message, ToolMessage))


async def test_words_of_the_agent_that_cannot_be_stored(any_place: Place) -> None:
    """An agent's own words for an error are cut and mended."""
    agent = Agent(
        "odd",
        model=ScriptedModel(call("run"), "done"),
        tools=[bad_tool(error=KeyError("x"))],
        tool_error_message=lambda call, error: "\ud800" * 100_000,
        policy=ExecutionPolicy(tool_errors="return_to_model"),
    )
    runtime = await any_place.runtime(agent)

    turn = await runtime.start("odd", "x")

    assert (await turn.settle()).status is Status.COMPLETED
    assert next(message.content for message in await turn.history() if isinstance(message, ToolMessage)) == "?" * 4000


async def test_progress_over_the_limit_is_the_tools_error(any_place: Place) -> None:
    """Progress has the limits of a text and of data."""

    @tool
    async def run() -> str:
        """Report too much."""
        await ToolContext.current().progress("x" * 65_537)
        return "unreached"

    runtime = await any_place.runtime(Agent("odd", model=ScriptedModel(call("run"), "done"), tools=[run]))

    await failed(await runtime.start("odd", "x"), "InvalidDefinition", "message has 65537 bytes")


# ------------------------------------------------------------------------------------------------------------- commands


async def test_a_command_over_the_limit_of_a_message(any_place: Place) -> None:
    """What a command carries must fit a message of this store; refused, it changes nothing."""
    runtime = await any_place.runtime(gated(), max_snapshot=SMALL)
    turn, wait = await waiting(runtime)
    before = await picture(runtime, turn)

    for work in (
        lambda: turn.submit(ResumeCommand.reject_tool(wait, "x" * SMALL)),
        lambda: turn.submit(ResumeCommand.approve_tool(wait, arguments={"amount": 1, "more": "x" * SMALL})),
        lambda: turn.submit(ResumeCommand.approve_tool(wait, metadata={"a": "x" * SMALL})),
        lambda: turn.suspend("x" * SMALL),
        lambda: turn.start_child("shop", "x" * SMALL),
        lambda: turn.start_child("shop", "x", {"a": "x" * SMALL}),
    ):
        with pytest.raises(SnapshotTooLarge):
            await work()
        assert await picture(runtime, turn) == before

    assert (await turn.resume(ResumeCommand.approve_tool(wait))).status is Status.COMPLETED


async def test_form_data_up_to_its_limit(any_place: Place) -> None:
    """64 KiB of form data reach the model whole; more is refused before it is sent, what does not fit the form when it arrives."""
    form = FormDefinition("note", description="A note.", schema={"type": "object", "required": ["text"]})
    model = ScriptedModel(call("request_user_input", form_key="note"), "done")
    runtime = await any_place.runtime(Agent("forms", model=model, tools=[user_input_tool(form)]))
    turn, wait = await waiting(runtime, "forms")
    before = await picture(runtime, turn)
    text = "x" * (65_536 - len('{"text":""}'))

    with pytest.raises(InvalidDefinition, match="data has 65537 bytes as JSON, the limit is 65536"):
        ResumeCommand.submit_form(wait, {"text": text + "x"})
    with pytest.raises(InvalidFormData):
        await turn.submit(ResumeCommand.submit_form(wait, {"other": text[1:]}))
    assert await picture(runtime, turn) == before
    assert (await turn.resume(ResumeCommand.submit_form(wait, {"text": text}))).status is Status.COMPLETED

    assert any(isinstance(message, ToolMessage) and text in message.content for message in await turn.history())


async def test_an_answer_that_outgrows_the_snapshot(any_place: Place) -> None:
    """Edited arguments that fit a message but not the state fail the turn: never half an approval, no start of the tool."""
    started: list[Any] = []

    @tool(approval=True)
    async def write(text: str) -> str:
        """Write a text."""
        started.append(text)
        return "written"

    agent = Agent("writer", model=ScriptedModel(call("write", text="x" * 1800), "done"), tools=[write])
    runtime = await any_place.runtime(agent, max_snapshot=SMALL)
    turn, wait = await waiting(runtime, "writer")

    with pytest.raises(AlreadyAnswered) as caught:
        await turn.submit(ResumeCommand.approve_tool(wait, arguments={"text": "y" * 3400}))

    assert caught.value.receipt.effect is Effect.SUPERSEDED
    await failed(turn, "SnapshotTooLarge", "snapshot has")
    assert started == []


async def test_results_that_outgrow_the_snapshot_while_the_turn_ends(any_place: Place) -> None:
    """A call that ends in the grace behind such an end does not cost its owner the turn: the outcome is closed as unknown."""
    let_go = {name: asyncio.Event() for name in ("first", "second", "third", "fourth")}

    @tool
    async def fetch(name: str) -> str:
        """Fetch much."""
        await let_go[name].wait()
        return "x" * (SMALL // 2 - 100)

    agent = Agent("fetcher", model=ScriptedModel([call("fetch", name=name) for name in let_go], "done"), tools=[fetch])
    runtime = await any_place.runtime(agent, max_snapshot=SMALL, cancel_grace=5)
    turn = await runtime.start("fetcher", "go")
    for name in ("second", "third", "fourth"):
        await any_place.clock.idle()
        let_go[name].set()
    await any_place.clock.advance(6)

    await failed(turn, "SnapshotTooLarge", "snapshot has")
    assert runtime.statistics().lost == 0
    assert closed(await turn.history())


# -------------------------------------------------------------------------------------------------------------- mailbox


def test_the_limits_have_a_default() -> None:
    """1 MiB for a snapshot and for a message, 256 unread messages, 128 calls in a reply."""
    settings = Runtime()._node.settings

    assert (settings.max_snapshot, settings.max_message) == (1 << 20, 1 << 20)
    assert (settings.mailbox_cap, settings.max_calls) == (256, 128)
