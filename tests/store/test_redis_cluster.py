"""The store on a Cluster: slots that move, masters that fall, work that spreads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from turnhold.store import base as b
from turnhold.testing.conformance import make

from ..redis_cluster import RedisCluster
from .hearing import Hearing, connected, owned, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.redis, pytest.mark.anyio]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    """Three masters with a replica each, which these tests may disturb."""
    with RedisCluster(replicas=1) as started:
        yield started


def elsewhere(cluster: RedisCluster, slot: int) -> Any:
    """Return a master that does not have a slot."""
    return next(master for master in cluster.masters() if master is not cluster.owner(slot))


def tag_of(turn: str) -> str:
    return f"{{th:{turn[:2]}}}"


async def test_turns_spread_over_all_masters(cluster: RedisCluster) -> None:
    """Each turn lives in the slot of its partition; listings and polls see all of them."""
    async with connected(cluster.url) as connection:
        turns = {turn for turn, _ in await asyncio.gather(*[owned(connection, tenant="spread") for _ in range(60)])}
        page = await connection.call(b.ListTurns(tenant="spread", limit=100))
        versions = await connection.call(b.Versions(turns=tuple(turns)))

    assert {row.turn for row in page.turns} == turns
    assert {row[0] for row in versions.turns} == {0}
    assert all(master.cli("DBSIZE") > 0 for master in cluster.masters())


async def test_conversations_spread_over_all_masters(cluster: RedisCluster) -> None:
    """Queue, memory, notes and what waits to be passed on are in the slot of the conversation's partition."""
    names = [f"conversation {number}" for number in range(30)]
    async with connected(cluster.url) as connection:
        for name in names:
            first, second, third = (make.new(conversation=name) for _ in range(3))
            claimed = await connection.call(b.Create(new=first, claim=make.by("first")))
            await connection.call(b.Create(new=second, when_busy="queue"))
            assert isinstance(await connection.call(b.Create(new=third, when_busy="supersede", cause="moved on")), b.Queued)
            await connection.call(b.Cancel(turn=first.turn, cause="why"))
            token = b.Token("first", claimed.epoch)
            more = {"conversation": name, "memory": (b.MemoryRow("entry", b"body"),), "relay": True}
            assert isinstance(await connection.call(make.save(first.turn, token, 0, b.Mode.END, **more)), b.Saved)
            assert (await connection.call(b.OpenTurn(conversation=name))).turn == third.turn
            assert (await connection.call(b.ListQueue(conversation=name))).turns == ()
            assert (await connection.call(b.WriteNote(conversation=name, name="n", body=b"", expected=0))) == b.Done()
            assert len((await connection.call(b.ReadMemory(conversation=name))).entries) == 1
        waiting = await connection.call(b.Relays(before=connection.now() + 60_000))
        for name in names:
            (entry,) = (await connection.call(b.ReadRelay(conversation=name))).entries
            await connection.call(b.Relayed(conversation=name, change=entry.change))
            await connection.call(b.ClearMemory(conversation=name))
        left = await connection.call(b.Relays(before=connection.now() + 60_000))

    assert {name for name, _ in waiting.waiting} == set(names)
    assert left.waiting == ()


async def test_a_slot_that_has_moved_is_followed(cluster: RedisCluster) -> None:
    """MOVED costs a round trip; bells of the slot are heard from its new master."""
    bells = Hearing()
    async with connected(cluster.url, bells=bells) as connection:
        turn, token = await owned(connection)
        connection.watch(turn, live=False)
        await bells.rung("saved", turn)
        slot = cluster.slot(tag_of(turn))
        move = cluster.move(slot, elsewhere(cluster, slot))
        move.begin()
        move.carry(*move.keys())
        await asyncio.to_thread(move.finish)
        await bells.rung("saved", turn, times=2)
        saved = await connection.call(make.save(turn, token, 0))
        await bells.rung("saved", turn, times=3)

    assert saved.version == 1


async def test_a_call_that_comes_to_the_old_master_of_a_slot_is_sent_on(cluster: RedisCluster) -> None:
    """MOVED: who has not heard of the move asks the wrong one first, is answered by the right one, and knows it from then on."""
    async with connected(cluster.url) as connection:
        turn, token = await owned(connection)
        slot = cluster.slot(tag_of(turn))
        before, old = dict(connection.servers._slots), cluster.owner(slot)
        move = cluster.move(slot, elsewhere(cluster, slot))
        move.begin()
        move.carry(*move.keys())
        await asyncio.to_thread(move.finish)
        connection.servers._slots = before
        saved = await connection.call(make.save(turn, token, 0))
        known = connection.servers.address(slot)

    assert saved.version == 1
    assert "errorstat_MOVED" in old.info("errorstats")
    assert known == ("127.0.0.1", cluster.owner(slot).port)


async def test_a_slot_on_its_way_is_waited_for(cluster: RedisCluster) -> None:
    """A script names keys that may not exist, so it waits until its slot has arrived (TRYAGAIN, ASK), then follows (MOVED)."""
    async with connected(cluster.url) as connection:
        turn, token = await owned(connection)
        slot = cluster.slot(tag_of(turn))
        move = cluster.move(slot, elsewhere(cluster, slot))
        move.begin()
        keys = move.keys()
        move.carry(keys[0])
        saving = asyncio.ensure_future(connection.call(make.save(turn, token, 0)))
        await until(lambda: any("errorstat_TRYAGAIN" in master.info("errorstats") for master in cluster.masters()))
        move.carry(*keys[1:])
        history = await connection.call(b.ReadHistory(turn=turn))
        await asyncio.to_thread(move.finish)
        saved = await saving
        again = await connection.call(make.save(turn, token, 1))

    assert history.bodies == (b"hello",)
    assert (saved.version, again.version) == (1, 2)


