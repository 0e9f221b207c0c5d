"""Save: one transition, fenced, all or nothing."""

from __future__ import annotations

from turnhold.actors.ids import child_id
from turnhold.store import base as b

from . import make
from .ops import Ops


async def test_keep(ops: Ops) -> None:
    """Still the owner: version raised, lease extended, snapshot and history there for the next one."""
    turn, token = await ops.start()
    ops.now += 500
    op = make.save(turn, token, 0, messages=b.Messages(1, (b"two", b"three")), events=b.Events(1, 2, b"more"), usage=(1, 2, 3, 4))

    assert await ops(op) == b.Saved(1, ops.now, owned=True, usage=(1, 2, 3, 4))
    seen = await ops.look(turn)
    assert (seen.snapshot, seen.version, seen.state, seen.lease) == (b"snapshot 1", 1, "A", ops.now + make.LEASE)
    assert await ops(b.ReadHistory(turn=turn, start=1)) == b.Entries((b"two", b"three"))
    assert (await ops(b.ReadEvents(turn=turn, after=1))).batches == ((2, 2, token.epoch, b"more"),)


async def test_a_repeated_save_landed_once(ops: Ops) -> None:
    """The same save id: Saved, replayed, as it stands now; also when somebody else owns the turn by then."""
    turn, token = await ops.start()
    op = make.save(turn, token, 0, b.Mode.SUSPEND, wake=ops.now, messages=b.Messages(1, (b"two",)))

    assert await ops(op) == b.Saved(1, ops.now, owned=False)
    assert await ops(op) == b.Saved(1, ops.now, owned=False, replayed=True)
    await ops.claim(turn)
    assert (await ops(op)).owned is False
    assert await ops(b.ReadHistory(turn=turn)) == b.Entries((b"hello", b"two"))


async def test_a_repeated_keep_brings_what_came_since(ops: Ops) -> None:
    """Mail and cancel are those of now."""
    turn, token = await ops.start()
    op = make.save(turn, token, 0)
    await ops(op)
    await ops(b.Deliver(turn=turn, mail=make.mail("m1")))
    await ops(b.Cancel(turn=turn, cause="stop"))

    again = await ops(op)
    assert (again.replayed, again.owned, again.cancel, [mail.message_id for mail in again.mail]) == (True, True, "stop", ["m1"])


async def test_a_stale_owner_is_fenced(ops: Ops) -> None:
    """Another activation, another epoch, an absent turn: Fenced, and nothing changes."""
    turn, token = await ops.start(by=make.by("me"))
    before = await ops.look(turn)

    assert await ops(make.save(turn, b.Token("you", token.epoch), 0)) == b.Fenced("n1")
    assert await ops(make.save(turn, b.Token("me", token.epoch - 1), 0)) == b.Fenced("n1")
    assert await ops(make.save(make.root(), token, 0)) == b.Fenced(None)
    assert await ops.look(turn) == before


async def test_a_gap_is_behind(ops: Ops) -> None:
    """A store that has forgotten saves answers Behind with its version and lengths; repeated from there, it lands."""
    turn, token = await ops.start()
    ahead = make.save(turn, token, 3, messages=b.Messages(4, (b"five",)), events=b.Events(3, 1, b"e"))

    assert await ops(ahead) == b.Behind(0, 1, 1)
    assert await ops(make.save(turn, token, 0, messages=b.Messages(2))) == b.Behind(0, 1, 1)
    assert await ops(make.save(turn, token, 0, events=b.Events(2))) == b.Behind(0, 1, 1)
    mended = make.changed(ahead, version=0, messages=b.Messages(1, (b"2", b"3", b"4", b"five")), events=b.Events(1, 3, b"e"))
    assert (await ops(mended)).version == 1


async def test_a_fork_is_a_conflict(ops: Ops) -> None:
    """The store ahead of the owner, under its own token: Conflict."""
    turn, token = await ops.start()
    await ops(make.save(turn, token, 0, messages=b.Messages(1, (b"two",))))

    assert await ops(make.save(turn, token, 0)) == b.Conflict(1)
    assert await ops(make.save(turn, token, 1)) == b.Conflict(1)
    assert (await ops(make.save(turn, token, 1, messages=b.Messages(2)))).version == 2


async def test_suspend_sleeps_until_its_wake(ops: Ops) -> None:
    """Released; due at `wake`, or never by itself."""
    timed = await ops.suspended(wake=make.START + 70)
    await ops.suspended()

    assert await ops(b.Due()) == b.DueTurns((), make.START + 70, ops.now)
    seen = await ops.look(timed)
    assert (seen.state, seen.activation, seen.node) == ("S", None, None)
    ops.now += 70
    assert await ops.due() == (timed,)


async def test_suspend_with_mail_keeps(ops: Ops) -> None:
    """Nobody sleeps past mail: the turn stays with its owner, who gets it with the reply."""
    turn, token = await ops.start()
    await ops(b.Deliver(turn=turn, mail=make.mail("m1")))
    kept = await ops(make.save(turn, token, 0, b.Mode.SUSPEND))

    assert (kept.owned, [mail.message_id for mail in kept.mail]) == (True, ["m1"])
    slept = await ops(make.save(turn, token, 1, b.Mode.SUSPEND, consumed=("m1",)))
    assert slept.owned is False


