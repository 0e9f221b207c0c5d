"""A refund desk over HTTP: start a turn, see what waits for people, answer it, follow what happens.

    pip install 'turnhold[openai]' fastapi uvicorn
    OPENAI_API_KEY=... uvicorn --factory fastapi_app:create --app-dir examples

The records of turnhold are the request and response types, so the page at /docs describes them (a record in a request body needs
`Body()`). Run as many processes of this app on one store as you like: any of them can answer any wait.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import APIRouter, Body, Depends, FastAPI, Header, Query, Request
from fastapi.responses import JSONResponse, StreamingResponse

import turnhold
from turnhold import Event, Page, Receipt, ResumeCommand, Runtime, Suspension, TurnholdError, TurnView

STATUS: dict[type[Exception], int] = {
    turnhold.TurnNotFound: 404,
    turnhold.AgentNotFound: 404,
    turnhold.InvalidDefinition: 422,  # a wrong argument
    turnhold.InvalidFormData: 422,
    turnhold.SnapshotTooLarge: 413,
    turnhold.AnswerPending: 202,  # stored, will be decided: ask again with the same command_id
    turnhold.CommandRefused: 409,  # AlreadyAnswered, TurnClosed, SuspensionMismatch, WrongCommand and the like
    turnhold.ConversationBusy: 409,
    turnhold.IdempotencyKeyReused: 409,
    turnhold.MailboxFull: 429,
    turnhold.StoreUnavailable: 503,
    TimeoutError: 504,
}

router = APIRouter()


async def runtime_of(request: Request) -> Runtime:
    """Return the app's runtime."""
    return request.app.state.runtime


async def user_of(x_user: Annotated[str, Header()]) -> str:
    """Return who is asking; a real app takes this from its own authentication."""
    return x_user


Here = Annotated[Runtime, Depends(runtime_of)]
User = Annotated[str, Depends(user_of)]


@router.post("/turns", status_code=201)
async def start(
    runtime: Here,
    user: User,
    text: Annotated[str, Body(embed=True)],
    idempotency_key: Annotated[str | None, Header()] = None,
) -> TurnView:
    """Start a turn; it runs on after the response. A start that is repeated with its key finds the turn of the first one."""
    turn = await runtime.start("refunds", text, tenant=user, idempotency_key=idempotency_key)
    return await turn.view()


@router.get("/turns/{turn_id}")
async def view(runtime: Here, turn_id: str) -> TurnView:
    """Return a turn as it is now."""
    return await runtime.turn(turn_id).view()


@router.get("/inbox")
async def inbox(
    runtime: Here, assignee: str | None = None, limit: Annotated[int, Query(le=1000)] = 50, after: str | None = None
) -> Page[Suspension]:
    """List what waits for people, oldest first; pass `next` of one page as `after` of the following one."""
    return await runtime.inbox(assignee=assignee, limit=limit, after=after)


@router.post("/turns/{turn_id}/answers")
async def answer(runtime: Here, user: User, turn_id: str, command: Annotated[ResumeCommand, Body()]) -> Receipt:
    """Answer a wait. Sent again with its `command_id` it gets the same receipt; whoever comes too late is told who was first."""
    signed = ResumeCommand.from_dict({**command.to_dict(), "by": user})  # never believe a body about who sent it
    return await runtime.turn(turn_id).submit(signed)


@router.post("/turns/{turn_id}/cancel")
async def cancel(runtime: Here, user: User, turn_id: str) -> TurnView:
    """Cancel a turn and all its children."""
    return await runtime.turn(turn_id).cancel(f"by {user}", timeout=30)


@router.get("/turns/{turn_id}/events", response_class=StreamingResponse)
async def events(
    runtime: Here, turn_id: str, after: int = 0, last_event_id: Annotated[int | None, Header()] = None
) -> StreamingResponse:
    """Follow a turn as server-sent events; a browser that reconnects goes on behind the last one it has seen."""
    turn = runtime.turn(turn_id)
    await turn.view()  # a wrong id is a 404, not a broken stream
    stream = turn.events(after if last_event_id is None else last_event_id)
    return StreamingResponse(_sent(stream), media_type="text/event-stream")


async def _sent(stream: AsyncIterator[Event]) -> AsyncIterator[bytes]:
    async for event in stream:
        cursor = f"id: {event.sequence}\n" if event.durable else ""  # only stored events are places to go on from
        yield f"{cursor}event: {event.type}\ndata: ".encode() + event.to_json() + b"\n\n"


async def refused(request: Request, error: Exception) -> JSONResponse:
    """Say what is wrong, with all that the error knows."""
    status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
    body: dict[str, object] = {"error": type(error).__name__, "message": str(error)}
    if isinstance(error, turnhold.AlreadyAnswered):
        body |= {"receipt": error.receipt.to_dict(), "agrees": error.agrees}
    if isinstance(error, turnhold.SuspensionMismatch):
        body["open_waits"] = [wait.to_dict() for wait in error.open_waits]
    if isinstance(error, turnhold.InvalidFormData):
        body["faults"] = error.faults
    return JSONResponse(body, status)


def create_app(runtime: Runtime) -> FastAPI:
    """Return the app of a runtime, which it opens and leaves."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with runtime:
            yield

    app = FastAPI(title="Refund desk", lifespan=lifespan)
    app.state.runtime = runtime
    app.include_router(router)
    for kind in (TurnholdError, TimeoutError):
        app.add_exception_handler(kind, refused)
    return app


@turnhold.tool(approval=True)
async def refund_order(order_id: str, amount: int) -> str:
    """Refund an order."""
    key = turnhold.ToolContext.current().idempotency_key  # what the payment provider knows this refund by
    return f"refunded {amount} dollars of {order_id} ({key})"


def create() -> FastAPI:
    """Return the app as uvicorn runs it."""
    from turnhold.models import OpenAIChatModel

    agent = turnhold.Agent("refunds", model=OpenAIChatModel("gpt-4.1-mini"), tools=[refund_order], instructions="Refund orders.")
    return create_app(Runtime("sqlite:///turns.db", agents=[agent]))
