"""What is Redis' own: URLs, formats, versions, faults of servers and connections."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

from turnhold import InvalidDefinition
from turnhold.actors.errors import StoreUnavailable
from turnhold.store import base as b
from turnhold.store.redis import RedisStore
from turnhold.store.redis_link import packed
from turnhold.store.redis_place import slots_of
from turnhold.store.redis_servers import Question
from turnhold.store.urls import open_store
from turnhold.testing.conformance import make

from ..redis_server import RedisServer
from ..tcp_proxy import TcpProxy
from .hearing import Hearing, connected, owned, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.redis, pytest.mark.anyio]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server that these tests may stop and start again; what it was told is on disk."""
    with RedisServer(aof="always") as started:
        yield started


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[TcpProxy]:
    """A way to the server that can be cut."""
    with TcpProxy(server.port) as opened:
        yield opened


# -- URLs


@pytest.mark.parametrize(
    "url",
    [
        *("redis://h:6379/0", "rediss://u:p@h/1", "redis+cluster://a:7000,b:7001,c", "rediss+cluster://h"),
        *("unix:///run/redis.sock", "redis://h?namespace=shop", "rediss://h?ssl_cert_reqs=none"),
    ],
)
def test_a_url_names_a_redis(url: str) -> None:
    """All schemes open a store, without any I/O, and its text shows no password."""
    store = open_store(url)

    assert isinstance(store, RedisStore)
    assert ":p@" not in repr(store)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://h:port/0", "cannot be read"),
        ("redis://h?retry=3", "unknown option 'retry'"),
        ("redis://h?namespace=a{b", "namespace must be"),
        ("redis://h?namespace=", "namespace must be"),
        ("redis+cluster://h/3", "only database 0"),
        ("unix://?db=1", "names a socket"),
        ("redis://h#x", "not the URL of a Redis"),
        ("redis://h/shop", "cannot be read"),
        ("redis+cluster://a,,b", "cannot be read"),
        ("redis://h?ssl_cert_reqs=none", "does not take"),
        ("rediss://h?ssl_cert_reqs=some", "does not take"),
        ("redis://:pass/word@h:6379/0", "cannot be read"),
        ("redis://:1/word@h:6379/0", "cannot be read"),
    ],
)
def test_a_url_that_is_wrong_says_how(url: str, says: str) -> None:
    """A typed error names the part that is wrong, and nothing that may be part of a password."""
    with pytest.raises(InvalidDefinition, match=says) as raised:
        open_store(url)

    assert not {"pass", "word"} & set(re.findall(r"\w+", str(raised.value).partition("characters such as")[0]))


def test_a_cluster_url_may_name_several_servers() -> None:
    """They are asked one after the other; a port may be left out."""
    assert RedisStore("redis+cluster://a:7000,[::1]:7001,c").place.seeds == [("a", 7000), ("::1", 7001), ("c", 6379)]
    place = RedisStore("redis+cluster://u:p,@[::1]:7001,b:1/0?namespace=x").place
    assert (place.seeds, place.namespace, place.shown) == ([("::1", 7001), ("b", 1)], "x", "redis+cluster://[::1]:7001,b:1/0")


def test_a_master_without_a_name_is_the_one_that_was_asked() -> None:
    """CLUSTER SLOTS leaves the host empty where a server does not know its own."""
    assert slots_of([[0, 1, [b"", 7000, b"id"]], [2, 2, [b"b", 7001, b"id"]]], ("a", 1)) == {
        0: ("a", 7000),
        1: ("a", 7000),
        2: ("b", 7001),
    }


# -- opening


@pytest.mark.parametrize("found", [1, 2, 99])
async def test_a_format_that_is_unknown_is_refused(server: RedisServer, found: int) -> None:
    """A namespace written by a later release, or by one that stored things in another way, is not touched."""
    server.cli("HSET", f"{{n{found}}}:meta", "format", found)

    with pytest.raises(StoreUnavailable, match=f"is of format {found}, this release knows 3"):
        await RedisStore(f"{server.url}?namespace=n{found}").connect("n", lambda *_: None, lambda: 0)
    assert server.cli("HGET", f"{{n{found}}}:meta", "format") == str(found)


