"""`python -m bench.peers.double_approve`: two approve one paused turn at the same moment; how often did its tool run."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...harness import machine
from ..catalog import PEERS, About
from ..environments import Failed, Unavailable
from ..places import Places
from ..processes import Worker, worker
from ..worker import ANSWER

LEAD = 0.05  # seconds until the moment at which both approve


@dataclass
class Race:
    """What came of all repeats of one way to approve twice."""

    ran: list[int] = field(default_factory=list)  # how often the tool ran, of each repeat
    told: list[str] = field(default_factory=list)  # what the two callers were told

    @property
    def twice(self) -> str:
        never = f" (never in {self.ran.count(0)})" if 0 in self.ran else ""
        return f"{sum(times > 1 for times in self.ran)} of {len(self.ran)}{never}"

    @property
    def callers(self) -> str:
        counted = Counter(self.told)
        return ", ".join(f"{what} ({number})" if len(counted) > 1 else what for what, number in counted.most_common())


@dataclass
class Result:
    """One peer on one store."""

    peer: str
    store: str
    version: str
    processes: Race
    tasks: Race


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the peers that are named, or all."""
    names = [peer.module for peer in PEERS if peer.raced]
    parser = argparse.ArgumentParser(prog="python -m bench.peers.double_approve", description=__doc__)
    parser.add_argument("peers", nargs="*", help=f"of {', '.join(names)}; all by default")
    parser.add_argument("--repeats", type=int, default=20, help="how often each is tried (20)")
    parser.add_argument("--tool-ms", type=float, default=50, help="how long the tool takes (50)")
    parser.add_argument("--quick", action="store_true", help="two repeats: does it still work?")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.peers if name not in names]:
        parser.error(f"no peer {unknown[0]!r}")
    repeats = 2 if asked.quick else asked.repeats
    about, results, absent = machine(), [], {}
    with contextlib.ExitStack() as stack:
        places = Places(stack)
        for peer in PEERS:
            for store in peer.raced if peer.module in (asked.peers or names) else ():
                try:
                    results.append(tried(peer, store, places, repeats, asked.tool_ms / 1000))
                except Unavailable as reason:
                    if isinstance(reason, Failed) and peer.module == "turnhold":
                        raise  # ours to mend
                    absent[f"{peer.title}, {store}"] = str(reason)
                    print(f"{peer.title}, {store}: left out: {reason}", file=sys.stderr, flush=True)
    if asked.json:
        print(json.dumps({"machine": about, "results": [asdict(result) for result in results], "absent": absent}))
    else:
        print("  ".join(f"{name} {value}" for name, value in about.items()))
        print(f"\n{repeats} repeats, a tool of {asked.tool_ms:g} ms\n\n{table(results)}")
    return 0


def tried(peer: About, store: str, places: Places, repeats: int, seconds: float) -> Result:
    """Let three processes of a peer open a store: one starts turns, two answer."""
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(places.fresh(store))
        ledger = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnhold-peers-"))) / "ledger"
        ledger.touch()
        starter, *answerers = [stack.enter_context(worker(peer.module)) for _ in range(3)]
        options: dict[str, Any] = {"store": store, "url": url, "ledger": str(ledger), "seconds": seconds}
        version = starter.ask("open", **options)
        for each in answerers:
            each.ask("open", serves=False, **options)
            alone(starter, each, ledger)
        processes, tasks = Race(), Race()
        for number in range(repeats):
            order = f"two-processes-{number}"
            handle = starter.ask("start", order=order)
            at = time.monotonic() + LEAD
            for each, by in zip(answerers, ("ann", "ben"), strict=True):
                each.send("approve", handle=handle, by=by, at=at)
            note(processes, [each.receive() for each in answerers], ledger, order)
            order = f"two-tasks-{number}"
            handle = starter.ask("start", order=order)
            note(tasks, starter.ask("approve_twice", handle=handle), ledger, order)
        for each in (starter, *answerers):
            each.ask("close")
    return Result(peer.title, store, version, processes, tasks)


def alone(starter: Worker, answerer: Worker, ledger: Path) -> None:
    """See that one approval runs the tool once; after this, nothing is done for the first time."""
    order = f"alone-{time.monotonic_ns()}"
    told = answerer.ask("approve", handle=starter.ask("start", order=order), by="ann")
    if told != ANSWER or runs(ledger, order) != 1:
        raise Failed(f"a single approval was told {told!r}, and the tool ran {runs(ledger, order)} times")


def note(race: Race, told: list[str], ledger: Path, order: str) -> None:
    race.ran.append(runs(ledger, order))
    words = sorted(("done" if what == ANSWER else what for what in told), key=lambda what: (what != "done", what))
    race.told.append(f"both {words[0]}" if words[0] == words[1] else f"one {words[0]}, one {words[1]}")


def runs(ledger: Path, order: str) -> int:
    return sum(line.split()[0] == order for line in ledger.read_text().splitlines())


def table(results: Sequence[Result]) -> str:
    """Lay out the results as Markdown, fit for a page."""
    lines = [
        "| | store | two processes: the tool ran twice | and they were told | two tasks of one process | and they were told |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for each in results:
        title = f"{each.peer} {each.version}"
        cells = [title, each.store, each.processes.twice, each.processes.callers, each.tasks.twice, each.tasks.callers]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
