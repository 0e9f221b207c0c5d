"""Conversations: one turn at a time, a queue behind it, and starts that take the place of what runs."""

from __future__ import annotations

from ...store import base as b
from . import make
from .check import check
from .expect import equal, is_a
from .nodes import TRIES, heard
from .ops import Ops, timeless


@check
async def a_busy_conversation_queues(ops: Ops) -> None:
    """A start with ``queue`` behind an open turn: Queued, stored, in the order of the starts, at rest; the open turn stays."""
    first, _ = await ops.start(conversation="talk")
    second, third = await queued(ops), await queued(ops)

    equal(await queue(ops), (second, third))
    equal(await ops(b.OpenTurn(conversation="talk")), b.Opened(first, "READY"))
    seen = await ops.look(second)
    equal((seen.state, seen.wake, seen.status, seen.snapshot, seen.version), ("S", None, "READY", b"first", 0))
    equal((seen.live_turns, seen.runnable_turns), (1, 0))
    equal(await ops(b.ReadHistory(turn=second)), b.Entries((b"hello",)))
    found = is_a(await ops(b.ListTurns(conversation="talk")), b.TurnListing)
    equal({one.turn for one in found.turns}, {first, second, third})


@check
async def a_free_conversation_starts_at_once(ops: Ops) -> None:
    """With ``queue`` or ``supersede`` a start in a free conversation, or in none, is as any other: Created or Claimed."""
    starts: list[tuple[str | None, b.WhenBusy]] = [("a", "queue"), ("b", "supersede"), (None, "queue"), (None, "supersede")]
    for talk, when in starts:
        new = make.new(conversation=talk)
        is_a(await ops(b.Create(new=new, when_busy=when, cause="newer")), b.Created)
        _, token = await ops.claim(new.turn)
        await ops(make.save(new.turn, token, 0, b.Mode.END))
        is_a(await ops(b.Create(new=make.new(conversation=talk), claim=make.by(), when_busy=when, cause="newer")), b.Claimed)


@check
async def a_queue_has_room(ops: Ops) -> None:
    """Where `room` turns are queued: Busy with the open turn and their number, and nothing is stored; ``refuse`` says 0."""
    first, _ = await ops.start(conversation="talk")
    refused = make.new(conversation="talk")

    equal(await ops(b.Create(new=refused, when_busy="queue", room=0)), b.Busy(first, "READY", 0))
    waiting = (await queued(ops, room=1), await queued(ops, room=2))
    equal(await ops(b.Create(new=refused, when_busy="queue", room=2)), b.Busy(first, "READY", 2))
    equal(await ops(b.Create(new=refused, when_busy="queue", room=1)), b.Busy(first, "READY", 2))
    equal(await ops(b.Create(new=refused)), b.Busy(first, "READY", 0))
    equal(await ops(b.Look(turn=refused.turn)), b.Gone())
    equal(await queue(ops), waiting)


@check
async def a_queued_turn_cannot_be_owned(ops: Ops) -> None:
    """Not by its own start, by Claim (NotDue), or with mail; nothing tells anybody to look at it."""
    await ops.start(conversation="talk")
    new = make.new(conversation="talk", wake=None)
    is_a(await ops(b.Create(new=new, claim=make.by(), when_busy="queue")), b.Queued)
    other = await queued(ops, claim=make.by())

    for turn in (new.turn, other):
        equal(await ops(b.Claim(turn=turn, by=make.by())), b.NotDue(None))
        equal(await ops(b.Deliver(turn=turn, mail=make.mail(), claim=make.by())), b.Delivered(ops.now))
        equal(await ops(b.Deliver(turn=turn, mail=make.mail(), runtime=True)), b.Delivered(ops.now))
        equal(await ops(b.Claim(turn=turn, by=make.by())), b.NotDue(None))
    due = is_a(await ops(b.Due()), b.DueTurns)
    equal((due.turns, due.next), ((), None))
    equal(await queue(ops), (new.turn, other))


