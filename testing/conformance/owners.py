"""Create, Claim, Renew, Abandon, Reap: who has a turn."""

from __future__ import annotations

from ...store import base as b
from . import make
from .check import check, timed
from .expect import equal, hold, is_a
from .ops import Ops, timeless


@check
async def create_makes_a_turn_that_is_due(ops: Ops) -> None:
    """Created; it is runnable, has its history and its first event."""
    new = make.new()

    equal(await ops(b.Create(new=new)), b.Created(ops.now))
    equal(await ops.due(), (new.turn,))
    equal(await ops(b.ReadHistory(turn=new.turn)), b.Entries((b"hello",)))
    equal(await ops(b.ReadEvents(turn=new.turn)), b.EventBatches(((1, 1, 0, b"created"),), 1, terminal=False))


@check
async def create_again_is_the_same_turn(ops: Ops) -> None:
    """Same digest: Existing, and nothing changes; another digest: KeyReused."""
    new = make.new()
    await ops(b.Create(new=new))
    before = timeless(await ops.look(new.turn))

    equal(await ops(b.Create(new=new)), b.Existing(new.turn))
    equal(await ops(b.Create(new=new, claim=make.by())), b.Existing(new.turn))
    equal(await ops(b.Create(new=make.new(new.turn, digest="e"))), b.KeyReused(new.turn))
    equal(timeless(await ops.look(new.turn)), before)


@check
async def create_and_claim(ops: Ops) -> None:
    """Claimed at once, with the snapshot and the tail; repeated by the same activation: Claimed again, same token."""
    new, claim = make.new(), make.by(tail=5)
    first = is_a(await ops(b.Create(new=new, claim=claim)), b.Claimed)

    equal((first.snapshot, first.tail, first.message_count, first.event_count), (b"first", (b"hello",), 1, 1))
    equal(await ops.due(), ())
    equal(timeless(is_a(await ops(b.Create(new=new, claim=claim)), b.Claimed)), timeless(first))
    equal(await ops(b.Create(new=new, claim=make.by())), b.Existing(new.turn))


@check
async def create_by_one_who_does_not_know_the_agent(ops: Ops) -> None:
    """The claim does not fit: Created, and somebody else will find it."""
    new = make.new()

    equal(await ops(b.Create(new=new, claim=make.by(agents=frozenset({"beta@1"})))), b.Created(ops.now))
    equal(await ops.due(), (new.turn,))


@check
async def a_conversation_has_one_open_turn(ops: Ops) -> None:
    """Busy names the open turn; its end frees the entry; a refused Create leaves nothing behind."""
    turn, token = await ops.start(conversation="talk")
    other = make.new(conversation="talk")

    equal(await ops(b.Create(new=other)), b.Busy(turn, "READY"))
    equal(await ops(b.Look(turn=other.turn)), b.Gone())
    equal(await ops(b.OpenTurn(conversation="talk")), b.Opened(turn, "READY"))
    await ops(make.save(turn, token, 0, b.Mode.END))
    equal(await ops(b.OpenTurn(conversation="talk")), b.Opened(None))
    equal(await ops(b.Create(new=other)), b.Created(ops.now))


@check
async def a_new_turn_waits_for_its_wake(ops: Ops) -> None:
    """0 means now, None never by itself, else that time; Due names the next."""
    later = ops.now + make.LEASE
    for wake, next_wake in ((None, None), (later, later)):
        new = make.new(wake=wake)
        equal(await ops(b.Create(new=new)), b.Created(ops.now))
        equal(await ops(b.Due()), b.DueTurns((), next_wake, ops.now))
        equal(await ops(b.Claim(turn=new.turn, by=make.by())), b.NotDue(wake))
        equal((await ops.look(new.turn)).wake, wake)
    new = make.new(wake=0)
    await ops(b.Create(new=new))
    equal(await ops(b.Due()), b.DueTurns((new.turn,), later, ops.now))
    await ops.claim(new.turn)


