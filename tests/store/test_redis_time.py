"""What is taken for the server's time when answers are late, clocks are set, and servers differ."""

from __future__ import annotations

import random

import pytest

from turnhold.store.redis_time import FORGET, ServerTime

START = 1_800_000_000_000


class Server:
    """A server, a client that asks it, and the time between them."""

    def __init__(self) -> None:
        self.seconds = 1000.0  # of the client's clock
        self.ahead = START
        self.rate = 1.0
        self.slow: list[tuple[float, float]] = []
        self.known = ServerTime(lambda: self.seconds)

    @property
    def true(self) -> int:
        return int(self.ahead + self.seconds * 1000 * self.rate)

    @property
    def off(self) -> int:
        return self.known.now() - self.true

    def ask(self, there: float = 0.0002, back: float = 0.0002) -> None:
        """One question, and the seconds it takes there and back."""
        asked = self.seconds
        self.seconds += there
        told = self.true
        self.seconds += back
        self.known.learn(told, asked)

    async def answer(self) -> int:
        there, back = self.slow.pop(0) if self.slow else (0.0, 0.0)
        self.seconds += there
        told = self.true
        self.seconds += back
        return told


@pytest.fixture
def server() -> Server:
    made = Server()
    made.ask()
    return made


def test_a_late_answer_replaces_no_good_estimate(server: Server) -> None:
    """However long ago that one was learnt: an answer that was read 2 s late says little."""
    for pause in (FORGET - 0.1, FORGET, 10 * FORGET):
        server.seconds += pause
        before = server.known.now()
        server.ask(back=2.0)
        assert server.known.now() - before == pytest.approx(2000, abs=1)
        assert -1 <= server.off <= 1


def test_time_does_not_go_back_while_the_clocks_run_alike(server: Server) -> None:
    """Whatever the answers are like, and in which order they are read."""
    rnd = random.Random(7)
    for _ in range(3000):
        before = server.known.now()
        server.ask(there=rnd.choice((0.0001, 0.01, 3)) * rnd.random(), back=rnd.choice((0.0001, 0.01, 3)) * rnd.random())
        assert server.known.now() >= before
        assert -2 <= server.off <= 1
        server.seconds += rnd.choice((0.0, 0.1, 30)) * rnd.random()


@pytest.mark.parametrize("step", [50, 2000, 3_600_000])
def test_a_clock_that_is_set_forward_is_followed_at_once(server: Server, step: int) -> None:
    """By the first answer; a slow one is behind by no more than its way back."""
    server.ahead += step
    server.ask(back=0.01)

    assert -11 <= server.off <= 1


@pytest.mark.parametrize("step", [50, 2000, 3_600_000])
@pytest.mark.parametrize("slow", [False, True])
def test_a_clock_that_is_set_back_is_followed_soon(server: Server, step: int, slow: bool) -> None:
    """So is another server whose clock is behind; late answers among the others do not hold that up, and lead nowhere else."""
    server.ahead -= step
    end = server.seconds + FORGET
    while server.seconds <= end:
        server.ask()
        server.seconds += 1.0
        if slow:
            server.ask(there=0.02, back=0.02)
    server.ask(back=2.0 if slow else 0.0002)

    assert -2 <= server.off <= 2


@pytest.mark.parametrize("step", [50, 900, 1900])
def test_slow_answers_do_not_keep_a_wrong_estimate(server: Server, step: int) -> None:
    """One that was asked for long before it was told fits a clock that was set back, and one that was not: it is no proof."""
    server.ahead -= step
    end = server.seconds + 2 * FORGET
    while server.seconds < end:
        for _ in range(3):
            server.ask()
            server.seconds += 1.0
        server.ask(there=2.0)

    assert -2 <= server.off <= 2


def test_the_server_that_is_ahead_counts_while_it_answers() -> None:
    """The clocks of a Cluster's servers differ: time does not go to and fro between them, and follows those that are left."""
    server, best = Server(), 0
    for turn in range(200):
        server.ahead = START + 300 * (turn % 3)
        server.ask()
        now = server.known.now()
        assert now >= best
        best = now
        server.seconds += 1.0
    for _ in range(12):
        server.ahead = START
        server.ask()
        server.seconds += 1.0

    assert -2 <= server.off <= 2


@pytest.mark.parametrize("rate", [0.9998, 1.0002])
def test_clocks_of_different_speed_are_followed(server: Server, rate: float) -> None:
    """20 ms in 100 s, and one answer in ten is read 2 s late: what that is off is what they drift apart meanwhile."""
    server.ahead += round(server.seconds * 1000 * (1 - rate))
    server.rate = rate
    rnd = random.Random(3)
    for _ in range(2000):
        server.ask(back=2.0 if rnd.random() < 0.1 else 0.0002)
        assert -4 <= server.off <= 5
        server.seconds += 0.5


async def test_the_first_estimate_is_not_left_to_one_late_answer() -> None:
    """Who has just connected may not be asked anything for long; three late answers are as good as the best of them."""
    server = Server()
    server.slow = [(0.0, 2.0), (1.0, 0.0)]
    await server.known.begin(server.answer)
    assert -1 <= server.off <= 1

    server = Server()
    server.slow = [(0.0, 2.0), (0.0, 0.1), (0.0, 3.0), (0.0, 0.0)]
    await server.known.begin(server.answer)
    assert server.slow == [(0.0, 0.0)]
    assert -101 <= server.off <= 1
