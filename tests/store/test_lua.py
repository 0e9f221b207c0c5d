"""The scripts on a real Redis: their headers, their time and space."""

from __future__ import annotations

import re
from importlib import resources
from typing import TYPE_CHECKING

import msgspec
import pytest

from turnhold.actors.turn import Status
from turnhold.store import base
from turnhold.store.redis_keys import Keys
from turnhold.store.redis_pack import save
from turnhold.store.redis_scripts import CODES, NAMES, SHARED, Scripts

from .both import CHILD, ROOT, WAIT, Both, claim_by, deliver, mail, new_turn
from .redis_core import RedisCore

if TYPE_CHECKING:
    import redis

pytestmark = pytest.mark.redis

HOUR = 3_600_000
LUA = resources.files("turnhold.store") / "lua"


# -- the files


@pytest.mark.parametrize("name", NAMES)
def test_a_header_names_keys_arguments_and_replies(name: str) -> None:
    """Each script begins with its KEYS, ARGV and replies, and gives no reply that is not named there."""
    text = (LUA / f"{name}.lua").read_text()
    header = "\n".join(line for line in text.split("\nlocal ", 1)[0].splitlines() if line.startswith("--"))
    given = set(re.findall(r"return \{'([A-Z_]+)'", text))

    first = {"beat": "1 nodes", "format": "1 meta"}.get(name, "1 wake, 2 leases, 3 turns, 4 bell, 5 news")
    assert f"\n-- KEYS: {first}" in header
    assert "\n-- ARGV: " in header
    assert given <= set(re.findall(r"[A-Z_]+", header.partition("\n-- Replies: ")[2]))


def test_every_file_is_a_known_script() -> None:
    """The scripts in use are those in the folder."""
    assert {path.name for path in LUA.iterdir()} == {f"{name}.lua" for name in (*NAMES, *SHARED)}


def test_only_the_clock_asks_for_the_time() -> None:
    """Time is the server's, read in one place."""
    asking = [path.name for path in LUA.iterdir() if "'TIME'" in path.read_text()]

    assert asking == ["clock.lua"]
    assert "'TIME'" in Scripts().sources["save"]


def test_all_keys_of_a_save_are_in_one_slot(both: Both) -> None:
    """Also the keys of children and of other turns carry the partition's tag."""
    op = both.next(create=(new_turn(CHILD),), deliver=((CHILD, mail("m")),), cancel=((CHILD, "why"),))
    _, keys, _ = save(Keys("space"), op)

    assert {key[: key.index("}") + 1] for key in keys} == {"{space:" + ROOT[:2] + "}"}


# -- time and space


def test_a_forgotten_save_is_repeated_whole(both: Both) -> None:
    """After a rewind the owner learns how far back the store is, and what it had consumed is not taken twice."""
    both.create()
    both(deliver("m1"))
    taken = both.redis.take()
    both.save(consumed=("m1",))
    stale = both.redis
    stale.put_back(taken)
    op = both.next(consumed=("m1",))

    behind = stale.apply(op, both.now)
    assert behind == base.Behind(0, 1, 1)
    again = msgspec.structs.replace(
        op, version=0, messages=base.Messages(1, (b"entry", b"entry")), events=base.Events(1, 4, b"four")
    )
    assert isinstance(stale.apply(again, both.now), base.Saved)
    reply = stale.apply(deliver("m1"), both.now)
    assert isinstance(reply, base.Delivered)
    assert not reply.fresh


def test_mail_that_the_store_forgot_counts_as_seen_when_it_was_consumed(both: Both) -> None:
    """A sender that repeats it does not have it applied twice."""
    both.create()
    both.save(consumed=("m1",))

    assert both(deliver("m1")) == base.Delivered(both.now, "node of first", fresh=False)


def test_answers_end_after_ten_minutes_and_seen_ids_after_a_day(client: redis.Redis) -> None:
    """Whether or not somebody prunes; unread mail is not stored twice however long it waits."""
    both = Both(client)
    both.create()
    both(deliver("m1"))
    both.save(consumed=("m1",), replies=(base.ReplyRow("m1", b"reply"),))
    both(deliver("m2"))
    core = both.redis

    assert core.apply(deliver("m1"), both.now + 590_000) == base.Replied(b"reply")
    reply = core.apply(deliver("m1"), both.now + 610_000)
    assert isinstance(reply, base.Delivered)
    assert not reply.fresh
    assert core.apply(deliver("m3"), both.now + 25 * HOUR).fresh  # type: ignore[attr-defined]
    assert not core.apply(deliver("m2"), both.now + 25 * HOUR).fresh  # type: ignore[attr-defined]
    assert core.apply(deliver("m1"), both.now + 25 * HOUR).fresh  # type: ignore[attr-defined]


def test_many_answers_are_swept_while_they_are_written(client: redis.Redis) -> None:
    """A tree that answers all day keeps those of ten minutes, give or take the sweep's bound."""
    both = Both(client)
    both.create()
    for number in range(300):
        both.now += 10_000
        both.save(replies=(base.ReplyRow(f"m{number}", b"reply"),))

    assert client.hlen(both.redis.keys.tree(ROOT, "y")[0]) < 140


