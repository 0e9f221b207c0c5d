"""What the scripts do for conversations, on a real Redis: queues, memory, what waits to be passed on, notes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from turnhold.actors.ids import root_id
from turnhold.store import base
from turnhold.store.memory_core import MemoryCore

from .both import START, claim_by, mail, new_turn
from .redis_core import RedisCore

if TYPE_CHECKING:
    import redis

pytestmark = pytest.mark.redis

TALK, TALKS = "talk", "talk\x00s"  # a name may be the beginning of another


def named(number: int, conversation: str = TALK) -> str:
    return root_id(bytes([number]) * 26, conversation, None, "test")


class Talk:
    """A Redis with virtual time, whose replies must be those of a memory store, and short ways to use conversations."""

    def __init__(self, client: redis.Redis) -> None:
        self.core = RedisCore(client)
        self.memory: MemoryCore | None = MemoryCore()
        self.now = START

    def __call__(self, op: base.Op, later: int = 1) -> Any:
        self.now += later
        reply = self.core.apply(op, self.now)
        assert self.memory is None or reply == self.memory.apply(op, self.now)
        return reply

    def start(self, number: int, when_busy: base.WhenBusy = "refuse", *, conversation: str = TALK, **more: Any) -> Any:
        """Start the n-th turn of a conversation."""
        new = new_turn(named(number, conversation), conversation=conversation)
        return self(base.Create(new=new, when_busy=when_busy, **more))

    def queue(self, *numbers: int, conversation: str = TALK) -> None:
        """Start some turns, the first one owned by nobody, the others behind it."""
        for number in numbers:
            self.start(number, "queue", conversation=conversation)

    def queued(self, conversation: str = TALK) -> tuple[str, ...]:
        """Return who waits."""
        return self(base.ListQueue(conversation=conversation)).turns

    def own(self, turn: str, activation: str = "owner") -> base.Claimed:
        """Claim a turn that has to be free."""
        reply = self(base.Claim(turn=turn, by=claim_by(activation)))
        assert isinstance(reply, base.Claimed), reply
        return reply

    def last(self, turn: str, mode: base.Mode = base.Mode.END, **more: Any) -> base.Save:
        """Claim a turn and make a save of its owner."""
        claimed = self.own(turn)
        fields: dict[str, Any] = {
            "turn": turn,
            "token": base.Token("owner", claimed.epoch),
            "version": claimed.version,
            "save_id": f"save of {turn} {self.now}",
            "mode": mode,
            "lease_ms": 1_000,
            "schema": 1,
            "status": "COMPLETED" if mode is base.Mode.END else "RUNNING",
            "snapshot": b"snapshot",
            "messages": base.Messages(claimed.message_count),
            "events": base.Events(claimed.event_count),
            "closing": b"closed",
        }
        return base.Save(**(fields | more))

    def end(self, turn: str) -> None:
        """Claim a turn and end it."""
        assert isinstance(self(self.last(turn)), base.Saved)

    def look(self, turn: str) -> base.Looked:
        """Read a record."""
        return self(base.Look(turn=turn))

    def due(self) -> tuple[str, ...]:
        """Return who may run."""
        return self(base.Due()).turns

    def write(self, name: str, body: bytes = b"body", *, shown: bool = True, conversation: str = TALK, **more: Any) -> Any:
        """Write an entry."""
        return self(base.WriteMemory(conversation=conversation, row=base.MemoryRow(name, body, shown), **more))

    def names(self, conversation: str = TALK, **more: Any) -> str:
        """Read entries; their ids, and a + where there are more before them."""
        found = self(base.ReadMemory(conversation=conversation, **more))
        return " ".join(["+"] * found.more + [entry.id for entry in found.entries])

    def waiting(self, **more: Any) -> tuple[tuple[str, int], ...]:
        """Read which conversations have something to pass on."""
        return self(base.Relays(before=self.now + 1, **more)).waiting


@pytest.fixture
def talk(client: redis.Redis) -> Talk:
    """An empty Redis."""
    return Talk(client)


# -- queues


def test_a_busy_conversation_refuses_or_queues(talk: Talk) -> None:
    """Refuse is Busy; a queue takes as many as there is room for, in order, and owns none of them."""
    assert isinstance(talk.start(1), base.Created)
    assert talk.start(2) == base.Busy(named(1), "READY")
    assert talk.start(2, "queue", room=0) == base.Busy(named(1), "READY")
    assert talk.start(2, "queue", room=2, claim=claim_by("second")) == base.Queued(talk.now)
    assert talk.start(3, "queue", room=2) == base.Queued(talk.now)
    assert talk.start(4, "queue", room=2) == base.Busy(named(1), "READY", 2)
    assert talk.start(3, "queue", room=2) == base.Existing(named(3))

    assert talk.queued() == (named(2), named(3))
    assert talk.due() == (named(1),)
    assert (talk.look(named(2)).state, talk.look(named(2)).wake, talk.look(named(2)).runnable_turns) == ("S", None, 0)


def test_an_idle_conversation_does_not_queue(talk: Talk) -> None:
    """Whatever is to be done when it is busy."""
    by = claim_by("first")

    assert isinstance(talk.start(1, "queue", claim=by), base.Claimed)
    assert isinstance(talk.start(2, "supersede", conversation="other"), base.Created)
    assert talk.queued() == talk.queued("other") == ()


def test_a_queued_turn_sleeps_whatever_comes(talk: Talk) -> None:
    """Mail is kept and wakes nobody; it cannot be claimed."""
    talk.queue(1, 2)
    by = claim_by("second")

    assert talk(base.Deliver(turn=named(2), mail=mail("m1"), claim=by)) == base.Delivered(talk.now, None)
    assert talk(base.Claim(turn=named(2), by=by)) == base.NotDue(None)
    assert talk(base.Revive(turn=named(2))) == base.Gone()
    assert talk.due() == (named(1),)

    talk.end(named(1))
    assert [one.message_id for one in talk.own(named(2)).mail] == ["m1"]


def test_an_end_opens_the_conversation_for_the_next(talk: Talk) -> None:
    """In order, at once, also for one that was to wake later; the last end frees it."""
    talk.queue(1, 2)
    later = new_turn(named(3), conversation=TALK, wake=talk.now + 1_000_000)
    talk(base.Create(new=later, when_busy="queue"))
    for ended, opened, left in ((1, 2, 1), (2, 3, 0)):
        talk.end(named(ended))
        ended_at = talk.now
        assert talk(base.OpenTurn(conversation=TALK)) == base.Opened(named(opened), "READY")
        assert len(talk.queued()) == left
        assert talk.due() == (named(opened),)
        assert (talk.look(named(opened)).state, talk.look(named(opened)).wake) == ("R", ended_at)
    talk.end(named(3))

    assert talk(base.OpenTurn(conversation=TALK)) == base.Opened(None)
    assert isinstance(talk.start(4), base.Created)


def test_the_end_of_a_record_that_cannot_be_read_opens_it_too(talk: Talk) -> None:
    """Discard does all that END does."""
    talk.queue(1, 2, 3)
    token = base.Token("owner", talk.own(named(1)).epoch)
    talk(base.Quarantine(turn=named(1), token=token, reason="unreadable"))

    assert talk(base.Discard(turn=named(1), status="FAILED")) == base.Done()
    assert talk.due() == (named(2),)
    assert talk.queued() == (named(3),)


def test_a_repeated_end_promotes_once(talk: Talk) -> None:
    """The second answer tells of the first."""
    talk.queue(1, 2, 3)
    save = talk.last(named(1))

    assert not talk(save).replayed
    assert talk(save).replayed
    assert talk.queued() == (named(3),)


def test_a_save_that_is_refused_promotes_nobody(talk: Talk) -> None:
    """A stale owner's end changes nothing."""
    talk.queue(1, 2)
    save = talk.last(named(1))

    assert isinstance(talk(msgspec.structs.replace(save, token=base.Token("stale", 1))), base.Fenced)
    assert isinstance(talk(msgspec.structs.replace(save, version=7)), base.Behind)
    assert talk.queued() == (named(2),)


