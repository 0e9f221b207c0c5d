"""Section E: a person says whether a call may run."""

from __future__ import annotations

import asyncio
import json

import pytest

from turnhold import (
    AlreadyAnswered,
    ApprovalDecision,
    Effect,
    EventType,
    ExecutionPolicy,
    InvalidFormData,
    Phase,
    ResumeCommand,
    Status,
    SuspensionMismatch,
    SuspensionType,
)
from turnhold.testing import call

from .lab import Desk, Lab, agent, approved, model_of, open_calls, result_of, stored_events, talk, told, waiting


async def test_waits(lab: Lab, desk: Desk) -> None:
    """E75: a gated call stops the turn before the tool; the wait names the call."""
    shop = agent(call("refund", amount=5), "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "please")

    view = await turn.settle()

    assert view.status is Status.WAITING_FOR_APPROVAL
    assert view.phase is Phase.TOOLS
    assert view.suspension is not None
    assert view.suspension.type is SuspensionType.TOOL_APPROVAL
    assert view.suspension.correlation_id == "call_1_0"
    assert view.suspension.call is not None
    assert view.suspension.call.arguments == {"amount": 5}
    assert [pending.id for pending in view.pending_calls] == ["call_1_0"]
    assert desk.starts == []


async def test_approve(lab: Lab, desk: Desk) -> None:
    """E76: approved, it runs exactly once and the turn completes."""
    shop = agent(call("refund", amount=5), "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    view = await approved(turn, wait, by="ann")

    assert (view.status, view.final_output) == (Status.COMPLETED, "done")
    assert desk.arguments == [{"amount": 5, "text": ""}]
    assert talk(await turn.history()) == ["user: hi", "assistant -> refund", "call_1_0 = refunded", "assistant: done"]


async def test_reject(lab: Lab, desk: Desk) -> None:
    """E77: rejected, the tool never runs; the model reads the reason and the turn completes."""
    shop = agent(call("refund"), "sorry", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    view = await turn.resume(ResumeCommand.reject_tool(wait, "too much", by="ann"))

    assert (view.status, view.final_output) == (Status.COMPLETED, "sorry")
    assert desk.starts == []
    seen = model_of(shop).requests[-1].messages
    assert json.loads(result_of(seen)) == {"error": True, "type": "tool_rejected", "message": "too much", "by": "human"}


async def test_another_node(lab: Lab, desk: Desk) -> None:
    """E78, E79, T88: any node on the store may approve; the first one finds the turn finished and nothing happens again."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn, wait = await waiting(first, shop)

    view = await approved(second.turn(turn.id), wait, by="ann")
    again = await turn.settle()

    assert view.status is again.status is Status.COMPLETED
    assert again.version == view.version
    assert desk.starts == ["refund"]
    assert len(model_of(shop).requests) == 2


async def test_reject_elsewhere(lab: Lab, desk: Desk) -> None:
    """E80: a rejection from another node; the reason stays with the receipt's event, the tool does not run."""
    shop = agent(call("refund"), "sorry", tools=[desk.tool(approval=True)])
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn, wait = await waiting(first, shop)

    receipt = await second.turn(turn.id).submit(ResumeCommand.reject_tool(wait, "no budget", by="bob"))
    await turn.settle()

    assert (receipt.effect, receipt.by) == (Effect.REJECTED, "bob")
    (event,) = [event for event in await stored_events(turn) if event.type is EventType.TOOL_REJECTED]
    assert told(event) == {"toolCallId": "call_1_0", "toolName": "refund", "reason": "no budget", "by": "bob"}
    assert desk.starts == []


def strict(turn, call, tool):
    return ApprovalDecision.require(code="LIMIT", message="More than 100?", reason="rule 7", metadata={"rule": 7}, assignee="boss")


async def test_decision(lab: Lab, desk: Desk) -> None:
    """E81: what the policy says is readable at the wait."""
    shop = agent(call("refund"), "done", tools=[desk.tool()], approval=strict)
    runtime = await lab.runtime(shop)

    _, wait = await waiting(runtime, shop)

    assert wait.message == "More than 100?"
    assert wait.assignee == "boss"
    assert wait.metadata["approvalCode"] == "LIMIT"
    assert wait.metadata["approvalReason"] == "rule 7"
    assert wait.metadata["approvalMetadata"] == {"rule": 7}


async def test_rejection_text(lab: Lab, desk: Desk) -> None:
    """E82: the model reads code, human reason and the policy's metadata."""
    shop = agent(call("refund"), "sorry", tools=[desk.tool()], approval=strict)
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    await turn.resume(ResumeCommand.reject_tool(wait, "not today"))

    result = json.loads(result_of(await turn.history()))
    assert (result["code"], result["message"], result["metadata"]) == ("LIMIT", "not today", {"rule": 7})


async def test_denied(lab: Lab, desk: Desk) -> None:
    """E83, T37, T38: a call that the policy denies cannot reach its function; the model reads code, reason and metadata."""

    def never(turn, call, tool):
        return ApprovalDecision.deny(code="NO", reason="not here", metadata={"rule": 1})

    shop = agent(call("refund"), "sorry", tools=[desk.tool()], approval=never)
    runtime = await lab.runtime(shop)

    view = await runtime.run(shop, "hi")

    assert (view.status, desk.starts) == (Status.COMPLETED, [])
    result = json.loads(result_of(model_of(shop).requests[-1].messages))
    assert result == {
        "error": True,
        "type": "tool_rejected",
        "message": "not here",
        "by": "policy",
        "code": "NO",
        "metadata": {"rule": 1},
    }


@pytest.mark.parametrize("order", [("gated", "free"), ("free", "gated")])
async def test_only_one_gated(lab: Lab, desk: Desk, order: tuple[str, str]) -> None:
    """E84, E85, T22: only the marked call asks, the other one runs meanwhile; results enter the history in the reply's order."""
    tools = [desk.tool("gated", result="G", approval=True), desk.tool("free", result="F")]
    shop = agent([call(name) for name in order], "done", tools=tools)
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    assert wait.call is not None
    assert wait.call.name == "gated"
    assert desk.starts == ["free"]
    view = await approved(turn, wait)

    assert view.status is Status.COMPLETED
    assert sorted(desk.starts) == ["free", "gated"]
    history = await turn.history()
    assert talk(history)[2:4] == [f"call_1_{index} = {name[0].upper()}" for index, name in enumerate(order)]
    assert open_calls(history) == []


async def test_settle_again(lab: Lab, desk: Desk) -> None:
    """E86: a turn that waits goes on waiting, however often it is looked at; the model is asked once."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn, wait = await waiting(first, shop)

    for runtime in (first, second, first):
        view = await runtime.turn(turn.id).settle()
        assert view.open_waits == (wait,)

    assert len(model_of(shop).requests) == 1
    assert [pending.id for pending in view.pending_calls] == ["call_1_0"]


async def test_only_submitted(lab: Lab, desk: Desk) -> None:
    """E87, E88: accepted on a node that runs nothing, the turn can run, and any executor completes it."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    first = await lab.runtime(shop)
    turn, wait = await waiting(first, shop)
    await lab.close(first)
    desks = await lab.runtime(execute=False)

    receipt = await desks.turn(turn.id).submit(ResumeCommand.approve_tool(wait))
    await lab.idle()
    view = await desks.turn(turn.id).view()

    assert receipt.effect is Effect.APPROVED
    assert (view.status, view.phase) == (Status.RUNNING, Phase.TOOLS)
    assert desk.starts == []
    third = await lab.runtime(shop)
    assert (await third.turn(turn.id).settle()).status is Status.COMPLETED
    assert (desk.starts, len(model_of(shop).requests)) == (["refund"], 2)


@pytest.mark.parametrize("name", ["call_9_9", "00-aaaaaaaaaaaaaaaaaaaaaaaaaa/call_1_0/1"])
async def test_wrong_call(lab: Lab, desk: Desk, name: str) -> None:
    """E89, T31: an answer to something that does not wait is refused; the wait stays open."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    with pytest.raises(SuspensionMismatch):
        await turn.submit(ResumeCommand.approve_tool(name))

    assert (await turn.view()).open_waits == (wait,)
    assert desk.starts == []


async def test_twice(lab: Lab, desk: Desk) -> None:
    """E90, T01: the same command gets the same receipt, another one a refusal that says who decided what, and whether it agrees."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)
    command = ResumeCommand.approve_tool(wait, command_id="c1", by="ann")

    first = await turn.submit(command)
    same = await turn.submit(command)
    with pytest.raises(AlreadyAnswered) as yes:
        await turn.submit(ResumeCommand.approve_tool(wait, by="bob"))
    with pytest.raises(AlreadyAnswered) as no:
        await turn.submit(ResumeCommand.reject_tool(wait, by="bob"))

    assert (first.replayed, same.replayed) == (False, True)
    assert same.to_dict() | {"replayed": False} == first.to_dict() | {"replayed": False}
    assert (yes.value.agrees, no.value.agrees) == (True, False)
    assert yes.value.receipt.by == no.value.receipt.by == "ann"
    await turn.settle()
    assert desk.starts == ["refund"]


async def test_metadata(lab: Lab, desk: Desk) -> None:
    """E91: who approved, and with what remarks, is on the receipt."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    receipt = await turn.submit(ResumeCommand.approve_tool(wait, by="ann", metadata={"ticket": 12}))

    assert (receipt.by, receipt.metadata, receipt.suspension_id) == ("ann", {"ticket": 12}, wait.id)
    assert receipt.at == lab.clock.now()


async def test_old_version(lab: Lab) -> None:
    """E92: a turn stays with its version: approved after version 2 came, version 1's tool runs and version 2 is never asked."""
    old, new = Desk(), Desk()
    one = agent(call("refund"), "one", version="1", tools=[old.tool(approval=True)])
    two = agent(call("refund"), "two", version="2", tools=[new.tool(approval=True)])
    first = await lab.runtime(one)
    turn, wait = await waiting(first, one)
    second = await lab.runtime(one, two)

    view = await approved(second.turn(turn.id), wait)

    assert (view.final_output, view.agent_version) == ("one", "1")
    assert (old.starts, new.starts, model_of(two).requests) == (["refund"], [], [])


async def test_edited(lab: Lab, desk: Desk) -> None:
    """T39, T34: edited arguments replace all; the tool gets them, model and history see them and who edited them."""
    shop = agent(call("refund", amount=500, text="x"), "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    view = await approved(turn, wait, arguments={"amount": 50}, by="ann")

    assert view.status is Status.COMPLETED
    assert desk.arguments == [{"amount": 50, "text": ""}]
    for messages in (await turn.history(), model_of(shop).requests[-1].messages):
        (asked,) = [one for message in messages for one in getattr(message, "tool_calls", ())]
        assert (asked.arguments, asked.edited_by) == ({"amount": 50}, "ann")
    assert "edited" in result_of(model_of(shop).requests[-1].messages)
    assert result_of(await turn.history()) == "refunded"


@pytest.mark.parametrize(
    ("arguments", "path"), [({"amount": "much"}, "$.amount"), ({"amount": 1, "card": 2}, "$.card"), ({"text": None}, "$.text")]
)
async def test_edited_wrongly(lab: Lab, desk: Desk, arguments: dict, path: str) -> None:
    """T103, T131: edited arguments that do not fit are refused with their place; the wait stays open for a right answer."""
    shop = agent(call("refund", amount=500), "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    with pytest.raises(InvalidFormData) as refused:
        await turn.submit(ResumeCommand.approve_tool(wait, arguments=arguments, command_id="c1"))

    assert [place for place, _ in refused.value.faults] == [path]
    assert (await turn.view()).open_waits == (wait,)
    await turn.resume(ResumeCommand.approve_tool(wait, arguments={"amount": 1}, command_id="c1"))
    assert desk.arguments == [{"amount": 1, "text": ""}]


@pytest.mark.parametrize(
    ("decision", "runs"),
    [(ApprovalDecision.allow(), 1), (ApprovalDecision.require(), 1), (ApprovalDecision.deny(reason="even so"), 0)],
    ids=["allow", "require", "deny"],
)
async def test_edited_and_asked_again(lab: Lab, desk: Desk, decision: ApprovalDecision, runs: int) -> None:
    """DESIGN 5.3: the policy is asked about edited arguments: they run unless it denies; nobody has to approve twice."""
    asked: list[dict] = []

    def policy(turn, call, tool):
        asked.append(call.arguments)
        return ApprovalDecision.require() if len(asked) == 1 else decision

    shop = agent(call("refund", amount=500), "done", tools=[desk.tool()], approval=policy)
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    view = await approved(turn, wait, arguments={"amount": 5})

    assert view.status is Status.COMPLETED
    assert asked == [{"amount": 500}, {"amount": 5}]
    assert len(desk.starts) == runs
    if not runs:
        assert "even so" in result_of(await turn.history())


async def test_same_arguments(lab: Lab, desk: Desk) -> None:
    """DESIGN 5.3: arguments that are given but not changed are no edit; the policy is not asked again."""
    asked: list[str] = []

    def policy(turn, call, tool):
        asked.append(call.id)
        return True

    shop = agent(call("refund", amount=5), "done", tools=[desk.tool()], approval=policy)
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    await approved(turn, wait, arguments={"amount": 5}, by="ann")

    assert asked == ["call_1_0"]
    (seen,) = [one for message in await turn.history() for one in getattr(message, "tool_calls", ())]
    assert seen.edited_by is None


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
async def test_any_order(lab: Lab, desk: Desk, order: tuple[int, ...]) -> None:
    """T18, T23, T26, T30: all waits of a reply are open at once; each may be answered alone, in any order, and runs at once."""
    names = ("a", "b", "c")
    shop = agent([call(name) for name in names], "done", tools=[desk.tool(name, result=name, approval=True) for name in names])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    waits = (await turn.settle()).open_waits
    assert [wait.correlation_id for wait in waits] == ["call_1_0", "call_1_1", "call_1_2"]

    for count, index in enumerate(order, 1):
        view = await approved(turn, waits[index])
        assert desk.starts == [names[index] for index in order[:count]]
        assert len(view.open_waits) == len(order) - count

    assert view.status is Status.COMPLETED
    assert talk(await turn.history())[2:5] == ["call_1_0 = a", "call_1_1 = b", "call_1_2 = c"]
    assert len(model_of(shop).requests) == 2


async def test_mixed_answers(lab: Lab, desk: Desk) -> None:
    """T16, T21: an answer that names no wait is refused while two fit (it says which are open); one answer moves one call."""
    shop = agent([call("a"), call("b")], "done", tools=[desk.tool("a", approval=True), desk.tool("b", approval=True)])
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    waits = (await turn.settle()).open_waits

    with pytest.raises(SuspensionMismatch) as refused:
        await turn.submit(ResumeCommand.approve_tool())
    assert {wait.id for wait in refused.value.open_waits} == {wait.id for wait in waits}
    assert desk.starts == []

    await turn.resume(ResumeCommand.reject_tool("call_1_1", "no"))
    assert (desk.starts, (await turn.view()).status) == ([], Status.WAITING_FOR_APPROVAL)
    view = await turn.resume(ResumeCommand.approve_tool())

    assert (view.status, desk.starts) == (Status.COMPLETED, ["a"])


@pytest.mark.parametrize("second", ["same id", "agrees", "differs"])
async def test_two_at_once(lab: Lab, desk: Desk, second: str) -> None:
    """T11, F99, T05, T74: two nodes answer one wait at once: one tool run; the loser gets the receipt or a typed refusal."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    first, other = await lab.runtime(shop), await lab.runtime(shop)
    turn, wait = await waiting(first, shop)
    one = ResumeCommand.approve_tool(wait, command_id="c1", by="ann")
    two = {
        "same id": one,
        "agrees": ResumeCommand.approve_tool(wait, command_id="c2", by="bob"),
        "differs": ResumeCommand.reject_tool(wait, command_id="c2", by="bob"),
    }[second]

    both = asyncio.gather(turn.submit(one), other.turn(turn.id).submit(two), return_exceptions=True)
    won, lost = await lab.during(both)
    view = await lab.during(turn.settle())

    assert view.status is Status.COMPLETED
    assert not isinstance(won, BaseException)
    assert desk.starts == (["refund"] if won.effect is Effect.APPROVED else [])
    if second == "same id":
        assert not isinstance(lost, BaseException)
        assert {won.replayed, lost.replayed} == {True, False}
    else:
        assert isinstance(lost, AlreadyAnswered)
        assert (lost.receipt.by, lost.agrees) == ("ann", second == "agrees")


async def test_tool_decides(lab: Lab, desk: Desk) -> None:
    """DESIGN 4: a tool's own approval may look at its arguments; of tool and agent the strictest wins."""

    def large(amount: int) -> bool:
        return amount > 100

    shop = agent([call("refund", amount=5), call("refund", amount=500)], "done", tools=[desk.tool(approval=large)])
    runtime = await lab.runtime(shop)

    _, wait = await waiting(runtime, shop)

    assert wait.correlation_id == "call_1_1"
    assert desk.arguments == [{"amount": 5, "text": ""}]


async def test_inbox(lab: Lab, desk: Desk) -> None:
    """T33, T42: the inbox lists open waits by whom they are for, and nothing that can no longer be answered."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True, assignee="ann")])
    runtime = await lab.runtime(shop)
    other = await lab.runtime(execute=False)
    turn, wait = await waiting(runtime, shop, tenant="acme")
    await waiting(runtime, shop)

    assert wait in (await other.inbox(assignee="ann")).items
    assert [found.id for found in (await other.inbox(tenant="acme")).items] == [wait.id]
    assert (await other.inbox(assignee="bob")).items == ()
    await approved(turn, wait)
    assert wait.id not in [found.id for found in (await other.inbox()).items]


async def test_expires(lab: Lab, desk: Desk) -> None:
    """T100, T102: without `expires_in` a wait never ends by itself, and its turn can always be cancelled."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    await lab.clock.advance(600)

    assert wait.expires_at is None
    assert (await turn.view()).open_waits == (wait,)
    assert (await turn.cancel()).status is Status.CANCELLED


async def test_approval_is_not_remembered(lab: Lab, desk: Desk) -> None:
    """T02: an approval is used once; a later call of the same tool with the same arguments asks again."""
    shop = agent(
        call("refund", amount=5),
        call("refund", amount=5),
        "done",
        tools=[desk.tool(approval=True)],
        policy=ExecutionPolicy(max_iterations=5),
    )
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)

    view = await approved(turn, wait)

    assert view.status is Status.WAITING_FOR_APPROVAL
    assert len(desk.starts) == 1
    with pytest.raises(AlreadyAnswered):
        await turn.submit(ResumeCommand.approve_tool(wait))
