"""Records of the face: frozen, and the same again from their dict and from their JSON, which every parser takes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

import turnhold
from turnhold import (
    AiMessage,
    Budget,
    Event,
    EventType,
    ExecutionPolicy,
    InvalidDefinition,
    NodeInfo,
    Owner,
    Page,
    Phase,
    Quarantine,
    RetryPolicy,
    Statistics,
    Status,
    Suspension,
    SuspensionType,
    ToolCall,
    TurnError,
    TurnView,
    Usage,
)
from turnhold.actors.record import Record

from .place import Place, gated, waiting

AT = datetime(2030, 1, 2, 3, 4, 5, 678000, UTC)
RECORDS = sorted(
    (kind for kind in vars(turnhold).values() if isinstance(kind, type) and issubclass(kind, Record)),
    key=lambda kind: kind.__name__,
)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=4,
)
SHAPED: dict[type[inspect.Type], st.SearchStrategy[Any]] = {
    inspect.StrType: TEXT,
    inspect.IntType: st.integers(0, 2**40),
    inspect.FloatType: st.floats(1, 2),
    inspect.BoolType: st.booleans(),
    inspect.DateTimeType: st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)),  # noqa: DTZ001
    inspect.TimeDeltaType: st.timedeltas(timedelta(), timedelta(days=36_525)),
}


def strict(body: bytes) -> Any:
    """Read JSON as a parser that knows no NaN does."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    return json.loads(body.decode(), parse_constant=refuse)


def again(record: Record) -> None:
    """Check that a record survives both of its forms, that they say the same, and that none of its fields can be set."""
    assert type(record).from_dict(record.to_dict()) == record
    assert type(record).from_dict(strict(record.to_json())) == record
    assert strict(record.to_json()) == record.to_dict()
    for name in (*record.__struct_fields__, "more"):
        with pytest.raises(AttributeError):
            setattr(record, name, None)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return good values of a field's type."""
    info = kind if isinstance(kind, inspect.Type) else inspect.type_info(kind)
    match info:
        case inspect.StructType(cls=cls):
            return records_of(cls)
        case inspect.UnionType(types=types):  # of a duration's forms the timedelta
            return st.one_of([values_of(item) for item in types if not isinstance(item, inspect.FloatType | inspect.IntType)])
        case inspect.EnumType(cls=cls):
            return st.sampled_from(list(cls))
        case inspect.LiteralType(values=words):
            return st.sampled_from(words)
        case inspect.VarTupleType(item_type=item):
            return st.lists(values_of(item), max_size=2).map(tuple)
        case inspect.DictType():
            return st.dictionaries(TEXT, VALUES, max_size=2)
        case inspect.NoneType():
            return st.none()
        case inspect.AnyType():
            return VALUES
    return SHAPED[type(info)]


def records_of(cls: Any) -> st.SearchStrategy[Any]:
    """Return records with all kinds of good values in their fields; those that their own checks refuse are left out."""
    fields = {field.name: values_of(field.type) for field in inspect.type_info(cls).fields}  # type: ignore[attr-defined]

    def build(values: dict[str, Any]) -> Any:
        try:
            return cls(**values)
        except InvalidDefinition:
            return None

    return st.fixed_dictionaries(fields).map(build).filter(lambda record: record is not None)


LIMITED = {ExecutionPolicy, RetryPolicy, Budget}
LIMITED |= {turnhold.ModelOptions, turnhold.ModelRequest, turnhold.TurnOptions, turnhold.PlanningPolicy}


@pytest.mark.parametrize("kind", [kind for kind in RECORDS if kind not in LIMITED | {Page}], ids=lambda kind: kind.__name__)
@settings(max_examples=12)
@given(data=st.data())
def test_round_trips(kind: Any, data: st.DataObject) -> None:
    """Whatever is in it, a record is the same again."""
    again(data.draw(records_of(kind)))


