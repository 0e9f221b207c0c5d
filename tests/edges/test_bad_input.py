"""Wrong arguments of the Runtime and of its turns: each is refused with a typed error that names it, and nothing changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from turnhold import (
    AgentNotFound,
    AiMessage,
    InvalidDefinition,
    ResumeCommand,
    Runtime,
    Status,
    StoreUnavailable,
    SuspensionMismatch,
    SuspensionType,
    SystemMessage,
    ToolCall,
    ToolMessage,
    TurnholdError,
    TurnNotFound,
    TurnOptions,
    TurnRef,
    UserMessage,
)
from turnhold.actors.chat import CallEdited

from .hostile import BAD_DURATIONS, BAD_NAMES, BAD_NUMBERS, BAD_OBJECTS, MEGABYTES, Rude, Word, cases
from .place import Place, gated, picture, plain, waiting

NO_TURN = "00-" + "a" * 26
NO_IDS = ["", " ", "x", NO_TURN.upper(), NO_TURN + "\n", NO_TURN + "/x/1", NO_TURN[:-1], "\ud800", "a\0b", "../../etc", MEGABYTES]


async def refused(work: Any, kind: type[BaseException], words: str | None = None) -> None:
    """Check that it fails with exactly this typed error, shortly said."""
    with pytest.raises(TurnholdError, match=words) as caught:
        await work()
    assert type(caught.value) is kind, repr(caught.value)[:300]
    assert len(str(caught.value)) < 500
    str(caught.value).encode()


# ---------------------------------------------------------------------------------------------------------- constructor


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"store": None}, "store must be a URL or a TurnStore"),
        ({"store": b"memory://"}, "store must be a URL or a TurnStore"),
        ({"store": Rude()}, "store must be a URL or a TurnStore"),
        ({"store": "postgres://x"}, "store must be memory://"),
        ({"store": ""}, "store must be memory://"),
        ({"store": MEGABYTES}, "store must be memory://"),
        ({"store": "sqlite:"}, "not a file"),
        ({"store": "sqlite://turns.db"}, "not a file"),
        ({"store": "sqlite:///"}, "not a file"),
        ({"store": "sqlite:///:memory:"}, "not a file"),
        ({"store": "sqlite:///a\0b.db"}, "not a file"),
        ({"store": "sqlite:///a%00b.db"}, "not a file"),
        ({"store": "sqlite:///\ud800.db"}, "not a file"),
        ({"store": "sqlite:///x.db?mode=ro"}, "unknown option 'mode'"),
        ({"store": "sqlite:///x.db?synchronous=off"}, "synchronous must be one of"),
        ({"agents": None}, "agents must be a list of Agents"),
        ({"agents": Rude()}, "agents must be a list of Agents"),
        ({"agents": "shop"}, "agents must be a list of Agents"),
        ({"agents": [Rude()]}, "which is not an Agent"),
        ({"agents": [gated(), gated()]}, "two agents are called shop@1"),
        ({"execute": 1}, "execute must be True or False"),
        ({"execute": None}, "execute must be True or False"),
        ({"listeners": None}, "listeners must be a list of functions"),
        ({"listeners": [Rude()]}, "a listener is a function"),
        ({"clock": 5}, "clock must be a Clock"),
        ({"lease": 0.5}, "lease must be at least 1 s"),
        ({"retention": 0}, "retention must be at least 1 s"),
        ({"max_active": 0}, "max_active must be a whole number of at least 1"),
        ({"max_snapshot": 4095}, "max_snapshot must be a whole number of at least 4096"),
        ({"max_snapshot": 2**70}, "max_snapshot must be at most"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_constructor(arguments: dict, words: str) -> None:
    """Each argument says what it takes."""
    with pytest.raises(InvalidDefinition, match=words) as caught:
        Runtime(**arguments)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("field", ["lease", "drain", "cancel_grace", "retention"])
@pytest.mark.parametrize(("value", "words"), **cases(BAD_DURATIONS))
def test_periods(field: str, value: Any, words: str) -> None:
    """Each period is a duration within the calendar."""
    with pytest.raises(InvalidDefinition, match=f"{field} .*({words})"):
        Runtime(**{field: value})


@pytest.mark.parametrize("field", ["max_active", "max_snapshot"])
@pytest.mark.parametrize("value", **cases(BAD_NUMBERS))
def test_counts(field: str, value: Any) -> None:
    """Each count is a whole number."""
    with pytest.raises(InvalidDefinition, match=f"{field} must be"):
        Runtime(**{field: value})


@pytest.mark.parametrize(("value", "words"), **cases(BAD_NAMES))
def test_names_of_nodes(value: Any, words: str) -> None:
    """A node's name is a short text."""
    with pytest.raises(InvalidDefinition, match=f"node .*{words}"):
        Runtime(node=value)


