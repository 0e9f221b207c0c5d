"""Create, Claim, Renew, Abandon, Reap: who has a turn."""

from __future__ import annotations

import pytest

from turnhold.store import base as b

from . import make
from .ops import Ops


async def test_create_makes_a_turn_that_is_due(ops: Ops) -> None:
    """Created; it is runnable, has its history and its first event."""
    new = make.new()

    assert await ops(b.Create(new=new)) == b.Created(ops.now)
    assert await ops.due() == (new.turn,)
    assert await ops(b.ReadHistory(turn=new.turn)) == b.Entries((b"hello",))
    assert await ops(b.ReadEvents(turn=new.turn)) == b.EventBatches(((1, 1, 0, b"created"),), 1, terminal=False)


async def test_create_again_is_the_same_turn(ops: Ops) -> None:
    """Same digest: Existing, and nothing changes; another digest: KeyReused."""
    new = make.new()
    await ops(b.Create(new=new))
    before = await ops.look(new.turn)

    assert await ops(b.Create(new=new)) == b.Existing(new.turn)
    assert await ops(b.Create(new=new, claim=make.by())) == b.Existing(new.turn)
    assert await ops(b.Create(new=make.new(new.turn, digest="e"))) == b.KeyReused(new.turn)
    assert await ops.look(new.turn) == before


async def test_create_and_claim(ops: Ops) -> None:
    """Claimed at once, with the snapshot and the tail; repeated by the same activation: Claimed again, same token."""
    new, claim = make.new(), make.by(tail=5)
    first = await ops(b.Create(new=new, claim=claim))

    assert isinstance(first, b.Claimed)
    assert (first.snapshot, first.tail, first.message_count, first.event_count) == (b"first", (b"hello",), 1, 1)
    assert await ops.due() == ()
    assert (await ops(b.Create(new=new, claim=claim))) == first
    assert await ops(b.Create(new=new, claim=make.by())) == b.Existing(new.turn)


async def test_create_by_one_who_does_not_know_the_agent(ops: Ops) -> None:
    """The claim does not fit: Created, and somebody else will find it."""
    new = make.new()

    assert await ops(b.Create(new=new, claim=make.by(agents=frozenset({"beta@1"})))) == b.Created(ops.now)
    assert await ops.due() == (new.turn,)


async def test_a_conversation_has_one_open_turn(ops: Ops) -> None:
    """Busy names the open turn; its end frees the entry; a refused Create leaves nothing behind."""
    turn, token = await ops.start(conversation="talk")
    other = make.new(conversation="talk")

    assert await ops(b.Create(new=other)) == b.Busy(turn, "READY")
    assert await ops(b.Look(turn=other.turn)) == b.Gone()
    assert await ops(b.OpenTurn(conversation="talk")) == b.Opened(turn, "READY")
    await ops(make.save(turn, token, 0, b.Mode.END))
    assert await ops(b.OpenTurn(conversation="talk")) == b.Opened(None)
    assert await ops(b.Create(new=other)) == b.Created(ops.now)


@pytest.mark.parametrize(("wake", "due"), [(0, True), (None, False), (make.START + 50, False)])
async def test_a_new_turn_waits_for_its_wake(ops: Ops, wake: int | None, due: bool) -> None:
    """0 means now, None never by itself, else that time."""
    new = make.new(wake=wake)
    await ops(b.Create(new=new))

    assert (await ops.due() == (new.turn,)) is due
    reply = await ops(b.Claim(turn=new.turn, by=make.by()))
    assert isinstance(reply, b.Claimed) if due else reply == b.NotDue(wake)
    assert (await ops(b.Due())).next == (wake or None)


async def test_one_owner(ops: Ops) -> None:
    """Held for others; the same activation is told again, with the same token and a new lease."""
    new = make.new()
    await ops(b.Create(new=new))
    claim = b.Claim(turn=new.turn, by=make.by("me"))
    first = await ops(claim)
    ops.now += 10

    again = await ops(claim)
    assert (again.epoch, again.now) == (first.epoch, ops.now)
    assert await ops(b.Claim(turn=new.turn, by=make.by())) == b.Held("n1")
    assert (await ops.look(new.turn)).lease == ops.now + make.LEASE


async def test_what_a_claimer_does_not_know_stays_in_place(ops: Ops) -> None:
    """TooNew and UnknownAgent leave the turn due for others; None knows every agent."""
    new = make.new(schema=3)
    await ops(b.Create(new=new))

    assert await ops(b.Claim(turn=new.turn, by=make.by(schema=2))) == b.TooNew(3)
    unknown = b.Claim(turn=new.turn, by=make.by(schema=3, agents=frozenset({"alpha@2"})))
    assert await ops(unknown) == b.UnknownAgent("alpha", "1")
    assert await ops.due() == (new.turn,)
    await ops.claim(new.turn, schema=3, agents=frozenset({"alpha@1"}))


async def test_nothing_to_claim(ops: Ops) -> None:
    """Absent and ended turns are Gone."""
    turn, token = await ops.start()
    await ops(make.save(turn, token, 0, b.Mode.END))

    assert await ops(b.Claim(turn=turn, by=make.by())) == b.Gone()
    assert await ops(b.Claim(turn=make.root(), by=make.by())) == b.Gone()


