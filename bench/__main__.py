"""`python -m bench` from the root: measures, checks that the work was right, and prints one table.

With --keep the run is added to bench/results.jsonl; --plot draws what is kept there into docs/plots, alone or after a run.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Sequence

from . import (
    approve,
    cluster,
    growth,
    latency,
    mailbox,
    operations,
    pages,
    results,
    rounds,
    size,
    startup,
    upkeep,
    waiting,
)
from .harness import LOOP, Options, Row, machine, table
from .rows import verdict

SCENARIOS = {
    "approve": approve,
    "latency": latency,
    "operations": operations,
    "rounds": rounds,
    "size": size,
    "mailbox": mailbox,
    "waiting": waiting,
    "growth": growth,
    "cluster": cluster,
    "upkeep": upkeep,
    "startup": startup,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the scenarios that are named, or all."""
    asked = parse(arguments)
    if asked.plot and not asked.scenarios and not asked.keep:
        return plotted()
    if asked.loop:
        os.environ[LOOP] = asked.loop
    logging.getLogger("turnhold").setLevel(logging.WARNING)
    options = Options(quick=asked.quick)
    about = machine()
    rows: list[Row] = []
    try:
        for name in asked.scenarios or SCENARIOS:
            begin = time.perf_counter()
            rows += SCENARIOS[name].measure(options)
            print(f"{name}: {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
    finally:  # also what was measured before something failed
        show(about, rows, asked)
    if asked.keep:
        results.keep(about, rows)
    return plotted() if asked.plot else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("scenarios", nargs="*", help=f"of {', '.join(SCENARIOS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="small counts, one repeat: does it still work?")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], help="the event loop (uvloop must be installed)")
    parser.add_argument("--keep", action="store_true", help=f"add the run to {results.SHOWN}")
    parser.add_argument("--plot", action="store_true", help=f"draw what is kept into {pages.SHOWN}")
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.scenarios if name not in SCENARIOS]:
        parser.error(f"no scenario {unknown[0]!r}")
    if asked.keep and asked.quick:
        parser.error("a quick run is not kept: its figures say nothing")
    return asked


def show(about: dict[str, str], rows: list[Row], asked: argparse.Namespace) -> None:
    if asked.json:
        print(json.dumps({"machine": about, "rows": [row.to_dict() for row in rows]}))
        return
    print("  ".join(f"{name} {value}" for name, value in about.items()))
    print()
    print(table(rows, judge=not asked.quick))
    if sys.exc_info()[0] is not None:
        return
    print("\nAll checks held: every tool ran once, every answer was there. 'per CPU s' counts this process alone.")
    print("quick: no bar is judged" if asked.quick else verdict(rows))


def plotted() -> int:
    for path in pages.draw(results.kept()):
        print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
