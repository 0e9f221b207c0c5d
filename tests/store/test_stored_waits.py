"""How open waits lie in the indexes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from turnhold.actors.chat import ToolCall
from turnhold.actors.errors import SnapshotCorrupt
from turnhold.actors.ids import child_id, root_id, wait_id
from turnhold.actors.record import utc
from turnhold.actors.waits import Phase, Suspension, SuspensionType
from turnhold.store import codec

ROOT = root_id(b"\x07" * 26, None, None, "test")
CHILD = child_id(ROOT, b"\x01" * 10)
PLAIN: dict[str, Any] = {
    "id": wait_id(ROOT, "call", 1),
    "type": SuspensionType.TOOL_APPROVAL,
    "turn_id": ROOT,
    "root_turn_id": ROOT,
    "agent_id": "desk",
    "created_at": utc(1_700_000_000_123),
}
MORE: tuple[dict[str, Any], ...] = (
    {},
    {"id": wait_id(CHILD, "call", 1), "turn_id": CHILD, "ancestors": (ROOT,)},
    {"id": "w", "turn_id": "t", "root_turn_id": "r"},
    {"form_key": "TOOLS"},
    {"resume_phase": Phase.MODEL, "schema": {}},
    {"call": ToolCall("call", "refund", {"amount": 25}), "correlation_id": "call", "message": "", "metadata": {"code": None}},
    {"conversation_id": "", "tenant": "shop", "assignee": "ann", "expires_at": utc(1_700_000_000_999)},
)


@pytest.mark.parametrize("more", MORE)
def test_a_wait_is_read_as_it_was_written(more: dict[str, Any]) -> None:
    """Whatever of it is usual, or is said by its id, and is not stored."""
    wait = Suspension(**(PLAIN | more))

    assert codec.decode_suspension(wait.turn_id, codec.encode_suspension(wait)) == wait


@pytest.mark.parametrize("more", MORE)
def test_a_wait_that_was_stored_with_names_is_read(more: dict[str, Any]) -> None:
    """As it was at first."""
    wait = Suspension(**(PLAIN | more))

    assert codec.decode_suspension(wait.turn_id, msgspec.msgpack.encode(wait)) == wait


@pytest.mark.parametrize("body", [b"", b"\x90", b"\xc0", b"\x91\xa1w"])
def test_what_is_no_wait_is_corrupt(body: bytes) -> None:
    """A list that ends early, and what is neither a list nor a map."""
    with pytest.raises(SnapshotCorrupt):
        codec.decode_suspension(ROOT, body)