async def test_a_slot_on_its_way_to_a_master_without_scripts_is_served_there(cluster: RedisCluster) -> None:
    """After ASK it is the new master that gets the script, not the one that sent us there."""
    async with connected(cluster.url) as connection:
        await connection.call(b.Beat(node="n1"))
        slot = cluster.slot(connection.keys.nodes)
        move = cluster.move(slot, elsewhere(cluster, slot))
        move.begin()
        move.carry(*move.keys())
        move.target.cli("SCRIPT", "FLUSH")
        done = await connection.call(b.Beat(node="n1"))
        await asyncio.to_thread(move.finish)

    assert done == b.Done()


async def test_a_cluster_that_is_down_for_a_moment_is_waited_for(cluster: RedisCluster) -> None:
    """CLUSTERDOWN passes: here a slot that nobody has takes all others with it, until it is given back."""
    async with connected(cluster.url) as connection:
        turn, token = await owned(connection)
        slot = cluster.slot(tag_of(turn))
        master, other = cluster.owner(slot), slot + 1 if slot + 1 in _slots(cluster, slot) else slot - 1
        master.cli("CLUSTER", "DELSLOTS", other)
        saving = asyncio.ensure_future(connection.call(make.save(turn, token, 0)))
        await until(lambda: "errorstat_CLUSTERDOWN" in master.info("errorstats"))
        master.cli("CLUSTER", "ADDSLOTS", other)
        saved = await saving
    await asyncio.to_thread(cluster.wait_agreed)

    assert saved.version == 1


def _slots(cluster: RedisCluster, slot: int) -> frozenset[int]:
    """Return the slots of the master that has this one."""
    master = cluster.owner(slot)
    return cluster.view(master)[cluster.ids[master]].slots


async def test_a_master_that_falls_is_replaced_by_its_replica(cluster: RedisCluster) -> None:
    """Turns of its slots go on where the replica has been promoted, those of others never stop."""
    async with connected(cluster.url) as connection:
        turns = [await owned(connection) for _ in range(12)]
        fallen = cluster.owner(cluster.slot(tag_of(turns[0][0])))
        (replica,) = cluster.replicas(fallen)
        replica.wait_synced()
        fallen.kill()
        saving = asyncio.gather(*[connection.call(make.save(turn, token, 0)) for turn, token in turns])
        await asyncio.to_thread(cluster.promote, replica, "TAKEOVER")
        saved = await saving
        await asyncio.to_thread(fallen.restart)

    assert [reply.version for reply in saved] == [1] * 12


async def test_the_bells_of_a_master_that_is_gone_for_good_are_heard_from_its_replica() -> None:
    """No server says MOVED here: the old one is out of reach, and nothing but listening is under way."""
    bells = Hearing()
    with RedisCluster(replicas=1) as cluster:
        async with connected(cluster.url, bells=bells) as connection:
            turn, token = await owned(connection)
            connection.watch(turn, live=False)
            await bells.rung("saved", turn)
            fallen = cluster.owner(cluster.slot(tag_of(turn)))
            (replica,) = cluster.replicas(fallen)
            await asyncio.to_thread(replica.wait_synced)
            fallen.kill()
            await asyncio.to_thread(cluster.promote, replica, "TAKEOVER")
            await bells.rung("saved", turn, times=2)
            await bells.rung("any", "")
            await connection.call(make.save(turn, token, 0))
            await bells.rung("saved", turn, times=3)
            await until(lambda: ("127.0.0.1", fallen.port) not in connection.bells._ears)


async def test_a_partition_without_a_master_holds_up_no_other() -> None:
    """Calls to it end as unavailable in their time; calls beside them, and polls for work, are answered."""
    with RedisCluster(full_coverage=False) as cluster:
        async with connected(cluster.url) as connection:
            turns = [await owned(connection) for _ in range(12)]
            fallen = cluster.owner(cluster.slot(tag_of(turns[0][0])))
            lost = {turn for turn, _ in turns if cluster.owner(cluster.slot(tag_of(turn))) is fallen}
            fallen.kill()
            calls = [connection.call(make.save(turn, token, 0)) for turn, token in turns]
            replies = await asyncio.gather(*calls, return_exceptions=True)
            waiting = [await connection.call(b.Create(new=make.new(turn))) for turn in _roots_beside(turns, lost)]
            due = await connection.call(b.Due())

    assert len(due.turns) == len(waiting) > 0
    assert 0 < len(lost) < 12
    for (turn, _), reply in zip(turns, replies, strict=True):
        assert isinstance(reply, Exception if turn in lost else b.Saved)


def _roots_beside(turns: list[tuple[str, b.Token]], lost: set[str]) -> list[str]:
    """Name new turns in the partitions that still have a master."""
    return [make.root(beside=turn) for turn, _ in turns if turn not in lost]