def test_a_cancelled_turn_leaves_the_queue(talk: Talk) -> None:
    """It runs beside the open turn, to its end, which leaves that in place."""
    talk.queue(1, 2, 3)
    by = claim_by("second")
    claimed = talk(base.Cancel(turn=named(2), cause="enough", claim=by))
    assert (claimed.cancel, talk.queued()) == ("enough", (named(3),))
    talk(base.Abandon(turn=named(2), token=base.Token("second", claimed.epoch)))
    assert set(talk.due()) == {named(1), named(2)}

    talk.end(named(2))

    assert talk(base.OpenTurn(conversation=TALK)) == base.Opened(named(1), "READY")
    assert talk.queued() == (named(3),)


def test_one_turn_supersedes_all(talk: Talk) -> None:
    """The open and the queued ones are cancelled with the cause; the new one waits for the open one alone."""
    talk.queue(1, 2, 3)
    owner = talk.own(named(1))

    assert talk.start(4, "supersede", cause="moved on", room=0) == base.Queued(talk.now)
    assert [talk.look(named(number)).cancel for number in (1, 2, 3, 4)] == ["moved on"] * 3 + [None]
    assert talk.queued() == (named(4),)
    assert set(talk.due()) == {named(2), named(3)}
    token = base.Token("owner", owner.epoch)
    assert talk(base.Renew(leases=((named(1), token),), lease_ms=1_000)).flags == (3,)

    talk(base.Abandon(turn=named(1), token=token))
    for number in (3, 2):
        talk.end(named(number))
    assert talk.queued() == (named(4),)
    talk.end(named(1))
    assert talk(base.OpenTurn(conversation=TALK)).turn == named(4)


