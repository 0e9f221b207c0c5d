"""From stored refusals to the errors of the face."""

from __future__ import annotations

from typing import NoReturn, TypedDict

from ..actors import errors
from ..actors.machine.draft import Accepted, Outcome, Refusal
from ..actors.record import utc
from ..actors.waits import Receipt, Suspension


class _Ids(TypedDict):
    turn_id: str
    command_id: str | None


class Rerouted(Exception):
    """The actor went away before it took this message; the sender tries again."""


class Crashed(errors.StoreUnavailable):
    """This node was made to crash (a test): nothing of it goes on, and who waits for it here is told so."""

    def __init__(self) -> None:
        super().__init__("this node has crashed")


def receipt_of(outcome: Outcome, turn_id: str, command_id: str | None, waits: tuple[Suspension, ...] = ()) -> Receipt:
    """Return the receipt of an accepted command.

    :raises CommandRefused: if it was refused.
    :raises SnapshotCorrupt: if what was stored as its answer answers something else.
    """
    if isinstance(outcome, Accepted):
        return outcome.receipt
    if isinstance(outcome, Refusal):
        refuse(outcome, turn_id, command_id, waits)
    raise errors.SnapshotCorrupt(turn_id, "a command is accepted or refused")


def refuse(refusal: Refusal, turn_id: str, command_id: str | None, waits: tuple[Suspension, ...] = ()) -> NoReturn:
    """Raise the error that a refusal stands for."""
    ids = _Ids(turn_id=turn_id, command_id=command_id)
    message, receipt = refusal.message, refusal.receipt
    match refusal.error:
        case "TurnClosed":
            raise errors.TurnClosed(message, status=refusal.status, **ids)
        case "NotSuspended":
            raise errors.NotSuspended(message, **ids)
        case "SuspensionMismatch":
            open_waits = tuple(wait for wait in waits if wait.id in refusal.open_waits)
            raise errors.SuspensionMismatch(message, open_waits=open_waits, **ids)
        case "WrongCommand":
            raise errors.WrongCommand(message, **ids)
        case "InvalidFormData":
            raise errors.InvalidFormData(message, faults=refusal.faults, **ids)
        case "RetryNotDue":
            raise errors.RetryNotDue(message, due=utc(refusal.due), **ids)
        case "AlreadyAnswered" if receipt is not None:
            raise errors.AlreadyAnswered(message, receipt=receipt, agrees=refusal.agrees, **ids)
        case "CommandIdReused" if receipt is not None:
            raise errors.CommandIdReused(message, receipt=receipt, **ids)
        case _:
            raise errors.CommandRefused(message, **ids)
