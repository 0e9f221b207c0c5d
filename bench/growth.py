"""Does a turn cost more when many others are stored? Approve cycles on Redis beside more and more suspended turns."""

from __future__ import annotations

from . import servers
from .copies import Copies, answer
from .harness import Options, Row, median_rate, quantile, rate_row, run
from .latency import latencies
from .work import cycles

TITLE = "beside many suspended turns on Redis"
ANSWERED = 20


def measure(options: Options) -> list[Row]:
    """Measure at each number; nothing where there is no server."""
    if servers.absent():
        return []
    levels = (60, 90, 120) if options.quick else (1000, 10_000, 100_000)
    rows: list[Row] = []
    first = first_delay = None
    with servers.served() as server:
        copies = Copies()
        run(lambda: cycles(server.url, 8, 8))  # all scripts are loaded
        extra = stored = 0
        for level in levels:
            before = server.memory()
            turns = run(lambda level=level, stored=stored: copies.fill(server.url, level - stored))
            extra += server.memory() - before
            stored = level
            samples = [run(lambda: cycles(server.url, options.pick(1024, 64), 64)) for _ in range(options.pick(3, 1))]
            delays = run(lambda: latencies(server.url, options.pick(400, 20)))
            run(lambda turns=turns: answer(server.url, turns[:ANSWERED]))
            rate, delay = median_rate(samples), quantile(delays, 0.5)
            rows += [
                rate_row(TITLE, f"{level:,}: approve cycles, 64 at once", samples, "cycles/s", floor=first),
                Row(TITLE, f"{level:,}: resume to completed, p50", delay, "ms", floor=first_delay),
                Row(TITLE, f"{level:,}: stored per suspended turn", extra / level, "bytes"),
            ]
            first, first_delay = first or rate, first_delay or delay
    return rows
