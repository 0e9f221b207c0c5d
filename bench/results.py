"""What earlier runs have found: a file with one line of JSON a run, oldest first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .rows import Row

FILE = Path(__file__).with_name("results.jsonl")
SHOWN = "bench/results.jsonl"
FIELDS = ("scenario", "what", "value", "unit", "low", "high", "cpu", "floor", "bounds", "met")


class Run:
    """A run that was kept."""

    def __init__(self, about: dict[str, str], rows: Sequence[dict[str, Any]]) -> None:
        self.about = about
        self._rows = {(row["scenario"], row["what"]): row for row in rows}

    def row(self, scenario: str, what: str) -> dict[str, Any] | None:
        return self._rows.get((scenario, what))

    def whats(self, scenario: str) -> list[str]:
        return [what for title, what in self._rows if title == scenario]


def keep(about: dict[str, str], rows: Sequence[Row], file: Path = FILE) -> None:
    """Add a run."""
    short = [{name: value for name, value in row.to_dict().items() if name in FIELDS and value is not None} for row in rows]
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps({"about": about, "rows": rounded(short)}, ensure_ascii=False) + "\n")


def rounded(value: Any) -> Any:
    """The same with numbers of five digits: more is noise."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items() if part is not None}
    return [rounded(part) for part in value] if isinstance(value, list) else value


def kept(file: Path = FILE) -> list[Run]:
    """Return all runs."""
    if not file.exists():
        return []
    found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [Run(run["about"], run["rows"]) for run in found]
