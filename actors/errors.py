"""Every error of the face. One class per thing a caller can do about it; ids are attributes; each says what is true afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from .record import JsonObject, JsonValue
    from .view import TurnView
    from .waits import Receipt, Suspension


class TurnholdError(Exception):
    """The base of all our errors."""


class InvalidDefinition(TurnholdError, ValueError):
    """An agent, a tool, a form, a policy or an argument is wrong. Nothing was stored; mend the value that the message names."""


class TurnNotFound(TurnholdError, LookupError):
    """No turn has this id in this store: it never existed, or its retention is over. Nothing was changed."""

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"no turn {turn_id[:100]!r} in this store")
        self.turn_id = turn_id


class NotQuarantined(TurnNotFound):
    """The turn is there, but not in quarantine; `status` says what it is instead. Nothing was changed."""

    def __init__(self, turn_id: str, status: str) -> None:
        super().__init__(turn_id)
        self.args = (f"turn {turn_id} is not in quarantine; it is {status}",)
        self.status = status


class CommandRefused(TurnholdError):
    """A command was not accepted. Nothing was changed, and its command id is free again."""

    def __init__(self, message: str, *, turn_id: str, command_id: str | None = None) -> None:
        super().__init__(message)
        self.turn_id = turn_id
        self.command_id = command_id


class TurnClosed(CommandRefused):
    """The turn has ended (`status` says how). Start a new one."""

    def __init__(self, message: str, *, turn_id: str, command_id: str | None = None, status: str = "") -> None:
        super().__init__(message, turn_id=turn_id, command_id=command_id)
        self.status = status


class NotSuspended(CommandRefused):
    """The turn waits for nothing that could be answered."""


class SuspensionMismatch(CommandRefused):
    """No open wait fits, or more than one does. `open_waits` are those that can be answered; name one of them."""

    def __init__(self, message: str, *, turn_id: str, command_id: str | None = None, open_waits: Sequence[Suspension] = ()) -> None:
        super().__init__(message, turn_id=turn_id, command_id=command_id)
        self.open_waits = tuple(open_waits)


class WrongCommand(CommandRefused):
    """This kind of command does not answer this kind of wait. The wait stays open."""


class InvalidFormData(CommandRefused):
    """The data (or the edited arguments) does not fit the schema. The wait stays open. `faults` are (path, message) pairs."""

    def __init__(
        self, message: str, *, turn_id: str, command_id: str | None = None, faults: Sequence[tuple[str, str]] = ()
    ) -> None:
        super().__init__(message, turn_id=turn_id, command_id=command_id)
        self.faults = tuple(faults)


class AlreadyAnswered(CommandRefused):
    """The wait has ended before. `receipt` says who ended it, when and how; `agrees`, whether this command wanted the same."""

    def __init__(self, message: str, *, turn_id: str, command_id: str | None = None, receipt: Receipt, agrees: bool) -> None:
        super().__init__(message, turn_id=turn_id, command_id=command_id)
        self.receipt = receipt
        self.agrees = agrees


class CommandIdReused(CommandRefused):
    """This command id was accepted with other content before; `receipt` is that command's."""

    def __init__(self, message: str, *, turn_id: str, command_id: str | None = None, receipt: Receipt) -> None:
        super().__init__(message, turn_id=turn_id, command_id=command_id)
        self.receipt = receipt


class RetryNotDue(CommandRefused):
    """The retry is due later, at `due`. Send it again with ``force=True``, or wait."""

    def __init__(self, message: str, *, turn_id: str, command_id: str | None = None, due: datetime) -> None:
        super().__init__(message, turn_id=turn_id, command_id=command_id)
        self.due = due


class AnswerPending(TurnholdError):
    """The command is stored and will be decided, but not within the time given. Ask again with the same `command_id`."""

    def __init__(self, message: str, *, turn_id: str, command_id: str) -> None:
        super().__init__(message)
        self.turn_id = turn_id
        self.command_id = command_id


