"""Memory: the entries and notes of a conversation, and what of them waits to be passed on."""

from __future__ import annotations

from ...store import base as b
from . import make
from .check import check, timed
from .expect import equal, hold, is_a
from .ops import Ops

TALK = "talk"


@check
async def entries_are_appended_in_order(ops: Ops) -> None:
    """Each gets the next place, version 0, a greater change, the time of its writing; bodies are bytes of any kind."""
    before = ops.now
    await write(ops, "a", b"")
    await write(ops, "b", b"\x00\xff", shown=False)
    await write(ops, "ü {c}:", b"x" * 100_000)

    found = await read(ops)
    equal([entry.id for entry in found.entries], ["a", "b", "ü {c}:"])
    equal([(entry.place, entry.version, entry.shown) for entry in found.entries], [(1, 0, True), (2, 0, False), (3, 0, True)])
    equal([entry.body for entry in found.entries], [b"", b"\x00\xff", b"x" * 100_000])
    changes = [entry.change for entry in found.entries]
    equal(changes, sorted(set(changes)))
    hold(changes[0] >= before, f"changes are numbered from the store's time on: {changes}")
    hold(all(entry.at >= before for entry in found.entries), f"entries have the time of their writing: {found.entries}")


@check
async def the_newest_entries_are_read(ops: Ops) -> None:
    """The newest `limit`, or those before an entry, oldest first; `more` tells of others before them."""
    for name in "abcde":
        await write(ops, name)

    equal(ids(await read(ops, limit=2)), ("de", True))
    equal(ids(await read(ops, limit=2, before="d")), ("bc", True))
    equal(ids(await read(ops, limit=2, before="b")), ("a", False))
    equal(ids(await read(ops, limit=2, before="a")), ("", False))
    equal(ids(await read(ops, limit=5)), ("abcde", False))
    equal(ids(await read(ops, before="unknown", limit=1)), ("e", True))
    equal(ids(is_a(await ops(b.ReadMemory(conversation="other")), b.Memory)), ("", False))


@check
async def what_models_may_not_see_is_left_out(ops: Ops) -> None:
    """With `shown`: neither `limit` nor `more` counts the others; an entry of theirs may be `before`."""
    for name in "aBcDEf":
        await write(ops, name, shown=name.islower())

    equal(ids(await read(ops, shown=True, limit=2)), ("cf", True))
    equal(ids(await read(ops, shown=True, limit=3)), ("acf", False))
    equal(ids(await read(ops, shown=True, before="E", limit=1)), ("c", True))
    equal(ids(await read(ops, shown=True, before="c")), ("a", False))


@check
async def a_known_entry_is_not_written_over(ops: Ops) -> None:
    """Without `expected` a known id is Done, and nothing changes: it may be this write, sent again."""
    op = b.WriteMemory(conversation=TALK, row=b.MemoryRow("a", b"first"))
    equal(await ops(op), b.Done())
    before = await read(ops)

    equal(await ops(op), b.Done())
    equal(await ops(b.WriteMemory(conversation=TALK, row=b.MemoryRow("a", b"other", shown=False), relay=True)), b.Done())
    equal(await read(ops), before)
    equal(await waiting(ops), ())


@check
async def an_entry_is_replaced_in_its_place(ops: Ops) -> None:
    """With its version: the new body, the same place and time, the next version, the newest change."""
    await write(ops, "a")
    await write(ops, "b")
    first, second = (await read(ops)).entries

    equal(await ops(replace("a", b"new", 0, shown=False)), b.Done())
    entries = (await read(ops)).entries
    equal(entries[1], second)
    equal(entries[0], b.MemoryEntry("a", b"new", shown=False, place=1, version=1, change=entries[0].change, at=first.at))
    hold(entries[0].change > second.change, f"a change is newer than all before it: {entries}")