def test_superseding_wakes_what_is_parked(talk: Talk) -> None:
    """As a cancel does."""
    talk.queue(1)
    token = base.Token("owner", talk.own(named(1)).epoch)
    talk(base.Quarantine(turn=named(1), token=token, reason="unreadable"))
    talk.start(2, "supersede", cause="moved on")

    assert talk.due() == (named(1),)


def test_conversations_of_one_partition_do_not_meet(talk: Talk) -> None:
    """A name that begins with another, or holds a NUL, has a queue of its own."""
    names = [TALK, TALKS, "talk\x000000000000000001", "t", "4:talk"]
    for name in names:
        talk.queue(1, 2, conversation=name)

    for name in names:
        assert talk.queued(name) == (named(2, name),)
        assert talk.start(3, "queue", conversation=name, room=1).queued == 1
    talk.end(named(1, TALK))
    assert [len(talk.queued(name)) for name in names] == [0, 1, 1, 1, 1]


def test_a_long_queue_keeps_its_order(talk: Talk) -> None:
    """Also beyond nine, and where the first ones have left."""
    talk.queue(*range(1, 13))
    talk(base.Cancel(turn=named(5), cause="why"))
    talk.end(named(1))
    talk.queue(13)

    assert talk.queued() == tuple(named(number) for number in (3, 4, *range(6, 14)))


def test_a_dead_turn_in_the_queue_is_passed_over(talk: Talk, client: redis.Redis) -> None:
    """One that a release without queues has ended, and one whose record is gone, block nobody."""
    talk.queue(1, 2, 3, 4, 5)
    talk.memory = None
    client.hset(talk.core.keys.turn(named(2), "t")[0], "st", "T")
    client.delete(talk.core.keys.turn(named(3), "t")[0])
    talk.end(named(1))

    assert talk(base.OpenTurn(conversation=TALK)).turn == named(4)
    assert talk.queued() == (named(5),)
    client.delete(talk.core.keys.turn(named(5), "t")[0])
    talk.end(named(4))
    assert talk(base.OpenTurn(conversation=TALK)) == base.Opened(None)
    assert talk.queued() == ()


def test_who_was_promoted_is_told_by_a_bell(talk: Talk, client: redis.Redis) -> None:
    """Who may claim it hears of it; of a queued turn nobody hears."""
    bell, news = talk.core.keys.partition(named(1), "bell", "news")
    talk.queue(1)
    save = talk.last(named(1))
    with client.pubsub(ignore_subscribe_messages=True) as bells:
        bells.ssubscribe(bell, news)
        for _ in range(2):
            bells.get_message(timeout=1)
        talk.queue(2)
        talk(base.Deliver(turn=named(2), mail=mail("m1")))
        talk(save)
        rung = [bells.get_message(timeout=1) for _ in range(2)]

    said = [message["data"].decode() for message in rung if message]
    assert said == [f"due {named(2)} {talk.now} agent@1", f"saved {named(1)} 1 1"]


# -- memory


