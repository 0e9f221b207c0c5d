"""`python -m bench` from the root: measures, checks that the work was right, and prints one table."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Sequence

from . import approve, cluster, growth, latency, mailbox, rounds, size, upkeep, waiting
from .harness import Options, Row, machine, table

SCENARIOS = {
    "approve": approve,
    "latency": latency,
    "rounds": rounds,
    "size": size,
    "mailbox": mailbox,
    "waiting": waiting,
    "growth": growth,
    "cluster": cluster,
    "upkeep": upkeep,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the scenarios that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("scenarios", nargs="*", help=f"of {', '.join(SCENARIOS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="small counts, one repeat: does it still work?")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.scenarios if name not in SCENARIOS]:
        parser.error(f"no scenario {unknown[0]!r}")
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
        if asked.json:
            print(json.dumps({"machine": about, "rows": [row.to_dict() for row in rows]}))
        else:
            print("  ".join(f"{name} {value}" for name, value in about.items()))
            print()
            print(table(rows))
    if asked.json:
        return 0
    print("\nAll checks held: every tool ran once, every answer was there. 'per CPU s' counts this process alone.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