@check
async def a_replacement_is_made_once(ops: Ops) -> None:
    """Sent again: Done, and nothing changes. Of another version, with another body, or of an unknown id: Conflict."""
    await write(ops, "a")
    op = replace("a", b"new", 0)
    equal(await ops(op), b.Done())
    before = await read(ops)

    equal(await ops(op), b.Done())
    equal(await ops(replace("a", b"other", 0)), b.Conflict(1))
    equal(await ops(replace("a", b"new", 0, shown=False)), b.Conflict(1))
    equal(await ops(replace("a", b"new", 7)), b.Conflict(1))
    equal(await ops(replace("none", b"new", 0)), b.Conflict(-1))
    equal(await read(ops), before)
    equal(await ops(replace("a", b"new", 1)), b.Done())
    equal((await read(ops)).entries[0].version, 2)


@check
async def a_save_writes_memory(ops: Ops) -> None:
    """In the same step, in the order of its rows, also the last save of a turn; sent again it writes nothing twice."""
    turn, token = await ops.start(conversation=TALK)
    await ops(make.save(turn, token, 0, conversation=TALK, memory=rows("a", "b")))
    end = make.save(turn, token, 1, b.Mode.END, conversation=TALK, memory=(*rows("d"), b.MemoryRow("c", b"card", shown=False)))

    is_a(await ops(end), b.Saved)
    before = await read(ops)
    equal(is_a(await ops(end), b.Saved).replayed, expected=True)
    equal(await read(ops), before)
    equal(ids(before), ("abdc", False))
    equal([(entry.place, entry.version, entry.shown) for entry in before.entries], [(place, 0, place < 4) for place in range(1, 5)])


@check
async def a_save_replaces_what_it_writes_anew(ops: Ops) -> None:
    """A known id gets the new body in its place, the next version and a newer change; what it holds already is left alone."""
    turn, token = await ops.start(conversation=TALK)
    await ops(make.save(turn, token, 0, conversation=TALK, memory=rows("a", "b", "c")))
    before = {entry.id: entry for entry in (await read(ops)).entries}
    again = (*rows("a"), b.MemoryRow("b", b"new"), b.MemoryRow("c", b"body of c", shown=False), *rows("d"), b.MemoryRow("d", b"2"))

    is_a(await ops(make.save(turn, token, 1, conversation=TALK, memory=again)), b.Saved)
    found = (await read(ops)).entries
    equal([entry.id for entry in found], ["a", "b", "c", "d"])
    equal(found[0], before["a"])
    equal([entry.version for entry in found], [0, 1, 1, 1])
    equal([(entry.body, entry.shown) for entry in found[1:]], [(b"new", True), (b"body of c", False), (b"2", True)])
    changes = [before["c"].change, *(entry.change for entry in found[1:])]
    equal(changes, sorted(set(changes)))


@check
async def a_refused_save_writes_no_memory(ops: Ops) -> None:
    """Fenced, Behind, Conflict: nothing is written."""
    turn, token = await ops.start(conversation=TALK)
    memory = rows("a")

    is_a(await ops(make.save(turn, b.Token("you", token.epoch), 0, conversation=TALK, memory=memory, relay=True)), b.Fenced)
    is_a(await ops(make.save(turn, token, 3, conversation=TALK, memory=memory, relay=True)), b.Behind)
    await ops(make.save(turn, token, 0))
    is_a(await ops(make.save(turn, token, 0, conversation=TALK, memory=memory, relay=True)), b.Conflict)
    equal(ids(await read(ops)), ("", False))
    equal(await waiting(ops), ())


@check
async def a_child_writes_to_the_conversation(ops: Ops) -> None:
    """A save of a child writes to the conversation that it names."""
    turn, token = await ops.start(conversation=TALK)
    child = make.new(make.child(turn), parent=turn)
    await ops(make.save(turn, token, 0, create=(child,), conversation=TALK, memory=rows("a")))
    _, below = await ops.claim(child.turn)

    await ops(make.save(child.turn, below, 0, b.Mode.END, conversation=TALK, memory=rows("b"), relay=True))
    equal(ids(await read(ops)), ("ab", False))
    equal(await passing(ops), "b")


