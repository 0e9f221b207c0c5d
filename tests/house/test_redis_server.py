"""The private Redis, the private cluster and the faulty line of the tests do what their users count on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.cluster import RedisCluster as ClusterClient
from redis.exceptions import AskError, BusyLoadingError, ClusterDownError, MovedError, OutOfMemoryError, RedisError, TryAgainError
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import TimeoutError as NoAnswer

from ..redis_cluster import RedisCluster
from ..redis_server import BINARY, RedisServer, find_server, wait_until
from ..tcp_proxy import TcpProxy, Towards

pytestmark = pytest.mark.redis


def command(*parts: str) -> bytes:
    return b"".join([b"*%d\r\n" % len(parts), *(b"$%d\r\n%s\r\n" % (len(part), part.encode()) for part in parts)])


def raw(proxy: TcpProxy) -> Redis:
    """A client of one connection that tries nothing twice."""
    return Redis.from_url(proxy.url, decode_responses=True, max_connections=1, retry=None)


@pytest.fixture(scope="module")
def lasting() -> Iterator[RedisServer]:
    with RedisServer(aof="always") as server:
        yield server


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster(replicas=1, full_coverage=False) as cluster:
        yield cluster


@pytest.fixture
def proxy(redis_url: str) -> Iterator[TcpProxy]:
    with Redis.from_url(redis_url) as client:
        client.flushall()
    with TcpProxy(int(redis_url.removeprefix("redis://127.0.0.1:").removesuffix("/0"))) as proxy:
        yield proxy


@pytest.fixture
def straight(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


def test_the_private_server_answers_and_keeps_nothing(redis_url: str) -> None:
    """A real server of version 7 or later runs on a port of its own and saves nothing to disk."""
    with Redis.from_url(redis_url, decode_responses=True) as client:
        version = client.info("server")["redis_version"]
        saved = client.config_get("save")["save"], client.config_get("appendonly")["appendonly"]

    assert int(version.split(".")[0]) >= 7
    assert saved == ("", "no")


def test_the_environment_names_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A named binary goes before all others, and a name without a program is said, not passed over."""
    binary = tmp_path / "my-redis"
    binary.touch(mode=0o755)
    monkeypatch.setenv(BINARY, str(binary))
    assert find_server() == str(binary)

    monkeypatch.setenv(BINARY, str(tmp_path / "none"))
    with pytest.raises(LookupError, match="names no program"):
        find_server()


class TestServer:
    """One server that a test may treat badly."""

    @pytest.mark.parametrize("end", [RedisServer.kill, RedisServer.stop])
    def test_data_outlives_the_process(self, lasting: RedisServer, end: Callable[[RedisServer], object]) -> None:
        """With an append-only file a server that ended comes back on its port with all that it acknowledged."""
        port = lasting.port
        lasting.cli("SET", end.__name__, "kept")
        end(lasting)
        assert not lasting.running
        with pytest.raises(Disconnected):
            lasting.cli("PING")
        lasting.restart()

        assert (lasting.port, lasting.cli("GET", end.__name__)) == (port, "kept")

    def test_a_server_that_reads_its_data_says_so(self) -> None:
        """A restart that does not wait shows the time in which a server answers LOADING."""
        with RedisServer(rdbcompression="no", loading_process_events_interval_bytes=1_024) as server:
            server.cli("MSET", *(part for number in range(1_000) for part in (f"key:{number}", "x" * 200)))
            server.cli("SAVE")
            server.restart(loaded=False, key_load_delay=5_000)
            with pytest.raises(BusyLoadingError):
                server.cli("GET", "key:1")
            server.cli("CONFIG", "SET", "key-load-delay", 0)
            server.wait_loaded()

            assert server.cli("GET", "key:99") == "x" * 200

    def test_without_a_file_all_is_gone(self) -> None:
        """A server that saves nothing comes back empty."""
        with RedisServer() as server:
            server.cli("SET", "key", "gone")
            server.restart()

            assert server.cli("GET", "key") is None

    def test_a_paused_server_hangs_and_goes_on(self, lasting: RedisServer) -> None:
        """A paused server takes commands without an answer and answers once it goes on."""
        with socket.create_connection(("127.0.0.1", lasting.port), timeout=10) as connection:
            lasting.pause()
            with pytest.raises(NoAnswer):
                lasting.cli("PING", seconds=0.1)
            connection.sendall(command("SET", "late", "done"))
            connection.settimeout(0.1)
            with pytest.raises(TimeoutError):
                connection.recv(16)
            lasting.resume()
            connection.settimeout(10)

            assert connection.recv(16) == b"+OK\r\n"
            assert lasting.cli("GET", "late") == "done"

    def test_a_paused_server_can_be_stopped(self) -> None:
        """Stopping a server in an orderly way also ends one that was paused."""
        with RedisServer() as server:
            server.pause()

            assert server.stop() == 0

    def test_a_replica_follows(self, lasting: RedisServer) -> None:
        """A write that waits for a replica is in the replica."""
        with RedisServer(replica_of=lasting) as replica, lasting.client() as client:
            replica.wait_synced()
            client.set("copied", "yes")

            assert client.wait(1, 5_000) == 1
            assert replica.cli("GET", "copied") == "yes"

    def test_options_reach_the_server(self) -> None:
        """Whatever redis.conf knows can be set, such as a limit of memory."""
        with RedisServer(maxmemory=1, maxmemory_policy="noeviction") as server, pytest.raises(OutOfMemoryError):
            server.cli("SET", "key", "value")