async def test_renew_tells_what_happened(ops: Ops) -> None:
    """0 lost, 1 fine, 2 mail, 3 cancel, 4 both; the lease is longer."""
    fine, with_mail, cancelled, both = [await ops.start() for _ in range(4)]
    for turn, _ in (with_mail, both):
        await ops(b.Deliver(turn=turn, mail=make.mail()))
    for turn, _ in (cancelled, both):
        await ops(b.Cancel(turn=turn, cause="stop"))
    lost = (fine[0], b.Token("other", fine[1].epoch))
    ops.now += 500

    leases = (fine, with_mail, cancelled, both, lost, (make.root(), fine[1]))
    assert await ops(b.Renew(leases=leases, lease_ms=make.LEASE)) == b.Renewed(ops.now, (1, 2, 3, 4, 0, 0))
    assert (await ops.look(fine[0])).lease == ops.now + make.LEASE


async def test_abandon(ops: Ops) -> None:
    """Done: runnable after the delay; by a stranger: Fenced; repeated: Fenced."""
    turn, token = await ops.start()

    assert await ops(b.Abandon(turn=turn, token=b.Token("other", token.epoch))) == b.Fenced("n1")
    assert await ops(b.Abandon(turn=turn, token=token, delay_ms=50)) == b.Done()
    assert await ops(b.Abandon(turn=turn, token=token)) == b.Fenced(None)
    assert await ops.due() == ()
    ops.now += 50
    assert await ops.due() == (turn,)


async def test_reap_needs_an_ended_lease(ops: Ops) -> None:
    """Held while the lease and its grace last; then Reaped, runnable at once; a second reaper: Gone; the old owner is fenced."""
    turn, token = await ops.start()
    reap = b.Reap(turn=turn, grace_ms=make.GRACE)
    ops.now += make.LEASE + make.GRACE - 1

    assert await ops(reap) == b.Held("n1")
    assert (await ops(b.Expired(grace_ms=make.GRACE))) == b.DueTurns((), ops.now + 1, ops.now)
    ops.now += 1
    assert (await ops(b.Expired(grace_ms=make.GRACE))).turns == (turn,)
    assert await ops(reap) == b.Reaped(1)
    assert await ops(reap) == b.Gone()
    assert await ops.due() == (turn,)
    assert await ops(make.save(turn, token, 0)) == b.Fenced(None)
    claimed, _ = await ops.claim(turn)
    assert (claimed.crashes, claimed.epoch > token.epoch) == (1, True)


async def test_reap_of_a_dead_node(ops: Ops) -> None:
    """A node that is proved dead loses its turns before their leases end; another's are safe."""
    turn, _ = await ops.start()
    key = ops.owner_keys()[0]

    assert (await ops(b.Expired(grace_ms=make.GRACE, dead_nodes=("other",)))).turns == ()
    assert await ops(b.Reap(turn=turn, grace_ms=make.GRACE, dead_node="other")) == b.Held("n1")
    assert (await ops(b.Expired(grace_ms=make.GRACE, dead_nodes=(key,)))).turns == (turn,)
    assert await ops(b.Reap(turn=turn, grace_ms=make.GRACE, dead_node=key)) == b.Reaped(1)


async def test_crashes_back_off_and_end_in_quarantine(ops: Ops) -> None:
    """The first crash does not back off, later ones double, up to a minute; one too many quarantines; progress resets."""
    new = make.new()
    await ops(b.Create(new=new))
    delays = []
    for _ in range(4):
        await ops.claim(new.turn)
        ops.now += make.LEASE + make.GRACE
        reply = await ops(b.Reap(turn=new.turn, grace_ms=make.GRACE, back_off_ms=20_000, max_crashes=4))
        due = (await ops(b.Due())).next
        delays.append(0 if due is None else due - ops.now)
        ops.now = due or ops.now

    assert delays == [0, 20_000, 40_000, 60_000]
    assert reply == b.Reaped(4)
    await ops.claim(new.turn)
    ops.now += make.LEASE + make.GRACE
    assert await ops(b.Reap(turn=new.turn, grace_ms=make.GRACE, max_crashes=4)) == b.Reaped(5, quarantined=True)
    assert await ops.due() == ()
    assert "5" in str((await ops.look(new.turn)).quarantine)


async def test_only_progress_forgets_crashes(ops: Ops) -> None:
    """A save that records an intent keeps the count; one that records a result resets it."""
    new = make.new()
    await ops(b.Create(new=new))
    await ops.claim(new.turn)
    ops.now += make.LEASE + make.GRACE
    await ops(b.Reap(turn=new.turn, grace_ms=make.GRACE))
    _, token = await ops.claim(new.turn)

    await ops(make.save(new.turn, token, 0))
    assert (await ops.look(new.turn)).crashes == 1
    await ops(make.save(new.turn, token, 1, progress=True))
    assert (await ops.look(new.turn)).crashes == 0


async def test_time_never_goes_back(ops: Ops) -> None:
    """A clock that jumps back does not revive a lease or delay a wake."""
    turn, _ = await ops.start()
    new = make.new()
    await ops(b.Create(new=new))
    ops.now += make.LEASE + make.GRACE
    await ops(b.Create(new=make.new()))
    ops.now -= 50_000

    assert (await ops(b.Reap(turn=turn, grace_ms=make.GRACE))) == b.Reaped(1)
    assert new.turn in await ops.due()
