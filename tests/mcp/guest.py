"""Our side, as a process: ``guest.py STORE SERVER TOOL start`` or ``… answer TURN``; prints what it sees as one line of JSON.

SERVER is the URL of a shop, or ``stdio`` for one that is started here.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from turnhold import Agent, ResumeCommand, Runtime
from turnhold.models import ScriptedModel, call
from turnhold.protocols.mcp import McpServer

SHOP = Path(__file__).with_name("shop.py")


async def main(store: str, place: str, do: str, turn_id: str = "") -> None:
    if place == "stdio":
        keep = {key: value for key, value in os.environ.items() if key.startswith("SHOP_")}
        server = McpServer.stdio(sys.executable, [str(SHOP), "stdio"], name="shop", env=keep)
    else:
        server = McpServer.http(place, name="shop")
    async with server:
        tools = await server.tools(approval=False, effect="once")
        agent = Agent("guest", model=ScriptedModel(call("book", day="Monday"), "done"), tools=tools)
        async with Runtime(store, agents=[agent]) as runtime:
            if do == "start":
                turn = await runtime.start("guest", "hi")
                view = await turn.settle()
            else:
                turn = runtime.turn(turn_id)
                view = await turn.resume(ResumeCommand.submit_form(None, {"seats": 3}, by="ann"))
            results = [message.content for message in await turn.history() if message.to_dict()["role"] == "tool"]
            print(json.dumps({"turn": view.id, "status": view.status.value, "results": results}), flush=True)
            if do == "start":
                os._exit(9)  # the process is gone, and nothing is tidied up


asyncio.run(main(*sys.argv[1:]))