@timed
async def a_wake_comes(ops: Ops) -> None:
    """At its time, not before, and the turn is due and can be claimed."""
    new = make.new(wake=ops.now + 50)
    await ops(b.Create(new=new))

    ops.later(49)
    equal(await ops(b.Due()), b.DueTurns((), new.wake, ops.now))
    equal(await ops(b.Claim(turn=new.turn, by=make.by())), b.NotDue(new.wake))
    ops.later(1)
    equal(await ops(b.Due()), b.DueTurns((new.turn,), None, ops.now))
    await ops.claim(new.turn)
    equal(await ops(b.Due()), b.DueTurns((), None, ops.now))


@check
async def one_owner(ops: Ops) -> None:
    """Held for others; the same activation is told again, with the same token and a new lease."""
    new = make.new()
    await ops(b.Create(new=new))
    claim = b.Claim(turn=new.turn, by=make.by("me"))
    first = is_a(await ops(claim), b.Claimed)
    equal((await ops.look(new.turn)).lease, first.now + make.LEASE)

    longer = b.Claim(turn=new.turn, by=make.by("me", lease_ms=2 * make.LEASE))
    again = is_a(await ops(longer), b.Claimed)
    equal((again.epoch, again.now), (first.epoch, ops.now))
    equal(await ops(b.Claim(turn=new.turn, by=make.by())), b.Held("n1"))
    equal((await ops.look(new.turn)).lease, again.now + 2 * make.LEASE)


@check
async def what_a_claimer_does_not_know_stays_in_place(ops: Ops) -> None:
    """TooNew and UnknownAgent leave the turn due for others; None knows every agent."""
    new = make.new(schema=3)
    await ops(b.Create(new=new))

    equal(await ops(b.Claim(turn=new.turn, by=make.by(schema=2))), b.TooNew(3))
    unknown = b.Claim(turn=new.turn, by=make.by(schema=3, agents=frozenset({"alpha@2"})))
    equal(await ops(unknown), b.UnknownAgent("alpha", "1"))
    equal(await ops.due(), (new.turn,))
    await ops.claim(new.turn, schema=3, agents=frozenset({"alpha@1"}))


@check
async def who_is_cancelled_needs_no_agent(ops: Ops) -> None:
    """A turn with a cancel that is open or acknowledged is ended by anybody who reads its snapshot."""
    new = make.new(schema=3)
    await ops(b.Create(new=new))
    strangers = frozenset({"alpha@2"})
    equal(await ops(b.Claim(turn=new.turn, by=make.by(schema=3, agents=strangers))), b.UnknownAgent("alpha", "1"))

    equal(await ops(b.Cancel(turn=new.turn, cause="why", claim=make.by(schema=2, agents=strangers))), b.Delivered(ops.now, None))
    equal(await ops(b.Claim(turn=new.turn, by=make.by(schema=2, agents=strangers))), b.TooNew(3))
    claimed, token = await ops.claim(new.turn, schema=3, agents=strangers)
    equal(claimed.cancel, "why")
    saved = await ops(make.save(new.turn, token, 0, b.Mode.SUSPEND, schema=3, ack_cancel=True))
    equal(is_a(saved, b.Saved).owned, False)
    await ops(b.Deliver(turn=new.turn, mail=make.mail(), runtime=True))
    claimed, _ = await ops.claim(new.turn, schema=3, agents=strangers)
    equal(claimed.cancel, None)


@check
async def nothing_to_claim(ops: Ops) -> None:
    """Absent and ended turns are Gone."""
    turn, token = await ops.start()
    await ops(make.save(turn, token, 0, b.Mode.END))

    equal(await ops(b.Claim(turn=turn, by=make.by())), b.Gone())
    equal(await ops(b.Claim(turn=make.root(), by=make.by())), b.Gone())


