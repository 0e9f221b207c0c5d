"""`python -m bench.peers` from the root: the approve cycle on turnhold and on its peers, in one table."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from ..harness import Options, Row, Sample, machine, quantile, rate_row, table
from .catalog import PEERS, About
from .environments import Failed, Unavailable, requirements
from .places import Places
from .processes import worker

CYCLES = "approve cycles"
RESUME = "resume to completed, one at a time, p50"
WIDTHS = (1, 64)


class Measured:
    """What the workers of one peer on one store have sent."""

    def __init__(self, peer: About, store: str) -> None:
        self.peer, self.store = peer, store
        self.version = ""
        self.samples: dict[int, list[Sample]] = {width: [] for width in WIDTHS}
        self.middles: list[float] = []  # of each repeat, the median time from an approval to the end

    def add(self, width: int, sent: dict[str, Any]) -> None:
        self.samples[width].append(Sample(sent["count"], sent["wall"], sent["cpu"]))
        if width == 1:
            self.middles.append(quantile(sent["resume_ms"], 0.5))

    @property
    def name(self) -> str:
        return f"{self.peer.title} {self.version}, {self.store}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the peers that are named, or all."""
    names = [peer.module for peer in PEERS if peer.stores]
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("peers", nargs="*", help=f"of {', '.join(names)}; all by default, and turnhold beside them always")
    parser.add_argument("--quick", action="store_true", help="small counts, one repeat: does it still work?")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--list", action="store_true", help="say what would be measured, with which versions and settings")
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.peers if name not in names]:
        parser.error(f"no peer {unknown[0]!r}")
    peers = [peer for peer in PEERS if peer.stores and peer.module in {"turnhold", *(asked.peers or names)}]
    if asked.list:
        print(json.dumps(listed(peers), indent=2) if asked.json else notes(peers))
        return 0
    about = machine()
    found, absent = measured(peers, Options(quick=asked.quick))
    about["load at the end"] = machine()["load"]
    rows = rows_of(found)
    if asked.json:
        print(json.dumps({"machine": about, "rows": [row.to_dict() for row in rows], "absent": absent, "peers": listed(peers)}))
        return 0
    print("  ".join(f"{name} {value}" for name, value in about.items()))
    print(f"\n{table(rows)}\n\n{notes(peers)}")
    for name, reason in absent.items():
        print(f"\nleft out: {name}: {reason}")
    print(
        "\nAll checks held: every tool ran once, every answer was there. 'per CPU s' counts the peer's process alone, no servers."
    )
    return 0


def measured(peers: Sequence[About], options: Options) -> tuple[list[Measured], dict[str, str]]:
    """Run every peer on every store once a round; who cannot run is left out, and why."""
    variants = [Measured(peer, store) for peer in peers for store in peer.stores]
    absent: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        places = Places(stack)
        for repeat in range(options.repeats):
            begin = time.perf_counter()
            for each in list(variants):
                try:
                    sampled(each, places, 0.3 if options.quick else 3.0)
                except Unavailable as reason:
                    if isinstance(reason, Failed) and each.peer.module == "turnhold":
                        raise  # ours to mend
                    variants.remove(each)
                    absent[f"{each.peer.title}, {each.store}"] = str(reason)
                    print(f"{each.peer.title}, {each.store}: left out: {reason}", file=sys.stderr, flush=True)
            print(f"round {repeat + 1}: {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
    return variants, absent


def sampled(each: Measured, places: Places, seconds: float) -> None:
    """Measure once, in a new process on an empty store."""
    with places.fresh(each.store) as url, worker(each.peer.module) as process:
        each.version = process.ask("open", store=each.store, url=url)
        for width in WIDTHS:
            each.add(width, process.ask("cycles", seconds=seconds, width=width))
        process.ask("close")


def rows_of(found: Sequence[Measured]) -> list[Row]:
    """Make the lines: cycles a second at each width, then milliseconds; each says how turnhold did on the same kind of store."""
    own = {each.store: each for each in found if each.peer.module == "turnhold"}
    rows: list[Row] = []
    for width in reversed(WIDTHS):
        for each in found:
            row = rate_row(f"{CYCLES}, {width} at once", each.name, each.samples[width], "cycles/s")
            if beside := beside_of(each, own):
                ours = rate_row("", "", beside.samples[width], "")
                row.note = f"turnhold: {ours.value / row.value:.1f} x as fast, per CPU s {(ours.cpu or 0) / (row.cpu or 1):.1f} x"
            rows.append(row)
    for each in found:
        row = Row(RESUME, each.name, quantile(each.middles, 0.5), "ms", min(each.middles), max(each.middles))
        if beside := beside_of(each, own):
            row.note = f"turnhold: {row.value / quantile(beside.middles, 0.5):.1f} x as fast"
        rows.append(row)
    return rows


def beside_of(each: Measured, own: dict[str, Measured]) -> Measured | None:
    return None if each.peer.module == "turnhold" else own.get(each.store.split()[0])


def listed(peers: Sequence[About]) -> list[dict[str, Any]]:
    return [
        {
            "peer": peer.module,
            "title": peer.title,
            "stores": peer.stores,
            "pinned": requirements(peer.module).read_text().split() if requirements(peer.module).exists() else [],
            "settings": peer.settings,
            "guarantees": peer.keeps,
            "but": peer.leaves,
        }
        for peer in peers
    ]


def notes(peers: Sequence[About]) -> str:
    """Say for each peer how it was set, what it guarantees and what it does not."""
    parts: list[str] = []
    for each in listed(peers):
        pinned = ", ".join(each["pinned"]) or "as checked out"
        parts.append(
            f"{each['title']} ({pinned}) on {', '.join(each['stores'])}\n"
            f"  set:        {each['settings']}\n"
            f"  guarantees: {each['guarantees']}\n"
            f"  but:        {each['but']}"
        )
    return "\n\n".join(parts)


if __name__ == "__main__":
    raise SystemExit(main())
