"""One tool round in a long turn against one in a short turn: the cost of a step must not grow with the turn."""

from __future__ import annotations

import contextlib
import statistics

from turnhold import Runtime

from . import servers
from .harness import Bar, Clock, Options, Row, Sample, Variant, folder, interleave, run
from .work import ANSWER, Work

TITLE = "one tool round"
LENGTHS = (10, 50, 200, 1000)
BAR = Bar(most_of_floor=1.3)


def measure(options: Options) -> list[Row]:
    """Measure all lengths on all stores."""
    rows: list[Row] = []
    turns = options.pick(40, 2)
    lengths = LENGTHS[::2] if options.quick else LENGTHS
    with folder() as path, contextlib.ExitStack() as stack:
        names = iter(range(1_000_000))
        urls = {"memory": lambda: "memory://", "sqlite full": lambda: f"sqlite:///{path}/{next(names)}.db"}
        if not servers.absent():
            urls["redis"] = stack.enter_context(servers.served()).fresh
        for store, url in urls.items():
            variants: dict[str, Variant] = {
                f"{length}": lambda url=url, length=length: run(lambda: rounds(url(), length, max(1, turns * LENGTHS[0] // length)))
                for length in lengths
            }
            samples = interleave(variants, options.pick(7, 1), {"1000": 3})
            short, *others = [statistics.median(1e6 / sample.cpu_rate for sample in found) for found in samples.values()]
            rows.append(Row(TITLE, f"{store}, in a turn of {lengths[0]}", short, "us CPU"))
            for length, cost in zip(lengths[1:], others, strict=True):
                rows.append(Row(TITLE, f"{store}, in a turn of {length:,}", cost, "us CPU", floor=short, bar=BAR))
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