@check
async def renew_tells_what_happened(ops: Ops) -> None:
    """0 lost, 1 fine, 2 mail, 3 cancel, 4 both; the lease is longer; all of one partition in one operation."""
    one = make.root()
    fine, with_mail, cancelled, both = [await ops.start(make.root(beside=one)) for _ in range(4)]
    for turn, _ in (with_mail, both):
        await ops(b.Deliver(turn=turn, mail=make.mail()))
    for turn, _ in (cancelled, both):
        await ops(b.Cancel(turn=turn, cause="stop"))
    lost = (fine[0], b.Token("other", fine[1].epoch))
    old = (fine[0], b.Token(fine[1].activation, fine[1].epoch - 1))

    leases = (fine, with_mail, cancelled, both, lost, old, (make.root(beside=one), fine[1]))
    renewed = is_a(await ops(b.Renew(leases=leases, lease_ms=2 * make.LEASE)), b.Renewed)
    equal(renewed, b.Renewed(ops.now, (1, 2, 3, 4, 0, 0, 0)))
    equal((await ops.look(fine[0])).lease, renewed.now + 2 * make.LEASE)


@check
async def abandon(ops: Ops) -> None:
    """Done: runnable at once, nothing saved; by a stranger: Fenced; repeated: Fenced."""
    turn, token = await ops.start()

    equal(await ops(b.Abandon(turn=turn, token=b.Token("other", token.epoch))), b.Fenced("n1"))
    equal(await ops(b.Abandon(turn=turn, token=token)), b.Done())
    equal(await ops(b.Abandon(turn=turn, token=token)), b.Fenced(None))
    equal(await ops.due(), (turn,))
    equal(((await ops.look(turn)).version, (await ops.look(turn)).crashes), (0, 0))
    equal(await ops(b.Abandon(turn=make.root(), token=token)), b.Fenced(None))


@timed
async def abandon_with_a_delay(ops: Ops) -> None:
    """Runnable after the delay, not before."""
    turn, token = await ops.start()

    equal(await ops(b.Abandon(turn=turn, token=token, delay_ms=50)), b.Done())
    equal(await ops(b.Claim(turn=turn, by=make.by())), b.NotDue(ops.now + 50))
    equal(await ops.due(), ())
    ops.later(50)
    equal(await ops.due(), (turn,))


@timed
async def reap_needs_an_ended_lease(ops: Ops) -> None:
    """Held while the lease and its grace last; then Reaped, runnable at once; a second reaper: Gone; the old owner is fenced."""
    turn, token = await ops.start()
    reap = b.Reap(turn=turn, grace_ms=make.GRACE)
    ops.later(make.LEASE + make.GRACE - 1)

    equal(await ops(reap), b.Held("n1"))
    equal(await ops(b.Expired(grace_ms=make.GRACE)), b.DueTurns((), ops.now + 1, ops.now))
    ops.later(1)
    equal((await ops(b.Expired(grace_ms=make.GRACE))).turns, (turn,))
    equal(await ops(reap), b.Reaped(1))
    equal(await ops(reap), b.Gone())
    equal(await ops.due(), (turn,))
    equal(await ops(make.save(turn, token, 0)), b.Fenced(None))
    claimed, _ = await ops.claim(turn)
    equal((claimed.crashes, claimed.epoch > token.epoch), (1, True))


@check
async def a_lost_owner_is_reaped(ops: Ops) -> None:
    """Its lease has ended: listed, Reaped, due at once for the next one, who learns of the crash; the lost one is fenced."""
    turn, token = await ops.start(by=make.by(lease_ms=0))
    await ops.start()
    reap = b.Reap(turn=turn, grace_ms=0)

    equal((await ops(b.Expired(grace_ms=0))).turns, (turn,))
    equal(await ops(reap), b.Reaped(1))
    equal(await ops(reap), b.Gone())
    equal(await ops(b.Reap(turn=make.root(), grace_ms=0)), b.Gone())
    equal((await ops(b.Expired(grace_ms=0))).turns, ())
    equal(await ops.due(), (turn,))
    equal(await ops(make.save(turn, token, 0)), b.Fenced(None))
    claimed, newer = await ops.claim(turn)
    equal((claimed.crashes, claimed.epoch > token.epoch), (1, True))
    equal(await ops(make.save(turn, token, 0)), b.Fenced("n1"))
    equal(is_a(await ops(make.save(turn, newer, 0)), b.Saved).version, 1)


