"""Section F: questions to people, plain and structured, asked by the application, the model or a tool."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from turnhold import (
    AlreadyAnswered,
    Budget,
    Effect,
    EventType,
    ExecutionPolicy,
    FormDefinition,
    FormRequired,
    InvalidFormData,
    Phase,
    ResumeCommand,
    RetryPolicy,
    Status,
    SuspensionMismatch,
    ToolContext,
    WrongCommand,
    tool,
    user_input_tool,
)
from turnhold.testing import call

from .lab import Desk, Lab, agent, model_of, open_calls, result_of, stored_events, types, waiting

SCHEMA: dict[str, Any] = {
    "title": "Your order",
    "type": "object",
    "properties": {"order": {"type": "string"}, "count": {"type": "integer", "minimum": 1}},
    "required": ["order"],
    "additionalProperties": False,
}
ORDER = FormDefinition("order", description="which order", schema=SCHEMA, assignee="ann")
ANY = FormDefinition("any", description="anything", schema={"description": "no limits"})
ASK = call("request_user_input", form_key="order")


async def test_known_by_id(lab: Lab, desk: Desk) -> None:
    """F97, F98: a turn that is known by its id only is answered by any node; its history may be copied anywhere."""
    shop = agent(ASK, "done", tools=[user_input_tool(ORDER)])
    first = await lab.runtime(shop)
    turn, _ = await waiting(first, shop)
    await lab.close(first)
    second = await lab.runtime(shop)

    view = await second.turn(str(turn.id)).resume(ResumeCommand.submit_form("call_1_0", {"order": "O-1"}))
    copy = list(await second.turn(turn.id).history())

    assert view.status is Status.COMPLETED
    assert [message.to_dict()["role"] for message in copy] == ["user", "assistant", "tool", "assistant"]


async def test_form_of_the_model(lab: Lab) -> None:
    """F100, F101, F102: the model picks a form; the wait has its key and full schema, the call stays pending."""
    shop = agent(ASK, "done", tools=[user_input_tool(ORDER)])
    runtime = await lab.runtime(shop)

    turn, wait = await waiting(runtime, shop)
    view = await turn.view()

    (offered,) = model_of(shop).requests[0].tools
    assert offered.name == "request_user_input"
    assert (view.status, view.phase) == (Status.WAITING_FOR_USER, Phase.TOOLS)
    assert (wait.form_key, wait.schema, wait.message, wait.assignee) == ("order", SCHEMA, "Your order", "ann")
    assert [pending.id for pending in view.pending_calls] == ["call_1_0"]


async def test_wrong_id(lab: Lab) -> None:
    """F104: a submission for another call is refused, the form stays open."""
    shop = agent(ASK, "done", tools=[user_input_tool(ORDER)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    with pytest.raises(SuspensionMismatch):
        await turn.submit(ResumeCommand.submit_form("call_7_0", {"order": "O-1"}))

    assert (await turn.view()).open_waits == (wait,)


async def test_submission(lab: Lab) -> None:
    """F105, F106, F107, T43: submitted, the model reads status, form key and data under the call's id; the receipt says by whom."""
    shop = agent(ASK, "done", tools=[user_input_tool(ORDER)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    receipt = await turn.submit(ResumeCommand.submit_form(wait, {"order": "O-1", "count": 2}, by="ann"))
    view = await turn.settle()

    assert (receipt.effect, receipt.by) == (Effect.SUBMITTED, "ann")
    assert (view.status, view.pending_calls, view.tool_call_count) == (Status.COMPLETED, (), 0)
    result = json.loads(result_of(model_of(shop).requests[-1].messages))
    assert result == {"status": "submitted", "formKey": "order", "data": {"order": "O-1", "count": 2}}


async def test_then_a_tool(lab: Lab, desk: Desk) -> None:
    """F109: what was submitted can go on into a business tool."""

    def refund(request):
        data = json.loads(result_of(request.messages))["data"]
        return call("refund", text=data["order"])

    shop = agent(ASK, refund, "done", tools=[user_input_tool(ORDER), desk.tool()])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    view = await turn.resume(ResumeCommand.submit_form(wait, {"order": "O-1"}))

    assert (view.final_output, desk.arguments) == ("done", [{"amount": 0, "text": "O-1"}])


@pytest.mark.parametrize("asked", [{"form_key": "nope"}, {}, {"form_key": 3}])
async def test_unknown_form(lab: Lab, asked: dict) -> None:
    """R17 (W-25): a form key that does not exist goes back to the model; nobody is asked."""
    shop = agent(call("request_user_input", **asked), "sorry", tools=[user_input_tool(ORDER)])
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert view.final_output == "sorry"
    assert json.loads(result_of(model_of(shop).requests[-1].messages))["error"] is True


async def test_form_of_a_tool(lab: Lab, desk: Desk) -> None:
    """F110, F111, F112, T114, T115: a tool asks before any side effect: its call waits, one attempt, no failure."""
    shop = agent(call("refund"), "done", tools=[desk.tool(forms=[ORDER])])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)
    view = await turn.view()
    seen = [event.type async for event in _until(turn, EventType.TURN_SUSPENDED)]

    assert (view.status, view.phase, wait.correlation_id) == (Status.WAITING_FOR_USER, Phase.TOOLS, "call_1_0")
    assert (wait.form_key, wait.metadata["toolName"]) == ("order", "refund")
    assert [pending.name for pending in view.pending_calls] == ["refund"]
    assert desk.attempts == [1]
    assert seen[-4:] == [
        EventType.TOOL_STARTED,
        EventType.TOOL_INPUT_REQUESTED,
        EventType.STEP_COMPLETED,
        EventType.TURN_SUSPENDED,
    ]
    assert EventType.TOOL_FAILED not in seen


async def _until(turn, last: EventType):
    async for event in turn.events(live=False):
        yield event
        if event.type is last:
            return


async def test_form_of_a_tool_elsewhere(lab: Lab, desk: Desk) -> None:
    """F114, F115, F117: submitted on another node, the tool runs again from its start with the data; two starts, one completion."""
    shop = agent(call("refund"), "done", tools=[desk.tool(forms=[ORDER])])
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn, wait = await waiting(first, shop)
    await lab.close(first)
    there = second.turn(turn.id)

    view = await there.resume(ResumeCommand.submit_form(wait, {"order": "O-1"}, by="bob"))

    assert (view.status, desk.attempts) == (Status.COMPLETED, [1, 2])
    assert desk.keys == [f"{turn.id}:call_1_0"] * 2
    assert result_of(await there.history()) == '{"order":"O-1"}'
    seen = await types(there)
    assert [seen.count(kind) for kind in (EventType.TOOL_STARTED, EventType.TOOL_COMPLETED, EventType.TOOL_FAILED)] == [2, 1, 0]


async def test_form_and_budget(lab: Lab, desk: Desk) -> None:
    """F116: asking for a form and running again counts as one call."""
    policy = ExecutionPolicy(budget=Budget(max_tool_calls=1))
    shop = agent(call("refund"), "done", tools=[desk.tool(forms=[ORDER])], policy=policy)
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    view = await turn.resume(ResumeCommand.submit_form(wait, {"order": "O-1"}))

    assert (view.status, view.tool_call_count) == (Status.COMPLETED, 1)


@pytest.mark.parametrize("data", [None, False, "", 0, {}, [], 1.5, "text", {"a": [1]}], ids=repr)
@pytest.mark.parametrize("kind", ["model", "tool"])
async def test_every_value_is_an_answer(lab: Lab, desk: Desk, kind: str, data: Any) -> None:
    """R25 (W-31), T32: None, False, "", 0, {} and [] are answers like any other, where the schema allows them."""
    first = call("refund") if kind == "tool" else call("request_user_input", form_key="any")
    shop = agent(first, "done", tools=[desk.tool(forms=[ANY]), user_input_tool(ANY)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    view = await turn.resume(ResumeCommand.submit_form(wait, data))

    assert view.status is Status.COMPLETED
    result = result_of(await turn.history())
    if kind == "model":
        assert json.loads(result)["data"] == data
    else:
        assert (result if isinstance(data, str) else json.loads(result)) == data


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ({"count": 1}, "$.order"),
        ({"order": "O-1", "count": "x"}, "$.count"),
        ({"order": "O-1", "count": 0}, "$.count"),
        ({"order": 3}, "$.order"),
        ({"order": "O-1", "more": 1}, "$.more"),
        ("O-1", "$"),
        (None, "$"),
        ([], "$"),
    ],
    ids=repr,
)
async def test_data_is_validated(lab: Lab, data: Any, place: str) -> None:
    """T131, T103: data that does not fit is refused with its place; nothing changes and the right data still goes."""
    shop = agent(ASK, "done", tools=[user_input_tool(ORDER)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)
    before = (await turn.view()).to_dict()
    await lab.clock.advance(1)

    with pytest.raises(InvalidFormData) as refused:
        await turn.submit(ResumeCommand.submit_form(wait, data, command_id="c1"))

    assert place in [path for path, _ in refused.value.faults]
    assert (await turn.view()).to_dict() | {"version": 0} == before | {"version": 0}
    assert (await turn.resume(ResumeCommand.submit_form(wait, {"order": "O-1"}, command_id="c1"))).status is Status.COMPLETED


async def test_text_for_a_form(lab: Lab, desk: Desk) -> None:
    """R25 (W-31): text does not answer a form, data no plain question; the wait says what it takes."""
    shop = agent(call("refund"), "done", tools=[desk.tool(forms=[ORDER])])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    with pytest.raises(WrongCommand):
        await turn.submit(ResumeCommand.user_input("O-1", wait=wait))

    assert (await turn.view()).open_waits == (wait,)


@pytest.mark.parametrize("kind", ["model", "tool"])
async def test_decline(lab: Lab, desk: Desk, kind: str) -> None:
    """R25 (W-31): declined, the call ends with a structured result and its tool does not run again."""
    first = call("refund") if kind == "tool" else ASK
    shop = agent(first, "as you like", tools=[desk.tool(forms=[ORDER]), user_input_tool(ORDER)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    view = await turn.resume(ResumeCommand.decline(wait, "not my business", by="ann"))

    assert (view.status, view.final_output) == (Status.COMPLETED, "as you like")
    assert len(desk.starts) == (kind == "tool")
    result = json.loads(result_of(model_of(shop).requests[-1].messages))
    assert result == {"status": "declined", "reason": "not my business"}


async def test_several_forms(lab: Lab, desk: Desk) -> None:
    """R25 (W-31), T61: a tool may ask for several forms, each once, one answer for each."""
    shop = agent(call("refund"), "done", tools=[desk.tool(forms=[ORDER, ANY])])
    runtime = await lab.runtime(shop)
    turn, first = await waiting(runtime, shop)

    view = await turn.resume(ResumeCommand.submit_form(first, {"order": "O-1"}))
    (second,) = view.open_waits
    assert (first.form_key, second.form_key) == ("order", "any")
    with pytest.raises(AlreadyAnswered):
        await turn.submit(ResumeCommand.submit_form(first, {"order": "O-2"}))
    view = await turn.resume(ResumeCommand.submit_form(second, 7))

    assert (view.status, desk.attempts) == (Status.COMPLETED, [1, 2, 3])
    assert result_of(await turn.history()) == "7"


@pytest.mark.parametrize("policy", [ExecutionPolicy(), ExecutionPolicy(tool_errors="return_to_model")], ids=["fail", "tell"])
async def test_asked_twice(lab: Lab, policy: ExecutionPolicy) -> None:
    """R25 (W-31): a tool that asks again for what it has is a loop: an error, not retried, nobody is asked again."""
    starts: list[int] = []

    @tool
    async def again() -> str:
        """Ask again and again."""
        starts.append(ToolContext.current().attempt)
        raise FormRequired(ORDER)

    retrying = ExecutionPolicy(tool_errors=policy.tool_errors, retry_policy=RetryPolicy(max_retries=3))
    shop = agent(call("again"), "sorry", tools=[again], policy=retrying)
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    view = await turn.resume(ResumeCommand.submit_form(wait, {"order": "O-1"}))

    assert starts == [1, 2]
    if policy.tool_errors == "fail":
        assert view.status is Status.FAILED
        assert view.error is not None
        assert view.error.type == "FormLoop"
    else:
        assert view.final_output == "sorry"
        assert "FormLoop" in result_of(await turn.history())


async def test_typed_form(lab: Lab) -> None:
    """DESIGN 4: a form of a type gives the tool an object of that type."""
    seen: list[object] = []

    @tool
    async def ship() -> str:
        """Ship it."""
        address = ToolContext.current().form(ADDRESS)
        seen.append(address)
        return address.street

    shop = agent(call("ship"), "done", tools=[ship])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)
    with pytest.raises(InvalidFormData):
        await turn.submit(ResumeCommand.submit_form(wait, {"street": 3}))

    view = await turn.resume(ResumeCommand.submit_form(wait, {"street": "Long Lane"}))

    assert view.status is Status.COMPLETED
    assert seen == [Address("Long Lane")]


@dataclass
class Address:
    street: str


ADDRESS = FormDefinition("address", description="where to", schema=Address)


async def test_swallowed_by_nobody(lab: Lab) -> None:
    """T114: a tool whose own code catches every Exception still asks; the pause is no error that it could eat."""

    @tool
    async def careful() -> str:
        """Catch everything."""
        try:
            return str(ToolContext.current().form(ORDER))
        except Exception:  # the subject
            return "swallowed"

    shop = agent(call("careful"), "done", tools=[careful])
    runtime = await lab.runtime(shop)

    turn, wait = await waiting(runtime, shop)
    await turn.resume(ResumeCommand.submit_form(wait, {"order": "O-1"}))

    assert result_of(await turn.history()) == "{'order': 'O-1'}"


@pytest.mark.blocking("worker threads")
async def test_form_in_a_thread(lab: Lab) -> None:
    """A plain function in its worker thread asks for forms in the same way."""
    attempts: list[int] = []

    @tool
    def refund() -> str:
        """Refund."""
        attempts.append(ToolContext.current().attempt)
        return ToolContext.current().form(ORDER)["order"]

    shop = agent(call("refund"), "done", tools=[refund])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    await turn.resume(ResumeCommand.submit_form(wait, {"order": "O-1"}))

    assert (attempts, result_of(await turn.history())) == ([1, 2], "O-1")


@pytest.mark.parametrize("end", ["reject", "cancel", "fail", "default"])
@pytest.mark.parametrize("kind", ["model", "tool"])
async def test_form_expires(lab: Lab, desk: Desk, kind: str, end: Any) -> None:
    """DESIGN 5.7, W-38: a form that nobody answers in time ends by its `on_expiry`; model and receipts say that it expired."""
    more: dict[str, Any] = {"default": {"order": "O-0"}} if end == "default" else {}
    form = FormDefinition("order", description="x", schema=SCHEMA, expires_in=60, on_expiry=end, **more)
    first = call("refund") if kind == "tool" else ASK
    shop = agent(first, "went on", tools=[desk.tool(forms=[form]), user_input_tool(form)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)
    assert wait.expires_at is not None
    assert (wait.expires_at - wait.created_at).total_seconds() == 60

    await lab.clock.advance(59)
    assert (await turn.view()).open_waits == (wait,)
    await lab.clock.advance(2)
    view = await turn.settle()

    history = await turn.history()
    assert open_calls(history) == []
    assert view.status is {"cancel": Status.CANCELLED, "fail": Status.FAILED}.get(end, Status.COMPLETED)
    if end == "reject":
        assert json.loads(result_of(history))["status"] == "expired"
        assert len(desk.starts) == (kind == "tool")
    if end == "default":
        assert "O-0" in result_of(history)
    (ended,) = [event for event in await stored_events(turn) if event.type is EventType.WAIT_ENDED]
    assert ended.data["effect"] == "EXPIRED"
    with pytest.raises(AlreadyAnswered) as late:
        await turn.submit(ResumeCommand.submit_form(wait, {"order": "O-1"}))
    assert (late.value.receipt.effect, late.value.receipt.by) == (Effect.EXPIRED, None)
