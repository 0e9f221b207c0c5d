"""What a node counts since it was made."""

from __future__ import annotations

from ..store import base
from .log import log
from .world import World

QUIET_SECONDS = 60.0
COUNTED = frozenset({base.Fenced, base.Held, base.Done, base.Reaped})
"""The replies that `Counters.note` reads something off."""


class Counters:
    """Plain numbers; `note` reads most of them off the replies of the store.

    `unconfirmed`: saves no replica confirmed in time. `rewinds`: saves repeated with what the store had forgotten before them.
    `forgotten`: starts of `once` calls that could not be marked in doubt when the store had gone back. The others are described in
    `Statistics`.
    """

    def __init__(self) -> None:
        self.bells = 0
        self.claims = 0
        self.fenced = 0
        self.forgotten = 0
        self.held = 0
        self.hooks_failed = 0
        self.lost = 0
        self.quarantined = 0
        self.reaped = 0
        self.renewals_failed = 0
        self.relay_failures = 0
        self.relayed = 0
        self.rewinds = 0
        self.unconfirmed = 0
        self._quiet_until = 0.0

    def note(self, op: base.Op, reply: base.Reply) -> None:
        """Count what a reply says."""
        if isinstance(reply, base.Fenced):
            self.fenced += 1
        elif isinstance(reply, base.Held):
            self.held += type(op) is base.Claim
        elif isinstance(reply, base.Done):
            self.quarantined += type(op) is base.Quarantine
        elif isinstance(reply, base.Reaped):
            self.reaped += 1
            self.quarantined += reply.quarantined

    def note_unconfirmed(self, world: World, turn_id: str) -> None:
        """Count a save that no replica has confirmed; the log hears of it once a minute."""
        self.unconfirmed += 1
        now = world.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + QUIET_SECONDS
            log.warning("save_unconfirmed", turn=turn_id, unconfirmed=self.unconfirmed)
