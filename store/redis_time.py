"""The server's time, as far as its answers tell it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf
from typing import final

FORGET = 10.0  # seconds for which an estimate that no answer agrees with any more is kept
SOON, TRIES = 0.05, 3


@final
class ServerTime:
    """An estimate of the server's time, in milliseconds.

    What an answer says was so after it was asked for and before it was read: two bounds of how far the server is ahead of our
    clock, as wide as the answer was slow. The estimate moves only where an answer proves it wrong: forward at once; back, since the
    servers of a Cluster differ, once none has agreed with it for a while. A slow answer that would fit both does not agree.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ahead = self._agreed = -inf
        self._most = inf

    def now(self) -> int:
        """Return the time."""
        return int(self._clock() * 1000 + self._ahead)

    def learn(self, now: int, asked: float) -> None:
        """Learn from a time that the server has just told; our clock was at `asked` then, or before the question left."""
        read = self._clock()
        least, most = now - read * 1000, now + 1 - asked * 1000
        if least > self._ahead:
            self._ahead = least
        elif most < self._ahead or least <= self._most < self._ahead:
            self._most = min(most, self._most)
            if read - self._agreed <= FORGET:
                return
            self._ahead = max(self._most, least)
        self._agreed, self._most = read, inf

    async def begin(self, ask: Callable[[], Awaitable[int]]) -> None:
        """Learn from answers that are asked for, until one comes soon: a slow one alone may be as far off as it was slow."""
        for _ in range(TRIES):
            asked = self._clock()
            self.learn(await ask(), asked)
            if self._clock() - asked <= SOON:
                return
