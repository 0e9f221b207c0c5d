"""Each reply of the scripts for itself, on a real Redis, equal to the memory store's."""

from __future__ import annotations

from typing import Any

import pytest

from turnhold.actors.ids import child_id, root_id, wait_id
from turnhold.store import base

from .both import CHILD, ROOT, WAIT, Both, claim_by, deliver, mail, new_turn

pytestmark = pytest.mark.redis


# -- create


def test_create_is_repeatable_and_its_id_is_used_once(both: Both) -> None:
    """Existing for the same start, KeyReused for another one, Claimed again for the activation that has it."""
    assert both(base.Create(new=new_turn())) == base.Created(both.now)
    assert both(base.Create(new=new_turn())) == base.Existing(ROOT)
    assert both(base.Create(new=new_turn(digest="other"))) == base.KeyReused(ROOT)
    assert both.look().state == "R"


def test_create_and_claim_is_one_call(both: Both) -> None:
    """The turn is owned at once, nobody else finds it due, and a lost reply can be asked for again."""
    first = both.create()

    assert first.tail == (b"hello",)
    assert both(base.Due()).turns == ()
    assert both(base.Create(new=new_turn(), claim=claim_by("first"))).epoch == first.epoch
    assert both(base.Create(new=new_turn(), claim=claim_by("other"))) == base.Existing(ROOT)


@pytest.mark.parametrize("changes", [{"agents": frozenset({"other@1"})}, {"schema": 0}])
def test_create_leaves_the_turn_to_who_knows_the_agent(both: Both, changes: dict[str, Any]) -> None:
    """A claim that does not fit makes a runnable turn."""
    assert isinstance(both(base.Create(new=new_turn(), claim=claim_by("first", **changes))), base.Created)
    assert both(base.Due()).turns == (ROOT,)


def test_a_conversation_has_one_open_turn_until_it_ends(both: Both) -> None:
    """Busy names the open turn and its status; the end frees the conversation."""
    second = root_id(b"\x07" * 25 + b"\x02", None, None, "test")
    both.create(conversation="talk")
    assert both(base.Create(new=new_turn(second, conversation="talk"))) == base.Busy(ROOT, "READY")

    both.save(base.Mode.END)

    assert both(base.OpenTurn(conversation="talk")) == base.Opened(None)
    assert isinstance(both(base.Create(new=new_turn(second, conversation="talk"))), base.Created)


# -- deliver and cancel


def test_deliver_and_claim_is_one_call(both: Both) -> None:
    """A suspended turn is owned with its mail; the same message again is not stored twice."""
    both.create()
    both.save(base.Mode.SUSPEND)
    claimed = both.claimed(deliver("m1", by=claim_by("second")), claim_by("second"))

    assert [(one.message_id, one.body, one.at) for one in claimed.mail] == [("m1", b"body\x00m1", both.now)]
    assert both(deliver("m1", by=claim_by("second"))).epoch == claimed.epoch
    assert both(deliver("m1", by=claim_by("third"))) == base.Delivered(both.now, "node of second", fresh=False)


def test_deliver_finds_what_has_been_answered(both: Both) -> None:
    """By command, by wait and by message, in this order, also after the end."""
    both.create()
    both.save(opened=(base.WaitRow(WAIT, "TOOL_APPROVAL", 5, b"wait", "agent"),))
    both(deliver("m1", command_id="cmd", wait_id=WAIT))
    receipt = base.ReceiptRow(WAIT, b"receipt", "cmd", f"{ROOT}:call-1")
    both.save(consumed=("m1",), receipts=(receipt,), replies=(base.ReplyRow("m1", b"reply"),), closed=(WAIT,))

    for _ in range(2):
        assert both(deliver("m2", command_id="cmd", wait_id=WAIT)) == base.Known("command", b"receipt")
        assert both(deliver("m2", command_id="new", wait_id=WAIT)) == base.Known("wait", b"receipt")
        assert both(deliver("m1")) == base.Replied(b"reply")
        both.save(base.Mode.END) if both.look().state != "T" else None
    found = both(base.Find(root=ROOT, commands=("cmd", "?"), waits=(WAIT,), calls=(f"{ROOT}:call-1",)))
    assert found.bodies == (b"receipt", None, b"receipt", b"receipt")


