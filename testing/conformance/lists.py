"""Nodes, what is due, and the lists with their pages."""

from __future__ import annotations

from typing import Any

from ...actors.ids import partition_of
from ...store import base as b
from . import make
from .check import check, timed
from .expect import equal, hold, is_a
from .ops import Ops

HOUR = 3_600_000


@timed
async def nodes(ops: Ops) -> None:
    """Announced with what they run, until they leave or are silent for an hour."""
    await ops(b.Beat(node="a", agents=("alpha@1", "beta@2")))
    await ops(b.Beat(node="b"))

    equal(await ops(b.ListNodes()), b.Nodes((b.NodeRow("a", ops.now, ("alpha@1", "beta@2")), b.NodeRow("b", ops.now)), ops.now))
    await ops(b.Beat(node="b", leave=True))
    ops.later(HOUR)
    await ops(b.Beat(node="c"))
    await ops(b.Prune())
    equal([row.node for row in (await ops(b.ListNodes())).nodes], ["c"])


@check
async def the_list_of_nodes(ops: Ops) -> None:
    """A node is announced with what it runs, again in place of before, until it leaves; they come by their names."""
    await ops(b.Beat(node="b"))
    await ops(b.Beat(node="a", agents=("alpha@1",)))
    equal(await ops(b.Beat(node="a", agents=("alpha@1", "beta@2"))), b.Done())

    found = is_a(await ops(b.ListNodes()), b.Nodes)
    equal([(row.node, row.agents) for row in found.nodes], [("a", ("alpha@1", "beta@2")), ("b", ())])
    hold(all(abs(row.beat - found.now) < make.LEASE for row in found.nodes), f"no beats of now: {found!r}")
    equal(await ops(b.Beat(node="a", leave=True)), b.Done())
    equal([row.node for row in is_a(await ops(b.ListNodes()), b.Nodes).nodes], ["b"])


@timed
async def due_turns_come_oldest_first(ops: Ops) -> None:
    """In the order of their wakes, whatever their names."""
    names: list[str] = []
    for _ in range(4):
        names.append(make.root())
        await ops(b.Create(new=make.new(names[-1])))
        ops.later(1)

    equal((await ops(b.Due(limit=2))).turns, tuple(names[:2]))
    equal((await ops(b.Due(limit=2, offset=2))).turns, tuple(names[2:]))


@check
async def due_pages(ops: Ops) -> None:
    """At most `limit`; `offset` gets past turns that nobody here can run; nothing twice, nothing missing."""
    names = [make.root() for _ in range(5)]
    for name in names:
        await ops(b.Create(new=make.new(name)))

    pages = [is_a(await ops(b.Due(limit=2, offset=offset)), b.DueTurns).turns for offset in (0, 2, 4, 6)]
    equal([len(page) for page in pages], [2, 2, 1, 0])
    equal(sorted(name for page in pages for name in page), sorted(names))


@check
async def due_partitions_are_a_hint(ops: Ops) -> None:
    """What is due in the partitions asked for is found; what is due elsewhere may be."""
    here, there = make.root(), make.root()
    for name in (here, there):
        await ops(b.Create(new=make.new(name)))

    for name, other in ((here, there), (there, here)):
        found = is_a(await ops(b.Due(partitions=(partition_of(name),))), b.DueTurns).turns
        hold(name in found and set(found) <= {name, other}, f"asked for the partition of {name}, found {found}")
    equal(set(is_a(await ops(b.Due(partitions=None)), b.DueTurns).turns), {here, there})
    both = (partition_of(here), partition_of(there))
    equal(set(is_a(await ops(b.Due(partitions=both)), b.DueTurns).turns), {here, there})


@check
async def expired_pages(ops: Ops) -> None:
    """At most `limit` of those whose lease has ended; the others go on."""
    over = [(await ops.start(by=make.by(lease_ms=0)))[0] for _ in range(3)]
    living, _ = await ops.start()

    found = is_a(await ops(b.Expired(grace_ms=0)), b.DueTurns)
    equal(sorted(found.turns), sorted(over))
    equal(len(is_a(await ops(b.Expired(grace_ms=0, limit=2)), b.DueTurns).turns), 2)
    equal(is_a(await ops(b.Expired(grace_ms=make.LEASE)), b.DueTurns).turns, ())
    equal(is_a(await ops(b.Reap(turn=living, grace_ms=0)), b.Held), b.Held("n1"))


