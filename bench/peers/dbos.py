"""DBOS: a workflow of steps that waits for a message (`python -m bench.peers.dbos`)."""
# pyright: reportMissingImports=false

from __future__ import annotations

import logging
from typing import Any

from dbos import DBOS, DBOSClient, DBOSConfig, SetWorkflowID

from .worker import ANSWER, Place, Refunds, asked_for, main, order_in

HOUR = 3600
POLL = 0.01  # seconds; what cannot be notified is polled


class Dbos:
    """A workflow that models a turn. It runs in the process that started it; others send to it by a client."""

    package = "dbos"

    def __init__(self, place: Place, refunds: Refunds) -> None:
        logging.disable(logging.WARNING)
        self._place = place
        self._handles: dict[str, Any] = {}
        self._client: Any = None

        @DBOS.step()
        async def ask_model(prompt: str, result: str | None) -> dict[str, Any]:
            return {"answer": ANSWER} if result else {"tool": "refund_order", "order_id": order_in(prompt)}

        @DBOS.step()
        async def refund_order(order_id: str) -> str:
            return await refunds.run(order_id)

        @DBOS.workflow()
        async def turn(prompt: str) -> str:
            call = await ask_model(prompt, None)
            await DBOS.set_event_async("waits for", call)
            if not await DBOS.recv_async("approval", timeout_seconds=HOUR):
                return "rejected"
            return (await ask_model(prompt, await refund_order(call["order_id"])))["answer"]

        self._turn = turn

    async def open(self) -> None:
        url = f"sqlite:///{self._place.url}" if self._place.store == "sqlite" else self._place.url
        if not self._place.serves:
            self._client = DBOSClient(system_database_url=url)
            return
        config: DBOSConfig = {"name": "orders", "system_database_url": url, "enable_otlp": False}
        if self._place.store == "sqlite":
            config["notification_listener_polling_interval_sec"] = POLL
        DBOS(config=config)
        DBOS.launch()

    async def start(self, order: str) -> str:
        with SetWorkflowID(order):
            self._handles[order] = await DBOS.start_workflow_async(self._turn, asked_for(order))
        assert await DBOS.get_event_async(order, "waits for", timeout_seconds=60), "it waits"
        return order

    async def approve(self, handle: str, by: str) -> str:
        if self._client is None:
            await DBOS.send_async(handle, by, "approval")
            return await self._handles[handle].get_result()
        await self._client.send_async(handle, by, "approval")
        return await (await self._client.retrieve_workflow_async(handle)).get_result(polling_interval_sec=POLL)

    async def close(self) -> None:
        if self._client is None:
            DBOS.destroy()
        else:
            self._client.destroy()


if __name__ == "__main__":
    main(Dbos)