@check
async def mail_waits_with_a_queued_turn(ops: Ops) -> None:
    """It is kept, once, within the cap, and there when the turn is owned at last."""
    first, token = await ops.start(conversation="talk")
    turn = await queued(ops)
    one, two = make.mail(), make.mail()
    equal(await ops(b.Deliver(turn=turn, mail=one, cap=1)), b.Delivered(ops.now))
    equal(await ops(b.Deliver(turn=turn, mail=one, cap=1)), b.Delivered(ops.now, fresh=False))
    equal(await ops(b.Deliver(turn=turn, mail=two, cap=1)), b.Full(1))
    equal([mail.message_id for mail in (await ops(b.ReadMail(turn=turn))).mail], [one.message_id])

    await ops(make.save(first, token, 0, b.Mode.END))
    claimed, _ = await ops.claim(turn)
    equal([mail.message_id for mail in claimed.mail], [one.message_id])


@check
async def the_end_opens_the_next(ops: Ops) -> None:
    """The end of the open turn makes the head of the queue the open turn, runnable now whatever its `wake`; one at a time."""
    turn, token = await ops.start(conversation="talk")
    waiting = [await queued(ops, wake=wake) for wake in (0, None, ops.now + make.LEASE)]

    for place, after in enumerate(waiting):
        is_a(await ops(make.save(turn, token, 0, b.Mode.END)), b.Saved)
        equal(await ops(b.OpenTurn(conversation="talk")), b.Opened(after, "READY"))
        equal(await queue(ops), tuple(waiting[place + 1 :]))
        equal(await ops.due(), (after,))
        turn, (_, token) = after, await ops.claim(after)
    await ops(make.save(turn, token, 0, b.Mode.END))
    equal(await ops(b.OpenTurn(conversation="talk")), b.Opened(None))
    is_a(await ops(b.Create(new=make.new(conversation="talk"))), b.Created)


@check
async def an_end_sent_again_opens_nobody_else(ops: Ops) -> None:
    """The same END after an unknown outcome: replayed; the turn it opened stays the open one, the others wait."""
    turn, token = await ops.start(conversation="talk")
    second, third = await queued(ops), await queued(ops)
    end = make.save(turn, token, 0, b.Mode.END)

    is_a(await ops(end), b.Saved)
    equal(is_a(await ops(end), b.Saved).replayed, expected=True)
    equal(await ops(b.OpenTurn(conversation="talk")), b.Opened(second, "READY"))
    await ops.claim(second)
    is_a(await ops(end), b.Saved)
    equal(await queue(ops), (third,))
    equal(await ops.due(), ())


@check
async def a_discard_opens_the_next(ops: Ops) -> None:
    """So does the end of a record that nobody can read; while it is parked, the others wait."""
    first = make.new(conversation="talk")
    await ops(b.Create(new=first))
    second = await queued(ops)
    await ops.park(first.turn)
    equal(await ops(b.Claim(turn=second, by=make.by())), b.NotDue(None))

    discard = b.Discard(turn=first.turn, status="FAILED")
    equal(await ops(discard), b.Done())
    equal(await ops(discard), b.Gone())
    equal(await ops(b.OpenTurn(conversation="talk")), b.Opened(second, "READY"))
    equal(await ops.due(), (second,))


@check
async def nothing_but_the_end_opens_the_next(ops: Ops) -> None:
    """Not a turn that sleeps, is handed off, given back, lost or cancelled, and not the end of its child."""
    turn, token = await ops.start(conversation="talk")
    child = make.new(make.child(turn), parent=turn, conversation="talk")
    second = await queued(ops)
    await ops(make.save(turn, token, 0, b.Mode.SUSPEND, wake=ops.now, create=(child,)))
    _, token = await ops.claim(turn)
    await ops(make.save(turn, token, 1, b.Mode.HAND_OFF))
    _, token = await ops.claim(turn)
    await ops(b.Abandon(turn=turn, token=token))
    await ops.claim(turn, lease_ms=0)
    is_a(await ops(b.Reap(turn=turn, grace_ms=0)), b.Reaped)
    _, below = await ops.claim(child.turn)
    await ops(make.save(child.turn, below, 0, b.Mode.END))
    await ops(b.Cancel(turn=turn, cause="stop"))

    equal(await ops(b.OpenTurn(conversation="talk")), b.Opened(turn, "RUNNING"))
    equal(await ops(b.Claim(turn=second, by=make.by())), b.NotDue(None))
    equal(await queue(ops), (second,))


