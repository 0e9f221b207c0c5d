"""One tool round in a long turn against one in a short turn: the cost of a step must not grow with the turn."""

from __future__ import annotations

import contextlib
import statistics

from turnhold import Runtime

from . import servers
from .harness import Clock, Options, Row, Sample, folder, interleave, run
from .work import ANSWER, Work

TITLE = "one tool round"
SHORT, LONG = 10, 200


def measure(options: Options) -> list[Row]:
    """Measure both lengths on all stores."""
    rows: list[Row] = []
    turns = options.pick(40, 2)
    with folder() as path, contextlib.ExitStack() as stack:
        names = iter(range(1_000_000))
        urls = {"memory": lambda: "memory://", "sqlite full": lambda: f"sqlite:///{path}/{next(names)}.db"}
        if not servers.absent():
            urls["redis"] = stack.enter_context(servers.served()).fresh
        for store, url in urls.items():
            samples = interleave(
                {
                    "short": lambda url=url: run(lambda: rounds(url(), SHORT, turns)),
                    "long": lambda url=url: run(lambda: rounds(url(), LONG, max(1, turns * SHORT // LONG))),
                },
                options.pick(9, 1),
            )
            short, long = (statistics.median(1e6 / sample.cpu_rate for sample in samples[name]) for name in ("short", "long"))
            rows.append(Row(TITLE, f"{store}, in a turn of {SHORT}", short, "us CPU"))
            rows.append(Row(TITLE, f"{store}, in a turn of {LONG}", long, "us CPU", floor=short, bar="1.3 x"))
    return rows


async def rounds(url: str, length: int, turns: int) -> Sample:
    work = Work(approval=False, rounds=length)
    async with Runtime(url, agents=[work.agent]) as runtime:
        await runtime.run("order-agent", "once", timeout=60)
        clock = Clock()
        for _ in range(turns):
            view = await runtime.run("order-agent", "go on", timeout=60)
            assert view.final_output == ANSWER
        sample = clock.sample(turns * length)
    assert work.runs == (turns + 1) * length, "every call ran once"
    return sample