class Loader:
    """A loader whose list of names is not one."""

    def __init__(self, known: Any) -> None:
        self._known = known

    def load(self, id: str, version: str) -> None:
        return None

    def load_active(self, id: str) -> None:
        return None

    def known(self) -> Any:
        return self._known


@pytest.mark.parametrize("known", [None, 5, "shop@1", [5], [["x"]], [Rude()], ["\ud800"], ["x" * 300]], ids=range(8))
def test_names_of_a_loader(known: Any) -> None:
    """What a loader says it knows is texts."""
    with pytest.raises(InvalidDefinition, match=r"the loader's known\(\)"):
        Runtime(agents=Loader(known))


# ----------------------------------------------------------------------------------------------------------- life cycle


async def test_a_runtime_is_entered_once(place: Place) -> None:
    """A second entrance is refused, and the first stays good."""
    runtime = await place.runtime(gated())

    await refused(runtime.__aenter__, InvalidDefinition, "open already")

    assert runtime.healthy
    await waiting(runtime)


async def test_a_closed_runtime(place: Place) -> None:
    """Everything that needs the store says that it is out of reach; entered again, all is there."""
    runtime = Runtime(place.store, agents=[gated()], clock=place.clock)
    async with runtime:
        turn, wait = await waiting(runtime)
        before = await picture(runtime, turn)

    for work in (
        lambda: runtime.start("shop", "x"),
        lambda: runtime.run("shop", "x"),
        runtime.inbox,
        runtime.turns,
        runtime.nodes,
        runtime.conversation("c").open_turn,
        turn.view,
        turn.history,
        turn.settle,
        lambda: turn.submit(ResumeCommand.approve_tool(wait)),
        lambda: turn.resume(ResumeCommand.approve_tool()),
        turn.cancel,
        lambda: turn.suspend("x"),
        lambda: turn.start_child("shop", "x"),
        turn.children,
        turn.revive,
        lambda: turn.discard("x"),
        lambda: anext(aiter(turn.events())),
    ):
        await refused(work, StoreUnavailable, "not open")
    async with runtime:
        assert await picture(runtime, turn) == before


# ---------------------------------------------------------------------------------------------------------------- start


def endless() -> Iterator[UserMessage]:
    while True:
        yield UserMessage("again")


STARTS: dict[str, tuple[dict, str]] = {
    "agent: none": ({"agent": None}, "agent must be an Agent or the id of one, not NoneType"),
    "agent: rude": ({"agent": Rude()}, "agent must be an Agent or the id of one, not Rude"),
    "input: none": ({"input": None}, "input must be text or a UserMessage, not NoneType"),
    "input: bytes": ({"input": b"hi"}, "input must be text or a UserMessage, not bytes"),
    "input: system": ({"input": SystemMessage("x")}, "input must be text or a UserMessage"),
    "input: surrogate": ({"input": "\ud800"}, "input cannot be stored"),
    "input: own class": ({"input": Word("x")}, "input cannot be stored"),
    "input: content": ({"input": UserMessage(Rude())}, "input.content must be text"),
    "input: parts": ({"input": UserMessage("x", [Rude()])}, "input cannot be stored"),
    "input: parts none": ({"input": UserMessage("x", None)}, "input cannot be stored"),
    "streaming": ({"streaming": 1}, "streaming must be True or False"),
    "options: a dict": ({"options": {}}, "options must be TurnOptions"),
    "options: rude": ({"options": Rude()}, "options must be TurnOptions"),
    "metadata of both": (
        {"options": TurnOptions(metadata={"a": "x" * 40_000}), "metadata": {"b": "x" * 40_000}},
        "metadata has 80015 bytes as JSON, the limit is 65536",
    ),
    "history: text": ({"history": "hi"}, "history must be a list of chat messages, not str"),
    "history: a dict": ({"history": {}}, "history must be a list of chat messages, not dict"),
    "history: a number": ({"history": 5}, "history must be a list of chat messages, not int"),
    "history: texts": ({"history": ["hi"]}, r"history\[0\] must be a chat message, not str"),
    "history: an edit": ({"history": [CallEdited("c", {})]}, r"history\[0\] must be a chat message"),
    "history: surrogate": ({"history": [UserMessage("a"), AiMessage("\udfff")]}, r"history\[1\] cannot be stored"),
    "history: wrong field": ({"history": [ToolMessage(5, "x")]}, r"history\[0\] cannot be stored"),
    "history: content": ({"history": [ToolMessage("c", None)]}, r"history\[0\].content must be text"),
    "history: open call": (
        {"history": [AiMessage(tool_calls=(ToolCall("c1", "f"),))]},
        "history has a call without a result: 'c1'",
    ),
    "history: endless": ({"history": endless()}, "history has more than 10000 messages"),
    **{
        f"history: arguments: {name}": (
            {"history": [AiMessage(tool_calls=(ToolCall("c", "f", value),)), ToolMessage("c", "x")]},
            "history.0.(.tool_calls|.* cannot be stored)?",
        )
        for name, (value, _) in BAD_OBJECTS.items()
        if name not in {"10 MB", "many", "a set", "a tuple"}
    },
}