async def test_nobody_there_is_said_within_the_time_of_an_operation() -> None:
    """A refused connection is tried again for a while, then named with its address."""
    with RedisServer() as gone:
        url = gone.url
    with pytest.raises(StoreUnavailable, match=url.removeprefix("redis://").partition("/")[0]):
        await RedisStore(url).connect("n", lambda *_: None, lambda: 0)


async def test_a_cluster_needs_its_own_scheme(cluster_url: str, server: RedisServer) -> None:
    """Both mistakes say what to write instead."""
    with pytest.raises(StoreUnavailable, match=r"write redis\+cluster://"):
        await RedisStore(cluster_url.replace("+cluster", "")).connect("n", lambda *_: None, lambda: 0)
    with pytest.raises(StoreUnavailable):
        await RedisStore(server.url.removesuffix("/0").replace("redis:", "redis+cluster:")).connect("n", lambda *_: None, lambda: 0)


async def test_a_wrong_password_is_refused_at_once(proxy: TcpProxy) -> None:
    """Credentials do not get better by repeating them."""
    url = proxy.url.replace("redis://", "redis://nobody:secret@")
    with pytest.raises(StoreUnavailable) as raised:
        await RedisStore(url).connect("n", lambda *_: None, lambda: 0)

    assert raised.value.refused
    assert "secret" not in str(raised.value)
    assert proxy.connections <= 2


async def test_virtual_time_is_refused(server: RedisServer) -> None:
    """A Redis has its own time."""
    with pytest.raises(InvalidDefinition, match="virtual clock"):
        await RedisStore(server.url).connect("n", lambda *_: None, lambda: 0, inline=True)


# -- faults


async def test_scripts_that_a_server_forgot_are_given_to_it_again(server: RedisServer) -> None:
    """SCRIPT FLUSH costs a round trip, for each of several calls that leave together."""
    async with connected(server.url) as connection:
        await owned(connection)
        server.cli("SCRIPT", "FLUSH")
        turns = await asyncio.gather(*[owned(connection) for _ in range(20)])

    assert len({turn for turn, _ in turns}) == 20


@pytest.mark.parametrize("lost", ["before", "reply"])
async def test_a_cut_in_a_save_is_one_save(proxy: TcpProxy, lost: str) -> None:
    """Whether the command or its reply was lost: the identical call is sent again, and the store tells what it did."""
    async with connected(proxy.url) as connection:
        turn, token = await owned(connection)
        if lost == "before":
            proxy.cut_after(10, "server", marker=b"EVALSHA")
        else:
            proxy.cut_after(0, "client")
        saved = await connection.call(make.save(turn, token, 0))
        look = await connection.call(b.Look(turn=turn))

    assert isinstance(saved, b.Saved)
    assert proxy.cuts >= 1
    assert (saved.version, look.version) == (1, 1)


async def test_a_server_that_stalls_is_unavailable_in_bounded_time(proxy: TcpProxy) -> None:
    """Nothing hangs: what is not answered within the time of an operation is an unknown outcome."""
    async with connected(proxy.url) as connection:
        turn, token = await owned(connection)
        proxy.stall()
        with pytest.raises(StoreUnavailable, match="no answer in time"):
            await connection.call(make.save(turn, token, 0))
        proxy.resume()
        again = await connection.call(make.save(turn, token, 0, save_id="x"))

    assert isinstance(again, b.Saved | b.Conflict)


