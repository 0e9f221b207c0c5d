"""What stands between a call and its start, and what a save leaves behind for those who come later."""

from __future__ import annotations

from typing import Any

import pytest

from turnhold import AlreadyAnswered, ApprovalDecision, ExecutionPolicy, ResumeCommand, Runtime, Status
from turnhold.store import base
from turnhold.testing import call

from .lab import LEASE, Desk, Gate, Lab, agent, result_of, waiting

REQUIRE, ALLOW, DENY = ApprovalDecision.require(), ApprovalDecision.allow(), ApprovalDecision.deny()


class Around:
    """Does something just before, or just behind, the save that has a receipt and the intent of a call."""

    def __init__(self, *, before: Any = None, after: Any = None) -> None:
        self._before, self._after = before, after

    def before(self, op: base.Op) -> None:
        if self._before is not None and isinstance(op, base.Save) and op.receipts:
            self._before(op)

    def after(self, op: base.Op, reply: base.Reply) -> None:
        if self._after is not None and isinstance(op, base.Save) and op.receipts:
            self._after(op)


def flag(runtime: Runtime, op: base.Save) -> None:
    """Raise a turn's cancel flag, here and now."""
    connection = runtime._node._connection
    assert connection is not None
    with pytest.raises(StopIteration):
        connection.call(base.Cancel(turn=op.turn, cause="enough")).send(None)


@pytest.mark.parametrize("effect", ["once", "repeatable"])
async def test_flag_that_comes_with_the_intent(lab: Lab, desk: Desk, effect: Any) -> None:
    """DESIGN 5.8: the save that intends a call brings back a cancel that was raised just before it: the tool does not start."""
    shop = agent(call("refund"), "never", tools=[desk.tool(approval=True, effect=effect)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)
    runtime._node.fault = Around(before=lambda op: flag(runtime, op))

    view = await turn.resume(ResumeCommand.approve_tool(wait))

    assert (view.status, desk.starts) == (Status.CANCELLED, [])
    assert "was not started" in result_of(await turn.history())


@pytest.mark.parametrize("effect", ["once", "repeatable"])
async def test_flag_that_comes_behind_the_intent(lab: Lab, desk: Desk, effect: Any) -> None:
    """A tool that is stopped before it has taken its first step does not start, and nobody waits for it."""
    shop = agent(call("refund"), "never", tools=[desk.tool(approval=True, effect=effect, cancellable=True)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)
    runtime._node.fault = Around(after=lambda op: flag(runtime, op))
    before = lab.clock.time.now

    view = await lab.during(turn.resume(ResumeCommand.approve_tool(wait)))

    assert (view.status, desk.starts, lab.clock.time.now) == (Status.CANCELLED, [], before)
    assert "was not started" in result_of(await turn.history())


async def test_standing_still_behind_the_intent(lab: Lab, desk: Desk) -> None:
    """DESIGN 5.4, 8: a process that stands still past its lease between the save of an intent and the tool does not start it."""

    def stand_still(op: base.Save) -> None:
        lab.clock.time.now += round(2 * LEASE * 1e6)  # and no timer has had its turn

    shop = agent(call("refund"), "done", tools=[desk.tool(approval=True)])
    runtime = await lab.runtime(shop)
    turn, wait = await waiting(runtime, shop)
    runtime._node.fault = Around(after=stand_still)

    await turn.submit(ResumeCommand.approve_tool(wait))
    await lab.idle()
    assert desk.starts == []
    runtime._node.fault = None
    await lab.take_over()
    assert ((await turn.view()).status, desk.starts) == (Status.IN_DOUBT, [])


async def test_a_result_forgives_lost_owners(lab: Lab, desk: Desk) -> None:
    """DESIGN 5.9: owners that were lost before a result was recorded do not count behind it."""
    gates = [Gate(), Gate()]
    lost: set[int] = set()

    async def reply(request: Any) -> Any:
        at = request.iteration - 1
        if at not in lost:
            await gates[at].passing()
        return "done" if at else [call("refund")]

    shop = agent(reply, reply, tools=[desk.tool()], policy=ExecutionPolicy(max_crashes=2))
    runtime = await lab.runtime(shop)
    turn = await runtime.start(shop, "hi")
    for at in range(2):
        await lab.idle()
        assert gates[at].entered.is_set()
        lost.add(at)
        await lab.kill(runtime)
        runtime = await lab.runtime(shop)
        await lab.take_over()

    view = await lab.during(runtime.turn(turn.id).settle())
    assert (view.status, view.quarantine, desk.starts) == (Status.COMPLETED, None, ["refund"])


async def test_what_is_left_of_an_answered_wait(lab: Lab, desk: Desk) -> None:
    """DESIGN 5.6: once answered, a wait is in no inbox any more, and who names its call, on any node, is told who decided."""
    shop = agent([call("refund"), call("other")], "done", tools=[desk.tool(approval=True), desk.tool("other", approval=True)])
    first, second = await lab.runtime(shop), await lab.runtime(shop)
    turn = await first.start(shop, "hi")
    view = await turn.settle()

    await turn.resume(ResumeCommand.approve_tool(view.open_waits[0], by="ann"))

    assert [wait.id for wait in (await second.inbox()).items] == [view.open_waits[1].id]
    with pytest.raises(AlreadyAnswered) as refused:
        await second.turn(turn.id).submit(ResumeCommand.reject_tool("call_1_0"))
    assert refused.value.receipt.by == "ann"


@pytest.mark.parametrize(
    ("tools", "agents", "status"),
    [
        (REQUIRE, ALLOW, Status.WAITING_FOR_APPROVAL),
        (ALLOW, REQUIRE, Status.WAITING_FOR_APPROVAL),
        (DENY, REQUIRE, Status.COMPLETED),
        (REQUIRE, DENY, Status.COMPLETED),
    ],
)
async def test_strictest(lab: Lab, desk: Desk, tools: Any, agents: Any, status: Status) -> None:
    """DESIGN 4: of what the tool and the agent say the strictest wins, whichever of them says it."""
    shop = agent(call("refund"), "done", tools=[desk.tool(approval=tools)], approval=lambda turn, asked, tool: agents)
    runtime = await lab.runtime(shop)

    assert ((await runtime.run(shop, "hi")).status, desk.starts) == (status, [])