@pytest.mark.parametrize(
    "record",
    [
        Budget(max_duration=1.5, max_wall_time=timedelta(days=3), max_tool_calls=0),
        RetryPolicy(max_retries=3, initial_delay=0.25, max_delay=10, multiplier=1.5, jitter=0),
        ExecutionPolicy(max_steps=1, tool_errors="return_to_model", budget=Budget(max_input_tokens=5)),
        turnhold.ModelOptions(temperature=0.5, stop=("a", "b"), timeout=90, extra={"seed": 1}),
        turnhold.PlanningPolicy(max_tasks=3, max_replans=1, task_append_allowed=True, allowed_agent_ids=("a", "b"), max_parallel=2),
        turnhold.TurnOptions(execution_policy=ExecutionPolicy(), metadata={"a": [1, None]}, streaming=True),
        turnhold.ModelRequest(messages=(AiMessage("x", (ToolCall("c", "f", {"a": 1}),), usage=Usage(1, 2)),), turn_id="t"),
        turnhold.ModelRequest(messages=(), options=turnhold.ModelOptions(timeout=timedelta(milliseconds=1))),
    ],
    ids=lambda record: type(record).__name__,
)
def test_round_trips_of_settings(record: Record) -> None:
    """Durations come back as what they are, limits as they were."""
    again(record)


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_frozen(kind: type[Record]) -> None:
    """Every record of the face is frozen and has a docstring."""
    assert kind.__struct_config__.frozen
    assert kind.__doc__


def test_all_records_of_the_face_are_known() -> None:
    """The tables above see the records that the face has."""
    assert {Event, Page, TurnView, Suspension, Statistics, NodeInfo, Owner, Quarantine, TurnError} <= set(RECORDS)


async def test_what_a_runtime_gives(any_place: Place) -> None:
    """Views, pages, events, messages, receipts and nodes of a real turn."""
    runtime = await any_place.runtime(gated())
    turn, wait = await waiting(runtime, metadata={"a": [1, {"b": None}]}, conversation="c", tenant="t")
    receipt = await turn.submit(turnhold.ResumeCommand.approve_tool(wait, by="ann", metadata={"x": 0.5}))
    view = await turn.settle()

    for record in (view, wait, receipt, *await turn.history(), *await runtime.nodes(), runtime.statistics()):
        again(record)
    async for event in turn.events():
        again(event)
    page = await runtime.turns()
    assert msgspec.convert(page.to_dict(), Page[TurnView]) == page
    assert strict(page.to_json()) == page.to_dict()


def test_dicts_are_json_like() -> None:
    """A dict of a record may itself be metadata: it holds lists, no tuples, and no number that JSON lacks."""
    page = Page((Usage(1), Usage(2)), None)
    event = Event(
        turn_id="t",
        root_turn_id="t",
        agent_id="a",
        agent_version="1",
        sequence=0,
        type=EventType.TOOL_PROGRESS,
        at=AT,
        data={"x": float("nan")},
    )

    assert page.to_dict() == {
        "items": [{"input_tokens": 1, "total_tokens": 1}, {"input_tokens": 2, "total_tokens": 2}],
        "next": None,
    }
    assert event.to_dict()["data"] == {"x": None}
    assert event.to_dict()["at"] == "2030-01-02T03:04:05.678000Z"


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        (Usage, {"input_tokens": "many"}, "Usage: Expected `int`, got `str` - at `$.input_tokens`"),
        (Owner, {"node": "n", "epoch": 1}, "Owner: Object missing required field `until`"),
        (Owner, {"node": "n", "epoch": 1, "until": "2030-01-02T03:04:05"}, "Owner: Expected `datetime` with a timezone component"),
        (Owner, {"node": "n", "epoch": 1, "until": "yesterday"}, "Owner: Invalid RFC3339 encoded datetime"),
        (Suspension, {"id": 5}, "Suspension: Expected `str`, got `int`"),
        (Budget, {"max_duration": -1}, "Budget: Budget.max_duration must not be negative"),
        (Budget, {"max_tool_calls": 2**70}, "Budget: "),
        (TurnError, None, "TurnError: Expected `object`, got `null`"),
        (TurnError, [1], "TurnError: Expected `object`, got `array`"),
        (TurnError, object(), "TurnError: Expected `object`, got `object`"),
    ],
)
def test_dicts_that_are_no_record(kind: type[Record], data: Any, words: str) -> None:
    """A wrong dict is a typed error that names the place."""
    with pytest.raises(InvalidDefinition) as caught:
        kind.from_dict(data)
    assert str(caught.value).startswith(words)


def test_unknown_fields_of_a_later_release() -> None:
    """What a newer release has written can be read, without what this one does not know."""
    assert TurnError.from_dict({"type": "A", "message": "b", "colour": "red"}) == TurnError("A", "b")
    assert Status("READY") is Status.READY
    assert (Phase.MODEL.value, SuspensionType.RETRY.value) == ("MODEL", "RETRY")
