"""The scripts: their whole texts, and the names under which a server keeps them."""

from __future__ import annotations

from hashlib import sha1
from importlib import resources
from typing import final

NAMES = (
    *("create", "deliver", "cancel", "claim", "renew", "save", "abandon", "reap", "park", "drop"),
    *("look", "find", "events", "page", "beat"),
)
ALONE = {"beat"}  # needs nothing of the prelude


_LUA = resources.files("turnhold.store") / "lua"
_TEXTS = {name: (_LUA / f"{name}.lua").read_text() for name in ("clock", "prelude", *NAMES)}  # read here, not on a loop


@final
class Scripts:
    """All scripts, with the lines before each that say what the time is."""

    def __init__(self, clock: str | None = None) -> None:
        first = _TEXTS["clock"] if clock is None else clock
        self.sources = {name: "\n".join((first, "" if name in ALONE else _TEXTS["prelude"], _TEXTS[name])) for name in NAMES}
        self.digests = {name: sha1(source.encode()).hexdigest() for name, source in self.sources.items()}  # noqa: S324 - Redis names scripts so