@check
async def entries_are_found_by_id(ops: Ops) -> None:
    """In the order asked for, without those that are unknown."""
    for name in "abc":
        await write(ops, name)

    equal(ids(is_a(await ops(b.FindMemory(conversation=TALK, ids=("c", "none", "a"))), b.Memory)), ("ca", False))
    equal(ids(is_a(await ops(b.FindMemory(conversation=TALK, ids=())), b.Memory)), ("", False))
    equal(ids(is_a(await ops(b.FindMemory(conversation="other", ids=("a",))), b.Memory)), ("", False))


@check
async def memory_outlives_turns(ops: Ops) -> None:
    """A tree past its retention is dropped without the memory of its conversation; one that had no turn has memory, too."""
    turn, token = await ops.start(conversation=TALK)
    await ops(make.save(turn, token, 0, b.Mode.END, retention_ms=0, conversation=TALK, memory=rows("a"), relay=True))
    await ops(b.WriteNote(conversation=TALK, name="n", body=b"note", expected=0))
    await ops(b.Prune())

    equal(await ops(b.Look(turn=turn)), b.Gone())
    equal(ids(await read(ops)), ("a", False))
    equal((await passing(ops), await waiting(ops)), ("a", (TALK,)))
    equal(await ops(b.ReadNote(conversation=TALK, name="n")), b.Noted(1, b"note"))


@check
async def memory_can_be_cleared(ops: Ops) -> None:
    """Entries, notes and what waits are gone, in this conversation only; its turns and its queue are not touched."""
    turn, _ = await ops.start(conversation=TALK)
    after = make.new(conversation=TALK)
    await ops(b.Create(new=after, when_busy="queue"))
    for talk in (TALK, "other"):
        await ops(b.WriteMemory(conversation=talk, row=b.MemoryRow("a", b"body"), relay=True))
        await ops(b.WriteNote(conversation=talk, name="n", body=b"note", expected=0))

    for _ in range(2):
        equal(await ops(b.ClearMemory(conversation=TALK)), b.Done())
        equal((ids(await read(ops)), await passing(ops)), (("", False), ""))
        equal(await ops(b.FindMemory(conversation=TALK, ids=("a",))), b.Memory(()))
        equal(await ops(b.ReadNote(conversation=TALK, name="n")), b.Noted(0))
    equal(await waiting(ops), ("other",))
    equal(await ops(b.ReadNote(conversation="other", name="n")), b.Noted(1, b"note"))
    equal(await ops(b.OpenTurn(conversation=TALK)), b.Opened(turn, "READY"))
    equal(is_a(await ops(b.ListQueue(conversation=TALK)), b.DueTurns).turns, (after.turn,))
    await write(ops, "a", b"again")
    equal([(entry.place, entry.version, entry.body) for entry in (await read(ops)).entries], [(1, 0, b"again")])


@check
async def a_note_is_replaced_by_its_version(ops: Ops) -> None:
    """From version 0 on; sent again it is Done; of another version, Conflict with the stored one. Notes are apart."""
    for version, body in enumerate((b"one", b"", b"three")):
        op = b.WriteNote(conversation=TALK, name="n", body=body, expected=version)
        equal(await ops(op), b.Done())
        equal(await ops(op), b.Done())
        equal(await ops(b.ReadNote(conversation=TALK, name="n")), b.Noted(version + 1, body))

    equal(await ops(b.WriteNote(conversation=TALK, name="n", body=b"x", expected=0)), b.Conflict(3))
    equal(await ops(b.WriteNote(conversation=TALK, name="n", body=b"x", expected=2)), b.Conflict(3))
    equal(await ops(b.WriteNote(conversation=TALK, name="m", body=b"x", expected=1)), b.Conflict(0))
    equal(await ops(b.WriteNote(conversation="other", name="n", body=b"x", expected=0)), b.Done())
    equal(await ops(b.ReadNote(conversation=TALK, name="m")), b.Noted(0))
    equal(await ops(b.ReadNote(conversation=TALK, name="n")), b.Noted(3, b"three"))


