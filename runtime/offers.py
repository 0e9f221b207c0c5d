"""Turns that a bell has offered to this node: claimed directly, at once or when their time comes, without a look at the store."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from .world import Timer

if TYPE_CHECKING:
    from .placement import Placement

MOST = 10_000
SLACK = 64
AGAIN = 50


class Offers:
    """A bounded heap of turns by wake (store milliseconds). What it forgets is found by the poller."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._wakes: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        self._here: set[str] = set()
        self._timer: Timer | None = None
        self._timer_at = 0

    def __len__(self) -> int:
        return len(self._wakes)

    def add(self, turn: str, wake: int) -> None:
        """Claim a turn at its wake; an earlier offer of it counts."""
        placement = self._placement
        if placement.skips.alone(turn):
            return
        now = placement.host.now()
        if wake <= now:
            self._wakes.pop(turn, None)
            self._claim(turn)
        elif len(self._wakes) < MOST and wake < self._wakes.get(turn, wake + 1):
            self._wakes[turn] = wake
            heapq.heappush(self._heap, (wake, turn))
            if len(self._heap) > 2 * len(self._wakes) + SLACK:  # most of it is of turns that did not sleep until their wake
                self._heap = [(at, name) for name, at in self._wakes.items()]
                heapq.heapify(self._heap)
            self._arm(now)

    def again(self, turn: str, wake: int) -> None:
        """The store said that a turn is not due before `wake`; the clock here may be early."""
        self.add(turn, max(wake, self._placement.host.now() + AGAIN))

    def taken(self, turn: str) -> None:
        """A turn has come to life here: what it was to wake for is over, and its next save says when it wakes again."""
        self._wakes.pop(turn, None)

    def ended(self, turn: str) -> None:
        """An activation has ended: what was offered meanwhile can be claimed now."""
        if turn in self._here:
            self._here.discard(turn)
            self.add(turn, 0)

    def failed(self, turn: str) -> None:
        """A claim has failed: what was offered meanwhile is left to the poller, as trying at once would spin."""
        self._here.discard(turn)

    def clear(self) -> None:
        """Forget all; the poller remembers."""
        self._wakes.clear()
        self._heap.clear()
        self._here.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _claim(self, turn: str) -> None:
        placement = self._placement
        if placement.here(turn):
            self._here.add(turn)
        elif placement.held(turn) or placement.free <= 0:
            placement.poller.left = True
        else:
            placement.take(turn)

    def _arm(self, now: int) -> None:
        while self._heap and self._wakes.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        if not self._heap:
            return
        at = self._heap[0][0]
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._placement.host.world.timer((at - now) / 1000, self._ripe)

    def _ripe(self) -> None:
        self._timer = None
        now = self._placement.host.now()
        while self._heap and self._heap[0][0] <= now:
            wake, turn = heapq.heappop(self._heap)
            if self._wakes.get(turn) == wake:
                del self._wakes[turn]
                self._claim(turn)
        self._arm(now)