@check
async def waits_are_listed_oldest_first_page_by_page(ops: Ops) -> None:
    """Each filter on its own, and a cursor that survives what comes and goes between two pages."""
    turn, token = await ops.start()
    fields: list[dict[str, Any]] = [{"assignee": "ann"}, {"tenant": "t"}, {"agent": "alpha"}, {"assignee": "ann"}, {}]
    rows = [
        make.wait(turn, f"c{number}", created=make.START + number, kind="RETRY" if number % 2 else "TOOL_APPROVAL", **more)
        for number, more in enumerate(fields)
    ]
    await ops(make.save(turn, token, 0, opened=tuple(reversed(rows))))

    async def bodies(**wanted: object) -> list[int]:
        found = await ops(b.ListWaits(**wanted))  # pyright: ignore[reportArgumentType]
        return [number for number, row in enumerate(rows) if row.body in found.bodies]

    equal((await ops(b.ListWaits())).bodies, tuple(row.body for row in rows))
    equal(await bodies(assignee="ann"), [0, 3])
    equal(await bodies(tenant="t"), [1])
    equal(await bodies(agent="alpha"), [2])
    equal(await bodies(kind="RETRY"), [1, 3])
    equal(await bodies(without=("RETRY",)), [0, 2, 4])
    first = await ops(b.ListWaits(limit=2))
    await ops(make.save(turn, token, 1, closed=(rows[1].id, rows[2].id)))
    second = await ops(b.ListWaits(limit=2, after=first.next))
    equal((first.bodies, second.bodies), (tuple(row.body for row in rows[:2]), tuple(row.body for row in rows[3:])))
    equal((second.next, (await ops(b.ListWaits(limit=3))).next), (None, None))


@check
async def the_inbox_is_of_all_trees(ops: Ops) -> None:
    """Oldest first and page by page, however the waits lie over turns and partitions; those of one moment are all there."""
    rows: list[b.WaitRow] = []
    for number in (3, 1, 2, 2):
        turn, token = await ops.start()
        rows.append(make.wait(turn, created=make.START + number))
        await ops(make.save(turn, token, 0, b.Mode.SUSPEND, opened=(rows[-1],)))

    page = is_a(await ops(b.ListWaits()), b.WaitListing)
    equal((page.bodies[0], page.bodies[3], page.next), (rows[1].body, rows[0].body, None))
    equal(set(page.bodies[1:3]), {rows[2].body, rows[3].body})
    bodies: list[bytes] = []
    after: str | None = None
    for _ in rows:
        page = is_a(await ops(b.ListWaits(limit=1, after=after)), b.WaitListing)
        bodies += page.bodies
        after = page.next
    equal((sorted(bodies), bodies[0], bodies[3], after), (sorted(row.body for row in rows), rows[1].body, rows[0].body, None))


@timed
async def turns_are_listed_oldest_first_page_by_page(ops: Ops) -> None:
    """Each filter on its own, and the cursor."""
    names: list[str] = []
    fields: list[dict[str, Any]] = [{"tenant": "t"}, {"conversation": "talk"}, {"agent": "beta"}, {}]
    for more in fields:
        names.append((await ops.start(**more))[0])
        ops.later(1)
    token = b.Token(str((await ops.look(names[3])).activation), (await ops.look(names[3])).epoch)
    await ops(make.save(names[3], token, 0, b.Mode.END))

    async def listed(**wanted: object) -> list[int]:
        found = await ops(b.ListTurns(**wanted))  # pyright: ignore[reportArgumentType]
        return [names.index(turn.turn) for turn in found.turns]

    equal(await listed(), [0, 1, 2, 3])
    equal(await listed(tenant="t"), [0])
    equal(await listed(conversation="talk"), [1])
    equal(await listed(agent="beta"), [2])
    equal(await listed(status="COMPLETED"), [3])
    equal(await listed(root=names[1]), [1])
    equal(await listed(quarantined=False), [0, 1, 2, 3])
    first = await ops(b.ListTurns(limit=3))
    second = await ops(b.ListTurns(limit=3, after=first.next))
    equal(([turn.turn for turn in first.turns + second.turns], second.next), (names, None))


