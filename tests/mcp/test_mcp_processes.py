"""Servers that are programs of the SDK, over pipes and over HTTP; our own process is restarted, theirs is killed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from turnhold import Runtime, SuspensionType
from turnhold.protocols.mcp import McpServer

from .wire import SHOP, agent, http_shop, run

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]
GUEST = Path(__file__).with_name("guest.py")
KEY = "k" * 32


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def guest(tmp_path: Path, place: str, *do: str) -> dict[str, Any]:
    """Let a process of ours do one thing."""
    env = {**os.environ, "SHOP_KEY": KEY, "SHOP_NOTES": str(tmp_path / "notes")}
    command = [sys.executable, str(GUEST), f"sqlite:///{tmp_path}/turns.db", place, *do]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A shop over pipes, started by who uses it, or one that serves HTTP."""
    if request.param == "stdio":
        yield "stdio"
        return
    port = free_port()
    with http_shop(port, **os.environ, SHOP_KEY=KEY, SHOP_NOTES=str(tmp_path / "notes")):
        yield f"http://127.0.0.1:{port}/mcp"


@pytest.mark.parametrize("place", [pytest.param("stdio", marks=pytest.mark.deep), "http"], indirect=True)
def test_answered_after_a_restart(place: str, tmp_path: Path) -> None:
    """T87: a question of a real server is answered in a new process of ours, the first is gone; the tool takes effect once."""
    first = guest(tmp_path, place, "start")
    second = guest(tmp_path, place, "answer", first["turn"])

    assert first["status"] == "WAITING_FOR_USER"
    assert (second["status"], second["results"]) == ("COMPLETED", ['{"result":"3 seats on Monday"}'])
    assert (tmp_path / "notes").read_text().splitlines() == ["booked 3 on Monday"]


@pytest.mark.blocking("the SDK starts a program")
async def test_a_program_that_dies(tmp_path: Path) -> None:
    """A program that dies in the middle of a call: in doubt if it may run only once; the next call starts the program again."""
    env = {"SHOP_NOTES": str(tmp_path / "notes")}
    async with McpServer.stdio(sys.executable, [str(SHOP), "stdio"], name="shop", env=env) as server:
        tools = await server.tools(approval=False)
        async with Runtime(agents=[agent(tools, "die")]) as runtime:
            view = await (await runtime.start("guest", "hi")).settle()
        assert [wait.type for wait in view.open_waits] == [SuspensionType.IN_DOUBT]
        _, text = await run(tools, "price", item="tea")

    assert json.loads(text) == {"result": "tea: 25"}
    assert (tmp_path / "notes").read_text().splitlines() == ["died"]


@pytest.mark.blocking("the SDK opens connections")
async def test_a_server_of_http_that_dies(tmp_path: Path) -> None:
    """The same over HTTP; with nobody there the model is told, and with a new one at the same place calls go on."""
    port = free_port()
    env = {**os.environ, "SHOP_NOTES": str(tmp_path / "notes")}
    server = McpServer.http(f"http://127.0.0.1:{port}/mcp", name="shop")
    with http_shop(port, **env):
        tools = await server.tools(approval=False)
        async with Runtime(agents=[agent(tools, "die")]) as runtime:
            view = await (await runtime.start("guest", "hi")).settle()
    _, refused = await run(tools, "price", item="tea")
    with http_shop(port, **env):
        _, text = await run(tools, "price", item="tea")
        await server.close()

    assert [wait.type for wait in view.open_waits] == [SuspensionType.IN_DOUBT]
    assert json.loads(refused)["kind"] == "mcp_unreachable"
    assert json.loads(text) == {"result": "tea: 25"}
