"""Quarantine, Revive, Discard, Prune; the lists and their pages."""

from __future__ import annotations

from ...store import base as b
from . import make
from .check import check, timed
from .expect import equal, hold, is_a
from .ops import Ops

MINUTE = 60_000
DAY = 1440 * MINUTE


@check
async def quarantine_parks(ops: Ops) -> None:
    """Not due, not claimable, its bytes untouched; mail is still taken and does not wake it; by a stranger: Fenced."""
    turn, token = await ops.start()

    equal(await ops(b.Quarantine(turn=turn, token=b.Token("x", 1), reason="r")), b.Fenced("n1"))
    equal(await ops(b.Quarantine(turn=turn, token=token, reason="unreadable")), b.Done())
    equal(await ops(b.Deliver(turn=turn, mail=make.mail(), claim=make.by())), b.Delivered(ops.now, quarantined=True))
    equal(await ops.due(), ())
    equal(await ops(b.Claim(turn=turn, by=make.by())), b.Gone())
    seen = await ops.look(turn)
    equal((seen.quarantine, seen.snapshot), ("unreadable", b"first"))
    hold(seen.created <= seen.quarantined_at <= seen.now, f"parked at {seen.quarantined_at}, now is {seen.now}")
    equal([found.turn for found in (await ops(b.ListTurns(quarantined=True))).turns], [turn])


@check
async def revive(ops: Ops) -> None:
    """Due again, crashes forgotten, its mail still there; Gone where there is nothing to revive."""
    turn = await ops.suspended()
    equal(await ops(b.Revive(turn=turn)), b.Gone())
    await ops(b.Deliver(turn=turn, mail=make.mail("m1")))
    await ops.park(turn)

    equal(await ops(b.Revive(turn=turn)), b.Done())
    claimed, _ = await ops.claim(turn)
    equal(([mail.message_id for mail in claimed.mail], claimed.crashes, claimed.quarantined), (["m1"], 0, False))
    equal(await ops(b.Revive(turn=make.root())), b.Gone())


@check
async def cancel_wakes_a_quarantined_turn(ops: Ops) -> None:
    """For the cancel path only; once the flag is taken, what belongs to it (mail) wakes it too, until it ends."""
    turn = await ops.suspended(wake=0)
    await ops.park(turn)

    equal(await ops(b.Cancel(turn=turn, cause="stop")), b.Delivered(ops.now, quarantined=True))
    claimed, token = await ops.claim(turn)
    equal((claimed.quarantined, claimed.cancel), (True, "stop"))
    await ops(make.save(turn, token, 1, b.Mode.SUSPEND, ack_cancel=True))
    equal(await ops.due(), ())
    is_a(await ops(b.Deliver(turn=turn, mail=make.mail("m"), claim=make.by("me"))), b.Claimed)
    token = b.Token("me", (await ops.look(turn)).epoch)
    await ops(make.save(turn, token, 2, b.Mode.END, consumed=("m",)))
    equal((await ops.look(turn)).quarantine, None)


@check
async def a_second_cancel_wakes_a_turn_parked_under_a_flag(ops: Ops) -> None:
    """An owner who could not even read the snapshot parks the turn again; nothing spins, and a later cancel tries anew."""
    turn = await ops.suspended()
    await ops(b.Cancel(turn=turn, cause="stop"))
    await ops.park(turn)

    equal(await ops.due(), ())
    await ops(b.Cancel(turn=turn, cause="stop"))
    equal(await ops.due(), (turn,))


@check
async def discard(ops: Ops) -> None:
    """Terminal, conversation freed, waits closed, unread mail answered, parent told; the bytes stay. Only of a parked turn."""
    turn, token = await ops.start(conversation="talk")
    child = make.new(make.child(turn), parent=turn)
    await ops(make.save(turn, token, 0, b.Mode.HAND_OFF, create=(child,), opened=(make.wait(turn),)))
    discard = b.Discard(turn=turn, status="FAILED", closing=b"closed")
    equal(await ops(discard), b.Gone())
    sent = make.mail()
    await ops(b.Deliver(turn=turn, mail=sent))
    await ops.park(turn)
    await ops.park(child.turn)

    equal(await ops(b.Discard(turn=child.turn, status="FAILED", notify=make.mail("ended"))), b.Done())
    equal([mail.message_id for mail in (await ops(b.ReadMail(turn=turn))).mail], [sent.message_id, "ended"])
    equal(await ops(discard), b.Done())
    equal(await ops(discard), b.Gone())
    seen = await ops.look(turn)
    equal((seen.state, seen.status, seen.quarantine, seen.version, seen.snapshot), ("T", "FAILED", None, 1, b"snapshot 1"))
    equal(seen.wait_bodies, ())
    equal(await ops(b.OpenTurn(conversation="talk")), b.Opened(None))
    equal(await ops(b.Deliver(turn=turn, mail=sent)), b.Replied(b"closed"))