@check
async def history_and_events_are_read_in_parts(ops: Ops) -> None:
    """Positions and limits cut through what saves appended together; the tail is the newest."""
    turn, token = await ops.start()
    await ops(make.save(turn, token, 0, messages=b.Messages(1, (b"1", b"2", b"3")), events=b.Events(1, 3, b"x")))
    await ops(make.save(turn, token, 1, b.Mode.HAND_OFF, messages=b.Messages(4, (b"4",)), events=b.Events(4, 1, b"y")))

    equal(await ops(b.ReadHistory(turn=turn, start=2, limit=2)), b.Entries((b"2", b"3")))
    equal(await ops(b.ReadHistory(turn=turn, start=5)), b.Entries(()))
    equal([batch[0] for batch in (await ops(b.ReadEvents(turn=turn, after=2))).batches], [2, 5])
    equal([batch[0] for batch in (await ops(b.ReadEvents(turn=turn, limit=2))).batches], [1, 2])
    claimed, _ = await ops.claim(turn, tail=3)
    equal(claimed.tail, (b"2", b"3", b"4"))
    equal(await ops(b.Versions(turns=(turn,))), b.Progress(((2, 5, "A", 0),)))
    equal(await ops(b.ReadHistory(turn=make.root())), b.Entries(()))
    equal(await ops(b.ReadEvents(turn=make.root())), b.EventBatches((), 0, terminal=False))


@timed
async def what_can_run_in_a_tree(ops: Ops) -> None:
    """`runnable_turns` counts owned and due turns, the turn's own and those below, not those asleep until later."""
    turn, token = await ops.start()
    child = make.new(make.child(turn), parent=turn)
    await ops(make.save(turn, token, 0, b.Mode.SUSPEND, create=(child,), wake=ops.now + 100))

    equal(((await ops.look(turn)).live_turns, (await ops.look(turn)).runnable_turns), (2, 1))
    _, other = await ops.claim(child.turn)
    await ops(make.save(child.turn, other, 0, b.Mode.SUSPEND))
    equal((await ops.look(turn)).runnable_turns, 0)
    ops.later(100)
    equal(((await ops.look(turn)).runnable_turns, (await ops.look(child.turn)).runnable_turns), (1, 0))


@check
async def a_tree_is_read_depth_first(ops: Ops) -> None:
    """Whatever came first: a turn's waits, then those of its first child and all below that, then the next child's."""
    turn, token = await ops.start()
    first, second = (make.new(make.child(turn, number), parent=turn) for number in (9, 5))
    await ops(make.save(turn, token, 0, b.Mode.SUSPEND, create=(first, second), opened=(make.wait(turn),)))
    below = make.new(make.child(turn, 1), parent=first.turn)
    waits = {name: make.wait(name) for name in (second.turn, first.turn, below.turn)}
    for name, wait in waits.items():
        _, own = await ops.claim(name)
        create = (below,) if name == first.turn else ()
        await ops(make.save(name, own, 0, b.Mode.SUSPEND, create=create, opened=(wait,)))

    expected = [waits[name].body for name in (first.turn, below.turn, second.turn)]
    equal(list((await ops.look(turn)).wait_bodies), [make.wait(turn).body, *expected])
    equal(list((await ops.look(first.turn)).wait_bodies), expected[:2])
    equal(((await ops.look(first.turn)).live_turns, (await ops.look(second.turn)).live_turns), (2, 1))
    listed = await ops(b.ListTurns(root=turn))
    equal({found.turn: len(found.wait_bodies) for found in listed.turns}, {turn: 4, first.turn: 2, second.turn: 1, below.turn: 1})
    equal(is_a(await ops(b.ListTurns(root=first.turn)), b.TurnListing).turns, ())
