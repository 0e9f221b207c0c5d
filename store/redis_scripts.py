"""The scripts: their whole texts, and the names under which a server keeps them."""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib import resources
from typing import final

NAMES = (
    *("create", "deliver", "cancel", "claim", "renew", "save", "abandon", "reap", "park", "drop"),
    *("look", "find", "events", "page", "beat"),
)
ALONE = {"beat"}  # needs nothing of the prelude


@cache
def _text(name: str) -> str:
    return (resources.files("turnhold.store") / "lua" / f"{name}.lua").read_text()


@final
class Scripts:
    """All scripts, with the lines before each that say what the time is."""

    def __init__(self, clock: str | None = None) -> None:
        first = _text("clock") if clock is None else clock
        self.sources = {name: "\n".join((first, "" if name in ALONE else _text("prelude"), _text(name))) for name in NAMES}
        self.digests = {name: sha1(source.encode()).hexdigest() for name, source in self.sources.items()}  # noqa: S324 - Redis names scripts so
