"""Section P: middleware around model requests and calls of tools."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import msgspec
import pytest

from turnhold import (
    AiMessage,
    Budget,
    Event,
    EventType,
    ExecutionPolicy,
    FormDefinition,
    FormRequired,
    InvalidDefinition,
    Middleware,
    MiddlewareError,
    ModelOverloaded,
    NoToolContext,
    NoTurnContext,
    ProceedTwice,
    ResumeCommand,
    RetryPolicy,
    Status,
    SystemMessage,
    ToolContext,
    ToolError,
    TurnContext,
    TurnRef,
    Usage,
    tool,
)
from turnhold.testing import ScriptedModel, call

from .hooks import Around, again, beside
from .lab import Desk, Gate, Lab, agent, held, model_of, result_of, stored_events, talk, waiting

TELL = ExecutionPolicy(tool_errors="return_to_model")
FORM = FormDefinition("why", description="why?", schema={"type": "object", "properties": {"text": {"type": "string"}}})


async def test_model_answered(lab: Lab) -> None:
    """P317: a hook that answers itself: that text is final, and the model is not asked nor counted."""

    async def answer(request, proceed):
        return AiMessage("from the cache")

    shop = agent("never", middleware=[Around(model=answer)])
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert (view.final_output, view.usage, view.iteration_count) == ("from the cache", Usage(), 1)
    assert model_of(shop).requests == []


async def test_request_replaced(lab: Lab, desk: Desk) -> None:
    """P319: a replaced request is what the model sees, this once, and is stored nowhere; there is a context, but none of a tool."""
    seen: list[TurnContext] = []

    async def replace(request, proceed):
        with pytest.raises(NoToolContext):
            ToolContext.current()
        seen.append(TurnContext.current())
        return await proceed(msgspec.structs.replace(request, messages=(SystemMessage("Be kind."), *request.messages)))

    shop = agent(call("refund"), "done", tools=[desk.tool()], middleware=[Around(model=replace)])
    runtime = await lab.runtime(shop, services="the services")
    turn = await runtime.start(shop, "hi", tenant="acme", metadata={"k": 1})

    await turn.settle()

    requests = model_of(shop).requests
    assert [talk(request.messages)[0] for request in requests] == ["system: Be kind.", "system: Be kind."]
    assert [talk(request.messages).count("system: Be kind.") for request in requests] == [1, 1]
    assert talk(await turn.history())[0] == "user: hi"
    context = seen[0]
    assert (context.turn_id, context.root_turn_id, context.agent_id, context.tenant) == (turn.id, turn.id, "shop", "acme")
    assert (context.metadata, context.services, context.cancel_requested) == ({"k": 1}, "the services", False)
    assert [each.step for each in seen] == [1, 2]
    with pytest.raises(NoTurnContext):
        TurnContext.current()


async def test_reply_replaced(lab: Lab, desk: Desk) -> None:
    """P320: a replaced reply is what counts, as text and as calls; tokens of the model's own reply are counted all the same."""

    async def replace(request, proceed):
        reply = await proceed(request)
        return AiMessage(reply.content.upper(), (reply.tool_calls or ()))

    model = ScriptedModel(AiMessage("done", usage=Usage(10, 5)))
    shop = agent(model=model, middleware=[Around(model=replace)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await turn.settle()

    assert (view.final_output, view.usage) == ("DONE", Usage(10, 5))
    assert talk(await turn.history())[-1] == "assistant: DONE"


async def test_usage_of_a_reply_that_was_dropped(lab: Lab) -> None:
    """Tokens count even where a hook raises when the model has answered."""

    async def drop(request, proceed):
        await proceed(request)
        raise ValueError("dropped")

    shop = agent(AiMessage("done", usage=Usage(10, 5)), middleware=[Around(model=drop)])
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert (view.status, view.usage, view.error and view.error.message) == (Status.FAILED, Usage(10, 5), "dropped")


@pytest.mark.parametrize("effect", ["once", "repeatable"])
async def test_tool_answered(lab: Lab, desk: Desk, effect: Any) -> None:
    """P321: a hook that answers itself: the function never runs, the value is the result; call and context are at hand."""
    seen: list[ToolContext] = []

    async def answer(context, proceed):
        assert ToolContext.current() is context
        seen.append(context)
        return {"cached": True}

    shop = agent(call("refund", amount=3), "done", tools=[desk.tool(effect=effect)], middleware=[Around(tool=answer)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await turn.settle()

    assert (view.status, desk.starts, result_of(await turn.history())) == (Status.COMPLETED, [], '{"cached":true}')
    assert (seen[0].call.name, seen[0].call.arguments, seen[0].attempt, seen[0].turn_id) == ("refund", {"amount": 3}, 1, turn.id)


async def test_value_replaced(lab: Lab, desk: Desk) -> None:
    """P322: a hook may change the value after the function ran, before it becomes text; plain functions run in their thread."""

    @tool
    def plain() -> dict[str, int]:
        """Return a number."""
        assert ToolContext.current().call.name == "plain"
        return {"n": 1}

    async def replace(context, proceed):
        value = await proceed()
        return {**value, "more": True}

    shop = agent(call("plain"), "done", tools=[plain], middleware=[Around(tool=replace)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    await turn.settle()

    assert json.loads(result_of(await turn.history())) == {"n": 1, "more": True}


async def test_tool_hook_raises(lab: Lab, desk: Desk) -> None:
    """P324: a hook that raises is like a tool that does: with return_to_model its text is in the result, the turn completes."""

    async def raises(context, proceed):
        await proceed()
        raise ValueError("no audit")

    once = desk.tool(effect="once")
    shop = agent(call("refund"), "done", tools=[once], policy=TELL, middleware=[Around(tool=raises)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await turn.settle()

    assert (view.status, desk.starts) == (Status.COMPLETED, ["refund"])
    result = json.loads(result_of(await turn.history()))
    assert (result["type"], result["message"]) == ("tool_execution_error", "no audit")


async def test_tool_error_of_a_hook(lab: Lab, desk: Desk) -> None:
    """A ToolError of a hook goes to the model and nothing is tried again; so a hook can refuse a call."""

    async def refuse(context, proceed):
        raise ToolError("closed on Sundays", day="Sunday")

    policy = ExecutionPolicy(retry_policy=RetryPolicy(max_retries=3))
    shop = agent(call("refund"), "done", tools=[desk.tool()], policy=policy, middleware=[Around(tool=refuse)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    assert (await turn.settle()).status is Status.COMPLETED
    assert json.loads(result_of(await turn.history())) == {
        "error": True,
        "type": "tool_error",
        "message": "closed on Sundays",
        "day": "Sunday",
    }
    assert desk.starts == []


async def test_model_hook_is_retried(lab: Lab) -> None:
    """A retryable error of a model hook is retried as one of the model; the next attempt goes through all hooks again."""
    attempts: list[int] = []

    async def flaky(request, proceed):
        attempts.append(request.attempt)
        if request.attempt == 1:
            raise ModelOverloaded("later")
        return await proceed(request)

    policy = ExecutionPolicy(retry_policy=RetryPolicy(max_retries=1))
    shop = agent("done", policy=policy, middleware=[Around(model=flaky)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await lab.during(turn.settle(through_retries=True))

    assert (view.final_output, attempts, view.retry_count) == ("done", [1, 2], 1)


async def collected(turn: TurnRef) -> list[Event]:
    return [event async for event in turn.events()]


@pytest.mark.parametrize("twice", [again, beside])
async def test_model_twice(lab: Lab, twice: Any) -> None:
    """A second proceed of a model request is an error, and no second request is sent."""
    shop = agent("one", "two", middleware=[Around(model=twice)])
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert (view.status, view.error and view.error.type) == (Status.FAILED, "ProceedTwice")
    assert view.error is not None
    assert "works once: it had been called before" in view.error.message
    assert len(model_of(shop).requests) == 1


@pytest.mark.parametrize("twice", [again, beside])
async def test_tool_twice(lab: Lab, desk: Desk, twice: Any) -> None:
    """A second proceed of a call is an error, the function runs once, and no retry repeats the mistake."""
    policy = ExecutionPolicy(tool_errors="return_to_model", retry_policy=RetryPolicy(max_retries=3))
    shop = agent(call("refund"), "done", tools=[desk.tool()], policy=policy, middleware=[Around(tool=twice)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await turn.settle()

    assert (view.status, desk.starts) == (Status.COMPLETED, ["refund"])
    assert json.loads(result_of(await turn.history()))["errorType"] == "ProceedTwice"


async def test_proceed_too_late(lab: Lab, desk: Desk) -> None:
    """A proceed that is kept and called when its hook has returned is refused, and starts nothing."""
    kept: list[Any] = []

    async def keep(context, proceed):
        kept.append(proceed)
        return "short"

    shop = agent(call("refund"), "done", tools=[desk.tool()], middleware=[Around(tool=keep)])
    runtime = await lab.runtime(shop)
    await runtime.run(shop, "hi")

    with pytest.raises(ProceedTwice, match="its hook had returned"):
        await kept[0]()
    assert desk.starts == []
    assert issubclass(ProceedTwice, MiddlewareError)


async def test_form_through_hooks(lab: Lab, desk: Desk) -> None:
    """A form is asked for through the hooks, and by one: the call waits, and its next attempt goes through them again."""
    attempts: list[int] = []

    async def ask(context, proceed):
        attempts.append(context.attempt)
        context.form(FORM)
        return await proceed()

    shop = agent(call("refund"), "done", tools=[desk.tool()], middleware=[Around(tool=ask)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)
    assert (wait.form_key, desk.starts) == ("why", [])

    view = await turn.resume(ResumeCommand.submit_form(wait, {"text": "because"}))

    assert (view.status, desk.starts, attempts) == (Status.COMPLETED, ["refund"], [1, 2])
    assert issubclass(FormRequired, BaseException)


@pytest.mark.parametrize("errors", [(), (RuntimeError("half done"),)], ids=["returned", "raised"])
async def test_form_behind_a_once_function(lab: Lab, desk: Desk, errors: tuple[Exception, ...]) -> None:
    """A hook that asks for a form when a `once` function has run gets no second run of it: that is an error of the hook."""

    async def ask(context, proceed):
        try:
            await proceed()
        finally:
            context.form(FORM)

    shop = agent(
        call("refund"), "done", tools=[desk.tool(effect="once", errors=errors)], middleware=[Around(tool=ask)], policy=TELL
    )
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")

    view = await turn.settle()

    assert (view.status, desk.starts) == (Status.COMPLETED, ["refund"])
    assert "may run only once" in result_of(await turn.history())


@pytest.mark.parametrize("kind", ["step", "model"])
@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), FormRequired(FORM)], ids=lambda each: type(each).__name__
)
async def test_no_exception_of_a_hook_leaves_its_turn(lab: Lab, kind: str, error: BaseException) -> None:
    """What a hook raises, were it to end a process, is the error of its model request: the turn fails at once, and nothing else."""

    async def leave(subject, proceed):
        raise error

    shop = agent("never", middleware=[Around(**{kind: leave})])
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert (view.status, view.error and view.error.type) == (Status.FAILED, type(error).__name__)
    assert runtime.statistics().lost == 0


async def test_streaming(lab: Lab) -> None:
    """A hook is around the whole stream: deltas are shown as they come, and the replaced reply is what is stored."""

    async def replace(request, proceed):
        reply = await proceed(request)
        return msgspec.structs.replace(reply, content=reply.content + "!")

    gate = Gate()
    shop = agent(held(gate, "one two"), middleware=[Around(model=replace)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi", streaming=True)
    await lab.idle()
    watching = asyncio.ensure_future(collected(turn))
    await lab.idle()
    gate.open()
    shown = await watching

    view = await turn.settle()

    assert view.final_output == "one two!"
    deltas = [event.data["content"] for event in shown if event.type is EventType.MODEL_TEXT_DELTA]
    assert "".join(str(text) for text in deltas) == "one two"
    completed = [event for event in await stored_events(turn) if event.type is EventType.MODEL_COMPLETED]
    assert completed[0].data["text"] == "one two!"


@pytest.mark.parametrize("reply", [None, "text", AiMessage("x", usage=cast("Any", "much"))])
async def test_wrong_replies(lab: Lab, reply: Any) -> None:
    """What a hook returns is checked as any reply of a model."""

    async def wrong(request, proceed):
        return reply

    shop = agent("never", middleware=[Around(model=wrong)])
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert (view.status, view.error and view.error.type) == (Status.FAILED, "ModelError")


async def test_wrong_request(lab: Lab) -> None:
    """P319: a hook goes on with a request, or it is an error that names the hook."""

    async def wrong(request, proceed):
        return await proceed(None)

    shop = agent("never", middleware=[Around(model=wrong)])
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert view.error is not None
    assert (view.error.type, "not with a ModelRequest" in view.error.message) == ("MiddlewareError", True)


async def test_budget_counts_what_hooks_answer(lab: Lab) -> None:
    """A reply that says what it has used counts as it says."""

    async def answer(request, proceed):
        return AiMessage("cached", usage=Usage(70, 40))

    shop = agent(policy=ExecutionPolicy(budget=Budget(max_total_tokens=100)), middleware=[Around(model=answer)])
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert (view.usage.total_tokens, view.status) == (110, Status.BUDGET_EXCEEDED)


def test_definitions() -> None:
    """Middleware is a list of objects, each once, with async hooks; a hook that is not overridden is not there."""

    class Plain(Middleware):
        def around_model_call(self, request, proceed):  # pyright: ignore[reportIncompatibleMethodOverride]
            return proceed(request)

    class Nothing(Middleware):
        pass

    nothing = Nothing()
    for wrong in ([Nothing], [nothing, nothing], nothing, "text", [object()], None):
        with pytest.raises(InvalidDefinition, match="middleware"):
            agent("x", middleware=wrong)
    with pytest.raises(InvalidDefinition, match=r"Plain\.around_model_call must be an async function"):
        agent("x", middleware=[Plain()])
    shop = agent("x", middleware=[nothing])
    assert (shop.middleware, shop.hooks.step, shop.hooks.model, shop.hooks.tool) == ((nothing,), (), (), ())
    assert shop.replace(version="2").middleware == (nothing,)