def test_a_suspended_turn_is_a_few_compact_keys_without_expiry(client: redis.Redis) -> None:
    """Record, snapshot, history, events and waits; small records stay in Redis's compact form."""
    core = RedisCore(client, virtual=False)
    by = claim_by("a" * 32, node="n" * 32)
    claimed = core.apply(base.Create(new=new_turn(digest="d" * 32), claim=by), 0)
    assert isinstance(claimed, base.Claimed)
    op = base.Save(
        turn=ROOT,
        token=base.Token("a" * 32, claimed.epoch),
        version=0,
        save_id="s" * 32,
        mode=base.Mode.SUSPEND,
        lease_ms=1_000,
        schema=1,
        status="WAITING_FOR_APPROVAL",
        snapshot=b"s" * 500,
        messages=base.Messages(1, (b"m" * 200,)),
        events=base.Events(1, 2, b"e" * 200),
        opened=(base.WaitRow(WAIT, "TOOL_APPROVAL", 5, b"w" * 300, "agent"),),
        usage=(900, 100, 1_000, 0),
    )
    assert isinstance(core.apply(op, 0), base.Saved)
    keys = {key for key in client.scan_iter() if ROOT.encode() in key}

    assert keys == {key.encode() for key in core.keys.turn(ROOT, "tshew")}
    lists = {b"listpack", b"quicklist"}  # Redis 7.0 knows no small lists
    assert {client.object("encoding", key) for key in keys} - lists == {b"raw"}
    assert client.object("encoding", core.keys.turn(ROOT, "t")[0]) == b"listpack"
    assert {client.ttl(key) for key in keys} == {-1}


def test_time_is_the_servers(client: redis.Redis) -> None:
    """What a script calls now lies between two readings of the server's clock."""
    core = RedisCore(client, virtual=False)
    before, _ = client.time()
    created = core.apply(base.Create(new=new_turn()), 0)
    after, _ = client.time()

    assert isinstance(created, base.Created)
    assert before * 1_000 <= created.now < (after + 1) * 1_000


def test_a_pruned_tree_leaves_nothing(both: Both, client: redis.Redis) -> None:
    """Retention counts from the root's end and takes the tree as a whole, once no turn of it is live."""
    both.create(conversation="talk")
    both.save(create=(new_turn(CHILD, parent=ROOT),), opened=(base.WaitRow(WAIT, "RETRY", 5, b"wait", "agent"),))
    both(deliver("m1", command_id="cmd"))
    both.save(base.Mode.END, receipts=(base.ReceiptRow(WAIT, b"receipt", "cmd"),), retention_ms=HOUR)
    both(base.Prune(), later=HOUR + 1)
    assert both.look(CHILD).state == "R"
    by = claim_by("child")
    token = base.Token("child", both(base.Claim(turn=CHILD, by=by)).epoch)
    child = {"turn": CHILD, "token": token, "version": 0, "messages": base.Messages(1), "events": base.Events(1)}
    both(both.next(base.Mode.END, **child))
    both(base.Prune(), later=HOUR + 1)

    assert both(base.Look(turn=ROOT)) == base.Gone()
    assert set(client.scan_iter()) == {both.redis.keys.meta.encode()}


def test_bells_ring(client: redis.Redis) -> None:
    """A save is news; mail and a cancel ring for the owner; who may claim, and when, is told to all; nothing else is said."""
    both = Both(client)
    bell, news = both.redis.keys.partition(ROOT, "bell", "news")
    with client.pubsub(ignore_subscribe_messages=True) as bells:
        bells.ssubscribe(bell, news)
        for _ in range(2):
            bells.get_message(timeout=1)
        both.create()
        both(deliver("m1"))
        both(base.Cancel(turn=ROOT, cause="why"))
        both.save(base.Mode.HAND_OFF, create=(new_turn(CHILD, parent=ROOT),))
        rung = [bells.get_message(timeout=1) for _ in range(5)]

    said = [message["data"].decode() for message in rung if message]
    due = f"{both.now} agent@1"
    assert said == [f"work {ROOT}", f"work {ROOT}", f"due {CHILD} {due}", f"due {ROOT} {due}", f"saved {ROOT} 1 3"]


def test_mail_that_was_read_late_is_known_when_it_comes_again(both: Both) -> None:
    """A day counts from when it was read, where that was more than a day after its delivery, whatever came in between."""
    both.create()
    both(deliver("early"))
    both(deliver("later"), later=20 * HOUR)
    both.now += 5 * HOUR
    both.save(consumed=("early",))
    again = both(deliver("early"))

    assert not again.fresh


def test_a_turn_that_is_parked_twice_counts_once_for_its_tree(both: Both) -> None:
    """A cancel wakes a parked turn; where its owner has to park it again, only the newer time counts, and none after a revival."""
    both.create()
    both(base.Quarantine(turn=ROOT, token=both.token, reason="unreadable"))
    by = claim_by("second")
    both.claimed(base.Cancel(turn=ROOT, cause="enough", claim=by), by)
    both(base.Quarantine(turn=ROOT, token=both.token, reason="still unreadable"))
    both(base.Versions(turns=(ROOT,)))
    both(base.Revive(turn=ROOT))

    assert both(base.Versions(turns=(ROOT,))).turns[0][3] == 0


def test_every_status_has_a_code_of_its_own() -> None:
    """The index of turns is by status: none may be missing, no two may share a number, and what is stored keeps its own."""
    assert set(CODES) == {status.value for status in Status}
    assert sorted(CODES.values()) == list(range(1, len(CODES) + 1))
    assert (CODES["READY"], CODES["IN_DOUBT"], CODES["BUDGET_EXCEEDED"]) == (1, 7, 13)
