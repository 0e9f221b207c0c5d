"""A few shapes as SVG, in colours that can be read on white and on black."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

INK, SOFT, FAINT = "#7d8590", "#8b949e", "#8b949e40"
COLOURS = ("#3d87d9", "#d9822b", "#4aa564", "#a86fc9")
GOAL = "#d1495b"
FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"


class Canvas:
    """A picture that grows shape by shape."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height = width, height
        self._title = title
        self._parts: list[str] = []

    def text(
        self, x: float, y: float, words: str, *, size: float = 12, anchor: str = "start", fill: str = INK, bold: bool = False
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self._parts.append(f'<text {place} font-size="{size:g}" fill="{fill}"{weight}>{escape(words)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = FAINT, width: float = 1, dash: str = "") -> None:
        more = f' stroke-dasharray="{dash}"' if dash else ""
        ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        self._parts.append(f'<line {ends} stroke="{colour}" stroke-width="{width:g}"{more}/>')

    def lines(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>')

    def bar(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        size = f'width="{width:.1f}" height="{height:.1f}"'
        self._parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" {size} rx="2" fill="{colour}"/>')

    def dot(self, x: float, y: float, colour: str, *, hollow: bool = False, radius: float = 5) -> None:
        fill = "none" if hollow else colour
        self._parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{fill}" stroke="{colour}" stroke-width="2"/>')

    def goal(self, x: float, y: float, half: float = 10) -> None:
        """A mark across a row: what is asked."""
        self.line(x, y - half, x, y + half, GOAL, 2.5)

    def __str__(self) -> str:
        size = f'width="{self.width:g}" height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{FONT}">'
        return "\n".join([head, f"<title>{escape(self._title)}</title>", *self._parts, "</svg>", ""])


class Scale:
    """From values to places on a line; logarithmic, or linear from 0."""

    def __init__(self, values: Sequence[float], start: float, end: float, *, log: bool) -> None:
        self._start, self._end, self._log = start, end, log
        high = max(values)
        if log:
            self._low, self._high = math.floor(math.log10(min(values))), math.ceil(math.log10(high))
            self._high += self._low == self._high
        else:
            step = 10 ** math.floor(math.log10(high))
            step = next(part * step for part in (0.25, 0.5, 1, 2, 2.5) if high / (part * step) <= 5.5)
            self._low, self._high, self._step = 0.0, math.ceil(high / step) * step, step

    def __call__(self, value: float) -> float:
        at = math.log10(value) if self._log else value
        return self._start + (at - self._low) / (self._high - self._low) * (self._end - self._start)

    def ticks(self) -> list[float]:
        if self._log:
            return [10.0**power for power in range(int(self._low), int(self._high) + 1)]
        return [self._step * at for at in range(round(self._high / self._step) + 1)]


def short(value: float) -> str:
    """A number as people write it beside a mark."""
    if value >= 1e6:
        return f"{value / 1e6:.3g}M"
    if value >= 10_000:
        return f"{value / 1000:.3g}k"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
