"""Quarantine, Revive, Discard, Prune; the lists and their pages."""

from __future__ import annotations

from typing import Any

from turnhold.actors.ids import child_id
from turnhold.store import base as b

from . import make
from .ops import Ops

MINUTE = 60_000
DAY = 1440 * MINUTE


async def test_quarantine_parks(ops: Ops) -> None:
    """Not due, not claimable, its bytes untouched; mail is still taken and does not wake it; by a stranger: Fenced."""
    turn, token = await ops.start()

    assert await ops(b.Quarantine(turn=turn, token=b.Token("x", 1), reason="r")) == b.Fenced("n1")
    assert await ops(b.Quarantine(turn=turn, token=token, reason="unreadable")) == b.Done()
    assert await ops(b.Deliver(turn=turn, mail=make.mail(), claim=make.by())) == b.Delivered(ops.now, quarantined=True)
    assert await ops.due() == ()
    assert await ops(b.Claim(turn=turn, by=make.by())) == b.Gone()
    seen = await ops.look(turn)
    assert (seen.quarantine, seen.quarantined_at, seen.snapshot) == ("unreadable", ops.now, b"first")
    assert [found.turn for found in (await ops(b.ListTurns(quarantined=True))).turns] == [turn]


async def test_revive(ops: Ops) -> None:
    """Due again, crashes forgotten, its mail still there; Gone where there is nothing to revive."""
    turn = await ops.suspended()
    assert await ops(b.Revive(turn=turn)) == b.Gone()
    await ops(b.Deliver(turn=turn, mail=make.mail("m1")))
    await ops.park(turn)

    assert await ops(b.Revive(turn=turn)) == b.Done()
    claimed, _ = await ops.claim(turn)
    assert ([mail.message_id for mail in claimed.mail], claimed.crashes, claimed.quarantined) == (["m1"], 0, False)
    assert await ops(b.Revive(turn=make.root())) == b.Gone()


async def test_cancel_wakes_a_quarantined_turn(ops: Ops) -> None:
    """For the cancel path only; once the flag is taken, what belongs to it (mail) wakes it too, until it ends."""
    turn = await ops.suspended(wake=0)
    await ops.park(turn)

    assert await ops(b.Cancel(turn=turn, cause="stop")) == b.Delivered(ops.now, quarantined=True)
    claimed, token = await ops.claim(turn)
    assert (claimed.quarantined, claimed.cancel) == (True, "stop")
    await ops(make.save(turn, token, 1, b.Mode.SUSPEND, ack_cancel=True))
    assert await ops.due() == ()
    assert isinstance(await ops(b.Deliver(turn=turn, mail=make.mail("m"), claim=make.by("me"))), b.Claimed)
    token = b.Token("me", (await ops.look(turn)).epoch)
    await ops(make.save(turn, token, 2, b.Mode.END, consumed=("m",)))
    assert (await ops.look(turn)).quarantine is None


async def test_a_second_cancel_wakes_a_turn_parked_under_a_flag(ops: Ops) -> None:
    """An owner who could not even read the snapshot parks the turn again; nothing spins, and a later cancel tries anew."""
    turn = await ops.suspended()
    await ops(b.Cancel(turn=turn, cause="stop"))
    await ops.park(turn)

    assert await ops.due() == ()
    await ops(b.Cancel(turn=turn, cause="stop"))
    assert await ops.due() == (turn,)


async def test_discard(ops: Ops) -> None:
    """Terminal, conversation freed, waits closed, unread mail answered, parent told; the bytes stay. Only of a parked turn."""
    turn, token = await ops.start(conversation="talk")
    child = make.new(child_id(turn, b"0123456789"), parent=turn)
    await ops(make.save(turn, token, 0, b.Mode.HAND_OFF, create=(child,), opened=(make.wait(turn),)))
    discard = b.Discard(turn=turn, status="FAILED", closing=b"closed")
    assert await ops(discard) == b.Gone()
    sent = make.mail()
    await ops(b.Deliver(turn=turn, mail=sent))
    await ops.park(turn)
    await ops.park(child.turn)

    assert await ops(b.Discard(turn=child.turn, status="FAILED", notify=make.mail("ended"))) == b.Done()
    assert [mail.message_id for mail in (await ops(b.ReadMail(turn=turn))).mail] == [sent.message_id, "ended"]
    assert await ops(discard) == b.Done()
    assert await ops(discard) == b.Gone()
    seen = await ops.look(turn)
    assert (seen.state, seen.status, seen.quarantine, seen.version, seen.snapshot) == ("T", "FAILED", None, 1, b"snapshot 1")
    assert seen.wait_bodies == ()
    assert await ops(b.OpenTurn(conversation="talk")) == b.Opened(None)
    assert await ops(b.Deliver(turn=turn, mail=sent)) == b.Replied(b"closed")


