"""When the store has gone back: what an owner has saved since its claim, to be saved again, or made up for.

A failover may forget the newest saves of a turn. Where the log still holds all of those, they are repeated in one save, and nothing
has happened. Where it does not, the turn goes on from what the store has; but what has been started out there stays started.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ..actors.errors import SnapshotCorrupt, SnapshotTooLarge, SnapshotTooNew, StoreUnavailable
from ..actors.machine import messages as m
from ..actors.machine.rewound import unknown_to
from ..store import base, codec
from .errors import Crashed
from .log import log

if TYPE_CHECKING:
    from .actor import Actor

LOG_SAVES, LOG_BYTES = 256, 256 * 1024
T = TypeVar("T")


class SaveLog(msgspec.Struct, eq=False, gc=False):
    """The newest saves of an activation that the store has acknowledged, without their snapshots; bounded in number and bytes."""

    _saves: list[base.Save] = []
    _bytes: int = 0

    def __len__(self) -> int:
        return len(self._saves)

    def add(self, op: base.Save) -> None:
        """Remember a save. One that repeats earlier ones takes their place; the oldest make room, the newest always stays."""
        saves = self._saves
        while saves and saves[-1].version >= op.version:
            self._bytes -= _size(saves.pop())
        saves.append(msgspec.structs.replace(op, snapshot=b""))
        self._bytes += _size(op)
        while len(saves) > 1 and (len(saves) > LOG_SAVES or self._bytes > LOG_BYTES):
            self._bytes -= _size(saves.pop(0))

    def took(self, message_id: str) -> bool:
        """Tell whether a remembered save has consumed this mail: where it is there again, the store has gone back."""
        return any(message_id in op.consumed for op in self._saves)

    def since(self, behind: base.Behind) -> list[base.Save] | None:
        """Return all saves that the store has forgotten, oldest first; `None` where they are not all here."""
        saves = [op for op in self._saves if op.version >= behind.version]
        if not saves:
            return None
        first = saves[0]
        found = (first.version, first.messages.at, first.events.at)
        return saves if found == (behind.version, behind.message_count, behind.event_count) else None


def _size(op: base.Save) -> int:
    size = 512 + len(op.events.body) + sum(map(len, op.messages.bodies))
    for row in (*op.receipts, *op.replies, *op.opened, *op.memory):
        size += len(row.body)
    for new in op.create:
        size += len(new.snapshot) + sum(map(len, new.messages.bodies))
    return size


def _all(saves: Iterable[base.Save], part: Callable[[base.Save], Iterable[T]]) -> tuple[T, ...]:
    return tuple([item for op in saves for item in part(op)])


def merged(forgotten: list[base.Save], op: base.Save, behind: base.Behind, children: Collection[str], save_id: str) -> base.Save:
    """Return the one save that carries an activation from what the store has left to where `op` would have brought it.

    What the store has not forgotten is skipped there. A wait that one save opened and a later one closed is not opened again. A
    child that a forgotten save has created, and whose end this turn has seen, is not created again: it would run a second time.

    :param children: the children that the turn still waits for, or owes an end.
    """
    saves = [*forgotten, op]
    closed = _all(saves, lambda save: save.closed)
    create = [new for save in forgotten for new in save.create if new.turn in children]
    opened = _all(saves, lambda save: save.opened)
    return msgspec.structs.replace(
        op,
        version=behind.version,
        save_id=save_id,
        messages=base.Messages(behind.message_count, _all(saves, lambda save: save.messages.bodies)),
        events=base.Events(
            behind.event_count, sum(save.events.count for save in saves), codec.join_events([save.events.body for save in saves])
        ),
        progress=any(save.progress for save in saves),
        ack_cancel=any(save.ack_cancel for save in saves),
        consumed=tuple(dict.fromkeys(_all(saves, lambda save: save.consumed))),
        receipts=_all(saves, lambda save: save.receipts),
        replies=_all(saves, lambda save: save.replies),
        opened=tuple([wait for wait in opened if wait.id not in closed]),
        closed=closed,
        create=(*create, *op.create),
        deliver=_all(saves, lambda save: save.deliver),
        cancel=_all(saves, lambda save: save.cancel),
        confirm=any(save.confirm for save in saves),
        conversation=next((save.conversation for save in saves if save.memory), None),
        memory=_all(saves, lambda save: save.memory),
        relay=any(save.relay for save in saves),
    )


# ------------------------------------------------------------------------------------------------- what cannot be repeated


async def recover(actor: Actor) -> None:
    """Look, when an activation has lost its turn, whether the store has gone back behind starts it knows of, and tell the turn.

    All effects of the activation have ended. A turn that others have taken over as it was needs nothing: then its state has every
    start that was ever acknowledged.
    """
    started = actor.known_starts()
    if not started and not actor.forgotten:
        return
    try:
        await _recover(actor, started)
    except Crashed:
        return
    except (StoreUnavailable, SnapshotCorrupt, SnapshotTooNew, SnapshotTooLarge) as error:
        log.warning("rewind_not_looked_for", turn=actor.turn_id, calls=[start.call_id for start in started], error=str(error))


async def _recover(actor: Actor, started: list[m.Start]) -> None:
    """The starts go as mail: it wakes the turn, and whoever owns it next takes it in before it starts anything.

    Where our token still holds, nobody can own the turn before it has the mail. Where the claim was forgotten, too, and the turn
    was runnable before it, another owner may have been quicker; it learns of it while it runs.
    """
    host, token = actor.host, actor.token
    look = await host.call(base.Look(turn=actor.turn_id))
    if not isinstance(look, base.Looked):
        return _forgotten(actor, started)  # the turn itself is forgotten
    behind, forgotten = unknown_to(codec.decode_state(actor.turn_id, look.schema, look.snapshot), started)
    _forgotten(actor, forgotten)
    if behind:
        body = codec.encode_mail(m.Rewound(tuple(behind)), host.settings.max_message)
        reply = await host.call(base.Deliver(turn=actor.turn_id, mail=base.Mail(host.new_id(), body), runtime=True))
        if not isinstance(reply, base.Delivered):
            return _forgotten(actor, behind)
        log.warning("turn_rewound", turn=actor.turn_id, version=look.version, calls=[start.call_id for start in behind])
    if actor.forgotten and (look.activation, look.epoch) == (token.activation, token.epoch):
        await host.call(base.Abandon(turn=actor.turn_id, token=token))
    return None


def _forgotten(actor: Actor, starts: list[m.Start]) -> None:
    """Say that starts of `once` calls are known to nobody any more: there is no record of the call to mark."""
    for start in starts:
        if start.effect == "once":
            actor.host.counters.forgotten += 1
            log.error("once_call_forgotten", turn=actor.turn_id, call=start.call_id, attempt=start.attempt)
