"""Several processes on one Redis: what they do together, how fast one hears of another's answer, and takes over from it."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter

from turnhold.runtime.settings import Settings
from turnhold.store.redis import RedisStore

from . import servers
from .harness import Bar, Options, Row, Sample, folder, interleave, median_rate, quantile, rate_row
from .nodes import Node, crew, together
from .servers import Server

TOGETHER = "turns of several processes, started and approved from all of them"
REMOTE = "from an answer on an API-only node to the tool's start on another"
TAKE_OVER = "from kill -9 of the owner to the tool's next start elsewhere"
WIDTH = 96
AT_ONCE = 1.0  # seconds; a dead node is looked for every half of one
BELL = Bar(most=50)


def measure(options: Options) -> list[Row]:
    """Measure all three; of SQLite only who takes over."""
    rows: list[Row] = []
    if not servers.absent():
        with servers.served() as server:
            rows = all_together(server, options) + remote(server, options)
            rows += take_over("redis", server.fresh(), 1000, None, options)
    with folder() as path:
        return rows + take_over("sqlite", f"sqlite:///{path}/turns.db", 10_000, AT_ONCE, options)


# ------------------------------------------------------------------------------------------------------------ together


def all_together(server: Server, options: Options) -> list[Row]:
    count = options.pick(5760, 96)
    shares: dict[int, list[float]] = {number: [] for number in (1, 2, 3)}

    def variant(nodes: list[Node]) -> Sample:
        before, began = server.busy(), time.perf_counter()
        sample = turns_of(server, nodes, count)
        shares[len(nodes)].append((server.busy().cpu - before.cpu) / 1e6 / (time.perf_counter() - began))
        return sample

    with crew(3) as nodes:
        samples = interleave({str(number): lambda number=number: variant(nodes[:number]) for number in shares}, options.pick(3, 1))
    alone = median_rate(samples["1"])
    return [
        rate_row(
            TOGETHER,
            f"{number} process{'es' if number > 1 else ''}, {WIDTH} at once in all",
            samples[str(number)],
            "turns/s",
            floor=alone if number > 1 else None,
            note=f"server {statistics.median(share):.0%} of a core",
        )
        for number, share in shares.items()
    ]


def turns_of(server: Server, nodes: list[Node], count: int) -> Sample:
    """Start as many turns on each; then each approves as many, of its own and of all others. Each tool runs once."""
    url, share, width = server.fresh(), count // len(nodes), WIDTH // len(nodes)
    everyone = range(len(nodes))
    together(nodes, "open", [{"url": url} for _ in everyone])
    warm = together(nodes, "start", [{"count": 8, "width": 8} for _ in everyone])
    together(nodes, "answer", [{"turns": turns, "width": 8} for turns in warm])
    used = [node("used")["cpu"] for node in nodes]
    begin = time.perf_counter()
    started = together(nodes, "start", [{"count": share, "width": width} for _ in everyone])
    mixed = [turn for row in zip(*started, strict=True) for turn in row]
    hands = [[turn for at, turn in enumerate(mixed) if (at + at // len(nodes)) % len(nodes) == number] for number in everyone]
    together(nodes, "answer", [{"turns": hand, "width": width} for hand in hands])
    wall = time.perf_counter() - begin
    cpu = sum(node("used")["cpu"] - before for node, before in zip(nodes, used, strict=True))
    ran = Counter(turn for node in nodes for turn, _, _ in node("starts"))
    together(nodes, "close", [{} for _ in everyone])
    assert set(ran) == {turn for turns in [mixed, *warm] for turn, _ in turns}, "every tool ran"
    assert set(ran.values()) == {1}, "every tool ran once"
    return Sample(share * len(nodes), wall, cpu)


# -------------------------------------------------------------------------------------------------------------- remote


def remote(server: Server, options: Options) -> list[Row]:
    """One answer at a time; two idle executors, so that the right one has to hear of it."""
    count = options.pick(600, 20)
    url = server.fresh()
    with crew(3) as nodes:
        *executors, api = nodes
        together(nodes, "open", [{"url": url}, {"url": url}, {"url": url, "execute": False}])
        turns = [turn for node in executors for turn in node("start", count=count // 2, width=16)]
        random.shuffle(turns)
        sent = api("answer", turns=turns, width=1)
        rows = [start for node in executors for start in node("starts")]
        together(nodes, "close", [{} for _ in nodes])
    starts = {turn: at for turn, _, at in rows}
    assert len(rows) == len(starts) == len(turns), "every tool ran once"
    found = [(starts[turn] - at) * 1000 for (turn, _), at in zip(turns, sent, strict=True)]
    return [
        Row(REMOTE, "p50", quantile(found, 0.5), "ms", min(found), max(found), bar=BELL, note="save there, bell, claim, save"),
        Row(REMOTE, "p99", quantile(found, 0.99), "ms"),
    ]


# ----------------------------------------------------------------------------------------------------------- take over


def take_over(store: str, url: str, lease: int, bar: float | None, options: Options) -> list[Row]:
    """Kill the owner of some turns whose tools run; another node is there and idle."""
    turns = options.pick(20, 5)
    settings = Settings(
        lease=lease, max_active=1, drain=0, cancel_grace=0, retention=0, max_snapshot=0, max_message=0
    )  # for its periods only
    periods = (lease + settings.grace + settings.reap) / 1000 + (RedisStore.poll_seconds or 0)
    found: list[float] = []
    with crew(1 + options.pick(8, 1)) as nodes:
        survivor, *victims = nodes
        survivor("open", url=url, lease=lease / 1000)
        for victim in victims:
            found += killed(survivor, victim, url, lease, turns)
    each, what = f"{len(victims)} kills of {turns} turns", f"{store}, lease {lease // 1000} s"
    note = "lease + grace + reap + poll" if bar is None else "at once: the lock of a dead node is free"
    limit = Bar(most=round(periods if bar is None else bar, 2))
    return [
        Row(TAKE_OVER, f"{what}, p50", quantile(found, 0.5), "s", min(found), max(found), note=each),
        Row(TAKE_OVER, f"{what}, the last one", max(found), "s", bar=limit, note=note),
    ]


def killed(survivor: Node, victim: Node, url: str, lease: int, turns: int) -> list[float]:
    """Return after how many seconds each turn's tool ran again."""
    victim("open", url=url, lease=lease / 1000)
    held = victim("hold", count=turns, width=turns)
    time.sleep(random.random() * min(lease, 1000) / 1000)  # somewhere between two renewals
    owned = victim("starts")
    at = time.monotonic()
    victim.kill()
    survivor("settle", turns=held, width=turns)
    again = {turn: (attempt, begun) for turn, attempt, begun in survivor("starts") if turn in set(held)}
    assert {(turn, attempt) for turn, attempt, _ in owned} == {(turn, 1) for turn in held}, "they ran there once"
    assert {attempt for attempt, _ in again.values()} == {2}, "they ran here, as a second attempt"
    assert set(again) == set(held)
    return [begun - at for _, begun in again.values()]