class MailboxFull(TurnholdError):
    """The turn has as much unread mail as it may have. The command was not stored; try again later."""

    def __init__(self, turn_id: str, count: int) -> None:
        super().__init__(f"turn {turn_id} has {count} unread messages, the most it may have; nothing was stored")
        self.turn_id = turn_id
        self.count = count


class IdempotencyKeyReused(TurnholdError):
    """A turn was started under this idempotency key with another agent or input. Nothing was started."""

    def __init__(self, turn_id: str, key: str) -> None:
        super().__init__(f"idempotency key {key!r} was used before for another agent or input, by turn {turn_id}")
        self.turn_id = turn_id
        self.key = key


class ConversationBusy(TurnholdError):
    """The conversation has an open turn, or `queued` turns wait behind it, and no more may. Nothing was started.

    Answer, cancel or await the open turn, or start with ``when_busy="queue"`` or ``"supersede"``.
    """

    def __init__(self, conversation_id: str, turn_id: str, status: str, queued: int = 0) -> None:
        text = f"conversation {conversation_id!r} has an open turn {turn_id} ({status})"
        super().__init__(f"{text}, and {queued} queued ones, which is the limit" if queued else text)
        self.conversation_id = conversation_id
        self.turn_id = turn_id
        self.status = status
        self.queued = queued


class AgentNotFound(TurnholdError, LookupError):
    """No such agent is known here. Nothing was started."""

    def __init__(self, agent_id: str, version: str | None = None) -> None:
        name = agent_id if version is None else f"{agent_id}@{version}"
        super().__init__(f"no agent {name!r} is known to this node")
        self.agent_id = agent_id
        self.version = version


class FormLoop(TurnholdError):
    """A tool asked again for a form that its call already has. The call ends with this error; it is not retried."""


class FormDeclined(TurnholdError):
    """A form with ``tell_decline`` was declined, or nobody answered it in time (`expired`). `reason` is what was said.

    Raised by `ToolContext.form`. A tool that lets it pass ends its call with the structured `declined` result.
    """

    def __init__(self, form_key: str, reason: str, *, expired: bool = False) -> None:
        super().__init__(f"form {form_key!r} was " + ("not answered in time" if expired else "declined"))
        self.form_key = form_key
        self.reason = reason
        self.expired = expired


class ToolError(TurnholdError):
    """Raise it in a tool to give the model a structured failure; the turn goes on. `data` goes to the model with the message."""

    def __init__(self, message: str, **data: object) -> None:
        super().__init__(message)
        self.data = data


class OutcomeUnknown(TurnholdError):
    """Raise it in a tool when nobody can say whether it took effect: a connection broke while the answer was awaited, say.

    A `once` call is then in doubt until a person resolves it; for a `repeatable` one it is an exception like others.
    """


class ArgumentsInvalid(TurnholdError, ValueError):
    """The arguments of a call do not fit the tool. It was not run; the model is told. `faults` are (path, message) pairs."""

    def __init__(self, tool: str, faults: Sequence[tuple[str, str]]) -> None:
        super().__init__(f"invalid arguments for {tool}: " + "; ".join(f"{path} {message}" for path, message in faults))
        self.tool = tool
        self.faults = tuple(faults)


class ToolResultInvalid(TurnholdError, TypeError):
    """A tool returned something that has no JSON form. The function has run; return JSON-like values, Structs or dataclasses."""


class OutputInvalid(TurnholdError, ValueError):
    """A final output does not fit the type that was asked for; `faults` are (path, message) pairs.

    Asked for with a reference: the turn is as it is; `view` shows it, with the output as it is stored. As the error of a turn: its
    iterations were used up before the model's reply fitted.
    """

    def __init__(self, what: str, faults: Sequence[tuple[str, str]], *, view: TurnView | None = None) -> None:
        super().__init__(f"{what} does not fit: " + "; ".join(f"{path} {message}" for path, message in faults))
        self.faults = tuple(faults)
        self.view = view