def test_memory_is_appended_once(talk: Talk) -> None:
    """Places, versions, changes and times; a known id changes nothing."""
    assert talk.write("a", b"first\x00") == base.Done()
    first = talk.now
    assert talk.write("b", shown=False) == base.Done()
    assert talk.write("a", b"other") == base.Done()

    found = talk(base.ReadMemory(conversation=TALK))
    one = base.MemoryEntry("a", b"first\x00", shown=True, place=1, version=0, change=first, at=first)
    two = base.MemoryEntry("b", b"body", shown=False, place=2, version=0, change=first + 1, at=first + 1)
    assert found == base.Memory((one, two))
    assert talk(base.FindMemory(conversation=TALK, ids=("b", "?", "a"))) == base.Memory((two, one))
    assert talk(base.FindMemory(conversation=TALK, ids=())) == base.Memory(())
    assert talk(base.ReadMemory(conversation=TALKS)) == base.Memory(())


def test_memory_is_replaced_under_its_version(talk: Talk) -> None:
    """In its place, with the time of its first writing; a repetition is known, another version a conflict."""
    talk.write("a")
    at = talk.now
    talk.write("b")
    assert talk.write("c", expected=0) == base.Conflict(-1)
    assert talk.write("a", b"edited", shown=False, expected=0) == base.Done()
    changed = talk.now
    assert talk.write("a", b"edited", shown=False, expected=0) == base.Done()
    assert talk.write("a", b"edited", expected=0) == base.Conflict(1)
    assert talk.write("a", b"edited", expected=2) == base.Conflict(1)

    found = talk(base.FindMemory(conversation=TALK, ids=("a",))).entries
    assert found == (base.MemoryEntry("a", b"edited", shown=False, place=1, version=1, change=changed, at=at),)
    assert (talk.names(), talk.names(shown=True)) == ("a b", "b")
    assert talk.write("a", b"edited", expected=1) == base.Done()
    assert talk.names(shown=True) == "a b"


def test_changes_are_numbered_in_their_order(talk: Talk) -> None:
    """By the time, and one by one where that stands still; not anew behind a clearing."""
    for name in "abc":
        talk(base.WriteMemory(conversation=TALK, row=base.MemoryRow(name, b"")), later=0)
    changes = [entry.change for entry in talk(base.ReadMemory(conversation=TALK)).entries]
    assert changes == [START, START + 1, START + 2]

    talk.now += 100
    talk(base.ClearMemory(conversation=TALK))
    talk.write("d")
    assert [(entry.place, entry.change) for entry in talk(base.ReadMemory(conversation=TALK)).entries] == [(1, talk.now - 1)]


def test_memory_is_read_back_from_the_newest(talk: Talk) -> None:
    """The newest before an entry, oldest first; the limit counts only what is asked for."""
    for number in range(10):
        talk.write(str(number), shown=number % 3 == 0)

    assert talk.names(limit=3) == "+ 7 8 9"
    assert talk.names(limit=3, before="7") == "+ 4 5 6"
    assert talk.names(limit=4, before="4") == "0 1 2 3"
    assert talk.names(limit=2, before="?") == "+ 8 9"
    assert talk.names(limit=0) == "+"
    assert talk.names(limit=2, shown=True) == "+ 6 9"
    assert talk.names(limit=2, shown=True, before="5") == "0 3"
    assert talk.names(limit=1, shown=True, before="1") == "0"
    assert talk.names(before="0") == talk.names(before="0", shown=True) == ""


def test_a_long_memory_is_read_page_by_page(talk: Talk) -> None:
    """More than one script reads, and thousands that models may not see, in which two are hidden that they may."""
    rows = tuple(base.MemoryRow(f"e{number}", b"", number in {3, 4000}) for number in range(5000))
    talk.start(1)
    talk(talk.last(named(1), base.Mode.KEEP, conversation=TALK, memory=rows))

    assert talk.names(limit=5000) == " ".join(row.id for row in rows)
    assert talk.names(limit=300).split()[:2] == ["+", "e4700"]
    assert (talk.names(shown=True), talk.names(shown=True, limit=1)) == ("e3 e4000", "+ e4000")


