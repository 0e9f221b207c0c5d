"""What becomes of calls, bells and the time when the line to a server, or the server behind it, is not what it was."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from turnhold.actors.errors import StoreUnavailable
from turnhold.store import base as b
from turnhold.testing.conformance import make

from ..redis_server import RedisServer
from ..tcp_proxy import TcpProxy
from .hearing import Hearing, connected, owned, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.redis, pytest.mark.anyio]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server that a test may stop and start again."""
    with RedisServer(aof="always") as started:
        yield started


async def test_a_call_that_was_cut_off_by_close_is_not_sent_afterwards(server: RedisServer) -> None:
    """It ends as unavailable; no connection is opened anew for it, and nothing runs on."""
    with TcpProxy(server.port) as proxy:
        async with connected(proxy.url) as connection:
            turn, token = await owned(connection)
            proxy.stall()
            saving = asyncio.ensure_future(connection.call(make.save(turn, token, 0)))
            await proxy.reached(lambda it: it.held["server"] > 0)
        proxy.resume()
        with pytest.raises(StoreUnavailable, match="connection is closed"):
            await saving
        async with connected(server.url) as other:
            look = await other.call(b.Look(turn=turn))

    assert look.version == 0
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("redis")] == []


async def test_many_calls_to_a_server_that_hangs_end_together(server: RedisServer) -> None:
    """Those behind the first pipelines do not wait for the time of an operation once more for each pipeline before them."""
    loop = asyncio.get_running_loop()
    async with connected(server.url) as connection:
        turn, _ = await owned(connection)
        server.pause()
        start = loop.time()
        calls = [connection.call(b.Look(turn=turn)) for _ in range(3_000)]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        lasted = loop.time() - start
        server.resume()

    assert {type(end) for end in ends} == {StoreUnavailable}
    assert lasted < 10


async def test_a_server_that_stays_a_replica_is_left_for_the_one_that_its_name_leads_to(server: RedisServer) -> None:
    """READONLY: a failover behind a name or a virtual address leaves old connections where they were."""
    with RedisServer(replica_of=server) as replica, TcpProxy(server.port) as name:
        replica.wait_synced()
        async with connected(name.url) as connection:
            turn, token = await owned(connection)
            await until(lambda: replica.cli("DBSIZE") == server.cli("DBSIZE"))
            replica.cli("REPLICAOF", "NO", "ONE")
            server.cli("REPLICAOF", "127.0.0.1", replica.port)
            name.target = ("127.0.0.1", replica.port)
            saved = await connection.call(make.save(turn, token, 0))

    assert saved.version == 1


async def test_a_message_that_is_none_of_ours_ends_no_listening(server: RedisServer) -> None:
    """Whatever is sent on the channels of a store by somebody else, the next bell is heard."""
    bells = Hearing()
    async with connected(server.url, bells=bells) as connection:
        turn, token = await owned(connection)
        connection.watch(turn, live=True)
        await bells.rung("saved", turn, times=2)
        for channel in (connection.keys.news(turn), connection.keys.live(turn), connection.keys.bell(int(turn[:2], 16))):
            server.cli("SPUBLISH", channel, b"\xff")
        await connection.call(make.save(turn, token, 0))
        await bells.rung("saved", turn, times=3)


async def test_a_channel_that_is_wanted_again_at_once_is_kept(server: RedisServer) -> None:
    """The answer to the end of its old subscription comes after the new one was asked for; it outlives a restart."""
    bells = Hearing()
    async with connected(server.url, bells=bells) as connection:
        turn, _ = await owned(connection)
        connection.watch(turn, live=False)
        await bells.rung("saved", turn)
        connection.unwatch(turn, live=False)
        connection.bells._leave(connection.keys.news(turn))
        connection.watch(turn, live=False)
        await bells.rung("saved", turn, times=2)
        await asyncio.to_thread(server.restart)
        await bells.rung("saved", turn, times=3)


async def test_an_idle_node_learns_the_time_when_it_announces_itself(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's clock was set back: an estimate that is ahead of it would find work that is not due, for ever."""
    async with connected(server.url) as connection:
        right = connection.now()
        connection.time.learn(right + 3_600_000, 0.0)
        monkeypatch.setattr("turnhold.store.redis_time.FORGET", 0.0)
        await connection.call(b.Beat(node="n1", agents=()))
        found = connection.now()

    assert abs(found - right) < 60_000


async def test_a_save_tells_the_time(server: RedisServer) -> None:
    """Who looks for work right behind a save that made some finds it: the time is at least that of the save."""
    async with connected(server.url) as connection:
        turn, token = await owned(connection)
        right = connection.now()
        connection.time._ahead -= 3_600_000
        await connection.call(make.save(turn, token, 0))
        found = connection.now()

    assert abs(found - right) < 60_000