async def test_hand_off(ops: Ops) -> None:
    """Released, and due at once for anybody."""
    turn, token = await ops.start()

    assert (await ops(make.save(turn, token, 0, b.Mode.HAND_OFF))).owned is False
    assert await ops.due() == (turn,)


async def test_end(ops: Ops) -> None:
    """Terminal: no owner, no wake, no waits; nothing more is taken."""
    turn, token = await ops.start()
    await ops(make.save(turn, token, 0, opened=(make.wait(turn),)))
    end = make.save(turn, token, 1, b.Mode.END)

    assert (await ops(end)).owned is False
    seen = await ops.look(turn)
    assert (seen.state, seen.status, seen.activation, seen.wake, seen.live_turns) == ("T", "COMPLETED", None, None, 0)
    assert (await ops(b.ListWaits())).bodies == ()
    assert (await ops(b.ReadEvents(turn=turn))).terminal is True
    assert (await ops(end)).replayed is True
    assert await ops(make.save(turn, token, 2)) == b.Fenced(None)


async def test_children_are_made_in_the_same_save(ops: Ops) -> None:
    """Due at once, part of the tree; a save repeated with them does not make them twice."""
    turn, token = await ops.start()
    child = make.new(child_id(turn, b"0123456789"), parent=turn)
    op = make.save(turn, token, 0, create=(child,))
    await ops(op)
    await ops(op)
    await ops(make.save(turn, token, 1, create=(child,)))

    assert await ops.due() == (child.turn,)
    assert (await ops.look(turn)).live_turns == 2
    listed = await ops(b.ListTurns(parent=turn))
    assert [found.turn for found in listed.turns] == [child.turn]
    assert (await ops(b.ListTurns(root=turn))).turns[0].turn == turn


async def test_a_child_of_a_cancelled_turn_is_born_cancelled(ops: Ops) -> None:
    """With the cause of its parent, whether that flag is open or acknowledged."""
    turn, token = await ops.start()
    await ops(b.Cancel(turn=turn, cause="stop"))
    one, two = (make.new(child_id(turn, name), parent=turn) for name in (b"child one.", b"child two."))
    await ops(make.save(turn, token, 0, create=(one,)))
    await ops(make.save(turn, token, 1, create=(two,), ack_cancel=True))

    for child in (one, two):
        claimed, _ = await ops.claim(child.turn)
        assert claimed.cancel == "stop"


async def test_a_save_reaches_the_tree(ops: Ops) -> None:
    """Mail and flags for other turns of the tree land with it, once, past any cap; for ended or absent turns they are dropped."""
    turn, token = await ops.start()
    child = make.new(child_id(turn, b"0123456789"), parent=turn, wake=None)
    ended = make.new(child_id(turn, b"9876543210"), parent=turn)
    await ops(make.save(turn, token, 0, create=(child, ended)))
    _, other = await ops.claim(ended.turn)
    await ops(make.save(ended.turn, other, 0, b.Mode.END))
    sent = make.mail()
    op = make.save(
        turn,
        token,
        1,
        deliver=((child.turn, sent), (child.turn, sent), (ended.turn, sent), (make.root(), sent), (turn, make.mail("own"))),
        cancel=((child.turn, "stop"), (ended.turn, "stop")),
    )
    saved = await ops(op)

    assert [mail.message_id for mail in saved.mail] == ["own"]
    claimed, _ = await ops.claim(child.turn)
    assert ([mail.message_id for mail in claimed.mail], claimed.cancel) == ([sent.message_id], "stop")


async def test_usage_is_summed_over_the_tree(ops: Ops) -> None:
    """Absolute per turn: a save says the whole again, and children count with their root."""
    turn, token = await ops.start()
    child = make.new(child_id(turn, b"0123456789"), parent=turn)
    await ops(make.save(turn, token, 0, create=(child,), usage=(1, 1, 2, 0)))
    _, other = await ops.claim(child.turn)
    saved = await ops(make.save(child.turn, other, 0, usage=(10, 10, 20, 1)))

    assert saved.usage == (11, 11, 22, 1)
    assert (await ops(make.save(turn, token, 1, usage=(3, 3, 6, 2)))).usage == (13, 13, 26, 3)


async def test_waits_open_and_close(ops: Ops) -> None:
    """Open waits are seen from their turn and from all above it; opened again, a wait is replaced."""
    turn, token = await ops.start()
    child = make.new(child_id(turn, b"0123456789"), parent=turn)
    first, second = make.wait(turn), make.wait(turn, "c2")
    await ops(make.save(turn, token, 0, create=(child,), opened=(first, second)))
    _, other = await ops.claim(child.turn)
    third = make.wait(child.turn)
    await ops(make.save(child.turn, other, 0, b.Mode.SUSPEND, opened=(third,)))

    assert (await ops.look(turn)).wait_bodies == (first.body, second.body, third.body)
    assert (await ops.look(child.turn)).wait_bodies == (third.body,)
    again = b.WaitRow(first.id, first.kind, first.created, b"changed")
    await ops(make.save(turn, token, 1, opened=(again,), closed=(second.id, "unknown")))
    assert set((await ops.look(turn)).wait_bodies) == {b"changed", third.body}
