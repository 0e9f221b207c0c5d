"""Wrong arguments of lists and of calls on turns: each is refused with a typed error that names it, and nothing changes."""

# pyright: reportArgumentType=false

from __future__ import annotations

from typing import Any

import pytest

from turnhold import (
    AgentNotFound,
    InvalidDefinition,
    ResumeCommand,
    Status,
    SuspensionMismatch,
    SuspensionType,
    TurnNotFound,
    TurnRef,
)

from .hostile import BAD_DURATIONS, BAD_NAMES, BAD_NUMBERS, BAD_OBJECTS, MEGABYTES, Rude, cases
from .place import Place, gated, picture, refused, waiting

NO_TURN = "00-" + "a" * 26
NO_IDS = ["", " ", "x", NO_TURN.upper(), NO_TURN + "\n", NO_TURN + "/x/1", NO_TURN[:-1], "\ud800", "a\0b", "../../etc", MEGABYTES]


# ---------------------------------------------------------------------------------------------------------------- lists

LISTS: dict[str, tuple[str, dict, str]] = {
    "inbox: type": ("inbox", {"type": "TOOL_APPROVAL"}, "type must be a SuspensionType"),
    "inbox: rude type": ("inbox", {"type": Rude()}, "type must be a SuspensionType"),
    "inbox: status": ("inbox", {"type": Status.READY}, "type must be a SuspensionType"),
    "turns: status": ("turns", {"status": "READY"}, "status must be a Status"),
    "turns: type": ("turns", {"status": SuspensionType.RETRY}, "status must be a Status"),
    "turns: quarantined": ("turns", {"quarantined": "yes"}, "quarantined must be True or False"),
    **{
        f"{where}: limit {name}": (where, {"limit": value}, "limit must be a whole number from 1 to 1000")
        for where in ("inbox", "turns")
        for name, value in {**BAD_NUMBERS, "0": 0, "1001": 1001, "negative": -1, "none": None}.items()
    },
    **{
        f"{where}: after {name}": (where, {"after": value}, "after ")
        for where in ("inbox", "turns")
        for name, value in {
            **{name: value for name, (value, _) in BAD_NAMES.items()},
            "foreign": "abc",
            "no number": "x:y",
            "no key": "5:",
            "signed": "-5:x",
            "other digits": "٣:x",
            "huge": "9" * 400 + ":x",
        }.items()
    },
    **{
        f"{where}: {field} {name}": (where, {field: value}, f"{field} .*{words}")
        for where, fields in {
            "inbox": ("assignee", "tenant", "agent"),
            "turns": ("agent", "conversation", "root", "tenant"),
        }.items()
        for field in fields
        for name, (value, words) in BAD_NAMES.items()
    },
}


@pytest.mark.parametrize(("where", "arguments", "words"), **cases(LISTS))
async def test_lists(place: Place, where: str, arguments: dict, words: str) -> None:
    """A filter, a limit or a cursor that is none is refused."""
    runtime = await place.runtime()

    await refused(lambda: getattr(runtime, where)(**arguments), InvalidDefinition, words)


async def test_cursors_of_another_listing(any_place: Place) -> None:
    """A cursor of another listing or store is a typed error or stands somewhere; it never breaks a page."""
    runtime = await any_place.runtime(gated())
    for _ in range(3):
        await waiting(runtime)
    cursors = [(await runtime.turns(limit=1)).next, (await runtime.inbox(limit=1)).next, "5:word", "5:7", f"0:{NO_TURN}"]

    for cursor in cursors:
        for listing in (runtime.turns, runtime.inbox):
            try:
                page = await listing(after=cursor)
            except InvalidDefinition as error:
                assert "after is not a cursor" in str(error)  # noqa: PT017
            else:
                assert len(page.items) <= 3


@pytest.mark.parametrize("listener", [None, 5, "print", Rude()], ids=["none", "number", "text", "rude"])
async def test_listeners(place: Place, listener: Any) -> None:
    """A listener is a function; one that was never added may be removed."""
    runtime = await place.runtime()

    with pytest.raises(InvalidDefinition, match="a listener is a function"):
        runtime.add_listener(listener)
    runtime.remove_listener(listener)


