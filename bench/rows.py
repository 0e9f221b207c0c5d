"""What a run finds: figures beside their floors and the bars that DESIGN sets, and the table of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Bar:
    """What is asked of a figure, all of it: bounds of the value, and bounds of its ratio to the floor of the same run."""

    least: float | None = None
    most: float | None = None
    least_of_floor: float | None = None
    most_of_floor: float | None = None

    def met(self, value: float, ratio: float | None) -> bool:
        """Tell whether a figure holds it; a ratio that is not known does not."""
        low, high = self.least_of_floor, self.most_of_floor
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (low is None or (ratio is not None and ratio >= low))
            and (high is None or (ratio is not None and ratio <= high))
        )

    def __str__(self) -> str:
        words = [
            "" if self.least is None else f">= {self.least:,g}",
            "" if self.most is None else f"<= {self.most:,g}",
            "" if self.least_of_floor is None else f">= {self.least_of_floor:.0%} of floor",
            "" if self.most_of_floor is None else f"<= {self.most_of_floor:g} x",
        ]
        return ", ".join(filter(None, words))


@dataclass
class Row:
    """One line of the table: a median with its spread, beside the floor of the same run."""

    scenario: str
    what: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    cpu: float | None = None
    floor: float | None = None
    bar: Bar | None = None
    note: str = ""
    ratio: float | None = field(init=False)

    def __post_init__(self) -> None:
        self.ratio = None if not self.floor else self.value / self.floor

    @property
    def met(self) -> bool | None:
        """Tell whether the bar is held; `None` where there is none."""
        return None if self.bar is None else self.bar.met(self.value, self.ratio)

    def to_dict(self) -> dict[str, Any]:
        found = asdict(self)
        return {**found, "bar": str(self.bar or ""), "bounds": found["bar"], "met": self.met}


def verdict(rows: Sequence[Row]) -> str:
    """Say how many bars are met, and each that is not."""
    judged = [row for row in rows if row.met is not None]
    missed = [row for row in judged if not row.met]
    lines = [f"bars met: {len(judged) - len(missed)} of {len(judged)}" + ("; not met:" if missed else "")]
    for row in missed:
        ratio = f" = {row.ratio:.0%} of floor" if row.ratio is not None else ""
        lines.append(f"  {row.scenario}: {row.what}: {number(row.value)} {row.unit}{ratio}, asked is {row.bar}")
    return "\n".join(lines)


def number(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 10_000:
        return f"{value / 1000:,.0f}k" if value < 1e6 else f"{value / 1e6:,.2f}M"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


HEAD = ("", "median", "unit", "spread", "per CPU s", "floor", "of floor", "goal", "", "")
JUDGED = {None: "", True: "met", False: "NOT MET"}


def table(rows: Sequence[Row], *, judge: bool = True) -> str:
    """Lay the lines out under one head, a title a scenario."""
    cells: list[tuple[str, ...]] = [HEAD]
    for row in rows:
        spread = "" if row.low is None else f"{number(row.low)} .. {number(row.high)}"
        ratio = "" if row.ratio is None else f"{row.ratio:.1%}" if row.ratio < 1 else f"{row.ratio:.1f} x"
        said = JUDGED[row.met] if judge else ""
        figures = (row.what, number(row.value), row.unit, spread, number(row.cpu), number(row.floor), ratio)
        cells.append((*figures, str(row.bar or ""), said, row.note))
    widths = [max(len(line[at]) for line in cells) for at in range(len(HEAD))]
    right = {1, 3, 4, 5, 6}

    def line(words: tuple[str, ...]) -> str:
        return "  ".join(
            word.rjust(width) if at in right else word.ljust(width)
            for at, (word, width) in enumerate(zip(words, widths, strict=True))
        ).rstrip()

    lines = [line(HEAD)]
    scenario = ""
    for row, words in zip(rows, cells[1:], strict=True):
        if row.scenario != scenario:
            scenario = row.scenario
            lines += ["", scenario]
        lines.append(line(words))
    return "\n".join(lines)
