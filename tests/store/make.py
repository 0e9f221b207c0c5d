"""Short ways to make operations."""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec

from turnhold.actors.ids import base32
from turnhold.store import base as b

START = 1_700_000_000_000
LEASE = 1_000
GRACE = 100
_numbers = count(1)


def unique(kind: str) -> str:
    return f"{kind}{next(_numbers)}"


def root(text: str = "") -> str:
    return "0f-" + base32((text or unique("root")).encode().ljust(16, b"_")[:16])


def new(turn: str = "", **more: Any) -> b.NewTurn:
    known: dict[str, Any] = {
        "turn": turn or root(),
        "agent": "alpha",
        "agent_version": "1",
        "digest": "d",
        "schema": 1,
        "status": "READY",
        "snapshot": b"first",
        "messages": b.Messages(0, (b"hello",)),
        "events": b.Events(0, 1, b"created"),
    }
    return b.NewTurn(**(known | more))


def by(activation: str = "", **more: Any) -> b.ClaimBy:
    known: dict[str, Any] = {"activation": activation or unique("act"), "node": "n1", "lease_ms": LEASE, "schema": 1}
    return b.ClaimBy(**(known | more))


def mail(message_id: str = "", **more: Any) -> b.Mail:
    message_id = message_id or unique("mid")
    return b.Mail(message_id, more.pop("body", b"body of " + message_id.encode()), **more)


def wait(turn: str, call: str = "c1", number: int = 1, **more: Any) -> b.WaitRow:
    name = f"{turn}/{call}/{number}"
    return b.WaitRow(name, more.pop("kind", "TOOL_APPROVAL"), more.pop("created", START), b"wait " + name.encode(), **more)


def save(turn: str, token: b.Token, version: int, mode: b.Mode = b.Mode.KEEP, **more: Any) -> b.Save:
    """Make a save that appends nothing; `messages` and `events` start after the one of `new`."""
    known: dict[str, Any] = {
        "turn": turn,
        "token": token,
        "version": version,
        "save_id": unique("save"),
        "mode": mode,
        "lease_ms": LEASE,
        "schema": 1,
        "status": "COMPLETED" if mode is b.Mode.END else "RUNNING",
        "snapshot": f"snapshot {version + 1}".encode(),
        "messages": b.Messages(1),
        "events": b.Events(1),
        "closing": b"closed",
    }
    return b.Save(**(known | more))


def changed(op: b.Save, **more: Any) -> b.Save:
    return msgspec.structs.replace(op, **more)