class TestCluster:
    """Three masters with a replica each, for the whole class; each test leaves it whole."""

    def test_a_client_reaches_all_three_masters(self, cluster_url: str) -> None:
        """The shared cluster takes a key for each of its masters."""
        port = int(cluster_url.removeprefix("redis+cluster://127.0.0.1:"))
        with ClusterClient(host="127.0.0.1", port=port, decode_responses=True) as client:
            keys = [f"key:{number}" for number in range(20)]
            for key in keys:
                client.set(key, key)

            assert [client.get(key) for key in keys] == keys
            assert len({node.port for key in keys if (node := client.get_node_from_key(key))}) == 3

    def test_a_slot_moves_step_by_step(self, cluster: RedisCluster) -> None:
        """Amid a move the old master asks elsewhere for what it has not and wants split keys tried again; then it is moved."""
        slot = cluster.slot("{moved}")
        source = cluster.owner(slot)
        target = next(node for node in cluster.masters() if node is not source)
        source.cli("MSET", "{moved}:1", "one", "{moved}:2", "two")
        move = cluster.move(slot, target)
        move.begin()
        move.carry("{moved}:1")

        assert move.keys() == ["{moved}:2"]
        assert source.cli("GET", "{moved}:2") == "two"
        with pytest.raises(AskError, match=str(target.port)):
            source.cli("GET", "{moved}:1")
        with pytest.raises(TryAgainError):
            source.cli("MGET", "{moved}:1", "{moved}:2")
        with pytest.raises(MovedError, match=str(source.port)):
            target.cli("GET", "{moved}:1")

        move.carry()
        move.finish()
        assert cluster.owner(slot) is target
        assert target.cli("MGET", "{moved}:1", "{moved}:2") == ["one", "two"]
        with pytest.raises(MovedError, match=str(target.port)):
            source.cli("GET", "{moved}:1")

    def test_a_move_can_be_given_up(self, cluster: RedisCluster) -> None:
        """A slot whose move is given up is where it was, with all its keys."""
        slot = cluster.slot("{stays}")
        source = cluster.owner(slot)
        target = next(node for node in cluster.masters() if node is not source)
        source.cli("MSET", "{stays}:1", "one", "{stays}:2", "two")
        move = cluster.move(slot, target)
        move.begin()
        move.carry("{stays}:1")
        move.abort()

        assert cluster.owner(slot) is source
        assert source.cli("MGET", "{stays}:1", "{stays}:2") == ["one", "two"]

    def test_a_replica_takes_over(self, cluster: RedisCluster) -> None:
        """An orderly change of roles keeps the data and turns the old master into a replica."""
        master = cluster.masters()[0]
        (replica,) = cluster.replicas(master)
        cluster.promote(replica)
        cluster.wait_agreed()

        assert replica in cluster.masters()
        assert cluster.replicas(replica) == [master]

    def test_a_dead_master_is_replaced(self, cluster: RedisCluster) -> None:
        """With its master killed a replica is made master by force, and the dead one comes back as a replica."""
        master = cluster.masters()[1]
        (replica,) = cluster.replicas(master)
        master.kill()
        cluster.promote(replica, "TAKEOVER")
        assert replica in cluster.masters()
        assert master not in cluster.running

        master.restart()
        cluster.wait_agreed()
        assert cluster.replicas(replica) == [master]

    def test_slots_without_a_master_are_down(self) -> None:
        """With full coverage asked for, the whole cluster is down once a master without a replica is dead."""
        with RedisCluster(node_timeout=300) as cluster:
            first, second, _ = cluster.masters()
            second.kill()
            cluster.wait_state("fail")
            with pytest.raises(ClusterDownError):
                first.cli("GET", next(key for key in map(str, range(1_000)) if cluster.slot(key) < 5_000))