async def test_a_stalled_save_holds_up_no_renewal(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewals have a connection of their own: they pass while nothing passes on that of other operations."""
    monkeypatch.setattr("turnhold.store.redis_link.OPERATION", 60.0)
    async with connected(server.url) as connection:
        turn, token = await owned(connection)
        blocked = asyncio.ensure_future(connection.servers.ask([Question(packed("BLPOP", "wait", 20))]))
        await until(lambda: server.info("clients")["blocked_clients"] == "1")
        renewed = await connection.call(b.Renew(leases=((turn, token),), lease_ms=60_000))
        held_up = not blocked.done()
        server.cli("RPUSH", "wait", 1)
        await blocked

    assert renewed.flags == (1,)
    assert held_up


async def test_a_restarted_server_is_found_again(server: RedisServer) -> None:
    """Calls under way wait for it; what was acknowledged is there; bells are heard again."""
    bells = Hearing()
    async with connected(server.url, bells=bells) as connection:
        turn, token = await owned(connection)
        server.kill()
        saving = asyncio.ensure_future(connection.call(make.save(turn, token, 0)))
        await asyncio.to_thread(server.restart)
        saved = await saving
        await bells.rung("any", "")

    assert isinstance(saved, b.Saved)
    assert saved.version == 1


async def test_a_full_server_refuses_at_once() -> None:
    """OOM is an answer, not a fault to be waited out: nothing was done, and the error says so."""
    with RedisServer(maxmemory="30mb", maxmemory_policy="noeviction") as small:
        async with connected(small.url) as connection:
            turn, token = await owned(connection)
            small.cli("CONFIG", "SET", "maxmemory", "1mb")
            with pytest.raises(StoreUnavailable, match="OOM") as raised:
                await connection.call(make.save(turn, token, 0))
            small.cli("CONFIG", "SET", "maxmemory", "0")
            saved = await connection.call(make.save(turn, token, 0))

    assert raised.value.refused
    assert saved.version == 1


async def test_a_server_that_became_a_replica_is_waited_for(server: RedisServer) -> None:
    """READONLY passes when the failover is over; the call is made good within its time."""
    async with connected(server.url) as connection:
        turn, token = await owned(connection)
        server.cli("REPLICAOF", "127.0.0.1", "1")
        saving = asyncio.ensure_future(connection.call(make.save(turn, token, 0)))
        await until(lambda: "errorstat_READONLY" in server.info("errorstats"))
        server.cli("REPLICAOF", "NO", "ONE")
        saved = await saving

    assert saved.version == 1


async def test_a_server_that_still_reads_its_data_is_waited_for() -> None:
    """LOADING passes; what was stored is there."""
    with RedisServer(rdbcompression="no", loading_process_events_interval_bytes=1_024) as server:
        async with connected(server.url) as connection:
            turn, token = await owned(connection)
            server.cli("MSET", *(part for number in range(1_000) for part in (f"key:{number}", "x" * 200)))
            server.cli("SAVE")
            await asyncio.to_thread(server.restart, loaded=False, key_load_delay=5_000)
            saving = asyncio.ensure_future(connection.call(make.save(turn, token, 0)))
            await until(lambda: "errorstat_LOADING" in server.info("errorstats"))
            server.cli("CONFIG", "SET", "key-load-delay", 0)
            saved = await saving

    assert saved.version == 1


async def test_a_foreign_key_is_an_error_that_says_what_is_wrong(server: RedisServer) -> None:
    """Somebody else's key in our place is no reason to loop."""
    turn = make.root()
    server.cli("SET", f"{{th:{turn[:2]}}}:t:{turn}", "not a hash")
    async with connected(server.url) as connection:
        with pytest.raises(StoreUnavailable, match="WRONGTYPE") as raised:
            await connection.call(b.Create(new=make.new(turn), claim=make.by()))

    assert raised.value.refused


async def test_text_that_is_no_unicode_hurts_nobody_else(server: RedisServer) -> None:
    """It is refused before it is sent; calls beside it go on."""
    async with connected(server.url) as connection:
        good = asyncio.ensure_future(owned(connection))
        with pytest.raises(UnicodeEncodeError):
            await connection.call(b.Create(new=make.new(tenant="\ud800")))
        turn, _ = await good

    assert turn


async def test_a_closed_connection_answers_what_waited(proxy: TcpProxy) -> None:
    """Nobody waits for ever."""
    async with connected(proxy.url) as connection:
        turn, token = await owned(connection)
        proxy.stall()
        saving = asyncio.ensure_future(connection.call(make.save(turn, token, 0)))
        await proxy.reached(lambda it: it.held["server"] > 0)
    with pytest.raises(StoreUnavailable):
        await saving


# -- replicas


async def test_a_save_may_wait_for_a_replica() -> None:
    """Confirmed where a replica has it; where none answers the save stands, and says that it is not confirmed."""
    with RedisServer() as master, RedisServer(replica_of=master) as replica:
        replica.wait_synced()
        async with connected(master.url) as connection:
            turn, token = await owned(connection)
            sure = await connection.call(make.save(turn, token, 0, confirm=True))
            replica.close()
            unsure = await connection.call(make.save(turn, token, 1, confirm=True))

    assert (sure.version, sure.confirmed) == (1, True)
    assert (unsure.version, unsure.confirmed) == (2, False)


async def test_a_repeated_save_is_confirmed_by_nothing_less_than_itself() -> None:
    """The reply is lost with its connection; on the new one a replica that has only what was before confirms nothing."""
    with (
        RedisServer() as master,
        TcpProxy(master.port) as between,
        TcpProxy(master.port) as line,
        RedisServer(replicaof=f"127.0.0.1 {between.port}") as replica,
    ):
        replica.wait_synced()
        async with connected(line.url) as connection:
            turn, token = await owned(connection)
            between.stall("client")
            line.cut_after(0, "client", marker=b"SAVED")
            again = await connection.call(make.save(turn, token, 0, confirm=True))

    assert line.cuts >= 1
    assert (again.version, again.replayed, again.confirmed) == (1, True, False)


async def test_many_saves_wait_for_a_replica_together() -> None:
    """They take the time of one: none is given up, on whatever connection."""
    with RedisServer() as master, TcpProxy(master.port) as line, RedisServer(replica_of=master) as replica:
        replica.wait_synced()
        async with connected(line.url) as connection:
            turns = [await owned(connection) for _ in range(10)]
            first = await connection.call(make.save(*turns[0], 0, confirm=True))
            replica.close()
            taken = line.connections
            saves = [connection.call(make.save(turn, token, 0, confirm=True)) for turn, token in turns[1:]]
            replies = await asyncio.gather(*saves)

    assert first.confirmed
    assert [(reply.version, reply.replayed, reply.confirmed) for reply in replies] == [(1, False, False)] * 9
    assert line.connections == taken


# -- bells and what is shown


async def test_the_news_of_a_tree_are_heard_while_it_is_watched(server: RedisServer) -> None:
    """One ring when the subscription stands, one for each save, and none for trees that nobody here watches."""
    bells = Hearing()
    async with connected(server.url) as owner, connected(server.url, "n2", bells) as other:
        (turn, token), (beside, second) = await owned(owner), await owned(owner)
        other.watch(turn, live=False)
        await bells.rung("saved", turn)
        await owner.call(make.save(turn, token, 0))
        await owner.call(make.save(beside, second, 0))
        await bells.rung("saved", turn, times=2)

    assert ("saved", beside) not in bells.all


async def test_live_events_reach_who_watches_and_cost_nothing_else(server: RedisServer) -> None:
    """Shown to another node that watches live, not to the sender; without a watcher the sender falls silent for a while."""
    shown, mine, root = Hearing(), Hearing(), make.root()
    async with connected(server.url, live=mine) as owner, connected(server.url, "n2", live=shown) as other:
        owner.publish(root, b"nobody")
        await until(lambda: not owner.wants(root))
        owner.watch(root, live=True)
        other.watch(root, live=True)
        await until(lambda: owner.wants(root))
        for number in range(50):
            owner.publish(root, b"%d" % number)
        await shown.rung(root, b"49")

    assert [body for _, body in shown.all] == [b"%d" % number for number in range(50)]
    assert mine.all == []


# -- two nodes of one name


async def test_two_nodes_of_one_name_are_told_apart(server: RedisServer) -> None:
    """Each announces and leaves for itself; who owns a turn is called by the name."""
    async with connected(server.url, "twin") as one, connected(server.url, "twin") as two:
        turn, _ = await owned(one)
        for connection in (one, two):
            await connection.call(b.Beat(node="twin", agents=("alpha@1",)))
        held = await two.call(b.Claim(turn=turn, by=make.by()))
        both = await one.call(b.ListNodes())
        await one.call(b.Beat(node="twin", leave=True))
        left = await two.call(b.ListNodes())

    assert held == b.Held("twin")
    assert [row.node for row in both.nodes].count("twin") == 2
    assert [row.node for row in left.nodes].count("twin") == 1
