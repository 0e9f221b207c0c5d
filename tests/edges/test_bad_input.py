"""Wrong arguments of the Runtime and of a start: each is refused with a typed error that names it, and nothing changes."""

# pyright: reportArgumentType=false

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
    StoreUnavailable,
    SystemMessage,
    ToolCall,
    ToolMessage,
    TurnOptions,
    UserMessage,
)
from turnhold.actors.chat import CallEdited

from .hostile import BAD_DURATIONS, BAD_NAMES, BAD_NUMBERS, BAD_OBJECTS, MEGABYTES, Rude, Word, cases
from .place import Place, gated, picture, plain, refused, waiting

# ---------------------------------------------------------------------------------------------------------- constructor


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"store": None}, "store must be a URL or a TurnStore"),
        ({"store": b"memory://"}, "store must be a URL or a TurnStore"),
        ({"store": Rude()}, "store must be a URL or a TurnStore"),
        ({"store": "postgres://x"}, "store must be memory://"),
        ({"store": "postgres://me:secret@x"}, "not 'postgres://x'"),
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
