"""Microsoft Agent Framework: a workflow that asks with `request_info` (`python -m bench.peers.agent_framework`)."""
# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

from agent_framework import Executor, FileCheckpointStorage, Workflow, WorkflowBuilder, WorkflowContext, handler, response_handler

from .worker import ANSWER, Place, Refunds, asked_for, main, order_in


class Desk(Executor):
    """Asks before it refunds."""

    def __init__(self, refunds: Refunds) -> None:
        super().__init__(id="desk")
        self._refunds = refunds

    @handler(input=str, workflow_output=str)
    async def refund(self, text: Any, context: WorkflowContext) -> None:
        await context.request_info(order_in(text), bool)

    @response_handler(request=str, response=bool, workflow_output=str)
    async def decided(self, order: Any, approved: Any, context: WorkflowContext) -> None:
        if approved:
            await self._refunds.run(order)
            await context.yield_output(ANSWER)


class AgentFramework:
    """A workflow of one executor; an instance serves one run, so each turn and each answer builds its own."""

    package = "agent-framework-core"

    def __init__(self, place: Place, refunds: Refunds) -> None:
        self._refunds = refunds
        self._storage = FileCheckpointStorage(place.url)

    async def open(self) -> None:
        pass

    async def start(self, order: str) -> str:
        workflow = self._workflow()
        (asked,) = (await workflow.run(asked_for(order))).get_request_info_events()
        return f"{workflow.get_last_checkpoint_id()} {asked.request_id}"

    async def approve(self, handle: str, by: str) -> str:
        checkpoint, request = handle.split()
        result = await self._workflow().run(checkpoint_id=checkpoint, responses={request: True})
        return result.get_outputs()[-1]

    async def close(self) -> None:
        pass

    def _workflow(self) -> Workflow:
        desk = Desk(self._refunds)
        return WorkflowBuilder(name="refunds", start_executor=desk, checkpoint_storage=self._storage, output_from=[desk]).build()


if __name__ == "__main__":
    main(AgentFramework)
