"""What a run says, keeps and draws; nothing is measured here."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
CYCLES, SIZES, ANSWERS = "approve cycles", "stored per suspended turn", "resume to completed, one at a time"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The bench's modules; the bench is run from the root, which is not on the path of the tests."""
    known = set(sys.modules)
    monkeypatch.syspath_prepend(str(ROOT))
    names = ("pages", "results", "rows")
    yield SimpleNamespace(**{key: value for name in names for key, value in vars(import_module(f"bench.{name}")).items()})
    for name in [name for name in sys.modules if name.split(".")[0] == "bench" and name not in known]:
        del sys.modules[name]


def rows_of(bench: Any, rate: float = 2500.0) -> list[Any]:
    bar, row = bench.Bar, bench.Row
    return [
        row(CYCLES, "memory, 64 at once", rate, "cycles/s", 1.0, 9.0, floor=12_000.0, bar=bar(least=3000)),
        row(CYCLES, "redis, 64 at once", 2100.0, "cycles/s", floor=7000.0, bar=bar(least=2000, least_of_floor=0.25)),
        row(ANSWERS, "redis, p50", 1.25, "ms", floor=0.5, bar=bar(most=1.5)),
        row(ANSWERS, "redis, p99", 3.5, "ms"),
        row(SIZES, "sqlite", 2400.0, "bytes", floor=700.0, bar=bar(most=2500)),
        row("one tool round", "memory, in a turn of 10", 300.0, "us CPU"),
        row("one tool round", "memory, in a turn of 200", 450.0, "us CPU", floor=300.0, bar=bar(most_of_floor=1.3)),
    ]


def test_each_bar_is_judged_and_what_is_not_met_is_named(bench: Any) -> None:
    """The last lines count the bars that are met and name each other one with its figure; so does the table."""
    rows = rows_of(bench)

    assert bench.verdict(rows).splitlines() == [
        "bars met: 3 of 5; not met:",
        "  approve cycles: memory, 64 at once: 2,500 cycles/s = 21% of floor, asked is >= 3,000",
        "  one tool round: memory, in a turn of 200: 450 us CPU = 150% of floor, asked is <= 1.3 x",
    ]
    assert bench.verdict(rows[1:3]) == "bars met: 2 of 2"
    assert [line.count("NOT MET") for line in bench.table(rows).splitlines() if "memory," in line] == [1, 0, 1]
    assert "met" not in bench.table(rows, judge=False).lower().replace("completed", "")


@pytest.mark.parametrize(
    ("bar", "value", "floor", "met"),
    [
        ({"least": 10}, 10, None, True),
        ({"least": 10}, 9.9, None, False),
        ({"most": 10}, 10, None, True),
        ({"most": 10}, 10.1, None, False),
        ({"least": 10, "least_of_floor": 0.25}, 20, 100, False),
        ({"least": 10, "least_of_floor": 0.25}, 25, 100, True),
        ({"least_of_floor": 0.25}, 25, None, False),
        ({"most_of_floor": 1.3}, 13, 10, True),
        ({"most_of_floor": 1.3}, 14, 10, False),
    ],
)
def test_a_bar_asks_for_all_of_it(bench: Any, bar: dict[str, float], value: float, floor: float | None, met: bool) -> None:
    """Bounds of the value and of its ratio to the floor; without a floor a bound of the ratio is not met."""
    assert bench.Row("s", "w", value, "u", floor=floor, bar=bench.Bar(**bar)).met is met


def test_runs_are_kept_line_by_line_and_drawn(bench: Any, tmp_path: Path) -> None:
    """A run adds a line; the pictures are of the newest run that has the figures, the history of all."""
    file, about = (
        tmp_path / "results.jsonl",
        {"date": "2026-12-01T10:00:00+00:00", "commit": "abc", "cores": "2", "python": "3.11.7"},
    )
    assert bench.kept(file) == []
    assert bench.draw([], tmp_path) == []

    bench.keep(about, rows_of(bench, 2000.123456), file)
    bench.keep({**about, "date": "2026-12-02T10:00:00+00:00"}, rows_of(bench), file)
    bench.keep({**about, "date": "2026-12-03T10:00:00+00:00"}, rows_of(bench)[-2:], file)
    runs = bench.kept(file)
    drawn = {path.stem: path.read_text() for path in bench.draw(runs, tmp_path / "plots")}

    assert len(file.read_text().splitlines()) == len(runs) == 3
    assert [run.row(CYCLES, "memory, 64 at once")["value"] for run in runs[:2]] == [2000.1, 2500.0]
    assert drawn.keys() == {"throughput", "latency", "stored", "rounds", "history"}
    for text in drawn.values():
        ET.fromstring(text)
    assert "2026-12-02" in drawn["throughput"]
    assert "2026-12-03" in drawn["rounds"]
    assert "3 runs" in drawn["history"]