def test_deliver_refuses(both: Both) -> None:
    """Gone where there is no turn, Full at the cap (not for the runtime's own mail), Closed after the end."""
    assert both(deliver("m1")) == base.Gone()
    both.create()
    both(deliver("m1"))
    assert both(deliver("m2", cap=1)) == base.Full(1)
    assert both(base.Deliver(turn=ROOT, mail=mail("m3"), cap=1, runtime=True)).fresh

    both.save(base.Mode.END, closing=b"closed")

    assert both(deliver("m4")) == base.Closed("COMPLETED")
    assert both(base.ReadReplies(turn=ROOT, message_ids=("m1", "m2", "m3"))).bodies == (b"closed", None, b"closed")


def test_a_cancel_wakes_the_turn_and_stays_until_acknowledged(both: Both) -> None:
    """The first cause wins; SUSPEND keeps the turn while the flag is open."""
    assert both(base.Cancel(turn=ROOT, cause="why")) == base.Gone()
    both.create()
    both.save(base.Mode.SUSPEND)
    by = claim_by("second")
    assert both.claimed(base.Cancel(turn=ROOT, cause="why", claim=by), by).cancel == "why"
    assert not both(base.Cancel(turn=ROOT, cause="other")).fresh
    assert both.save(base.Mode.SUSPEND).cancel == "why"
    assert not both.save(base.Mode.SUSPEND, ack_cancel=True).owned
    assert not both(base.Cancel(turn=ROOT, cause="later")).fresh
    both.claimed(deliver("m1", by=claim_by("third")), claim_by("third"))
    both.save(base.Mode.END)
    assert both(base.Cancel(turn=ROOT, cause="late")) == base.Closed("COMPLETED")


# -- claim, renew, reap, abandon


def test_claim_gives_a_due_turn_to_who_can_run_it(both: Both) -> None:
    """Gone, NotDue, TooNew, UnknownAgent, Claimed (twice to the same), Held."""
    by = claim_by("second")
    assert both(base.Claim(turn=ROOT, by=by)) == base.Gone()
    both.create(schema=1)
    both.save(base.Mode.SUSPEND, wake=both.now + 100, schema=2)
    assert both(base.Claim(turn=ROOT, by=by)) == base.NotDue(both.look().wake)
    assert both(base.Claim(turn=ROOT, by=by), later=100) == base.TooNew(2)
    strangers = claim_by("second", schema=2, agents=frozenset({"agent@2"}))
    assert both(base.Claim(turn=ROOT, by=strangers)) == base.UnknownAgent("agent", "1")
    by = claim_by("second", schema=2, agents=frozenset({"other@1", "agent@1"}))
    claimed = both.claimed(base.Claim(turn=ROOT, by=by), by)
    assert both(base.Claim(turn=ROOT, by=by)).epoch == claimed.epoch
    assert both(base.Claim(turn=ROOT, by=claim_by("third", schema=2))) == base.Held("node of second")


def test_renew_tells_who_has_lost_and_who_has_mail(both: Both) -> None:
    """0 lost; else 1, +1 mail, +2 cancel; a renewed lease is not reaped."""
    both.create()
    stranger = base.Token("first", both.token.epoch + 1)
    leases = ((ROOT, both.token), (ROOT, stranger), (CHILD, both.token))
    assert both(base.Renew(leases=leases, lease_ms=5_000)).flags == (1, 0, 0)
    both(deliver("m1"))
    assert both(base.Renew(leases=leases[:1], lease_ms=5_000)).flags == (2,)
    both(base.Cancel(turn=ROOT, cause="why"))
    assert both(base.Renew(leases=leases[:1], lease_ms=5_000)).flags == (4,)
    assert both(base.Reap(turn=ROOT, grace_ms=100), later=4_000) == base.Held("node of first")
    assert both(base.Reap(turn=ROOT, grace_ms=100), later=1_050) == base.Held("node of first")  # over, but the grace is not
    assert both(base.Expired(grace_ms=100), later=1_000).turns == (ROOT,)
    assert both(base.Reap(turn=ROOT, grace_ms=100)) == base.Reaped(1)
    assert both(base.Renew(leases=leases[:1], lease_ms=5_000)).flags == (0,)