class TestProxy:
    """The line between a client and the server."""

    async def test_a_client_on_the_tests_own_loop_passes(self, proxy: TcpProxy) -> None:
        """Commands and replies pass and are counted, beside the loop of the test."""
        async with AsyncRedis.from_url(proxy.url, decode_responses=True) as client:
            await client.set("key", "value")

            assert await client.get("key") == "value"
            assert (proxy.connections, proxy.open, proxy.cuts) == (1, 1, 0)
            assert proxy.passed["server"] >= len(command("SET", "key", "value") + command("GET", "key"))
        await proxy.reached(lambda proxy: proxy.open == 0)

    async def test_a_cut_ends_all_connections_and_new_ones_pass(self, proxy: TcpProxy) -> None:
        """A cut breaks what waits on any connection; the next connection is fine."""
        async with AsyncRedis.from_url(proxy.url, single_connection_client=True, retry=None) as client:
            await client.ping()
            proxy.cut()
            assert (proxy.open, proxy.cuts) == (0, 1)
            with pytest.raises(Disconnected):
                await client.ping()

            assert await client.ping()
            assert proxy.connections == 2

    def test_new_connections_can_be_refused(self, proxy: TcpProxy) -> None:
        """Refusing leaves what is open alone and ends when it is told to."""
        with raw(proxy) as kept:
            kept.ping()
            proxy.refuse()
            kept.ping()
            with raw(proxy) as refused, pytest.raises(Disconnected, match="refused"):
                refused.ping()
            proxy.refuse(False)
            with raw(proxy) as taken:
                assert taken.ping()

    @pytest.mark.parametrize(("towards", "done"), [("server", None), ("client", "yes")])
    def test_bytes_are_held_back_one_way(self, proxy: TcpProxy, straight: Redis, towards: Towards, done: str | None) -> None:
        """A stalled command is not carried out, a stalled reply is of one that was; both come when the line goes on."""
        with raw(proxy) as client:
            client.ping()
            proxy.stall(towards)
            replies: list[object] = []
            thread = threading.Thread(target=lambda: replies.append(client.set("key", "yes")))
            thread.start()
            proxy.wait(lambda proxy: proxy.held[towards] > 0)
            assert (straight.get("key"), replies) == (done, [])
            proxy.resume()
            thread.join(10)

            assert (straight.get("key"), replies) == ("yes", [True])

    def test_a_command_is_cut_in_the_middle(self, proxy: TcpProxy, straight: Redis) -> None:
        """A command of which the last byte is missing is never carried out."""
        with raw(proxy) as client:
            client.ping()
            proxy.cut_after(len(command("SET", "key", "half")) - 1, "server")
            before = proxy.passed["server"]
            with pytest.raises(Disconnected):
                client.set("key", "half")

            assert proxy.passed["server"] - before == len(command("SET", "key", "half")) - 1
            assert (proxy.cuts, straight.get("key")) == (1, None)

    @pytest.mark.parametrize("count", [0, 2])
    def test_a_reply_is_lost(self, proxy: TcpProxy, straight: Redis, count: int) -> None:
        """A command whose reply is cut off, wholly or in its middle, was carried out all the same."""
        with raw(proxy) as client:
            client.ping()
            proxy.cut_after(count, "client")
            before = proxy.passed["client"]
            with pytest.raises(Disconnected):
                client.incr("count")

            assert proxy.passed["client"] - before == count
            assert straight.get("count") == "1"
            assert client.incr("count") == 2

    def test_a_cut_waits_for_its_command(self, proxy: TcpProxy, straight: Redis) -> None:
        """With a marker the bytes are counted from the command that holds it, whatever goes before."""
        with raw(proxy) as client, raw(proxy) as other:
            other.ping()
            proxy.cut_after(0, "server", marker=b"INCR", all_lines=True)
            client.set("count", "5")
            with pytest.raises(Disconnected):
                client.incr("count")

            assert straight.get("count") == "5"
            proxy.wait(lambda proxy: (proxy.cuts, proxy.open) == (2, 0))

    def test_a_dead_server_ends_its_connections(self) -> None:
        """With the server behind it gone a connection is ended, and works again once the server is back."""
        with RedisServer() as server, TcpProxy(server.port) as proxy, raw(proxy) as client:
            client.ping()
            server.kill()
            for _ in range(2):
                with pytest.raises(RedisError):
                    client.ping()
            server.restart()
            wait_until(client.ping, "the line works again")
