"""The scripts: their whole texts, and the names under which a server keeps them."""

from __future__ import annotations

from hashlib import sha1
from importlib import resources
from typing import final

NAMES = (
    *("create", "deliver", "cancel", "claim", "renew", "save", "abandon", "reap", "park", "drop"),
    *("look", "find", "events", "page", "beat", "format"),
    *("remember", "recall", "waiting", "relayed", "forget", "note"),
)
ALONE = {"beat", "format"}  # need nothing of the prelude
SHARED = ("clock", "prelude", "queues", "memories")
_WITH = {
    "create": ("queues",),
    "cancel": ("queues",),
    "park": ("queues",),
    "save": ("queues", "memories"),
    "remember": ("memories",),
}
# The numbers of statuses in the index of turns, where they are stored: a new one goes to the end. 0 is one that is not known here.
_STATUSES = (
    *("READY", "RUNNING", "WAITING_FOR_USER", "WAITING_FOR_APPROVAL", "WAITING_FOR_CHILD", "RETRY_SCHEDULED", "IN_DOUBT"),
    *("COMPLETED", "FAILED", "CANCELLED", "MAX_ITERATIONS_REACHED", "MAX_STEPS_REACHED", "BUDGET_EXCEEDED"),
)
CODES = {status: code for code, status in enumerate(_STATUSES, 1)}

_LUA = resources.files("turnhold.store") / "lua"
_TEXTS = {name: (_LUA / f"{name}.lua").read_text() for name in (*SHARED, *NAMES)}  # read here, not on a loop


@final
class Scripts:
    """All scripts; before each stand the lines that say what the time is, the codes of statuses, and what scripts share."""

    def __init__(self, clock: str | None = None) -> None:
        first = _TEXTS["clock"] if clock is None else clock
        codes = f"local CODES = {{{', '.join(f'{status} = {code}' for status, code in CODES.items())}}}"

        def parts(name: str) -> list[str]:
            shared = [] if name in ALONE else [codes, _TEXTS["prelude"], *(_TEXTS[one] for one in _WITH.get(name, ()))]
            return [first, *shared, _TEXTS[name]]

        self.sources = {name: "\n".join(parts(name)) for name in NAMES}
        self.digests = {name: sha1(source.encode()).hexdigest() for name, source in self.sources.items()}  # noqa: S324 - Redis names scripts so