@pytest.mark.parametrize(("value", "words"), **cases(BAD_NAMES))
async def test_names_of_conversations(place: Place, value: Any, words: str) -> None:
    """A conversation has a name."""
    runtime = await place.runtime()

    with pytest.raises(InvalidDefinition, match=f"conversation_id .*{words}"):
        runtime.conversation(value)


# ---------------------------------------------------------------------------------------------------------------- turns


@pytest.mark.parametrize("turn_id", [None, 5, b"x", Rude(), ["x"]], ids=["none", "number", "bytes", "rude", "list"])
async def test_a_turn_id_is_text(place: Place, turn_id: Any) -> None:
    """An address is text, even before it is used."""
    runtime = await place.runtime()

    with pytest.raises(InvalidDefinition, match="turn_id must be text"):
        runtime.turn(turn_id)


@pytest.mark.parametrize("turn_id", [NO_TURN, NO_TURN + "b" * 16, *NO_IDS], ids=repr)
async def test_turns_that_do_not_exist(any_place: Place, turn_id: str) -> None:
    """Whatever its shape: an address that leads nowhere is found out when it is used."""
    runtime = await any_place.runtime(gated())
    turn = runtime.turn(turn_id)

    for work in (
        turn.view,
        turn.history,
        turn.settle,
        turn.children,
        turn.cancel,
        turn.revive,
        lambda: turn.discard("x"),
        lambda: turn.submit(ResumeCommand.approve_tool()),
        lambda: turn.submit(ResumeCommand.approve_tool("call_1_0", command_id="c")),
        lambda: turn.resume(ResumeCommand.approve_tool()),
        lambda: turn.suspend("x"),
        lambda: turn.start_child("shop", "x"),
        lambda: anext(aiter(turn.events())),
    ):
        await refused(work, TurnNotFound, "no turn")
    assert (await runtime.turns()).items == ()


CALLS: dict[str, tuple[Any, str]] = {
    "submit: none": (lambda turn: turn.submit(None), "command must be a ResumeCommand, not NoneType"),
    "submit: text": (lambda turn: turn.submit("approve"), "command must be a ResumeCommand, not str"),
    "submit: a dict": (lambda turn: turn.submit({"type": "APPROVE_TOOL"}), "command must be a ResumeCommand, not dict"),
    "submit: a wait": (lambda turn: turn.submit(Rude()), "command must be a ResumeCommand, not Rude"),
    "resume: none": (lambda turn: turn.resume(None), "command must be a ResumeCommand"),
    "resume: flag": (lambda turn: turn.resume(ResumeCommand.approve_tool(), through_retries=1), "through_retries must be"),
    "settle: flag": (lambda turn: turn.settle(through_retries="yes"), "through_retries must be True or False"),
    "cancel: reason": (lambda turn: turn.cancel(5), "reason must be text"),
    "cancel: surrogate": (lambda turn: turn.cancel("\ud800"), "reason is not valid Unicode"),
    "cancel: 10 MB": (lambda turn: turn.cancel(MEGABYTES), "reason has 10000000 bytes, the limit is 4096"),
    "suspend: none": (lambda turn: turn.suspend(None), "message must be text"),
    "suspend: blank": (lambda turn: turn.suspend(" "), "message must not be blank"),
    "suspend: surrogate": (lambda turn: turn.suspend("\ud800"), "message is not valid Unicode"),
    "suspend: large": (lambda turn: turn.suspend("x" * 65_537), "message has 65537 bytes, the limit is 65536"),
    "child: agent": (lambda turn: turn.start_child(None, "x"), "agent must be an Agent or the id of one"),
    "child: input": (lambda turn: turn.start_child("shop", 5), "input must be text or a UserMessage"),
    "child: surrogate": (lambda turn: turn.start_child("shop", "\ud800"), "input cannot be stored"),
    "events: negative": (lambda turn: anext(aiter(turn.events(-1))), "after must be a whole number of at least 0"),
    "events: 2**70": (lambda turn: anext(aiter(turn.events(2**70))), "after must be at most"),
    "events: live": (lambda turn: anext(aiter(turn.events(live=1))), "live must be True or False"),
    "revive: by": (lambda turn: turn.revive(by=5), "by must be text"),
    "revive: long by": (lambda turn: turn.revive(by="x" * 129), "by has 129 bytes, the limit is 128"),
    "discard: none": (lambda turn: turn.discard(None), "reason must be text"),
    "discard: blank": (lambda turn: turn.discard(""), "reason must not be blank"),
    "discard: by": (lambda turn: turn.discard("x", by="\ud800"), "by is not valid Unicode"),
    **{
        f"child: metadata: {name}": (lambda turn, value=value: turn.start_child("shop", "x", metadata=value), words)
        for name, (value, words) in BAD_OBJECTS.items()
    },
    **{
        f"events: {name}": (lambda turn, value=value: anext(aiter(turn.events(value))), "after must be")
        for name, value in BAD_NUMBERS.items()
    },
    **{
        f"{where}: {name}": (lambda turn, work=work, value=value: work(turn, value), f"timeout .*({words})")
        for where, work in {
            "submit": lambda turn, value: turn.submit(ResumeCommand.approve_tool(), timeout=value),
            "resume": lambda turn, value: turn.resume(ResumeCommand.approve_tool(), timeout=value),
            "settle": lambda turn, value: turn.settle(value),
            "cancel": lambda turn, value: turn.cancel(timeout=value),
        }.items()
        for name, (value, words) in BAD_DURATIONS.items()
    },
}


