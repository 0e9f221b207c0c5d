"""Restate: a workflow of steps that waits for an awakeable, served to Restate's own server (`python -m bench.peers.restate`)."""
# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import httpx
import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config

from .worker import ANSWER, Place, Refunds, asked_for, main, order_in


async def ask_model(prompt: str, result: str | None) -> dict[str, Any]:
    return {"answer": ANSWER} if result else {"tool": "refund_order", "order_id": order_in(prompt)}


class Restate:
    """A workflow that models a turn. The process that starts turns also serves them; others answer through the server."""

    package = "restate-sdk"

    def __init__(self, place: Place, refunds: Refunds) -> None:
        logging.disable(logging.WARNING)
        self._ingress, self._admin = place.url.split()
        self._serves = place.serves
        self._http = httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=200))
        self._waits: dict[str, asyncio.Future[str]] = {}
        self._ends = asyncio.Event()
        self._server: asyncio.Task[None] | None = None
        turn = restate.Workflow("Turn")

        @turn.main()
        async def run(ctx: restate.WorkflowContext, prompt: str) -> str:
            call = await ctx.run_typed("ask the model", ask_model, prompt=prompt, result=None)
            name, approval = ctx.awakeable()
            await ctx.run_typed("ask for approval", self._waiting, order=ctx.key(), name=name)
            if not await approval:
                return "rejected"
            result = await ctx.run_typed("refund_order", refunds.run, order=call["order_id"])
            return (await ctx.run_typed("ask the model again", ask_model, prompt=prompt, result=result))["answer"]

        self._turn = turn

    async def open(self) -> None:
        if not self._serves:
            return
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        config = Config()
        config.bind = [address]
        config.h2_max_concurrent_streams = 1000
        app: Any = restate.app([self._turn])
        self._server = asyncio.create_task(serve(app, config, shutdown_trigger=self._ends.wait))
        for _ in range(100):
            told = await self._http.post(f"{self._admin}/deployments", json={"uri": f"http://{address}", "force": True})
            if told.is_success:
                return
            await asyncio.sleep(0.1)
        raise RuntimeError(f"the server does not take the workflow: {told.text}")

    async def start(self, order: str) -> str:
        self._waits[order] = asyncio.get_running_loop().create_future()
        told = await self._http.post(f"{self._ingress}/Turn/{order}/run/send", json=asked_for(order))
        told.raise_for_status()
        name = await self._waits[order]
        del self._waits[order]
        return f"{order} {name}"

    async def approve(self, handle: str, by: str) -> str:
        order, name = handle.split()
        told = await self._http.post(f"{self._ingress}/restate/awakeables/{name}/resolve", json=by)
        told.raise_for_status()
        done = await self._http.get(f"{self._ingress}/restate/workflow/Turn/{order}/attach")
        done.raise_for_status()
        return done.json()

    async def close(self) -> None:
        self._ends.set()
        await self._http.aclose()
        if self._server is not None:
            await asyncio.wait([self._server], timeout=5)

    async def _waiting(self, order: str, name: str) -> None:
        """Hand the approval's name to who asks for it; in a step, so once its result is stored not again."""
        if (wait := self._waits.get(order)) is not None and not wait.done():
            wait.set_result(name)


if __name__ == "__main__":
    main(Restate)
