"""The scripts: their whole texts, and the names under which a server keeps them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha1
from importlib import resources
from typing import final

NAMES = (
    *("create", "deliver", "cancel", "claim", "renew", "save", "abandon", "reap", "park", "drop"),
    *("look", "find", "events", "page", "beat", "format"),
    *("remember", "recall", "waiting", "relayed", "forget", "note"),
)
SHARED = ("clock", "prelude", "queues", "memories")
# The numbers under which statuses are stored: a new one goes to the end. One that is not known here is stored by its name, and is 0
# in the index of turns.
_STATUSES = (
    *("READY", "RUNNING", "WAITING_FOR_USER", "WAITING_FOR_APPROVAL", "WAITING_FOR_CHILD", "RETRY_SCHEDULED", "IN_DOUBT"),
    *("COMPLETED", "FAILED", "CANCELLED", "MAX_ITERATIONS_REACHED", "MAX_STEPS_REACHED", "BUDGET_EXCEEDED"),
)
CODES = {status: code for code, status in enumerate(_STATUSES, 1)}
_NAMES = {b"%d" % code: status for status, code in CODES.items()}

_LUA = resources.files("turnhold.store") / "lua"
_TEXTS = {name: (_LUA / f"{name}.lua").read_text() for name in (*SHARED, *NAMES)}  # read here, not on a loop
_WORD = re.compile(r"[A-Za-z_]\w*")
_PART = re.compile(r"^local (?:function )?([\w, ]+?)(?: =|\(|$)", re.MULTILINE)


def status_of(stored: bytes) -> str:
    """Return a status as it is called."""
    return _NAMES.get(stored) or stored.decode()


def _plain(text: str) -> str:
    """Return a script without comments, blank lines and indentation: a server reads it once, but who asks for it is waiting."""
    lines = (re.sub(r"^\s*--.*|\s--[^'\"]*$", "", line).strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def _parts(text: str) -> Iterable[tuple[frozenset[str], str]]:
    """Return what a file declares at its top level, each with the names it declares."""
    starts = [found.start() for found in _PART.finditer(text)]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        part = text[start:end]
        found = _PART.match(part)
        assert found is not None
        yield frozenset(_WORD.findall(found[1])), _plain(part)


def _shared_parts() -> list[tuple[frozenset[str], str]]:
    return [part for name in SHARED[1:] for part in _parts(_TEXTS[name])]


_PARTS = _shared_parts()


def _with_parts(script: str) -> str:
    """Return a script behind the shared parts that it needs, and no other: each takes time in every run."""
    wanted, chosen = set(_WORD.findall(script)), list[str]()
    for names, part in reversed(_PARTS):  # a part needs only what stands before it
        if names & wanted:
            wanted.update(_WORD.findall(part))
            chosen.append(part)
    return "\n".join([*reversed(chosen), script])


@final
class Scripts:
    """All scripts; before each stand the lines that say what the time is, and what it needs of what scripts share."""

    def __init__(self, clock: str | None = None) -> None:
        first = _plain(_TEXTS["clock"]) if clock is None else clock
        self.sources = {name: f"{first}\n{_with_parts(_plain(_TEXTS[name]))}" for name in NAMES}
        self.digests = {name: sha1(source.encode()).hexdigest() for name, source in self.sources.items()}  # noqa: S324 - Redis names scripts so
