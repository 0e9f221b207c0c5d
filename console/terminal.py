"""Plain, aligned text for a terminal: colour only where a person looks at it."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final, TextIO, final

INDENT: Final = "  "
_CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_INSTEAD: Final = {"\t": " ", "\r": " "}


@final
class Terminal:
    """Where a command writes.

    :param out: standard output by default.
    :param width: columns; those of the terminal by default, `None` (no limit) where nobody looks.
    """

    def __init__(self, out: TextIO | None = None, *, width: int | None = None) -> None:
        self.out = sys.stdout if out is None else out
        self.seen = self.out.isatty()
        self.colour = self.seen and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.width = shutil.get_terminal_size().columns if width is None and self.seen else width

    def line(self, text: str = "") -> None:
        """Write one line, at once."""
        self.out.write(text.rstrip() + "\n")
        self.out.flush()

    def lines(self, lines: Iterable[str]) -> None:
        """Write lines."""
        for text in lines:
            self.line(text)

    def piece(self, text: str) -> None:
        """Write without ending the line, at once."""
        self.out.write(text)
        self.out.flush()

    def paragraph(self, text: str, indent: str = INDENT) -> None:
        """Write text, wrapped to 78 columns."""
        self.lines(textwrap.wrap(text, 78, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False))

    def style(self, name: str, text: str) -> str:
        """Return text in a style (bold, dim, red, green, yellow, cyan), or as it is."""
        return f"\033[{_CODES[name]}m{text}\033[0m" if self.colour and text else text

    def fit(self, text: str, used: int = 0) -> str:
        """Return text on one line, cut to what is left of the width."""
        text = " ".join(plain(text).split())
        return text if self.width is None else shortened(text, max(8, self.width - used))


def plain(text: str) -> str:
    """Return text without control characters: what a model or a person wrote must not steer the terminal."""
    return "".join(one if one.isprintable() or one == "\n" else _INSTEAD.get(one, "\N{REPLACEMENT CHARACTER}") for one in text)


def shortened(text: str, limit: int) -> str:
    """Return text cut to a number of characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def aligned(rows: Sequence[Sequence[str]], indent: str = INDENT) -> list[str]:
    """Return rows as lines whose columns are aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [indent + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