# -- passing on


@check
async def what_waits_is_read_by_its_changes(ops: Ops) -> None:
    """Entries written with `relay`, each once, as they are now, oldest change first; an entry that waits waits on when replaced."""
    for name in "abcd":
        await write(ops, name, relay=name != "b")

    equal((await passing(ops), await waiting(ops)), ("acd", (TALK,)))
    await ops(replace("a", b"new", 0))
    await ops(replace("b", b"new", 0))
    equal(await passing(ops), "cda")
    await ops(replace("b", b"newer", 1, relay=True))
    page = is_a(await ops(b.ReadRelay(conversation=TALK, limit=2)), b.Memory)
    equal((ids(page), ids(is_a(await ops(b.ReadRelay(conversation=TALK, limit=4)), b.Memory))), (("cd", True), ("cdab", False)))
    equal(is_a(await ops(b.FindMemory(conversation=TALK, ids=("c", "d"))), b.Memory).entries, page.entries)


@check
async def what_is_passed_on_waits_no_longer(ops: Ops) -> None:
    """Up to the change that is named; said again, or of an older one, it changes nothing; a new change waits anew."""
    for name in "abc":
        await write(ops, name, relay=True)
    first, second, third = is_a(await ops(b.ReadRelay(conversation=TALK)), b.Memory).entries

    for change in (second.change, second.change, first.change):
        equal(await ops(b.Relayed(conversation=TALK, change=change)), b.Done())
        equal((await passing(ops), await waiting(ops)), ("c", (TALK,)))
    equal(await ops(b.Relayed(conversation=TALK, change=third.change)), b.Done())
    equal((await passing(ops), await waiting(ops)), ("", ()))
    equal(await ops(b.Relayed(conversation="other", change=third.change)), b.Done())
    await ops(replace("a", b"new", 0))
    equal(await waiting(ops), ())
    await ops(replace("a", b"newer", 1, relay=True))
    equal((await passing(ops), await waiting(ops)), ("a", (TALK,)))
    equal(ids(await read(ops)), ("abc", False))


@check
async def what_changed_since_it_was_read_still_waits(ops: Ops) -> None:
    """Between ReadRelay and Relayed an entry is replaced: its newest body is yet to be passed on."""
    await write(ops, "a", relay=True)
    (entry,) = is_a(await ops(b.ReadRelay(conversation=TALK)), b.Memory).entries
    await ops(replace("a", b"new", 0))

    await ops(b.Relayed(conversation=TALK, change=entry.change))
    equal((await passing(ops), await waiting(ops)), ("a", (TALK,)))


@check
async def a_save_passes_on_what_it_writes(ops: Ops) -> None:
    """With `relay` what is new or changed waits, what was there already does not."""
    turn, token = await ops.start(conversation=TALK)
    await ops(make.save(turn, token, 0, conversation=TALK, memory=rows("a")))
    equal(await waiting(ops), ())
    await ops(make.save(turn, token, 1, conversation=TALK, memory=rows("a", "b"), relay=True))

    equal((await passing(ops), await waiting(ops)), ("b", (TALK,)))


@timed
async def the_longest_waiting_comes_first(ops: Ops) -> None:
    """Conversations by the time since when they wait, then by name, at most `limit`, none that waits less long than asked."""
    start = ops.now
    for talk in ("c", "b", "d", "a"):
        await write(ops, "x", relay=True, talk=talk)
        ops.later(10 if talk != "c" else 0)
    await write(ops, "y", relay=True, talk="c")

    equal(
        await ops(b.Relays(before=ops.now)),
        b.Conversations((("b", start), ("c", start), ("d", start + 10), ("a", start + 20)), ops.now),
    )
    equal(await waiting(ops, before=start + 10), ("b", "c", "d"))
    equal(await waiting(ops, before=start + 10, limit=1), ("b",))
    equal(await waiting(ops, before=start - 1), ())