class TurnNotCompleted(TurnholdError):
    """The turn is not COMPLETED; `view` shows what it is."""

    def __init__(self, view: TurnView) -> None:
        super().__init__(f"turn {view.id} is {view.status.value}" + (f": {view.error.message}" if view.error else ""))
        self.view = view


class VersionConflict(TurnholdError):
    """A save named a predecessor that is not the stored one, under a valid token: a defect of ours. Nothing was written."""

    def __init__(self, turn_id: str, expected: int, stored: int) -> None:
        super().__init__(f"turn {turn_id}: save on top of version {expected}, but version {stored} is stored")
        self.turn_id = turn_id
        self.expected = expected
        self.stored = stored


class LeaseLost(TurnholdError):
    """This node no longer owns the turn. Its unsaved work was thrown away; the turn goes on elsewhere."""

    def __init__(self, turn_id: str) -> None:
        super().__init__(f"turn {turn_id} is no longer owned by this node")
        self.turn_id = turn_id


class SnapshotTooNew(TurnholdError):
    """The snapshot was written by a newer release. It was left as it is."""

    def __init__(self, turn_id: str, schema: int, known: int) -> None:
        super().__init__(f"turn {turn_id} is stored in schema {schema}; this release reads up to {known}")
        self.turn_id = turn_id
        self.schema = schema
        self.known = known


class SnapshotCorrupt(TurnholdError):
    """The snapshot cannot be read. It was left as it is; an operator may `discard` the turn."""

    def __init__(self, turn_id: str, reason: str) -> None:
        super().__init__(f"the snapshot of turn {turn_id} cannot be read: {reason}")
        self.turn_id = turn_id
        self.reason = reason


class SnapshotTooLarge(TurnholdError):
    """What would be stored is over the limit. Nothing of it was stored."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(f"{what} has {size} bytes, the limit is {limit}")
        self.what = what
        self.size = size
        self.limit = limit


class StoreUnavailable(TurnholdError):
    """The store did not answer in time. What was asked may or may not have happened; the same call may be made again.

    `refused` is true where the store answered that it will not do it (it is full, or denies access): nothing has happened, and the
    same call will not help.
    """

    def __init__(self, message: str = "", *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class ModelError(TurnholdError):
    """A model request failed for a reason that no retry mends."""


class RetryableModelError(ModelError):
    """A model request failed for a passing reason. `retry_after` is the provider's wish in seconds, if it had one."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ModelRateLimited(RetryableModelError):
    """The provider asks us to slow down."""


class ModelOverloaded(RetryableModelError):
    """The provider is overloaded, failing or out of reach."""


class ModelTimeout(RetryableModelError):
    """The request took longer than it may."""


class ModelRefused(ModelError):
    """The provider refused the request: malformed, not allowed, no such model."""


class ContextTooLong(ModelRefused):
    """The messages do not fit into the model's context."""


class QuotaExhausted(ModelRefused):
    """The account has no quota left."""


class CompressionFailed(TurnholdError):
    """A conversation could not be compressed; its state is what it was."""


class FormRequired(BaseException):
    """Leaves a tool that needs a form, before any side effect. Not an `Exception`, so that no tool code swallows it.

    `keep` is a JSON-like value of at most 64 KiB that the next attempts find as ``ToolContext.kept``; without one, what was kept
    before stays.

    :raises InvalidDefinition: if `form` is not a `FormDefinition`, or `keep` is not JSON-like or too large.
    """

    def __init__(self, form: object, values: JsonObject | None = None, *, keep: JsonValue = None) -> None:
        key = getattr(form, "form_key", None)
        if not isinstance(key, str):
            raise InvalidDefinition(f"FormRequired needs a FormDefinition, not {type(form).__name__}")
        super().__init__(f"form {key!r} is required")
        if keep is not None:
            from .checks import check_json

            check_json("keep", keep)
        self.form = form
        self.values = values
        self.keep = keep


class MiddlewareError(TurnholdError):
    """A middleware did what none may do; the message says which and what. What it stood around has failed, or was not begun."""


class ProceedTwice(MiddlewareError):
    """A hook called its `proceed` a second time, or after it had returned. Nothing was done again."""
