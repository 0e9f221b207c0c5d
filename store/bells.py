"""Which bells an applied operation rings (see `base.StoreConnection`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from . import base
from .base import Op, Reply, Save
from .records import HAND_OFF

Rings: TypeAlias = "tuple[tuple[str, str], ...]"


def rings(op: Op, reply: Reply, roused: Sequence[str] = ()) -> Rings:
    """Return the bells for an operation that got this reply and made `roused` runnable beside what it names."""
    rule = _RULES.get(type(op))
    own = () if rule is None else rule(op, reply)
    return (*own, *(("work", turn) for turn in roused)) if roused else own


def _save(op: Save, reply: Reply) -> Rings:
    if type(reply) is not base.Saved or reply.replayed:
        return ()
    later = op.wake is not None or op.mode is HAND_OFF  # a new wake is news to every poller, not only to the owner's
    if not (later or op.create or op.deliver or op.cancel):
        return (("saved", op.turn),)
    turns = [new.turn for new in op.create] + [turn for turn, _ in op.deliver + op.cancel]
    if later:
        turns.append(op.turn)
    return (("saved", op.turn), *(("work", turn) for turn in dict.fromkeys(turns)))


def _create(op: base.Create, reply: Reply) -> Rings:
    return (("work", op.new.turn),) if type(reply) is base.Created else ()


def _deliver(op: base.Deliver | base.Cancel, reply: Reply) -> Rings:
    return (("work", op.turn),) if type(reply) is base.Delivered else ()


def _work(op: base.Abandon | base.Revive, reply: Reply) -> Rings:
    return (("work", op.turn),) if isinstance(reply, base.Done) else ()


def _reap(op: base.Reap, reply: Reply) -> Rings:
    if not isinstance(reply, base.Reaped):
        return ()
    return (("work", op.turn), ("saved", op.turn)) if reply.quarantined else (("work", op.turn),)


def _changed(op: base.Quarantine, reply: Reply) -> Rings:
    return (("saved", op.turn),) if isinstance(reply, base.Done) else ()


def _discard(op: base.Discard, reply: Reply) -> Rings:
    if not isinstance(reply, base.Done):
        return ()
    return (("saved", op.turn),) if op.notify is None else (("saved", op.turn), ("any", ""))


_RULES: dict[type[Op], Callable[[Any, Reply], Rings]] = {
    base.Save: _save,
    base.Create: _create,
    base.Deliver: _deliver,
    base.Cancel: _deliver,
    base.Abandon: _work,
    base.Reap: _reap,
    base.Revive: _work,
    base.Quarantine: _changed,
    base.Discard: _discard,
}
