"""The numbers a node runs by; all periods derive from the lease."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from ..actors.checks import check_span, shown
from ..actors.errors import InvalidDefinition
from ..actors.record import Seconds, milliseconds

Confirm: TypeAlias = Literal["once", "all"]
ChangedDefinition: TypeAlias = Literal["run", "park"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in milliseconds, sizes in bytes.

    `margin` is how long before the lease's end an owner stops by itself; `grace` how long behind it others wait before they take
    over; `tail` how many history entries come with a claim; `batch` how much mail is read at once; `confirm` which
    saves a replica must have before a `once` tool starts behind them; `park_changed` whether a turn whose agent has
    changed is parked; `relay` whether conversations are passed on to another memory.
    """

    lease: int
    max_active: int
    drain: int
    cancel_grace: int
    retention: int
    max_snapshot: int
    max_message: int
    mailbox_cap: int = 256
    tail: int = 64
    batch: int = 16
    max_calls: int = 128
    operation: int = 3000
    confirm: Confirm | None = None
    park_changed: bool = False
    relay: bool = False

    @property
    def renew(self) -> int:
        """Return the renewal period."""
        return self.lease // 3

    @property
    def margin(self) -> int:
        """Return how long before the end of its lease an owner stops."""
        return max(self.lease // 10, min(self.operation, self.lease // 4))

    @property
    def grace(self) -> int:
        """Return how long behind the end of a lease others wait."""
        return self.lease // 6

    @property
    def stale(self) -> int:
        """Return how long behind its last beat a node counts as gone, in a store whose nodes share partitions."""
        return 3 * self.renew

    @property
    def reap(self) -> int:
        """Return the period of the reaper."""
        return self.lease // 6


def bounded(name: str, value: Seconds, least: float = 0.0) -> int:
    """Return a duration setting in milliseconds.

    :raises InvalidDefinition: if it is not a duration of at least `least` seconds, or is longer than a century.
    """
    found = milliseconds(check_span(name, value))
    if found < least * 1000:
        raise InvalidDefinition(f"{name} must be at least {least} s, not {shown(value)}")
    return found


def parks(value: object) -> bool:
    """Return a setting of `changed_definition`. :raises InvalidDefinition: if it is none."""
    if value not in ("run", "park"):
        raise InvalidDefinition(f'changed_definition must be "run" or "park", not {shown(value)}')
    return value == "park"


def confirmed(value: object) -> Confirm | None:
    """Return a setting of `confirm`. :raises InvalidDefinition: if it is none."""
    if value not in (None, "once", "all"):
        raise InvalidDefinition(f'confirm must be "once", "all" or None, not {shown(value)}')
    return value