@check
async def a_queued_start_sent_again_is_found(ops: Ops) -> None:
    """The same id: Existing, in the queue and after it; with another digest KeyReused. It stands in the queue once."""
    turn, token = await ops.start(conversation="talk")
    start = b.Create(new=make.new(conversation="talk"), claim=make.by(), when_busy="queue", room=1)
    other = b.Create(new=make.new(start.new.turn, conversation="talk", digest="e"), when_busy="queue")

    is_a(await ops(start), b.Queued)
    equal(await ops(start), b.Existing(start.new.turn))
    equal(await ops(other), b.KeyReused(start.new.turn))
    equal(await queue(ops), (start.new.turn,))
    await ops(make.save(turn, token, 0, b.Mode.END))
    equal(await ops(start), b.Existing(start.new.turn))
    equal(await queue(ops), ())


@check
async def a_cancelled_turn_leaves_the_queue(ops: Ops) -> None:
    """It may be owned at once, with its flag and its mail; neither its cancel nor its end moves the others or the open turn."""
    first, token = await ops.start(conversation="talk")
    second, third = await queued(ops), await queued(ops)
    await ops(b.Deliver(turn=second, mail=make.mail("m1")))

    equal(await ops(b.Cancel(turn=second, cause="stop")), b.Delivered(ops.now))
    equal(await ops(b.Cancel(turn=second, cause="later")), b.Delivered(ops.now, fresh=False))
    equal((await queue(ops), await ops.due()), ((third,), (second,)))
    claimed, its = await ops.claim(second)
    equal((claimed.cancel, [mail.message_id for mail in claimed.mail]), ("stop", ["m1"]))
    await ops(make.save(second, its, 0, b.Mode.END, ack_cancel=True))
    equal(await ops(b.OpenTurn(conversation="talk")), b.Opened(first, "READY"))
    equal(await queue(ops), (third,))
    await ops(make.save(first, token, 0, b.Mode.END))
    equal(await ops(b.OpenTurn(conversation="talk")), b.Opened(third, "READY"))


@check
async def a_cancel_can_own_a_queued_turn(ops: Ops) -> None:
    """With `claim`: Claimed at once, and out of the queue."""
    await ops.start(conversation="talk")
    turn = await queued(ops)

    equal(is_a(await ops(b.Cancel(turn=turn, cause="stop", claim=make.by())), b.Claimed).cancel, "stop")
    equal(await queue(ops), ())


@check
async def a_cancelled_turn_never_opens(ops: Ops) -> None:
    """Not even where it outlives the open turn: the conversation is free, and its end frees nothing."""
    first, token = await ops.start(conversation="talk")
    turn = await queued(ops)
    _, its = await cancelled(ops, turn)
    await ops(make.save(first, token, 0, b.Mode.END))
    equal(await ops(b.OpenTurn(conversation="talk")), b.Opened(None))
    second, _ = await ops.start(conversation="talk")

    await ops(make.save(turn, its, 0, b.Mode.END))
    equal(await ops(b.OpenTurn(conversation="talk")), b.Opened(second, "READY"))


@check
async def a_newer_start_supersedes(ops: Ops) -> None:
    """``supersede``: the open turn and all queued ones get the flag with the cause (the first one stays); the new one is next."""
    first, token = await ops.start(conversation="talk")
    second, third = await queued(ops), await queued(ops)
    await ops(b.Cancel(turn=first, cause="before"))

    newest = await queued(ops, when="supersede", cause="newer", room=0)
    equal(await queue(ops), (newest,))
    equal(await ops(b.OpenTurn(conversation="talk")), b.Opened(first, "READY"))
    equal([(await ops.look(turn)).cancel for turn in (first, second, third, newest)], ["before", "newer", "newer", None])
    equal(set(await ops.due()), {second, third})
    for turn in (second, third):
        _, its = await ops.claim(turn)
        await ops(make.save(turn, its, 0, b.Mode.END))
    equal(await ops(b.Claim(turn=newest, by=make.by())), b.NotDue(None))
    await ops(make.save(first, token, 0, b.Mode.END))
    equal(await ops(b.OpenTurn(conversation="talk")), b.Opened(newest, "READY"))
    equal((await ops.claim(newest))[0].cancel, None)


