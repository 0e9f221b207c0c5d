"""Due turns that this node cannot run: another node may, so they stay where they are and are not tried again all the time."""

from __future__ import annotations

from collections.abc import Callable, Container

SECONDS = 60.0
LONGEST = 960.0
MUTED = 2.0


class Skip:
    """Until when a turn is left alone, and which ``id@version`` is missing, if it is that."""

    __slots__ = ("agent", "muted", "scan", "times", "until")

    def __init__(self) -> None:
        self.agent: str | None = None
        self.times = self.scan = 0
        self.until = self.muted = 0.0


class Skips:
    """The turns that are left alone, with growing pauses.

    :param now: gives monotonic seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._turns: dict[str, Skip] = {}
        self._scan = 0

    def add(self, turn: str, agent: str | None = None) -> None:
        """Leave a turn alone: a minute, the next time longer.

        What this node does with it now may ring a bell itself, so bells of the next moment say nothing.
        """
        found = self._turns.setdefault(turn, Skip())
        now = self._now()
        found.agent, found.scan = agent, self._scan
        found.until = now + min(LONGEST, SECONDS * 2**found.times)
        found.muted = now + MUTED
        found.times = min(found.times + 1, 10)

    def drop(self, turn: str) -> None:
        """It runs, or is gone."""
        self._turns.pop(turn, None)

    def learned(self, agents: Container[str]) -> None:
        """This node runs these agents now: their turns are not left alone any more."""
        self._turns = {turn: skip for turn, skip in self._turns.items() if skip.agent is None or skip.agent not in agents}

    def rung(self, turn: str) -> bool:
        """There is news of a turn: it may be tried again. Tell whether it was left alone until now."""
        found = self._turns.get(turn)
        if found is None or self._now() < found.muted:
            return False
        found.until = self._now()
        return True

    def still(self, turn: str) -> bool:
        """A look at the store has found the turn due: tell whether to leave it alone."""
        found = self._turns.get(turn)
        if found is None:
            return False
        found.scan = self._scan
        return found.until > self._now()

    def alone(self, turn: str) -> bool:
        """Tell whether the turn is left alone, or was rung by what this node did with it."""
        found = self._turns.get(turn)
        return found is not None and max(found.until, found.muted) > self._now()

    def scanned(self) -> None:
        """All that is due has been looked at: forget what was not among it; the next scan begins."""
        if self._turns:
            now = self._now()
            self._turns = {turn: skip for turn, skip in self._turns.items() if skip.scan == self._scan or skip.muted > now}
        self._scan += 1

    def wait(self) -> float | None:
        """Return after how many seconds to look for them again, and to try some; `None` where there are none."""
        now = self._now()
        return min((min(SECONDS, skip.until - now) for skip in self._turns.values() if skip.until > now), default=None)

    def __len__(self) -> int:
        return len(self._turns)

    def stranded(self, announced: Callable[[str], bool]) -> int:
        """Count the turns whose agent nobody announces."""
        return sum(skip.agent is not None and not announced(skip.agent) for skip in self._turns.values())
