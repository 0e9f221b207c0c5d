"""The ways into a Redis: a socket, TLS, a user with a password and few rights."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from turnhold import Agent, ResumeCommand, Runtime, Status, StoreUnavailable, tool
from turnhold.store import base as b
from turnhold.testing import ScriptedModel, call
from turnhold.testing.conformance import make

from ..redis_cluster import RedisCluster
from ..redis_server import HOST, RedisServer
from .hearing import Hearing, connected, owned

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = [pytest.mark.redis, pytest.mark.anyio]
PEM = Path(__file__).with_name("localhost.pem")  # a certificate for 127.0.0.1 that signed itself, and its key
OPERATING = Path(__file__).parents[2] / "docs" / "operating.md"
RIGHTS = "~{th* &{th* +@all -@admin -@dangerous +info"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server with a socket and a user."""
    with tempfile.TemporaryDirectory(prefix="th") as folder, RedisServer(unixsocket=f"{folder}/s") as started:
        started.cli("ACL", "SETUSER", "app", "on", ">a:b/c", *RIGHTS.split())
        yield started


async def works(url: str) -> None:
    """A turn is created and saved, and its bell is heard."""
    bells = Hearing()
    async with connected(url, bells=bells) as connection:
        turn, token = await owned(connection)
        connection.watch(turn, live=False)
        await bells.rung("saved", turn)
        assert (await connection.call(make.save(turn, token, 0))).version == 1
        await bells.rung("saved", turn, times=2)


async def test_a_socket(server: RedisServer) -> None:
    """`unix://` names the file; the database may be given."""
    path = server.cli("CONFIG", "GET", "unixsocket")[1]
    await works(f"unix://{path}")
    await works(f"unix://{path}?db=1")


@asynccontextmanager
async def encrypted(server: RedisServer) -> AsyncIterator[int]:
    """A port that takes TLS, and passes on what it holds."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(PEM)
    tasks: set[asyncio.Task[None]] = set()

    async def copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
        finally:
            writer.close()

    async def taken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, on = await asyncio.open_connection(HOST, server.port)
        tasks.update(asyncio.ensure_future(copied(*ends)) for ends in ((reader, on), (back, writer)))

    door = await asyncio.start_server(taken, HOST, 0, ssl=context)
    try:
        yield door.sockets[0].getsockname()[1]
    finally:
        door.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_tls(server: RedisServer) -> None:
    """`rediss://` trusts whom `ssl_ca_certs` names, and nobody else."""
    async with encrypted(server) as port:
        await works(f"rediss://{HOST}:{port}/0?ssl_ca_certs={PEM}")
        with pytest.raises(StoreUnavailable, match="certificate verify failed"):
            await works(f"rediss://{HOST}:{port}/0")
        with pytest.raises(StoreUnavailable):
            await works(f"redis://{HOST}:{port}/0")


@tool(approval=True)
async def refund(amount: int) -> str:
    """Refund an amount."""
    return f"{amount} refunded"


async def lived(url: str) -> None:
    """A turn lives from start to end, is listed, watched and parked, and another one is cancelled."""
    shop = Agent("shop", model=ScriptedModel(call("refund", amount=7), "done"), tools=[refund])
    async with Runtime(url, agents=[shop]) as runtime, Runtime(url, execute=False) as api:
        turn = await runtime.start("shop", "go", conversation="talk", idempotency_key=f"lived {url}")
        (wait,) = (await api.turn(turn.id).settle(10)).open_waits
        assert wait.id in {each.id for each in (await api.inbox()).items}
        view = await api.turn(turn.id).resume(ResumeCommand.approve_tool(wait, by="ann"), 10)
        assert view.status is Status.COMPLETED
        assert [event.sequence async for event in api.turn(turn.id).events()][-1] > 3
        assert turn.id in {each.id for each in (await api.turns(status=Status.COMPLETED)).items}
        assert len(await runtime.nodes()) >= 1
        second = await runtime.start("shop", "go")
        await second.settle(10)
        assert (await api.turn(second.id).cancel("why")).status is Status.CANCELLED
        await runtime.conversation("talk").clear()


@pytest.mark.blocking("the first store of a process reads its scripts, and the test a page")
async def test_a_user_with_few_rights(server: RedisServer) -> None:
    """The rights in docs/operating.md are enough for the namespace, and for no other; the password is written in percent."""
    assert f"`{RIGHTS}`" in OPERATING.read_text()
    door = f"redis://app:a%3Ab%2Fc@{HOST}:{server.port}/0"
    await lived(door)
    async with connected(door) as connection:
        assert await connection.call(b.Prune()) == b.Done()
    for url, says in ((f"{door}?namespace=other", "NOPERM|No permissions"), (door.replace("a%3Ab", "a"), "WRONGPASS|password")):
        with pytest.raises(StoreUnavailable, match=says) as refused:
            await works(url)
        assert refused.value.refused


@pytest.mark.blocking("the first store of a process reads its scripts")
async def test_a_user_with_few_rights_on_a_cluster() -> None:
    """The same rights are enough there; every server must know the user."""
    with RedisCluster() as cluster:
        for node in cluster.nodes:
            node.cli("ACL", "SETUSER", "app", "on", ">secret", *RIGHTS.split())
        await lived(cluster.url.replace("://", "://app:secret@"))