@check
async def a_newer_start_wakes_what_it_supersedes(ops: Ops) -> None:
    """The open turn may sleep, or be parked: it is due."""
    for talk, parked in (("asleep", False), ("parked", True)):
        first, token = await ops.start(conversation=talk)
        await ops(make.save(first, token, 0, b.Mode.SUSPEND, wake=ops.now if parked else None))
        if parked:
            await ops.park(first)
        await queued(ops, talk, when="supersede", cause="newer")
        claimed, _ = await ops.claim(first)
        equal((claimed.cancel, claimed.quarantined), ("newer", parked))


@check
async def a_newer_start_sent_again_supersedes_once(ops: Ops) -> None:
    """The same start: Existing; what was started after it keeps its place."""
    await ops.start(conversation="talk")
    start = b.Create(new=make.new(conversation="talk"), when_busy="supersede", cause="newer")
    is_a(await ops(start), b.Queued)
    last = await queued(ops)

    equal(await ops(start), b.Existing(start.new.turn))
    equal(await queue(ops), (start.new.turn, last))
    equal(timeless(await ops.look(last)).cancel, None)


@check
async def conversations_queue_apart(ops: Ops) -> None:
    """Each by itself, whatever it is called."""
    names = ("talk", "Talk", "talk {1}: ü")
    open_turns = [(name, *await ops.start(conversation=name)) for name in names]
    waiting = [await queued(ops, name) for name in names]
    for name, turn in zip(names, waiting, strict=True):
        equal(await queue(ops, name), (turn,))
    _, turn, token = open_turns[1]
    await ops(make.save(turn, token, 0, b.Mode.END))

    equal(await ops.due(), (waiting[1],))
    equal([await queue(ops, name) for name in (*names, "none")], [(waiting[0],), (), (waiting[2],), ()])


@check
async def the_next_turn_rings(ops: Ops) -> None:
    """A turn that an end opens, and one that a newer start throws out of the queue, are told to a node with their agent."""
    other = await ops.beside()
    await other(b.Beat(node="n2", agents=("alpha@1",)))
    await other(b.Due())
    turn, token = await ops.start(conversation="talk")
    for left in reversed(range(TRIES)):
        after = await queued(ops)
        other.bells.clear()
        await ops(make.save(turn, token, 0, b.Mode.END))
        told = await heard(other, "work", after, last=left == 0)
        turn, (_, token) = after, await ops.claim(after)
        if told:
            break
    for left in reversed(range(TRIES)):
        thrown = await queued(ops)
        other.bells.clear()
        await queued(ops, when="supersede", cause="newer")
        if await heard(other, "work", thrown, last=left == 0):
            break


async def queued(
    ops: Ops,
    talk: str = "talk",
    *,
    when: b.WhenBusy = "queue",
    cause: str = "",
    room: int = 64,
    claim: b.ClaimBy | None = None,
    wake: int | None = 0,
) -> str:
    """Start a turn that has to wait."""
    new = make.new(conversation=talk, wake=wake)
    is_a(await ops(b.Create(new=new, when_busy=when, cause=cause, room=room, claim=claim)), b.Queued)
    return new.turn


async def queue(ops: Ops, talk: str = "talk") -> tuple[str, ...]:
    """Read a queue."""
    reply = is_a(await ops(b.ListQueue(conversation=talk)), b.DueTurns)
    equal(reply.next, None)
    return reply.turns


async def cancelled(ops: Ops, turn: str) -> tuple[b.Claimed, b.Token]:
    """Cancel a turn, and own it."""
    await ops(b.Cancel(turn=turn, cause="stop"))
    return await ops.claim(turn)