@timed
async def retention_keeps_or_drops_a_tree_together(ops: Ops) -> None:
    """From the root's end on, and not while a turn of the tree is live; then nothing of it is left."""
    turn, token = await ops.start()
    child = make.new(make.child(turn), parent=turn)
    receipt = b.ReceiptRow(f"{turn}/c/1", b"r", "cmd", f"{turn}:c")
    await ops(make.save(turn, token, 0, create=(child,), receipts=(receipt,)))
    await ops(make.save(turn, token, 1, b.Mode.END, retention_ms=DAY))
    ops.later(DAY + 1)
    await ops(b.Prune())
    is_a(await ops(b.Look(turn=turn)), b.Looked)

    _, other = await ops.claim(child.turn)
    await ops(make.save(child.turn, other, 0, b.Mode.END))
    ops.later(60 * MINUTE)
    await ops(b.Prune())
    for name in (turn, child.turn):
        equal(await ops(b.Look(turn=name)), b.Gone())
    equal(await ops(b.Find(root=turn, commands=("cmd",))), b.Found((None,)))
    equal(await ops(b.ListTurns()), b.TurnListing((), None))
    equal(await ops(b.Versions(turns=(turn,))), b.Progress(((-1, 0, "", 0),)))
    is_a(await ops(b.Create(new=make.new(turn))), b.Created)


@timed
async def replies_and_seen_ids_are_kept_for_a_time(ops: Ops) -> None:
    """Replies 10 minutes, seen ids 24 hours (then at the latest with the next mail), unread mail and open waits for ever."""
    turn, token = await ops.start()
    sent, unread = make.mail(), make.mail()
    await ops(b.Deliver(turn=turn, mail=sent))
    saved = make.save(turn, token, 0, consumed=(sent.message_id,), replies=(b.ReplyRow(sent.message_id, b"ok"),))
    await ops(make.changed(saved, opened=(make.wait(turn),)))
    await ops(b.Deliver(turn=turn, mail=unread))

    ops.later(10 * MINUTE - 1)
    await ops(b.Prune())
    equal(await ops(b.Deliver(turn=turn, mail=sent)), b.Replied(b"ok"))
    ops.later(1)
    await ops(b.Prune())
    equal(await ops(b.Deliver(turn=turn, mail=sent)), b.Delivered(ops.now, "n1", fresh=False))
    ops.later(DAY)
    await ops(b.Prune())
    equal(await ops(b.Deliver(turn=turn, mail=unread)), b.Delivered(ops.now, "n1", fresh=False))
    equal(await ops(b.Deliver(turn=turn, mail=make.mail())), b.Delivered(ops.now, "n1"))
    equal(await ops(b.Deliver(turn=turn, mail=sent)), b.Delivered(ops.now, "n1"))
    equal(len((await ops(b.ListWaits())).bodies), 1)


@check
async def prune_leaves_what_is_not_over(ops: Ops) -> None:
    """Living turns, ended ones within their retention, fresh answers, seen ids, nodes: all stay."""
    ended, token = await ops.start()
    sent = make.mail()
    await ops(b.Deliver(turn=ended, mail=sent))
    row = b.ReplyRow(sent.message_id, b"ok")
    await ops(make.save(ended, token, 0, b.Mode.END, consumed=(sent.message_id,), replies=(row,)))
    living, token = await ops.start()
    await ops(make.save(living, token, 0, b.Mode.SUSPEND, opened=(make.wait(living),)))
    await ops(b.Beat(node="n1", agents=("alpha@1",)))

    await ops(b.Prune())
    equal({found.turn for found in is_a(await ops(b.ListTurns()), b.TurnListing).turns}, {ended, living})
    equal(await ops(b.Deliver(turn=ended, mail=sent)), b.Replied(b"ok"))
    equal(len(is_a(await ops(b.ListWaits()), b.WaitListing).bodies), 1)
    equal([found.agents for found in is_a(await ops(b.ListNodes()), b.Nodes).nodes], [("alpha@1",)])


@check
async def prune_is_bounded(ops: Ops) -> None:
    """At most `limit` of a kind; the next one goes on."""
    one = make.root()
    for _ in range(3):
        turn, token = await ops.start(make.root(beside=one))
        await ops(make.save(turn, token, 0, b.Mode.END, retention_ms=0))
    left: list[int] = []
    for _ in range(3):
        await ops(b.Prune(limit=1))
        left.append(len((await ops(b.ListTurns())).turns))

    equal(left, [2, 1, 0])
