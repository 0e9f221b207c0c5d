"""What an owner keeps of its saves, and the one save by which it repeats them: nothing that they did is left out, or done twice."""

from __future__ import annotations

from typing import Any

from turnhold import EventType
from turnhold.runtime import rewind
from turnhold.runtime.persist import save_id
from turnhold.runtime.rewind import SaveLog, merged
from turnhold.store import base, codec
from turnhold.testing.conformance import make

ROOT = make.root()
TOKEN = base.Token("owner", 7)
HERE, GONE = make.new(make.child(ROOT, 1)), make.new(make.child(ROOT, 2))


def event(name: str) -> bytes:
    return codec.encode_events([(EventType.STEP_STARTED, 1, {"name": name}, 1)])


def rows(name: str) -> dict[str, Any]:
    """All that a save can carry beside its state."""
    return {
        "consumed": (f"mail {name}",),
        "receipts": (base.ReceiptRow(f"wait {name}", b"receipt", f"command {name}"),),
        "replies": (base.ReplyRow(f"mail {name}", b"reply"),),
        "opened": (make.wait(ROOT, name),),
        "deliver": ((GONE.turn, base.Mail(f"told {name}", b"")),),
        "cancel": ((HERE.turn, f"cause {name}"),),
        "memory": (base.MemoryRow(f"entry {name}", b"said"),),
    }


def save(version: int, name: str, **more: Any) -> base.Save:
    """The save of a version that appends two messages and one event, behind those of the versions before."""
    known = {
        "messages": base.Messages(2 * version, (b"message %d" % (2 * version), b"message %d" % (2 * version + 1))),
        "events": base.Events(version, 1, event(name)),
    }
    return make.save(ROOT, TOKEN, version, save_id=name, snapshot=b"state " + name.encode(), **{**known, **rows(name), **more})


def test_everything_is_repeated() -> None:
    """Each part of the forgotten saves is in the repetition, in order, once; the state is the newest."""
    first = save(3, "a", progress=True, ack_cancel=True, confirm=True, relay=True, conversation="talk", create=(HERE, GONE))
    second = save(4, "b", consumed=("mail a", "mail b"), closed=(make.wait(ROOT, "a").id,), memory=())
    third = save(5, "c", mode=base.Mode.SUSPEND, wake=9, memory=())

    found = merged([first, second], third, base.Behind(3, 6, 3), [HERE.turn], "again")

    assert (found.version, found.save_id, found.snapshot, found.mode, found.wake) == (3, "again", b"state c", base.Mode.SUSPEND, 9)
    assert found.messages == base.Messages(6, tuple(b"message %d" % number for number in range(6, 12)))
    assert found.events == base.Events(3, 3, codec.join_events([event("a"), event("b"), event("c")]))
    assert (found.progress, found.ack_cancel, found.confirm, found.relay, found.conversation) == (True, True, True, True, "talk")
    assert found.consumed == ("mail a", "mail b", "mail c")
    for part in ("receipts", "replies", "deliver", "cancel"):
        assert getattr(found, part) == tuple(row for name in "abc" for row in rows(name)[part]), part
    assert found.memory == rows("a")["memory"]
    assert found.closed == (make.wait(ROOT, "a").id,)
    assert [wait.id for wait in found.opened] == [make.wait(ROOT, name).id for name in "bc"]
    assert found.create == (HERE,)


def test_a_child_that_is_new_is_created_whatever_else() -> None:
    """The save that is repeated with the others creates its own children; those of forgotten saves only while they are awaited."""
    found = merged([save(3, "a", create=(GONE,))], save(4, "b", create=(HERE,)), base.Behind(3, 6, 3), [], "again")

    assert found.create == (HERE,)


def test_what_is_forgotten_is_found() -> None:
    """All saves from the store's version on; nothing where one of them is missing, or where the store has other lengths."""
    log = SaveLog()
    for version in range(3, 7):
        log.add(save(version, f"{version}"))

    assert [op.version for op in log.since(base.Behind(4, 8, 4)) or ()] == [4, 5, 6]
    assert log.since(base.Behind(7, 14, 7)) is None
    assert log.since(base.Behind(2, 4, 2)) is None
    assert log.since(base.Behind(4, 7, 4)) is None
    assert log.since(base.Behind(4, 8, 3)) is None
    assert {op.snapshot for op in log.since(base.Behind(3, 6, 3)) or ()} == {b""}


def test_a_repetition_takes_the_place_of_what_it_repeats() -> None:
    """Else the next repetition would do it twice."""
    log = SaveLog()
    for version in range(3, 6):
        log.add(save(version, f"{version}"))
    log.add(save(4, "again"))

    assert [(op.version, op.save_id) for op in log.since(base.Behind(3, 6, 3)) or ()] == [(3, "3"), (4, "again")]
    assert (log.took("mail 3"), log.took("mail again"), log.took("mail 5"), len(log)) == (True, True, False, 2)


def test_the_log_is_bounded() -> None:
    """In number and in bytes; the newest save stays, however large."""
    many, large = SaveLog(), SaveLog()
    for version in range(rewind.LOG_SAVES + 10):
        many.add(save(version, f"{version}"))
    for version in range(9):
        large.add(save(version, f"{version}", receipts=(base.ReceiptRow("w", bytes(rewind.LOG_BYTES // 4)),)))
    large.add(save(9, "huge", receipts=(base.ReceiptRow("w", bytes(2 * rewind.LOG_BYTES)),)))

    assert len(many) == rewind.LOG_SAVES
    assert (len(large), large.took("mail huge")) == (1, True)
    large.add(save(10, "small"))
    assert [large.took(f"mail {name}") for name in ("huge", "small")] == [False, True]


def test_each_save_has_a_name_of_its_own() -> None:
    """By activation, version and rewind: a repetition is not taken for the save that was forgotten, should that come to light."""
    other = base.Token("another", 8)
    names = [save_id(token, version, rewinds) for token in (TOKEN, other) for version in (3, 4) for rewinds in (0, 1, 2)]

    assert len(set(names)) == len(names)