async def test_retention_keeps_or_drops_a_tree_together(ops: Ops) -> None:
    """From the root's end on, and not while a turn of the tree is live; then nothing of it is left."""
    turn, token = await ops.start()
    child = make.new(child_id(turn, b"0123456789"), parent=turn)
    receipt = b.ReceiptRow(f"{turn}/c/1", b"r", "cmd", f"{turn}:c")
    await ops(make.save(turn, token, 0, create=(child,), receipts=(receipt,)))
    await ops(make.save(turn, token, 1, b.Mode.END, retention_ms=DAY))
    ops.now += DAY + 1
    await ops(b.Prune())
    assert isinstance(await ops(b.Look(turn=turn)), b.Looked)

    _, other = await ops.claim(child.turn)
    await ops(make.save(child.turn, other, 0, b.Mode.END))
    ops.now += 60 * MINUTE
    await ops(b.Prune())
    for name in (turn, child.turn):
        assert await ops(b.Look(turn=name)) == b.Gone()
    assert await ops(b.Find(root=turn, commands=("cmd",))) == b.Found((None,))
    assert await ops(b.ListTurns()) == b.TurnListing((), None)
    assert await ops(b.Versions(turns=(turn,))) == b.Progress(((-1, 0, "", 0),))
    assert isinstance(await ops(b.Create(new=make.new(turn))), b.Created)


async def test_replies_and_seen_ids_are_kept_for_a_time(ops: Ops) -> None:
    """Replies 10 minutes, seen ids 24 hours, unread mail and open waits for ever."""
    turn, token = await ops.start()
    sent, unread = make.mail(), make.mail()
    await ops(b.Deliver(turn=turn, mail=sent))
    saved = make.save(turn, token, 0, consumed=(sent.message_id,), replies=(b.ReplyRow(sent.message_id, b"ok"),))
    await ops(make.changed(saved, opened=(make.wait(turn),)))
    await ops(b.Deliver(turn=turn, mail=unread))

    ops.now += 10 * MINUTE - 1
    await ops(b.Prune())
    assert await ops(b.Deliver(turn=turn, mail=sent)) == b.Replied(b"ok")
    ops.now += 1
    await ops(b.Prune())
    assert await ops(b.Deliver(turn=turn, mail=sent)) == b.Delivered(ops.now, "n1", fresh=False)
    ops.now += DAY
    await ops(b.Prune())
    assert await ops(b.Deliver(turn=turn, mail=unread)) == b.Delivered(ops.now, "n1", fresh=False)
    assert await ops(b.Deliver(turn=turn, mail=sent)) == b.Delivered(ops.now, "n1")
    assert len((await ops(b.ListWaits())).bodies) == 1


async def test_prune_is_bounded(ops: Ops) -> None:
    """At most `limit` of a kind; the next one goes on."""
    for _ in range(3):
        turn, token = await ops.start()
        await ops(make.save(turn, token, 0, b.Mode.END, retention_ms=0))
    left = []
    for _ in range(3):
        await ops(b.Prune(limit=1))
        left.append(len((await ops(b.ListTurns())).turns))

    assert left == [2, 1, 0]


async def test_nodes(ops: Ops) -> None:
    """Announced with what they run, until they leave or are silent for an hour."""
    await ops(b.Beat(node="a", agents=("alpha@1", "beta@2")))
    await ops(b.Beat(node="b"))

    assert await ops(b.ListNodes()) == b.Nodes((b.NodeRow("a", ops.now, ("alpha@1", "beta@2")), b.NodeRow("b", ops.now)), ops.now)
    await ops(b.Beat(node="b", leave=True))
    ops.now += 60 * MINUTE
    await ops(b.Beat(node="c"))
    await ops(b.Prune())
    assert [row.node for row in (await ops(b.ListNodes())).nodes] == ["c"]


async def test_due_pages(ops: Ops) -> None:
    """Oldest first, with a limit; `offset` gets past turns that nobody here can run."""
    turns = []
    for _ in range(4):
        turns.append(make.new())
        await ops(b.Create(new=turns[-1]))
        ops.now += 1
    names = tuple(new.turn for new in turns)

    assert (await ops(b.Due(limit=2))).turns == names[:2]
    assert (await ops(b.Due(limit=2, offset=2))).turns == names[2:]
    assert (await ops(b.Due(limit=2, offset=4))).turns == ()


async def test_waits_are_listed_oldest_first_page_by_page(ops: Ops) -> None:
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

    assert (await ops(b.ListWaits())).bodies == tuple(row.body for row in rows)
    assert await bodies(assignee="ann") == [0, 3]
    assert await bodies(tenant="t") == [1]
    assert await bodies(agent="alpha") == [2]
    assert await bodies(kind="RETRY") == [1, 3]
    assert await bodies(without=("RETRY",)) == [0, 2, 4]
    first = await ops(b.ListWaits(limit=2))
    await ops(make.save(turn, token, 1, closed=(rows[1].id, rows[2].id)))
    second = await ops(b.ListWaits(limit=2, after=first.next))
    assert (first.bodies, second.bodies) == (tuple(row.body for row in rows[:2]), tuple(row.body for row in rows[3:]))
    assert (second.next, (await ops(b.ListWaits(limit=3))).next) == (None, None)


