"""One executor: ``python node.py NAME URL``. It runs turns until its standard input ends; a line of that is a turn to approve."""

from __future__ import annotations

import asyncio
import os
import sys

from story import LEASE, agent, say

from turnhold import ResumeCommand, Runtime


async def main(name: str, url: str) -> None:
    # `services` reaches the tools: here they only want to know where they run.
    async with Runtime(url, agents=[agent()], node=name, lease=LEASE, services=name) as runtime:
        say(name, "opens", f"executor, process {os.getpid()}")
        while turn_id := (await asyncio.to_thread(sys.stdin.readline)).strip():
            (wait,) = (await runtime.turn(turn_id).view()).open_waits
            receipt = await runtime.turn(turn_id).submit(ResumeCommand.approve_tool(wait, by="ann"))
            say(name, "answers", f"{receipt.effect.value} by {receipt.by}")
    say(name, "leaves", "drained")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
