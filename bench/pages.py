"""The pictures of docs/performance.md, drawn from the runs that are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import approve, latency, rounds, size, waiting
from .results import Run
from .svg import COLOURS, INK, SOFT, Canvas, Scale, short

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "plots"
SHOWN = "docs/plots"
STORES = {"memory": "memory", "sqlite full": "SQLite FULL", "sqlite normal": "SQLite NORMAL", "redis": "Redis"}
DURABLE = ("memory", "sqlite full", "redis")
COLOUR = dict(zip(STORES, (COLOURS[0], COLOURS[1], COLOURS[3], COLOURS[2]), strict=True))
WIDTH, LEFT, RIGHT = 760, 150, 130
ROW = 24
Drawn = Canvas | None


@dataclass(frozen=True)
class Mark:
    """One row of a picture: a figure, its floor, and what is asked of it."""

    label: str
    colour: str
    value: float
    floor: float | None = None
    goal: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, label: str, colour: str, row: dict[str, Any], high: float | None = None) -> Mark:
        bounds = row.get("bounds") or {}
        goal = bounds.get("least") or bounds.get("most")
        return cls(label, colour, row["value"], row.get("floor"), goal, high)

    @property
    def values(self) -> list[float]:
        return [value for value in (self.value, self.floor, self.goal, self.high) if value is not None]


def draw(runs: Sequence[Run], folder: Path = FOLDER) -> list[Path]:
    """Draw what there is something to draw of, each from the newest run that has it; return the files."""
    pictures: dict[str, Drawn] = {name: _newest(runs, make) for name, make in PICTURES.items()}
    pictures["history"] = history(runs)
    folder.mkdir(parents=True, exist_ok=True)
    found: list[Path] = []
    for name, canvas in pictures.items():
        if canvas is not None:
            path = folder / f"{name}.svg"
            path.write_text(str(canvas), encoding="utf-8")
            found.append(path)
    return found


def _newest(runs: Sequence[Run], make: Callable[[Run], Drawn]) -> Drawn:
    return next((canvas for run in reversed(runs) if (canvas := make(run)) is not None), None)


def _about(run: Run) -> str:
    about = run.about
    loop = f", {about['loop']}" if about.get("loop", "asyncio") != "asyncio" else ""
    return f"{about['date'][:10]}, {about['commit']}, {about['cores']} cores, Python {about['python']}{loop}"


# ---------------------------------------------------------------------------------------------------------------- rows


def throughput(run: Run) -> Drawn:
    groups: list[tuple[str, list[Mark]]] = []
    for store, name in STORES.items():
        rows = [(width, run.row(approve.TITLE, f"{store}, {width:,} at once")) for width in approve.WIDTHS]
        groups.append((name, [Mark.of(f"{width:,} at once", COLOUR[store], row) for width, row in rows if row]))
    return rows_of(run, "Approve cycles a second, beside the floor of the same run", groups, log=True)


def delays(run: Run) -> Drawn:
    groups: list[tuple[str, list[Mark]]] = []
    for store in DURABLE:
        median, late = (run.row(latency.TITLE, f"{store}, p{part}") for part in (50, 99))
        if median and late:
            groups.append((STORES[store], [Mark.of("p50 and p99", COLOUR[store], median, late["value"])]))
    return rows_of(run, "From an answer to the end of the turn, one at a time, ms", groups, log=True)


def stored(run: Run) -> Drawn:
    groups: list[tuple[str, list[Mark]]] = []
    for store, colour in (("sqlite", "sqlite full"), ("redis", "redis")):
        found = [
            (label, run.row(title, what))
            for label, title, what in (
                ("some thousands", size.TITLE, store),
                ("100,000 of them", waiting.STORED, f"{store}, 100,000: stored for each"),
            )
        ]
        name = STORES[colour].removesuffix(" FULL")
        groups.append((name, [Mark.of(label, COLOUR[colour], row) for label, row in found if row]))
    return rows_of(run, "Bytes stored for a suspended turn with a conversation of 600 bytes", groups, log=False)


def rows_of(run: Run, title: str, groups: Sequence[tuple[str, list[Mark]]], *, log: bool) -> Drawn:
    """Rows of dots (bars where the axis begins at 0), a floor as a circle, a goal as a stroke."""
    marks = [mark for _, group in groups for mark in group]
    if not marks:
        return None
    shown = [group for group in groups if group[1]]
    bottom = 92 + sum(26 + ROW * len(group) for _, group in shown)
    canvas = Canvas(WIDTH, bottom + 44, title)
    scale = Scale([value for mark in marks for value in mark.values], LEFT, WIDTH - RIGHT, log=log)
    canvas.text(16, 26, title, size=15, bold=True)
    _legend(canvas, marks, 16, 48)
    for tick in scale.ticks():
        canvas.line(scale(tick), 70, scale(tick), bottom)
        canvas.text(scale(tick), bottom + 16, short(tick), size=11, anchor="middle", fill=SOFT)
    y = 80.0
    for name, group in shown:
        canvas.text(16, y + 8, name, bold=True)
        y += 26
        for mark in group:
            _row(canvas, scale, mark, y, from_zero=not log)
            y += ROW
    canvas.text(WIDTH - 16, bottom + 36, _about(run), size=10, anchor="end", fill=SOFT)
    return canvas


def _row(canvas: Canvas, scale: Scale, mark: Mark, y: float, *, from_zero: bool) -> None:
    at = scale(mark.value)
    canvas.text(LEFT - 14, y + 4, mark.label, anchor="end")
    canvas.line(LEFT, y, WIDTH - RIGHT, y)
    if from_zero:
        canvas.bar(LEFT, y - 7, at - LEFT, 14, mark.colour)
    others = [scale(value) for value in (mark.floor, mark.high) if value is not None]
    if others and not from_zero:
        canvas.line(min(at, *others), y, max(at, *others), y, mark.colour + "80", 2)
    if mark.goal is not None:
        canvas.goal(scale(mark.goal), y)
    if mark.floor is not None:
        canvas.dot(scale(mark.floor), y, "#ffffff" if from_zero else mark.colour, hollow=True)
    if mark.high is not None:
        canvas.dot(scale(mark.high), y, mark.colour, radius=2.5)
    if not from_zero:
        canvas.dot(at, y, mark.colour)
    canvas.text(WIDTH - RIGHT + 54, y + 4, short(mark.value), size=12, anchor="end", bold=True)
    if mark.floor is not None:
        canvas.text(WIDTH - RIGHT + 60, y + 4, f"floor {short(mark.floor)}", size=10, fill=SOFT)


def _legend(canvas: Canvas, marks: Sequence[Mark], x: float, y: float) -> None:
    canvas.dot(x + 5, y - 4, INK)
    canvas.text(x + 16, y, "measured", size=11)
    x += 90
    if any(mark.high is not None for mark in marks):
        canvas.dot(x + 5, y - 4, INK, radius=2.5)
        canvas.text(x + 14, y, "p99", size=11)
        x += 60
    if any(mark.floor is not None for mark in marks):
        canvas.dot(x + 5, y - 4, INK, hollow=True)
        canvas.text(x + 16, y, "floor: the same bytes, nothing around them", size=11)
        x += 274
    if any(mark.goal is not None for mark in marks):
        canvas.goal(x + 5, y - 4)
        canvas.text(x + 16, y, "asked", size=11)


# --------------------------------------------------------------------------------------------------------------- lines


@dataclass(frozen=True)
class Panel:
    """Lines over one axis: `lines` are store and values (`None` where a run has none)."""

    title: str
    labels: Sequence[str]
    lines: Sequence[tuple[str, Sequence[float | None]]]
    log: bool = False


def costs(run: Run) -> Drawn:
    lines: list[tuple[str, list[float | None]]] = []
    for store in DURABLE:
        found = [run.row(rounds.TITLE, f"{store}, in a turn of {length:,}") for length in rounds.LENGTHS]
        lines.append((store, [row["value"] if row else None for row in found]))
    if not any(value is not None for _, values in lines for value in values):
        return None
    panel = Panel("CPU of one tool round, µs", [f"{length:,} rounds" for length in rounds.LENGTHS], lines)
    return panels("What a round costs in a short and in a long turn", [panel], _about(run))


def history(runs: Sequence[Run]) -> Drawn:
    """Lines over all runs that are kept."""
    labels = [run.about["date"][5:10] for run in runs]
    rates = [(store, _over(runs, approve.TITLE, f"{store}, 64 at once")) for store in DURABLE]
    times = [(store, _over(runs, latency.TITLE, f"{store}, p50")) for store in DURABLE]
    sizes = [(store, _over(runs, size.TITLE, store.split()[0])) for store in DURABLE[1:]]
    made = [
        Panel("approve cycles a second, 64 at once", labels, rates, log=True),
        Panel("answer to completed, p50, ms", labels, times, log=True),
        Panel("bytes of a suspended turn", labels, sizes),
    ]
    wanted = [panel for panel in made if any(value is not None for _, values in panel.lines for value in values)]
    return panels("Over time", wanted, f"{len(runs)} run{'s' if len(runs) > 1 else ''}") if wanted else None


def _over(runs: Sequence[Run], scenario: str, what: str) -> list[float | None]:
    found = [run.row(scenario, what) for run in runs]
    return [row["value"] if row else None for row in found]


def panels(title: str, shown: Sequence[Panel], about: str) -> Canvas:
    high = 190
    canvas = Canvas(WIDTH, 66 + len(shown) * (high + 62) + 10, title)
    canvas.text(16, 26, title, size=15, bold=True)
    x = 16.0
    for store in [store for store in STORES if any(store == name for panel in shown for name, _ in panel.lines)]:
        canvas.dot(x + 5, 44, COLOUR[store])
        canvas.text(x + 16, 48, STORES[store], size=11)
        x += 110
    for number, panel in enumerate(shown):
        _panel(canvas, panel, 82 + number * (high + 62), high)
    canvas.text(WIDTH - 16, canvas.height - 8, about, size=10, anchor="end", fill=SOFT)
    return canvas


def _panel(canvas: Canvas, panel: Panel, top: float, high: float) -> None:
    left, right, bottom = 70.0, WIDTH - 70.0, top + high
    values = [value for _, line in panel.lines for value in line if value is not None]
    scale = Scale(values, bottom, top + 14, log=panel.log)
    step = (right - left) / max(1, len(panel.labels) - 1)
    canvas.text(16, top, panel.title, bold=True)
    for tick in scale.ticks():
        canvas.line(left, scale(tick), right, scale(tick))
        canvas.text(left - 8, scale(tick) + 4, short(tick), size=11, anchor="end", fill=SOFT)
    every = -(-len(panel.labels) // 12)
    for at, label in enumerate(panel.labels):
        if at % every == 0:
            canvas.text(left + at * step, bottom + 18, label, size=11, anchor="middle", fill=SOFT)
    ends: list[tuple[float, float, str]] = []
    for store, line in panel.lines:
        points = [(left + at * step, scale(value)) for at, value in enumerate(line) if value is not None]
        if points:
            canvas.lines(points, COLOUR[store])
            for x, y in points:
                canvas.dot(x, y, COLOUR[store], radius=3)
            last = next(value for value in reversed(line) if value is not None)
            ends.append((points[-1][1] + 4, points[-1][0] + 10, short(last)))
    below = 0.0
    for y, x, words in sorted(ends):  # labels that would lie upon each other move apart
        below = max(y, below + 13)
        canvas.text(x, below, words, size=11)


PICTURES: dict[str, Callable[[Run], Drawn]] = {
    "throughput": throughput,
    "latency": delays,
    "stored": stored,
    "rounds": costs,
}
