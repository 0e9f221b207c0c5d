"""Faults, each a change of one file, and the tests of which one has to fail; those of the store's rules are in `tests/store/`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """One fault: what stands in a file, what shall stand there, and who has to notice. `more` are further changes of it."""

    name: str
    file: str
    tests: list[str]
    old: str
    new: str
    more: tuple[tuple[str, str], ...] = ()

    def applied(self, source: str) -> str:
        """Return the faulty source. :raises LookupError: if the source has changed under the mutant."""
        for old, new in ((self.old, self.new), *self.more):
            if source.count(old) != 1:
                raise LookupError(f"mutant {self.name!r}: {old!r} stands {source.count(old)} times in {self.file}")
            source = source.replace(old, new)
        return source


MUTANTS = [
    Mutant(**each)
    for name in ("machine", "runtime", "redis", "sqlite")
    for each in tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text())["mutant"]
]