def test_each_lost_owner_is_counted_until_the_turn_is_parked(both: Both) -> None:
    """The first is free, then the back-off doubles; then only revive, or a cancel, wakes the turn."""
    both.create()
    assert both(base.Reap(turn=CHILD, grace_ms=0)) == base.Gone()
    delays = []
    for crashes in range(1, 5):
        assert both(base.Reap(turn=ROOT, grace_ms=100, max_crashes=3), later=1_100) == base.Reaped(crashes, crashes > 3)
        assert both(base.Reap(turn=ROOT, grace_ms=100)) == base.Gone()
        if crashes <= 3:
            delays.append((both.look().wake or 0) - both.now + 1)
            by = claim_by(f"owner {crashes}")
            both.claimed(base.Claim(turn=ROOT, by=by), by, later=delays[-1])

    assert delays == [0, 1_000, 2_000]
    assert both(base.Claim(turn=ROOT, by=claim_by("late"))) == base.Gone()
    assert both(deliver("m1", by=claim_by("late"))).quarantined
    assert both(base.Due()).turns == ()
    assert both(base.Revive(turn=ROOT)) == base.Done()
    assert both(base.Revive(turn=ROOT)) == base.Gone()
    assert both(base.Claim(turn=ROOT, by=claim_by("late"))).crashes == 0


def test_a_dead_node_is_reaped_before_its_lease_ends(both: Both) -> None:
    """Only where the proof names the owner's node."""
    both.create()

    assert both(base.Reap(turn=ROOT, grace_ms=100, dead_node="other")) == base.Held("node of first")
    assert both(base.Reap(turn=ROOT, grace_ms=100, dead_node="node of first")) == base.Reaped(1)


def test_abandon_gives_back_without_saving(both: Both) -> None:
    """Runnable after the delay, for an owner only."""
    both.create()

    assert both(base.Abandon(turn=ROOT, token=base.Token("first", 1))) == base.Fenced("node of first")
    assert both(base.Abandon(turn=ROOT, token=both.token, delay_ms=50)) == base.Done()
    assert both(base.Abandon(turn=ROOT, token=both.token)) == base.Fenced(None)
    assert both(base.Claim(turn=ROOT, by=claim_by("second"))) == base.NotDue(both.look().wake)


# -- quarantine and discard


def test_a_parked_turn_is_woken_by_cancel_and_ended_by_discard(both: Both) -> None:
    """Fenced without the token; discard ends the record, frees the conversation and tells the parent."""
    assert both(base.Discard(turn=ROOT, status="FAILED")) == base.Gone()
    both.create(conversation="talk")
    both.save(create=(new_turn(CHILD, parent=ROOT),))
    by = claim_by("child")
    token = base.Token("child", both(base.Claim(turn=CHILD, by=by)).epoch)
    assert both(base.Quarantine(turn=CHILD, token=both.token, reason="bytes")) == base.Fenced("node of child")
    assert both(base.Quarantine(turn=CHILD, token=token, reason="bytes")) == base.Done()
    assert both.look(CHILD).quarantine == "bytes"
    assert both(base.Cancel(turn=CHILD, cause="why", claim=claim_by("again"))).quarantined

    assert both(base.Discard(turn=CHILD, status="FAILED", notify=mail("told"))) == base.Done()

    assert both.look(CHILD).status == "FAILED"
    assert [one.message_id for one in both(base.ReadMail(turn=ROOT)).mail] == ["told"]


# -- save


def test_a_save_is_applied_once(both: Both) -> None:
    """The same save id again is answered as things stand now; only the token's owner may save."""
    both.create()
    op = both.next(usage=(1, 2, 3, 4))
    both.save(usage=(1, 2, 3, 4))

    assert both(op) == base.Saved(1, both.now, owned=True, usage=(1, 2, 3, 4), replayed=True)
    assert both(both.next(token=base.Token("first", 1))) == base.Fenced("node of first")
    assert both(both.next(turn=CHILD)) == base.Fenced(None)
    assert both(base.ReadHistory(turn=ROOT)).bodies == (b"hello", b"entry")


def test_a_save_fits_onto_what_is_stored(both: Both) -> None:
    """Behind where the store has less than the owner knows, Conflict where it has more."""
    both.create()
    both.save()

    assert both(both.next(version=2)) == base.Behind(1, 2, 3)
    assert both(both.next(messages=base.Messages(3))) == base.Behind(1, 2, 3)
    assert both(both.next(events=base.Events(4))) == base.Behind(1, 2, 3)
    assert both(both.next(version=0)) == base.Conflict(1)
    assert both(both.next(messages=base.Messages(1))) == base.Conflict(1)
    assert both(both.next(events=base.Events(2))) == base.Conflict(1)


def test_history_and_events_are_appended(both: Both) -> None:
    """Long appends too; each batch of events carries numbers and the epoch of its saver."""
    both.create()
    both.save(messages=base.Messages(1, tuple(b"entry %d" % n for n in range(2_500))))
    epoch = both.token.epoch

    assert both(base.ReadHistory(turn=ROOT, start=2_500)).bodies == (b"entry 2499",)
    assert both(base.ReadEvents(turn=ROOT)).batches == ((1, 1, 0, b"created"), (2, 2, epoch, b"two"))
    assert both(base.ReadEvents(turn=ROOT, after=1)).last == 3


