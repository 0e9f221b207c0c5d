"""Save: one transition, fenced, all or nothing."""

from __future__ import annotations

from ...store import base as b
from . import make
from .check import check, timed
from .expect import equal, is_a
from .ops import Ops, timeless


@check
async def keep(ops: Ops) -> None:
    """Still the owner: version raised, lease extended, snapshot and history there for the next one."""
    turn, token = await ops.start(by=make.by(lease_ms=make.LEASE // 2))
    op = make.save(turn, token, 0, messages=b.Messages(1, (b"two", b"three")), events=b.Events(1, 2, b"more"), usage=(1, 2, 3, 4))

    saved = is_a(await ops(op), b.Saved)
    equal(saved, b.Saved(1, ops.now, owned=True, usage=(1, 2, 3, 4)))
    seen = await ops.look(turn)
    equal((seen.snapshot, seen.version, seen.state, seen.lease), (b"snapshot 1", 1, "A", saved.now + make.LEASE))
    equal(await ops(b.ReadHistory(turn=turn, start=1)), b.Entries((b"two", b"three")))
    equal((await ops(b.ReadEvents(turn=turn, after=1))).batches, ((2, 2, token.epoch, b"more"),))


@check
async def a_repeated_save_landed_once(ops: Ops) -> None:
    """The same save id: Saved, replayed, as it stands now; also when somebody else owns the turn by then."""
    turn, token = await ops.start()
    op = make.save(turn, token, 0, b.Mode.SUSPEND, wake=ops.now, messages=b.Messages(1, (b"two",)))

    equal(await ops(op), b.Saved(1, ops.now, owned=False))
    equal(await ops(op), b.Saved(1, ops.now, owned=False, replayed=True))
    await ops.claim(turn)
    equal((await ops(op)).owned, False)
    equal(await ops(b.ReadHistory(turn=turn)), b.Entries((b"hello", b"two")))


@check
async def a_repeated_keep_brings_what_came_since(ops: Ops) -> None:
    """Mail and cancel are those of now."""
    turn, token = await ops.start()
    op = make.save(turn, token, 0)
    await ops(op)
    await ops(b.Deliver(turn=turn, mail=make.mail("m1")))
    await ops(b.Cancel(turn=turn, cause="stop"))

    again = await ops(op)
    equal((again.replayed, again.owned, again.cancel, [mail.message_id for mail in again.mail]), (True, True, "stop", ["m1"]))


@check
async def a_stale_owner_is_fenced(ops: Ops) -> None:
    """Another activation, another epoch, an absent turn: Fenced, and nothing changes."""
    turn, token = await ops.start(by=make.by("me"))
    before = timeless(await ops.look(turn))

    equal(await ops(make.save(turn, b.Token("you", token.epoch), 0)), b.Fenced("n1"))
    equal(await ops(make.save(turn, b.Token("me", token.epoch - 1), 0)), b.Fenced("n1"))
    equal(await ops(make.save(make.root(), token, 0)), b.Fenced(None))
    equal(timeless(await ops.look(turn)), before)


@check
async def a_gap_is_behind(ops: Ops) -> None:
    """A store that has forgotten saves answers Behind with its version and lengths; repeated from there, it lands."""
    turn, token = await ops.start()
    ahead = make.save(turn, token, 3, messages=b.Messages(4, (b"five",)), events=b.Events(3, 1, b"e"))

    equal(await ops(ahead), b.Behind(0, 1, 1))
    equal(await ops(make.save(turn, token, 0, messages=b.Messages(2))), b.Behind(0, 1, 1))
    equal(await ops(make.save(turn, token, 0, events=b.Events(2))), b.Behind(0, 1, 1))
    mended = make.changed(ahead, version=0, messages=b.Messages(1, (b"2", b"3", b"4", b"five")), events=b.Events(1, 3, b"e"))
    equal((await ops(mended)).version, 1)


@check
async def a_fork_is_a_conflict(ops: Ops) -> None:
    """The store ahead of the owner, under its own token: Conflict."""
    turn, token = await ops.start()
    await ops(make.save(turn, token, 0, messages=b.Messages(1, (b"two",))))

    equal(await ops(make.save(turn, token, 0)), b.Conflict(1))
    equal(await ops(make.save(turn, token, 1)), b.Conflict(1))
    equal((await ops(make.save(turn, token, 1, messages=b.Messages(2)))).version, 2)


@check
async def suspend_sleeps_until_its_wake(ops: Ops) -> None:
    """Released; due at `wake`, or never by itself."""
    wake = ops.now + make.LEASE
    sleeping = await ops.suspended(wake=wake)
    await ops.suspended()

    equal(await ops(b.Due()), b.DueTurns((), wake, ops.now))
    seen = await ops.look(sleeping)
    equal((seen.state, seen.activation, seen.node, seen.wake), ("S", None, None, wake))
    equal(await ops(b.Claim(turn=sleeping, by=make.by())), b.NotDue(wake))
    past = await ops.suspended(wake=ops.now)
    equal(await ops.due(), (past,))


@timed
async def a_sleeper_wakes(ops: Ops) -> None:
    """At its wake, and not before; mail wakes it earlier."""
    first, second = [await ops.suspended(wake=ops.now + 70) for _ in range(2)]

    ops.later(69)
    equal(await ops.due(), ())
    await ops(b.Deliver(turn=second, mail=make.mail()))
    equal(await ops.due(), (second,))
    ops.later(1)
    equal(await ops.due(), (second, first))


@check
async def suspend_with_mail_keeps(ops: Ops) -> None:
    """Nobody sleeps past mail: the turn stays with its owner, who gets it with the reply."""
    turn, token = await ops.start()
    await ops(b.Deliver(turn=turn, mail=make.mail("m1")))
    kept = await ops(make.save(turn, token, 0, b.Mode.SUSPEND))

    equal((kept.owned, [mail.message_id for mail in kept.mail]), (True, ["m1"]))
    slept = await ops(make.save(turn, token, 1, b.Mode.SUSPEND, consumed=("m1",)))
    equal(slept.owned, False)


@check
async def hand_off(ops: Ops) -> None:
    """Released, and due at once for anybody."""
    turn, token = await ops.start()

    equal((await ops(make.save(turn, token, 0, b.Mode.HAND_OFF))).owned, False)
    equal(await ops.due(), (turn,))


@check
async def end(ops: Ops) -> None:
    """Terminal: no owner, no wake, no waits; nothing more is taken."""
    turn, token = await ops.start()
    await ops(make.save(turn, token, 0, opened=(make.wait(turn),)))
    end = make.save(turn, token, 1, b.Mode.END)

    equal((await ops(end)).owned, False)
    seen = await ops.look(turn)
    equal((seen.state, seen.status, seen.activation, seen.wake, seen.live_turns), ("T", "COMPLETED", None, None, 0))
    equal((await ops(b.ListWaits())).bodies, ())
    equal((await ops(b.ReadEvents(turn=turn))).terminal, True)
    equal((await ops(end)).replayed, True)
    equal(await ops(make.save(turn, token, 2)), b.Fenced(None))


@check
async def children_are_made_in_the_same_save(ops: Ops) -> None:
    """Due at once, part of the tree; a save repeated with them does not make them twice."""
    turn, token = await ops.start()
    child = make.new(make.child(turn), parent=turn)
    op = make.save(turn, token, 0, create=(child,))
    await ops(op)
    await ops(op)
    await ops(make.save(turn, token, 1, create=(child,)))

    equal(await ops.due(), (child.turn,))
    equal((await ops.look(turn)).live_turns, 2)
    listed = await ops(b.ListTurns(parent=turn))
    equal([found.turn for found in listed.turns], [child.turn])
    equal((await ops(b.ListTurns(root=turn))).turns[0].turn, turn)


@check
async def a_child_of_a_cancelled_turn_is_born_cancelled(ops: Ops) -> None:
    """With the cause of its parent, whether that flag is open or acknowledged."""
    turn, token = await ops.start()
    await ops(b.Cancel(turn=turn, cause="stop"))
    one, two = (make.new(make.child(turn, number), parent=turn) for number in (1, 2))
    await ops(make.save(turn, token, 0, create=(one,)))
    await ops(make.save(turn, token, 1, create=(two,), ack_cancel=True))

    for child in (one, two):
        claimed, _ = await ops.claim(child.turn)
        equal(claimed.cancel, "stop")


@check
async def a_save_reaches_the_tree(ops: Ops) -> None:
    """Mail and flags for other turns of the tree land with it, once, past any cap; for ended or absent turns they are dropped."""
    turn, token = await ops.start()
    child = make.new(make.child(turn), parent=turn, wake=None)
    ended = make.new(make.child(turn, 2), parent=turn)
    await ops(make.save(turn, token, 0, create=(child, ended)))
    _, other = await ops.claim(ended.turn)
    await ops(make.save(ended.turn, other, 0, b.Mode.END))
    sent = make.mail()
    absent = make.child(turn, 3)
    op = make.save(
        turn,
        token,
        1,
        deliver=((child.turn, sent), (child.turn, sent), (ended.turn, sent), (absent, sent), (turn, make.mail("own"))),
        cancel=((child.turn, "stop"), (ended.turn, "stop"), (absent, "stop")),
    )
    saved = is_a(await ops(op), b.Saved)

    equal([mail.message_id for mail in saved.mail], ["own"])
    claimed, _ = await ops.claim(child.turn)
    equal(([mail.message_id for mail in claimed.mail], claimed.cancel), ([sent.message_id], "stop"))
    equal((await ops(b.ReadMail(turn=ended.turn))).mail, ())
    equal(await ops(b.Look(turn=absent)), b.Gone())


@check
async def a_save_rouses_whom_it_reaches(ops: Ops) -> None:
    """A sleeping parent is due when its child's last save tells it, and a sleeping child when its parent cancels it."""
    turn, token = await ops.start()
    child = make.new(make.child(turn), parent=turn)
    await ops(make.save(turn, token, 0, b.Mode.SUSPEND, create=(child,)))
    equal(await ops.due(), (child.turn,))
    _, other = await ops.claim(child.turn)
    await ops(make.save(child.turn, other, 0, b.Mode.SUSPEND, deliver=((turn, make.mail("asks")),)))
    equal(await ops.due(), (turn,))
    _, token = await ops.claim(turn)
    await ops(make.save(turn, token, 1, b.Mode.SUSPEND, consumed=("asks",), cancel=((child.turn, "stop"),)))
    equal(await ops.due(), (child.turn,))
    _, other = await ops.claim(child.turn)
    end = make.save(child.turn, other, 1, b.Mode.END, deliver=((turn, make.mail("ended")),))
    equal(is_a(await ops(end), b.Saved).owned, expected=False)
    equal(await ops.due(), (turn,))
    await ops(end)
    claimed, _ = await ops.claim(turn)
    equal([mail.message_id for mail in claimed.mail], ["ended"])


@check
async def progress_grows_with_saves_below(ops: Ops) -> None:
    """Versions: version, last event, state of each; a root's fourth number grows with each save of any turn below it."""
    turn, token = await ops.start()
    child = make.new(make.child(turn), parent=turn)
    await ops(make.save(turn, token, 0, b.Mode.SUSPEND, create=(child,), events=b.Events(1, 2, b"two")))
    seen = is_a(await ops(b.Versions(turns=(turn, make.root(), child.turn))), b.Progress).turns
    equal(seen, ((1, 3, "S", 0), (-1, 0, "", 0), (0, 1, "R", 0)))
    _, other = await ops.claim(child.turn)
    numbers = [seen[0][3]]
    for version in range(2):
        below = (make.new(make.child(turn, 2), parent=child.turn),)
        await ops(make.save(child.turn, other, version, create=below))
        numbers.append(is_a(await ops(b.Versions(turns=(turn,))), b.Progress).turns[0][3])
    _, deepest = await ops.claim(make.child(turn, 2))
    await ops(make.save(make.child(turn, 2), deepest, 0, b.Mode.END))
    after = is_a(await ops(b.Versions(turns=(turn, child.turn))), b.Progress).turns
    numbers.append(after[0][3])
    equal(numbers, sorted(set(numbers)))
    equal(after[1], (2, 1, "A", 0))


@check
async def a_save_may_ask_to_be_confirmed(ops: Ops) -> None:
    """It stands whether or not a replica has it; one that does not ask is never called unconfirmed."""
    turn, token = await ops.start()

    equal(is_a(await ops(make.save(turn, token, 0)), b.Saved).confirmed, expected=True)
    op = make.save(turn, token, 1, confirm=True)
    saved = is_a(await ops(op), b.Saved)
    equal((saved.version, saved.owned, saved.replayed), (2, True, False))
    again = is_a(await ops(op), b.Saved)
    equal((again.version, again.replayed), (2, True))
    equal((await ops.look(turn)).version, 2)


@check
async def usage_is_summed_over_the_tree(ops: Ops) -> None:
    """Absolute per turn: a save says the whole again, and children count with their root."""
    turn, token = await ops.start()
    child = make.new(make.child(turn), parent=turn)
    await ops(make.save(turn, token, 0, create=(child,), usage=(1, 1, 2, 0)))
    _, other = await ops.claim(child.turn)
    saved = await ops(make.save(child.turn, other, 0, usage=(10, 10, 20, 1)))

    equal(saved.usage, (11, 11, 22, 1))
    equal((await ops(make.save(turn, token, 1, usage=(3, 3, 6, 2)))).usage, (13, 13, 26, 3))


@check
async def waits_open_and_close(ops: Ops) -> None:
    """Open waits are seen from their turn and from all above it; opened again, a wait is replaced."""
    turn, token = await ops.start()
    child = make.new(make.child(turn), parent=turn)
    first, second = make.wait(turn), make.wait(turn, "c2")
    await ops(make.save(turn, token, 0, create=(child,), opened=(first, second)))
    _, other = await ops.claim(child.turn)
    third = make.wait(child.turn)
    await ops(make.save(child.turn, other, 0, b.Mode.SUSPEND, opened=(third,)))

    equal((await ops.look(turn)).wait_bodies, (first.body, second.body, third.body))
    equal((await ops.look(child.turn)).wait_bodies, (third.body,))
    again = b.WaitRow(first.id, first.kind, first.created, b"changed")
    await ops(make.save(turn, token, 1, opened=(again,), closed=(second.id, "unknown")))
    equal(set((await ops.look(turn)).wait_bodies), {b"changed", third.body})


@check
async def mail_of_a_save_comes_once(ops: Ops) -> None:
    """Repeated with a later save (as after Behind), unread or consumed, it is not delivered again."""
    turn, token = await ops.start()
    child = make.new(make.child(turn), parent=turn)
    await ops(make.save(turn, token, 0, b.Mode.SUSPEND, create=(child,)))
    _, other = await ops.claim(child.turn)
    for version in range(2):
        await ops(make.save(child.turn, other, version, deliver=((turn, make.mail("told")),)))
    claimed, token = await ops.claim(turn)
    equal([mail.message_id for mail in claimed.mail], ["told"])
    slept = is_a(await ops(make.save(turn, token, 1, b.Mode.SUSPEND, consumed=("told",))), b.Saved)
    equal((slept.owned, slept.mail), (False, ()))
    await ops(make.save(child.turn, other, 2, deliver=((turn, make.mail("told")),)))
    equal(await ops.due(), ())
    equal((await ops(b.ReadMail(turn=turn))).mail, ())