@pytest.mark.parametrize(("arguments", "words"), **cases(STARTS))
@pytest.mark.parametrize("how", ["start", "run"])
async def test_start(place: Place, how: str, arguments: dict, words: str) -> None:
    """A start with a wrong argument starts nothing."""
    runtime = await place.runtime(gated(), plain())

    await refused(lambda: getattr(runtime, how)(**{"agent": "plain", "input": "hi", **arguments}), InvalidDefinition, words)

    assert (await runtime.turns()).items == ()


@pytest.mark.parametrize("field", ["agent", "conversation", "tenant", "idempotency_key"])
@pytest.mark.parametrize(("value", "words"), **cases(BAD_NAMES))
async def test_names_of_a_start(place: Place, field: str, value: Any, words: str) -> None:
    """Names are short texts."""
    runtime = await place.runtime(plain())
    words = words if isinstance(value, str) or field != "agent" else "must be an Agent or the id of one"

    await refused(lambda: runtime.start(**{"agent": "plain", "input": "hi", field: value}), InvalidDefinition, f"{field} .*{words}")

    assert (await runtime.turns()).items == ()


@pytest.mark.parametrize(("value", "words"), **cases(BAD_OBJECTS))
async def test_metadata_of_a_start(place: Place, value: Any, words: str) -> None:
    """Metadata is a small JSON-like dict."""
    runtime = await place.runtime(plain())

    await refused(lambda: runtime.start("plain", "hi", metadata=value), InvalidDefinition, words)

    assert (await runtime.turns()).items == ()


@pytest.mark.parametrize(("value", "words"), **cases(BAD_DURATIONS))
async def test_run_looks_at_its_timeout_first(place: Place, value: Any, words: str) -> None:
    """A wrong timeout starts nothing."""
    runtime = await place.runtime(plain())

    await refused(lambda: runtime.run("plain", "hi", timeout=value), InvalidDefinition, f"timeout .*({words})")

    assert (await runtime.turns()).items == ()


@pytest.mark.parametrize("agent", ["nobody", "shop@1", gated(), gated(version="2")], ids=["id", "key", "a twin", "another version"])
async def test_unknown_agents(place: Place, agent: Any) -> None:
    """An agent that is not registered here is not found, nor is a twin of one that is."""
    runtime = await place.runtime(gated())

    await refused(lambda: runtime.start(agent, "hi"), AgentNotFound, "is known to this node")

    assert (await runtime.turns()).items == ()


async def test_a_nul_cannot_make_two_keys_one(any_place: Place) -> None:
    """Conversation and key are joined by a NUL in the id of a turn, so neither may hold one."""
    runtime = await any_place.runtime(plain())
    await runtime.run("plain", "hi", conversation="a", idempotency_key="b")

    for names in ({"conversation": "a\0b", "idempotency_key": "c"}, {"conversation": "a", "idempotency_key": "b\0c"}):
        with pytest.raises(InvalidDefinition, match="NUL"):
            await runtime.start("plain", "hi", **names)


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
