"""The face over HTTP: an app made of nothing but our records as request and response types, and one handler for our errors."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Body, FastAPI
from pydantic import TypeAdapter, ValidationError

from turnhold import (
    Agent,
    Budget,
    Event,
    EventType,
    ExecutionPolicy,
    ModelOptions,
    Page,
    Receipt,
    ResumeCommand,
    Runtime,
    Suspension,
    SuspensionType,
    TurnOptions,
    TurnView,
    UserMessage,
)
from turnhold.testing import ScriptedModel, call

EXAMPLE = Path(__file__).parents[2] / "examples" / "fastapi_app.py"
ANN = {"X-User": "ann"}
AT = datetime(2030, 1, 1, tzinfo=UTC)


def example() -> Any:
    """Import the example by its path, as uvicorn would."""
    spec = importlib.util.spec_from_file_location("fastapi_app", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


desk = example()


def make_agent() -> Agent:
    model = ScriptedModel(call("refund_order", order_id="O-1", amount=25), "Refunded.")
    return Agent("refunds", model=model, tools=[desk.refund_order])


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """A client of the example app, on a store of its own."""
    app = desk.create_app(Runtime(agents=[make_agent()], drain=0))
    transport = httpx.ASGITransport(app=app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://desk") as client:
        yield client


async def until(client: httpx.AsyncClient, turn_id: str, done: Callable[[dict], bool]) -> dict:
    """Look until a turn is as wanted, letting it run in between."""
    while True:
        found = (await client.get(f"/turns/{turn_id}")).json()
        if done(found):
            return found
        await asyncio.sleep(0)


async def waiting(client: httpx.AsyncClient) -> tuple[str, dict]:
    started = await client.post("/turns", json={"text": "Refund O-1"}, headers=ANN)
    assert started.status_code == 201
    turn_id = started.json()["id"]
    found = await until(client, turn_id, lambda view: bool(view["open_waits"]))
    return turn_id, found["open_waits"][0]


def sent(body: str) -> list[dict]:
    """Read server-sent events."""
    return [dict(line.split(": ", 1) for line in block.split("\n")) for block in body.strip().split("\n\n")]


async def test_a_turn_over_http(client: httpx.AsyncClient) -> None:
    """Start, inbox, answer, events: what comes over the wire is what the records say."""
    turn_id, wait = await waiting(client)

    page = Page.from_dict((await client.get("/inbox")).json())
    following = asyncio.ensure_future(client.get(f"/turns/{turn_id}/events"))
    answered = await client.post(
        f"/turns/{turn_id}/answers",
        json={"type": "APPROVE_TOOL", "wait": wait["id"], "command_id": "c1", "by": "mallory"},
        headers=ANN,
    )
    lines = sent((await following).text)
    ended = TurnView.from_dict((await client.get(f"/turns/{turn_id}")).json())

    assert [Suspension.from_dict(item).id for item in page.items] == [wait["id"]]
    assert wait["call"] == {"id": "call_1_0", "name": "refund_order", "arguments": {"order_id": "O-1", "amount": 25}}
    receipt = Receipt.from_dict(answered.json())
    assert (answered.status_code, receipt.command_id, receipt.by, receipt.replayed) == (200, "c1", "ann", False)
    assert (ended.status, ended.final_output) == ("COMPLETED", "Refunded.")
    events = [Event.from_dict(json.loads(line["data"])) for line in lines]
    stored = [event for event in events if event.durable]
    assert [event.sequence for event in stored] == list(range(1, len(stored) + 1))
    assert stored[-1].type == lines[-1]["event"] == "TURN_COMPLETED"
    assert [line["id"] for line in lines if "id" in line] == [str(event.sequence) for event in stored]


async def test_events_go_on_behind_the_last_one_seen(client: httpx.AsyncClient) -> None:
    """A browser that reconnects names the last event it has, and gets the rest."""
    turn_id, _ = await waiting(client)
    await client.post(f"/turns/{turn_id}/cancel", headers=ANN)

    whole = sent((await client.get(f"/turns/{turn_id}/events")).text)
    rest = sent((await client.get(f"/turns/{turn_id}/events", headers={"Last-Event-ID": "2"})).text)

    assert rest == whole[2:]
    assert rest[-1]["event"] == "TURN_CANCELLED"


async def test_a_start_with_a_key_starts_once(client: httpx.AsyncClient) -> None:
    """A repeated POST finds the turn of the first one; the same key for something else is refused."""
    headers = {**ANN, "Idempotency-Key": "k1"}

    first = await client.post("/turns", json={"text": "Refund O-1"}, headers=headers)
    again = await client.post("/turns", json={"text": "Refund O-1"}, headers=headers)
    other = await client.post("/turns", json={"text": "Refund O-2"}, headers=headers)

    assert first.json()["id"] == again.json()["id"]
    assert (other.status_code, other.json()["error"]) == (409, "IdempotencyKeyReused")


async def test_the_second_answer_is_told_who_was_first(client: httpx.AsyncClient) -> None:
    """The same command gets the same receipt, another one a 409 with the receipt of the first."""
    turn_id, wait = await waiting(client)
    path, approve = f"/turns/{turn_id}/answers", {"type": "APPROVE_TOOL", "wait": wait["id"], "command_id": "c1"}

    first = await client.post(path, json=approve, headers=ANN)
    again = await client.post(path, json=approve, headers=ANN)
    late = await client.post(path, json={"type": "REJECT_TOOL", "wait": wait["id"]}, headers={"X-User": "bob"})

    assert again.json() == first.json() | {"replayed": True}
    assert late.status_code == 409
    assert late.json() == {
        "error": "AlreadyAnswered",
        "message": late.json()["message"],
        "receipt": first.json(),
        "agrees": False,
    }


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "error"),
    [
        ("GET", "/turns/x", None, 404, "TurnNotFound"),
        ("GET", "/turns/x/events", None, 404, "TurnNotFound"),
        ("POST", "/turns/x/cancel", None, 404, "TurnNotFound"),
        ("POST", "/turns/x/answers", {"type": "APPROVE_TOOL"}, 404, "TurnNotFound"),
        ("GET", "/inbox?limit=0", None, 422, "InvalidDefinition"),
        ("GET", "/inbox?after=foreign", None, 422, "InvalidDefinition"),
        ("GET", "/inbox?assignee=%00", None, 422, "InvalidDefinition"),
        ("POST", "/turns", {"text": "x" * (1 << 20)}, 413, "SnapshotTooLarge"),
        ("POST", "/turns/{turn}/answers", {"type": "APPROVE_TOOL", "wait": "call_9"}, 409, "SuspensionMismatch"),
        ("POST", "/turns/{turn}/answers", {"type": "DECLINE", "wait": "call_1_0"}, 409, "WrongCommand"),
        ("POST", "/turns/{turn}/answers", {"type": "APPROVE_TOOL", "arguments": {"amount": "x"}}, 422, "InvalidFormData"),
        ("GET", "/turns/{turn}/events?after=-1", None, 422, "InvalidDefinition"),
    ],
)
async def test_errors_have_their_status(
    client: httpx.AsyncClient, method: str, path: str, body: Any, status: int, error: str
) -> None:
    """One handler says what is wrong with the status that fits; a refused answer changes nothing."""
    turn_id, wait = await waiting(client)
    before = (await client.get(f"/turns/{turn_id}")).json()

    found = await client.request(method, path.replace("{turn}", turn_id), json=body, headers=ANN)

    assert (found.status_code, found.json()["error"]) == (status, error)
    if error == "SuspensionMismatch":
        assert [item["id"] for item in found.json()["open_waits"]] == [wait["id"]]
    if error == "InvalidFormData":
        assert found.json()["faults"]
    assert (await client.get(f"/turns/{turn_id}")).json() | {"version": 0} == before | {"version": 0}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"type": "APPROVE_TOOL", "whom": "x"}, "ResumeCommand has no field 'whom'"),
        ({"type": "SAY_YES"}, "Invalid enum value 'SAY_YES' - at `$.type`"),
        ({"wait": "w"}, "missing required field `type`"),
        ({"type": "APPROVE_TOOL", "by": "x" * 129}, "by has 129 bytes, the limit is 128"),
        ({"type": "APPROVE_TOOL", "wait": 5}, "Expected `str | null`, got `int` - at `$.wait`"),
        ({"type": "APPROVE_TOOL", "metadata": [1]}, "Expected `object`, got `array` - at `$.metadata`"),
        ({"type": "SUBMIT_FORM", "value": {"a": "x" * 70_000}}, "bytes as JSON, the limit is 65536"),
        ([], "Expected `object`, got `array`"),
        ("approve", "Expected `object`, got `str`"),
    ],
)
async def test_a_body_that_is_no_command(client: httpx.AsyncClient, body: Any, words: str) -> None:
    """A wrong field is FastAPI's own 422, which names it."""
    turn_id, _ = await waiting(client)

    found = await client.post(
        f"/turns/{turn_id}/answers", content=json.dumps(body), headers={**ANN, "Content-Type": "application/json"}
    )

    assert found.status_code == 422
    assert words in found.json()["detail"][0]["msg"]
    assert found.json()["detail"][0]["loc"] == ["body"]