def test_a_save_writes_memory(talk: Talk) -> None:
    """What is new is appended, what has changed replaced, the rest left alone; with the end, and without."""
    talk.queue(1, 2)
    talk.write("b", b"old")
    rows = (base.MemoryRow("a", b"\x00\xff", shown=False), base.MemoryRow("b", b"new"), base.MemoryRow("c", b"c"))
    save = talk.last(named(1), conversation=TALK, memory=rows, relay=True)
    assert isinstance(talk(msgspec.structs.replace(save, token=base.Token("stale", 1))), base.Fenced)
    assert talk.names() == "b"

    assert isinstance(talk(save), base.Saved)
    at = talk.now
    assert talk(save).replayed
    found = talk(base.ReadMemory(conversation=TALK)).entries
    assert [(one.id, one.body, one.shown, one.version, one.change - at) for one in found] == [
        ("b", b"new", True, 1, 1),
        ("a", b"\x00\xff", False, 0, 0),
        ("c", b"c", True, 0, 2),
    ]
    assert talk.waiting() == ((TALK, at),)
    assert talk.due() == (named(2),)
    again = (base.MemoryRow("c", b"c"), base.MemoryRow("d", b"d"))
    talk(talk.last(named(2), base.Mode.KEEP, conversation=TALK, memory=again))
    assert [(one.id, one.version) for one in talk(base.ReadMemory(conversation=TALK)).entries[2:]] == [("c", 0), ("d", 0)]


# -- passing on


def test_changes_wait_to_be_passed_on(talk: Talk) -> None:
    """Each entry once, by its newest change, until that has been passed on."""
    talk.write("a", relay=True)
    since = talk.now
    talk.write("b")
    talk.write("c", relay=True)
    talk.write("a", b"edited", expected=0)
    waiting = talk(base.ReadRelay(conversation=TALK))
    assert [entry.id for entry in waiting.entries] == ["c", "a"]
    assert talk(base.ReadRelay(conversation=TALK, limit=1)) == base.Memory(waiting.entries[:1], more=True)
    assert talk.waiting() == ((TALK, since),)

    talk(base.Relayed(conversation=TALK, change=waiting.entries[0].change))
    half = talk.now
    assert [entry.id for entry in talk(base.ReadRelay(conversation=TALK)).entries] == ["a"]
    assert talk.waiting() == ((TALK, half),)
    talk(base.Relayed(conversation=TALK, change=waiting.entries[0].change))
    assert talk.waiting() == ((TALK, half),)
    for _ in range(2):
        talk(base.Relayed(conversation=TALK, change=waiting.entries[1].change))
        assert talk.waiting() == ()
    assert talk(base.ReadRelay(conversation=TALK)) == base.Memory(())


def test_conversations_are_passed_on_the_longest_waiting_first(talk: Talk) -> None:
    """Then by name; those that wait for less long are left out."""
    for name in ("z", "b", "ü"):
        talk(base.WriteMemory(conversation=name, row=base.MemoryRow("e", b""), relay=True), later=name == "b")
    talk.write("e", conversation="a", relay=True)

    found = talk(base.Relays(before=START + 1))
    assert found == base.Conversations((("z", START), ("b", START + 1), ("ü", START + 1)), talk.now)
    assert talk.waiting(limit=2) == (("z", START), ("b", START + 1))


def test_a_cleared_memory_leaves_nothing(talk: Talk, client: redis.Redis) -> None:
    """Entries, notes and what waits; a change from before ends the waiting of nothing newer."""
    before = set(client.scan_iter())
    talk.write("a", relay=True)
    change = talk.now
    talk(base.WriteNote(conversation=TALK, name="n", body=b"", expected=0))

    assert talk(base.ClearMemory(conversation=TALK)) == base.Done()
    assert set(client.scan_iter()) == before
    assert talk(base.ClearMemory(conversation=TALK)) == base.Done()
    talk.write("a", relay=True)
    written = talk.now
    talk(base.Relayed(conversation=TALK, change=change))
    assert talk.waiting() == ((TALK, written),)


# -- notes


def test_a_note_has_a_version(talk: Talk) -> None:
    """It is replaced under it; a repetition is known, another version a conflict."""

    def write(body: bytes, expected: int, name: str = "n") -> Any:
        return talk(base.WriteNote(conversation=TALK, name=name, body=body, expected=expected))

    assert talk(base.ReadNote(conversation=TALK, name="n")) == base.Noted(0)
    assert write(b"", 1) == base.Conflict(0)
    assert [write(b"\x00one", 0), write(b"\x00one", 0), write(b"two", 0)] == [base.Done(), base.Done(), base.Conflict(1)]
    assert write(b"", 1) == base.Done()
    assert write(b"other", 0, name="") == base.Done()
    assert talk(base.ReadNote(conversation=TALK, name="n")) == base.Noted(2, b"")
    assert talk(base.ReadNote(conversation=TALK, name="")) == base.Noted(1, b"other")
