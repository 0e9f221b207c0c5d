"""What a node counts over all its activations, beside claims and leases."""

from __future__ import annotations

from .log import log
from .world import World

QUIET_SECONDS = 60.0


class Counters:
    """`unconfirmed`: saves no replica confirmed in time. `rewinds`: saves repeated with what the store had forgotten before them.

    `forgotten`: starts of `once` calls that could not be marked in doubt when the store had gone back.
    """

    def __init__(self) -> None:
        self.unconfirmed = 0
        self.rewinds = 0
        self.forgotten = 0
        self._quiet_until = 0.0

    def note_unconfirmed(self, world: World, turn_id: str) -> None:
        """Count a save that no replica has confirmed; the log hears of it once a minute."""
        self.unconfirmed += 1
        now = world.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + QUIET_SECONDS
            log.warning("save_unconfirmed", turn=turn_id, unconfirmed=self.unconfirmed)