@check
async def a_renewed_owner_is_not_reaped(ops: Ops) -> None:
    """Each of Renew, Save and a repeated claim makes the lease longer."""
    turn, token = await ops.start(by=make.by("me", lease_ms=0))
    reap, short = b.Reap(turn=turn, grace_ms=0), b.Renew(leases=((turn, token),), lease_ms=0)
    longer: tuple[b.Op, ...] = (
        b.Renew(leases=((turn, token),), lease_ms=make.LEASE),
        make.save(turn, token, 0),
        b.Claim(turn=turn, by=make.by("me")),
        b.Deliver(turn=turn, mail=make.mail(), claim=make.by("me")),
    )
    for op in longer:
        await ops(short)
        equal((await ops(b.Expired(grace_ms=0))).turns, (turn,))
        await ops(op)
        equal((await ops(b.Expired(grace_ms=0))).turns, ())
        equal(await ops(reap), b.Held("n1"))
    await ops(short)
    equal(await ops(reap), b.Reaped(1))


@check
async def another_dead_node_takes_nothing(ops: Ops) -> None:
    """The proof that some other node is dead is none against this owner."""
    turn, _ = await ops.start()

    equal((await ops(b.Expired(grace_ms=make.GRACE, dead_nodes=("other",)))).turns, ())
    equal(await ops(b.Reap(turn=turn, grace_ms=make.GRACE, dead_node="other")), b.Held("n1"))


@check
async def too_many_lost_owners_end_in_quarantine(ops: Ops) -> None:
    """More than `max_crashes`: parked, with the number in its reason; a cancel still wakes it, a revive forgets the crashes."""
    new = make.new()
    await ops(b.Create(new=new))
    reap = b.Reap(turn=new.turn, grace_ms=0, back_off_ms=0, max_crashes=2)
    for crashes in (1, 2, 3):
        claimed, _ = await ops.claim(new.turn, lease_ms=0)
        equal(claimed.crashes, crashes - 1)
        equal(await ops(reap), b.Reaped(crashes, quarantined=crashes > 2))

    equal(await ops.due(), ())
    equal(await ops(b.Claim(turn=new.turn, by=make.by())), b.Gone())
    hold("3" in str((await ops.look(new.turn)).quarantine), "the reason should say how many owners were lost")
    equal(await ops(b.Revive(turn=new.turn)), b.Done())
    claimed, _ = await ops.claim(new.turn)
    equal((claimed.crashes, claimed.quarantined), (0, False))


@timed
async def crashes_back_off(ops: Ops) -> None:
    """The first crash does not back off, later ones double, up to a minute."""
    new = make.new()
    await ops(b.Create(new=new))
    delays: list[int] = []
    for _ in range(4):
        await ops.claim(new.turn)
        ops.later(make.LEASE + make.GRACE)
        await ops(b.Reap(turn=new.turn, grace_ms=make.GRACE, back_off_ms=20_000))
        due = is_a(await ops(b.Due()), b.DueTurns).next
        delays.append(0 if due is None else due - ops.now)
        ops.later(delays[-1])

    equal(delays, [0, 20_000, 40_000, 60_000])


@check
async def only_progress_forgets_crashes(ops: Ops) -> None:
    """A save that records an intent keeps the count; one that records a result resets it."""
    new = make.new()
    await ops(b.Create(new=new))
    await ops.claim(new.turn, lease_ms=0)
    await ops(b.Reap(turn=new.turn, grace_ms=0))
    _, token = await ops.claim(new.turn)

    await ops(make.save(new.turn, token, 0))
    equal((await ops.look(new.turn)).crashes, 1)
    await ops(make.save(new.turn, token, 1, progress=True))
    equal((await ops.look(new.turn)).crashes, 0)


@timed
async def time_never_goes_back(ops: Ops) -> None:
    """A clock that jumps back does not revive a lease or delay a wake."""
    turn, _ = await ops.start()
    new = make.new()
    await ops(b.Create(new=new))
    ops.later(make.LEASE + make.GRACE)
    await ops(b.Create(new=make.new()))
    ops.later(-50_000)

    equal(await ops(b.Reap(turn=turn, grace_ms=make.GRACE)), b.Reaped(1))
    hold(new.turn in await ops.due(), "what was due is due no more")
