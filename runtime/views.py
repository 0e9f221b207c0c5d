"""From records to views, and when a tree has settled."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec

from ..actors.carried import StructTypes
from ..actors.errors import OutputInvalid, SnapshotCorrupt, SnapshotTooNew
from ..actors.output import Output, Said
from ..actors.record import JsonValue, utc
from ..actors.turn import READY, UNDER_WAY, Failure, Status, TurnState
from ..actors.view import Owner, Quarantine, TurnView, view_of
from ..actors.waits import Phase, Suspension, SuspensionType
from ..store import base, codec
from .log import log
from .watch import Rested

Done: TypeAlias = Callable[[TurnView[JsonValue], "base.Looked | None"], bool]

GOING = (READY, UNDER_WAY)


def waits_of(look: base.Looked) -> tuple[Suspension, ...]:
    """Return the answerable waits of a record and of all below it."""
    return readable_waits(look.wait_bodies, look.turn)


def readable_waits(bodies: Iterable[bytes], turn_id: str = "") -> tuple[Suspension, ...]:
    """Return the waits of an index; one that cannot be read is left out, so that it hides no other."""
    waits: list[Suspension] = []
    for body in bodies:
        try:
            waits.append(codec.decode_suspension(turn_id, body))
        except SnapshotCorrupt:
            log.exception("wait_unreadable", turn=turn_id)
    return tuple(waits)


def source_of_look(look: base.Looked) -> codec.EventSource:
    """Return what all events of a stored turn share; without its limits where its snapshot cannot be read here."""
    try:
        return codec.source_of(codec.decode_state(look.turn, look.schema, look.snapshot))
    except (SnapshotCorrupt, SnapshotTooNew):
        return codec.EventSource(look.turn, look.parent, look.agent, look.agent_version)


def view_of_look(look: base.Looked, types: StructTypes) -> TurnView[JsonValue]:
    """Return the view of a stored record; of one that cannot be read here, what the record itself tells.

    A turn that was discarded ended by its record alone: its snapshot does not know.
    """
    try:
        state = codec.decode_state(look.turn, look.schema, look.snapshot)
    except (SnapshotCorrupt, SnapshotTooNew) as error:
        state = TurnState(look.turn, look.agent, look.agent_version, look.parent, look.conversation, look.tenant)
        state.status, state.error = _status(look), Failure(type(error).__name__, str(error))
        state.created_at, state.updated_at = look.created, look.updated
    if look.state == "T" and not state.status.terminal:
        state.status, state.phase, state.waits, state.completed_at = _status(look), Phase.FINISHED, (), look.updated
    owner = None
    if look.activation and look.node is not None:
        owner = Owner(look.node, utc(look.lease), look.epoch)
    quarantine = None
    if look.quarantine is not None:
        quarantine = Quarantine(look.quarantine, utc(look.quarantined_at), look.crashes)
    return view_of(
        state,
        version=look.version,
        open_waits=waits_of(look),
        owner=owner,
        quarantine=quarantine,
        cancel_requested=look.cancel is not None,
        types=types,
    )


def _status(look: base.Looked) -> Status:
    """Return a record's status; of one that a newer release knows and this one does not, the nearest."""
    try:
        return Status(look.status)
    except ValueError:
        return Status.FAILED if look.state == "T" else Status.RUNNING if look.activation else Status.READY


def alone(rested: Rested, turn_id: str) -> bool:
    """Tell whether a released state speaks for its whole tree: it is a root, and no child of it is alive."""
    state = rested.state
    return state.turn_id == turn_id and state.parent_turn_id is None and not rested.had_children


def typed(view: TurnView[Any], output: Output[Said] | None) -> TurnView[Said]:
    """Return a view with its output as a value of a type; without one it is as JSON has it.

    :raises OutputInvalid: if it does not fit the type.
    """
    if output is None or view.status is not Status.COMPLETED:
        return view
    try:
        value = output.convert(view.final_output)
    except OutputInvalid as error:
        raise OutputInvalid(f"the output of turn {view.id}", error.faults, view=view) from None
    return msgspec.structs.replace(view, final_output=value)


def settled(view: TurnView[JsonValue], look: base.Looked | None) -> bool:
    """Tell whether a tree is terminal, or nothing in it runs or can run now."""
    if look is not None and look.runnable_turns:
        return False
    if look is None and view.status in GOING:
        return False
    # queued in its conversation: it runs when its time has come
    return not (view.status is READY and view.quarantine is None)


def settled_through_retries(view: TurnView[JsonValue], look: base.Looked | None) -> bool:
    """Tell whether a tree has settled, and no retry is scheduled in it."""
    if not settled(view, look):
        return False
    waits = () if view.quarantine is not None else (*view.open_waits, *view.suspensions)
    return not any(wait.type is SuspensionType.RETRY for wait in waits)


def tree_terminal(view: TurnView[JsonValue], look: base.Looked | None) -> bool:
    """Tell whether every turn of a tree is terminal."""
    return view.status.terminal and (look is None or look.live_turns == 0)