async def test_the_openapi_document(client: httpx.AsyncClient) -> None:
    """It builds, refers to nothing that is not there, and describes the records field by field."""
    document = (await client.get("/openapi.json")).json()
    text = json.dumps(document)
    paths = document["paths"]

    def body_of(path: str, method: str, status: str = "200") -> dict:
        return paths[path][method]["responses"][status]["content"]["application/json"]["schema"]

    for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in document["components"]["schemas"]
    assert "#/$defs" not in text
    assert body_of("/turns", "post", "201")["properties"]["created_at"] == {"type": "string", "format": "date-time"}
    assert body_of("/inbox", "get")["properties"]["items"]["items"]["properties"]["type"]["enum"] == sorted(SuspensionType)
    command = paths["/turns/{turn_id}/answers"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert command["required"] == ["type"]
    assert set(command["properties"]) >= {"wait", "arguments", "value", "text", "by", "command_id"}


async def test_any_record_may_be_a_body() -> None:
    """Policies, options and messages come in as JSON with their own checks, durations as seconds or ISO 8601."""
    app = FastAPI()
    seen: list[Any] = []

    @app.post("/")
    async def take(
        policy: Annotated[ExecutionPolicy, Body()],
        options: Annotated[TurnOptions | None, Body()] = None,
        messages: Annotated[list[UserMessage], Body()] = [],  # noqa: B006
    ) -> dict[str, UserMessage]:
        seen.append((policy, options, messages))
        return {message.content: message for message in messages}

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://desk") as client:
        good = await client.post(
            "/",
            json={
                "policy": {"max_steps": 3, "budget": {"max_duration": "PT2M", "max_wall_time": 90}},
                "options": {"metadata": {"a": [1]}, "streaming": True},
                "messages": [{"role": "user", "content": "hi"}],
            },
        )
        bad = await client.post("/", json={"policy": {"max_steps": 0}})
        document = await client.get("/openapi.json")

    assert good.json() == {"hi": {"role": "user", "content": "hi"}}
    assert seen == [
        (
            ExecutionPolicy(max_steps=3, budget=Budget(max_duration=120, max_wall_time=90)),
            TurnOptions(metadata={"a": [1]}, streaming=True),
            [UserMessage("hi")],
        )
    ]
    assert bad.status_code == 422
    assert "ExecutionPolicy.max_steps must be a whole number of at least 1, not 0" in bad.json()["detail"][0]["msg"]
    assert document.status_code == 200


def test_pydantic_alone() -> None:
    """The records work in Pydantic without FastAPI: as they are, from dicts, to JSON, and in both kinds of JSON Schema."""
    adapter = TypeAdapter(Page[Event])
    event = Event(turn_id="t", root_turn_id="t", agent_id="a", agent_version="1", sequence=1, type=EventType.STEP_STARTED, at=AT)
    page = Page((event,))

    assert adapter.validate_python(page) is page
    assert adapter.validate_python(page.to_dict()) == page
    assert json.loads(adapter.dump_json(page)) == page.to_dict()
    assert adapter.json_schema(mode="validation") == adapter.json_schema(mode="serialization")
    with pytest.raises(ValidationError, match="Expected `array`"):
        adapter.validate_python({"items": 5})
    with pytest.raises(ValidationError, match=r"ModelOptions\.timeout must be more than 0"):
        TypeAdapter(ModelOptions).validate_python({"timeout": 0})
    assert TypeAdapter(ResumeCommand).validate_json(b'{"type": "RETRY", "force": true}') == ResumeCommand.retry(force=True)
