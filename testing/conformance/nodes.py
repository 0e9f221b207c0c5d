"""Several nodes on one store: whose a turn is, what each hears, and what a watch costs."""

from __future__ import annotations

from ...store import base as b
from . import make
from .check import check
from .expect import Violation, equal, hold, is_a
from .ops import Ops

TRIES = 5


@check
async def nodes_see_one_store(ops: Ops) -> None:
    """What one node is told is done, another sees at once."""
    other = await ops.beside()
    turn, token = await ops.start()

    equal((await other.look(turn)).node, "n1")
    equal(await other(b.Claim(turn=turn, by=make.by(node="n2"))), b.Held("n1"))
    equal(await other(b.Deliver(turn=turn, mail=make.mail("m1"))), b.Delivered(other.now, "n1"))
    kept = is_a(await ops(make.save(turn, token, 0, b.Mode.SUSPEND)), b.Saved)
    equal((kept.owned, [mail.message_id for mail in kept.mail]), (True, ["m1"]))
    await ops(make.save(turn, token, 1, b.Mode.HAND_OFF, consumed=("m1",)))
    _, newer = await other.claim(turn)
    equal(await ops(make.save(turn, token, 2)), b.Fenced("n2"))
    equal(is_a(await other(make.save(turn, newer, 2)), b.Saved).version, 3)


@check
async def nodes_of_one_name_are_told_apart(ops: Ops) -> None:
    """A claim belongs to its token: a namesake neither renews, saves, abandons nor parks it, and both count as living."""
    namesake = await ops.beside(ops.node)
    turn, token = await ops.start()
    await namesake.start()
    stranger = b.Token(make.unique("act"), token.epoch)
    before = (await ops.look(turn)).lease

    equal(await namesake(b.Claim(turn=turn, by=make.by())), b.Held("n1"))
    renewed = await namesake(b.Renew(leases=((turn, stranger),), lease_ms=9 * make.LEASE))
    equal(renewed, b.Renewed(namesake.now, (0,)))
    equal((await ops.look(turn)).lease, before)
    equal(await namesake(make.save(turn, stranger, 0)), b.Fenced("n1"))
    equal(await namesake(b.Abandon(turn=turn, token=stranger)), b.Fenced("n1"))
    equal(await namesake(b.Quarantine(turn=turn, token=stranger, reason="r")), b.Fenced("n1"))
    equal((tuple(ops.connection.dead_nodes()), tuple(namesake.connection.dead_nodes())), ((), ()))
    equal(is_a(await ops(make.save(turn, token, 0)), b.Saved).owned, expected=True)


@check
async def stores_are_apart(ops: Ops) -> None:
    """Two stores of the factory (two files, two namespaces) know nothing of each other."""
    other = await ops.elsewhere()
    turn, _ = await ops.start(conversation="talk")
    await ops(b.Beat(node="n1"))

    equal(await other(b.Look(turn=turn)), b.Gone())
    equal(await other.due(), ())
    equal(await other(b.OpenTurn(conversation="talk")), b.Opened(None))
    equal(await other(b.ListTurns()), b.TurnListing((), None))
    equal(is_a(await other(b.ListNodes()), b.Nodes).nodes, ())
    mine, _ = await other.start(turn, conversation="talk")
    equal((await other.look(mine)).version, 0)


@check
async def now_is_the_time_of_the_replies(ops: Ops) -> None:
    """`now` of a connection is the store's time, give or take the way there."""
    other = await ops.beside()
    created = is_a(await ops(b.Create(new=make.new())), b.Created)
    listed = is_a(await other(b.ListNodes()), b.Nodes)

    allowed = 0 if ops.time.follows else make.LEASE
    off = abs(created.now - listed.now)
    hold(off <= allowed, f"two nodes of one store have two times, {off} ms apart")
    off = abs(other.connection.now() - listed.now)
    hold(off <= allowed, f"now() is {off} ms off")


@check
async def close_can_be_repeated(ops: Ops) -> None:
    """A node that leaves twice disturbs nobody."""
    other = await ops.beside()
    await other.connection.close()
    await other.connection.close()

    is_a(await ops(b.Create(new=make.new())), b.Created)


# -- bells: a hint, which may be lost, so each is given a few chances


