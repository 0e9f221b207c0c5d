"""Short ways to make operations."""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec

from ...actors.ids import child_id, partition_of, root_id
from ...store import base as b

START = 1_700_000_000_000
LEASE = 60_000
GRACE = 100
SPREAD = 37  # between the partitions of one root and the next
_numbers = count(1)


def unique(kind: str) -> str:
    """Return a name that nothing else has."""
    return f"{kind}{next(_numbers)}"


def root(conversation: str | None = None, *, beside: str | None = None) -> str:
    """Name a root: in its conversation's partition, in that of another turn, or in the next one."""
    number = next(_numbers)
    partition = number * SPREAD % 256 if beside is None else partition_of(beside)
    return root_id(bytes([partition]) + f"root{number:021d}".encode(), conversation, None, "")


def child(turn: str, number: int = 1) -> str:
    """Name the n-th child of a root."""
    return child_id(turn, f"child{number:05d}".encode())


def new(turn: str = "", **more: Any) -> b.NewTurn:
    """Make a turn to create."""
    known: dict[str, Any] = {
        "turn": turn or root(more.get("conversation")),
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
    """Make who claims."""
    known: dict[str, Any] = {"activation": activation or unique("act"), "node": "n1", "lease_ms": LEASE, "schema": 1}
    return b.ClaimBy(**(known | more))


def mail(message_id: str = "", **more: Any) -> b.Mail:
    """Make a message."""
    message_id = message_id or unique("mid")
    return b.Mail(message_id, more.pop("body", b"body of " + message_id.encode()), **more)


def wait(turn: str, call: str = "c1", number: int = 1, **more: Any) -> b.WaitRow:
    """Make an open wait."""
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
    """Change a save; it stays the same save by its id."""
    return msgspec.structs.replace(op, **more)