def test_suspend_lets_go_only_with_an_empty_mailbox(both: Both) -> None:
    """Mail that came meanwhile keeps the turn; consumed by exact id, in any order, it suspends until its wake."""
    both.create()
    for name in ("m1", "m2", "m3"):
        both(deliver(name))
    assert [one.message_id for one in both.save(base.Mode.SUSPEND, consumed=("m2",), batch=1).mail] == ["m1"]
    assert not both.save(base.Mode.SUSPEND, consumed=("m3", "m1"), wake=both.now + 500).owned
    assert both(base.Due()).next == both.look().wake
    assert both(deliver("m1")) == base.Delivered(both.now, None, fresh=False)
    assert both(base.Due(), later=500).turns == (ROOT,)


def test_hand_off_is_runnable_for_anybody(both: Both) -> None:
    """Now, whatever the wake says."""
    both.create()
    both.save(base.Mode.HAND_OFF, wake=both.now + 500)

    assert both(base.Due()).turns == (ROOT,)
    assert isinstance(both(base.Claim(turn=ROOT, by=claim_by("second"))), base.Claimed)


def test_open_waits_are_listed_until_closed(both: Both) -> None:
    """In the inbox by creation, in the record by turn; the end closes them."""
    other = wait_id(ROOT, "call-2", 1)
    both.create()
    first = base.WaitRow(WAIT, "TOOL_APPROVAL", 9, b"first", "agent", "tenant", "ann")
    both.save(opened=(first, base.WaitRow(other, "RETRY", 5, b"second", "agent")))

    assert both(base.ListWaits()).bodies == (b"second", b"first")
    assert both(base.ListWaits(assignee="ann", tenant="tenant")).bodies == (b"first",)
    assert both(base.ListWaits(without=("RETRY",))).bodies == (b"first",)
    page = both(base.ListWaits(limit=1))
    assert both(base.ListWaits(limit=1, after=page.next)).bodies == (b"first",)
    both.save(closed=(other, "unknown"))
    assert both.look().wait_bodies == (b"first",)
    both.save(base.Mode.END)
    assert both(base.ListWaits()).bodies == ()


def test_what_a_save_does_to_other_turns_is_in_it(both: Both) -> None:
    """Children, runtime mail and cancels; usage is summed over the tree; listings see it all."""
    both.create()
    both.save(create=(new_turn(CHILD, parent=ROOT),), usage=(10, 1, 11, 0))
    assert both.look(CHILD).state == "R"
    by = claim_by("child")
    token = base.Token("child", both(base.Claim(turn=CHILD, by=by)).epoch)
    child = {"turn": CHILD, "token": token, "version": 0, "messages": base.Messages(1), "events": base.Events(1)}
    ended = both.next(base.Mode.END, **child, usage=(5, 5, 10, 2), deliver=((ROOT, mail("ended")), ("nobody", mail("x"))))
    assert both(ended).usage == (15, 6, 21, 2)
    assert [one.message_id for one in both(base.ReadMail(turn=ROOT)).mail] == ["ended"]
    assert both.save(deliver=((CHILD, mail("x")),), cancel=((CHILD, "why"), (ROOT, "me")), usage=(20, 2, 22, 0)).cancel == "me"
    assert both.save(ack_cancel=True, cancel=((ROOT, "again"),), usage=(20, 2, 22, 0)).usage == (25, 7, 32, 2)
    assert both.look().cancel is None
    assert [row.turn for row in both(base.ListTurns()).turns] == [ROOT, CHILD]
    assert [row.turn for row in both(base.ListTurns(status="COMPLETED", parent=ROOT)).turns] == [CHILD]


def test_a_child_of_a_cancelled_parent_is_born_cancelled(both: Both) -> None:
    """With an open flag and with an acknowledged one."""
    second = child_id(ROOT, b"\x02" * 10)
    both.create()
    both(base.Cancel(turn=ROOT, cause="why"))
    both.save(create=(new_turn(CHILD, parent=ROOT),))
    both.save(ack_cancel=True, create=(new_turn(second, parent=ROOT),))

    assert [both(base.Claim(turn=turn, by=claim_by(turn))).cancel for turn in (CHILD, second)] == ["why", "why"]
