"""Which turns of a tree are below which."""

from __future__ import annotations

from collections.abc import Iterable


def below(turn: str, tree: Iterable[tuple[str, str | None]]) -> list[str]:
    """Return a turn and all turns below it, depth first, siblings in the order in which they are given with their parents."""
    children: dict[str | None, list[str]] = {}
    for name, parent in tree:
        children.setdefault(parent, []).append(name)
    found: list[str] = []
    left = [turn]
    while left:
        name = left.pop()
        found.append(name)
        left += reversed(children.get(name, ()))
    return found