async def test_turns_are_listed_oldest_first_page_by_page(ops: Ops) -> None:
    """Each filter on its own, and the cursor."""
    names: list[str] = []
    fields: list[dict[str, Any]] = [{"tenant": "t"}, {"conversation": "talk"}, {"agent": "beta"}, {}]
    for more in fields:
        names.append((await ops.start(**more))[0])
        ops.now += 1
    token = b.Token(str((await ops.look(names[3])).activation), (await ops.look(names[3])).epoch)
    await ops(make.save(names[3], token, 0, b.Mode.END))

    async def listed(**wanted: object) -> list[int]:
        found = await ops(b.ListTurns(**wanted))  # pyright: ignore[reportArgumentType]
        return [names.index(turn.turn) for turn in found.turns]

    assert await listed() == [0, 1, 2, 3]
    assert await listed(tenant="t") == [0]
    assert await listed(conversation="talk") == [1]
    assert await listed(agent="beta") == [2]
    assert await listed(status="COMPLETED") == [3]
    assert await listed(root=names[1]) == [1]
    assert await listed(quarantined=False) == [0, 1, 2, 3]
    first = await ops(b.ListTurns(limit=3))
    second = await ops(b.ListTurns(limit=3, after=first.next))
    assert ([turn.turn for turn in first.turns + second.turns], second.next) == (names, None)


async def test_history_and_events_are_read_in_parts(ops: Ops) -> None:
    """Positions and limits cut through what saves appended together; the tail is the newest."""
    turn, token = await ops.start()
    await ops(make.save(turn, token, 0, messages=b.Messages(1, (b"1", b"2", b"3")), events=b.Events(1, 3, b"x")))
    await ops(make.save(turn, token, 1, b.Mode.HAND_OFF, messages=b.Messages(4, (b"4",)), events=b.Events(4, 1, b"y")))

    assert await ops(b.ReadHistory(turn=turn, start=2, limit=2)) == b.Entries((b"2", b"3"))
    assert await ops(b.ReadHistory(turn=turn, start=5)) == b.Entries(())
    assert [batch[0] for batch in (await ops(b.ReadEvents(turn=turn, after=2))).batches] == [2, 5]
    assert [batch[0] for batch in (await ops(b.ReadEvents(turn=turn, limit=2))).batches] == [1, 2]
    claimed, _ = await ops.claim(turn, tail=3)
    assert claimed.tail == (b"2", b"3", b"4")
    assert await ops(b.Versions(turns=(turn,))) == b.Progress(((2, 5, "A", 0),))
    assert await ops(b.ReadHistory(turn=make.root())) == b.Entries(())
    assert await ops(b.ReadEvents(turn=make.root())) == b.EventBatches((), 0, terminal=False)


async def test_what_can_run_in_a_tree(ops: Ops) -> None:
    """`runnable_turns` counts owned and due turns, the turn's own and those below, not those asleep until later."""
    turn, token = await ops.start()
    child = make.new(child_id(turn, b"0123456789"), parent=turn)
    await ops(make.save(turn, token, 0, b.Mode.SUSPEND, create=(child,), wake=make.START + 100))

    assert ((await ops.look(turn)).live_turns, (await ops.look(turn)).runnable_turns) == (2, 1)
    _, other = await ops.claim(child.turn)
    await ops(make.save(child.turn, other, 0, b.Mode.SUSPEND))
    assert (await ops.look(turn)).runnable_turns == 0
    ops.now += 100
    assert ((await ops.look(turn)).runnable_turns, (await ops.look(child.turn)).runnable_turns) == (1, 0)


async def test_a_tree_is_read_depth_first(ops: Ops) -> None:
    """Whatever came first: a turn's waits, then those of its first child and all below that, then the next child's."""
    turn, token = await ops.start()
    first, second = (make.new(child_id(turn, bytes([number] * 10)), parent=turn) for number in (9, 5))
    await ops(make.save(turn, token, 0, b.Mode.SUSPEND, create=(first, second), opened=(make.wait(turn),)))
    below = make.new(child_id(turn, bytes([1] * 10)), parent=first.turn)
    waits = {name: make.wait(name) for name in (second.turn, first.turn, below.turn)}
    for name, wait in waits.items():
        _, own = await ops.claim(name)
        create = (below,) if name == first.turn else ()
        await ops(make.save(name, own, 0, b.Mode.SUSPEND, create=create, opened=(wait,)))

    expected = [waits[name].body for name in (first.turn, below.turn, second.turn)]
    assert list((await ops.look(turn)).wait_bodies) == [make.wait(turn).body, *expected]
    assert list((await ops.look(first.turn)).wait_bodies) == expected[:2]
    assert ((await ops.look(first.turn)).live_turns, (await ops.look(second.turn)).live_turns) == (2, 1)
    listed = await ops(b.ListTurns(root=turn))
    assert {found.turn: len(found.wait_bodies) for found in listed.turns} == {turn: 4, first.turn: 2, second.turn: 1, below.turn: 1}