@pytest.mark.parametrize(("work", "words"), **cases(CALLS))
async def test_calls_on_a_turn(place: Place, work: Any, words: str) -> None:
    """A wrong argument changes nothing about the turn."""
    runtime = await place.runtime(gated())
    turn, _ = await waiting(runtime)
    before = await picture(runtime, turn)

    await refused(lambda: work(turn), InvalidDefinition, words)

    assert await picture(runtime, turn) == before


async def test_a_child_of_an_unknown_agent(any_place: Place) -> None:
    """No child is started, and its parent does not wait."""
    runtime = await any_place.runtime(gated())
    turn, _ = await waiting(runtime)
    before = await picture(runtime, turn)

    for agent in ("nobody", gated()):
        await refused(lambda agent=agent: turn.start_child(agent, "x"), AgentNotFound)

    assert await picture(runtime, turn) == before


@pytest.mark.parametrize(
    "wait",
    [
        "{other}",
        "{turn}/call_9_9/1",
        "{turn}/call_1_0/2",
        "{turn}/call_1_0/1/1",
        "{turn}//1",
        "{turn}/",
        "/call_1_0/1",
        "////",
        "x/y/z",
        "call_9_9",
        "{turn}:call_1_0",
        "\N{GRINNING FACE}",
        "%s %d {} \\",
    ],
)
async def test_waits_of_elsewhere(any_place: Place, wait: str) -> None:
    """A wait of another turn, and one that never was, is no wait of this turn; both turns stay as they are."""
    runtime = await any_place.runtime(gated())
    turn, _ = await waiting(runtime)
    other, foreign = await waiting(runtime)
    name = wait.replace("{turn}", turn.id).replace("{other}", foreign.id)
    before = await picture(runtime, turn, other)

    await refused(lambda: turn.submit(ResumeCommand.approve_tool(name)), SuspensionMismatch)
    assert await picture(runtime, turn, other) == before

    await refused(lambda: turn.resume(ResumeCommand.reject_tool(foreign)), SuspensionMismatch, "is not of turn")
    assert await picture(runtime, turn, other) == before
    assert (await turn.resume(ResumeCommand.approve_tool())).status is Status.COMPLETED


async def test_a_wait_of_a_tree_that_is_not_there(any_place: Place) -> None:
    """A child that never was is no place to answer at."""
    runtime = await any_place.runtime(gated())
    turn, _ = await waiting(runtime)
    before = await picture(runtime, turn)

    await refused(lambda: turn.submit(ResumeCommand.approve_tool(f"{turn.id}{'a' * 16}/call_1_0/1")), TurnNotFound)

    assert await picture(runtime, turn) == before


async def test_refs_are_compared_and_shown(place: Place) -> None:
    """A ref is equal to one of the same turn only, and can always be shown."""
    runtime = await place.runtime()

    assert runtime.turn("x") == runtime.turn("x")
    assert runtime.turn("x") != runtime.turn("y")
    assert runtime.turn("x") != "x"
    assert repr(runtime.turn("x")) == "<TurnRef x>"
    assert isinstance(runtime.turn(""), TurnRef)