@timed
async def a_conversation_waits_anew_from_its_last_success(ops: Ops) -> None:
    """What is left after a part was passed on waits since then; a part that was passed on before moves nothing."""
    await write(ops, "a", relay=True)
    await write(ops, "b", relay=True)
    change = is_a(await ops(b.ReadRelay(conversation=TALK, limit=1)), b.Memory).entries[0].change
    ops.later(10)
    await ops(b.Relayed(conversation=TALK, change=change))
    since = ops.now

    ops.later(10)
    await ops(b.Relayed(conversation=TALK, change=change))
    equal(is_a(await ops(b.Relays(before=ops.now)), b.Conversations).waiting, ((TALK, since),))


@timed
async def an_entry_keeps_the_time_of_its_first_writing(ops: Ops) -> None:
    """When it is replaced, by a write or by a save."""
    start = ops.now
    await write(ops, "a")
    turn, token = await ops.start(conversation=TALK)
    ops.later(10)
    await ops(replace("a", b"new", 0))
    equal([entry.at for entry in (await read(ops)).entries], [start])
    await ops(make.save(turn, token, 0, conversation=TALK, memory=rows("a", "b")))

    equal([entry.at for entry in (await read(ops)).entries], [start, start + 10])


@timed
async def changes_are_not_numbered_anew(ops: Ops) -> None:
    """What was passed on before the memory was cleared says nothing of what was written after it."""
    await write(ops, "a", relay=True)
    (entry,) = is_a(await ops(b.ReadRelay(conversation=TALK)), b.Memory).entries
    ops.later(1)
    await ops(b.ClearMemory(conversation=TALK))
    await write(ops, "a", relay=True)

    await ops(b.Relayed(conversation=TALK, change=entry.change))
    equal((await passing(ops), await waiting(ops)), ("a", (TALK,)))


async def write(
    ops: Ops, name: str, body: bytes | None = None, *, shown: bool = True, relay: bool = False, talk: str = TALK
) -> None:
    """Append an entry."""
    row = b.MemoryRow(name, b"body of " + name.encode() if body is None else body, shown)
    equal(await ops(b.WriteMemory(conversation=talk, row=row, relay=relay)), b.Done())


def replace(name: str, body: bytes, version: int, *, shown: bool = True, relay: bool = False) -> b.WriteMemory:
    """Make the operation that replaces an entry."""
    return b.WriteMemory(conversation=TALK, row=b.MemoryRow(name, body, shown), expected=version, relay=relay)


def rows(*names: str) -> tuple[b.MemoryRow, ...]:
    """Make entries for a save."""
    return tuple(b.MemoryRow(name, b"body of " + name.encode()) for name in names)


async def read(ops: Ops, *, before: str | None = None, limit: int = 64, shown: bool = False) -> b.Memory:
    """Read the newest entries."""
    return is_a(await ops(b.ReadMemory(conversation=TALK, before=before, limit=limit, shown=shown)), b.Memory)


def ids(found: b.Memory) -> tuple[str, bool]:
    """Return the ids of entries in a row, and whether there are others."""
    return "".join(entry.id for entry in found.entries), found.more


async def passing(ops: Ops) -> str:
    """Read the ids of what waits."""
    return ids(is_a(await ops(b.ReadRelay(conversation=TALK)), b.Memory))[0]


async def waiting(ops: Ops, *, before: int | None = None, limit: int = 64) -> tuple[str, ...]:
    """Read which conversations wait."""
    before = ops.now if before is None else before
    reply = is_a(await ops(b.Relays(before=before + (0 if ops.time.follows else 1000), limit=limit)), b.Conversations)
    return tuple(name for name, _ in reply.waiting)