@check
async def new_turns_ring_for_executors(ops: Ops) -> None:
    """A turn that nobody owns is told to a node that announces its agent: "work", or "due" with its wake and agent."""
    other = await ops.beside()
    await other(b.Beat(node="n2", agents=("alpha@1",)))
    await other(b.Due())
    turns: list[str] = []
    for left in reversed(range(TRIES)):
        turns.append(make.root())
        is_a(await ops(b.Create(new=make.new(turns[-1]))), b.Created)
        if await heard(other, "work", turns[-1], last=left == 0):
            break
    for said in [said for kind, said in other.bells if kind == "due"]:
        turn, wake, agent = said.split(" ")
        hold(turn in turns and agent == "alpha@1" and int(wake) <= ops.now, f"no turn is due so: {said!r}")


@check
async def mail_rings_for_the_owner(ops: Ops) -> None:
    """Mail, and a cancel, that another node delivers ring at the node that owns the turn."""
    other = await ops.beside()
    turn, _ = await ops.start()
    for op in (b.Deliver(turn=turn, mail=make.mail()), b.Cancel(turn=turn, cause="stop")):
        for left in reversed(range(TRIES)):
            ops.bells.clear()
            again = b.Deliver(turn=turn, mail=make.mail()) if isinstance(op, b.Deliver) else op
            is_a(await other(again), b.Delivered)
            if await heard(ops, "work", turn, last=left == 0):
                break


@check
async def a_save_rings_for_those_who_watch(ops: Ops) -> None:
    """Each save of a watched tree rings "saved" at another node, the saves of children too; so does the end."""
    other = await ops.beside()
    turn, token = await ops.start()
    child = make.new(make.child(turn), parent=turn)
    other.connection.watch(turn, live=False)
    version = 0
    for left in reversed(range(TRIES)):
        other.bells.clear()
        await ops(make.save(turn, token, version, create=(child,)))
        version += 1
        if await heard(other, "saved", turn, last=left == 0):
            break
    _, below = await ops.claim(child.turn)
    for left in reversed(range(TRIES)):
        other.bells.clear()
        await ops(make.save(child.turn, below, TRIES - 1 - left))
        if await heard(other, "saved", child.turn, last=left == 0):
            break
    other.bells.clear()
    await ops(make.save(turn, token, version, b.Mode.END))
    await other.heard("saved", turn)
    other.connection.unwatch(turn, live=False)


@check
async def a_refused_operation_rings_nothing(ops: Ops) -> None:
    """What changes nothing wakes nobody: no bell has come when that of a later operation does."""
    turn, token = await ops.start()
    marker, _ = await ops.start()
    refused: tuple[b.Op, ...] = (
        make.save(turn, b.Token("stranger", token.epoch), 0),
        make.save(turn, token, 7),
        b.Claim(turn=turn, by=make.by()),
        b.Reap(turn=turn, grace_ms=make.GRACE),
        b.Deliver(turn=make.child(turn), mail=make.mail()),
    )
    for op in refused:
        hold(not isinstance(await ops(op), b.Saved | b.Claimed | b.Reaped | b.Delivered), f"not refused: {op!r}")
    await ops(b.Deliver(turn=marker, mail=make.mail()))
    await ops.heard("work", marker)
    equal([bell for bell in ops.bells if turn in bell[1]], [])


@check
async def watching_is_harmless(ops: Ops) -> None:
    """Of turns that are there or not, twice, with and without live: all goes on as before, and nothing else is shown."""
    other = await ops.beside()
    turn, token = await ops.start()
    absent, unwatched = make.root(), make.root(beside=turn)
    for connection in (ops.connection, other.connection):
        for live in (True, False, True):
            connection.watch(turn, live=live)
            connection.watch(absent, live=live)
    is_a(ops.connection.wants(absent), bool)
    ops.connection.publish(turn, b"a delta")
    ops.connection.publish(absent, b"of nothing")
    ops.connection.publish(unwatched, b"for nobody")

    equal(is_a(await ops(make.save(turn, token, 0)), b.Saved).version, 1)
    for connection in (ops.connection, other.connection):
        for live in (True, True, False):
            connection.unwatch(turn, live=live)
            connection.unwatch(absent, live=live)
    ops.connection.publish(turn, b"too late")
    is_a(ops.connection.wants(turn), bool)
    equal(is_a(await ops(make.save(turn, token, 1, b.Mode.END)), b.Saved).version, 2)
    equal(ops.shown, [])
    hold({root for root, _ in other.shown} <= {turn, absent}, f"shown to a node that does not watch: {other.shown}")


async def heard(ops: Ops, kind: str, turn: str, *, last: bool) -> bool:
    """Tell whether a bell was heard in time. :raises Violation: if it was not, and this was the last chance."""
    try:
        await ops.heard(kind, turn)
    except Violation:
        if last:
            raise
        return False
    return True
