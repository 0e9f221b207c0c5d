"""A node's name for people, and the key under which it owns turns and announces itself: its name and something unique.

So a node that was started again under its old name is not taken for its earlier self, and of two nodes with one name each leaves
for itself.
"""

from __future__ import annotations

import msgspec

from . import base
from .base import Op, Reply

MARK = "~"
CLAIMS = (base.Create, base.Deliver, base.Cancel)
KEYLESS = frozenset({base.Save, base.Renew, base.Find})
NAMELESS = frozenset({base.Saved, base.Claimed, base.Renewed, base.Found})


def with_key(op: Op, key: str) -> Op:
    """Return an operation in which the node that claims, or announces itself, is called by its key."""
    if type(op) in KEYLESS:
        return op
    if isinstance(op, CLAIMS) and op.claim is not None:
        return msgspec.structs.replace(op, claim=msgspec.structs.replace(op.claim, node=key))
    if isinstance(op, base.Claim):
        return msgspec.structs.replace(op, by=msgspec.structs.replace(op.by, node=key))
    if isinstance(op, base.Beat):
        return msgspec.structs.replace(op, node=op.node + MARK + key.rpartition(MARK)[2])
    return op


def with_name(reply: Reply) -> Reply:
    """Return a reply in which nodes are called by their names again."""
    if type(reply) in NAMELESS:
        return reply
    if isinstance(reply, base.Held | base.Looked) and reply.node is not None:
        return msgspec.structs.replace(reply, node=name_of(reply.node))
    if isinstance(reply, base.Delivered | base.Fenced) and reply.owner is not None:
        return msgspec.structs.replace(reply, owner=name_of(reply.owner))
    if isinstance(reply, base.Nodes):
        return msgspec.structs.replace(
            reply, nodes=tuple(msgspec.structs.replace(row, node=name_of(row.node)) for row in reply.nodes)
        )
    if isinstance(reply, base.TurnListing):
        return msgspec.structs.replace(
            reply, turns=tuple(msgspec.structs.replace(turn, node=turn.node and name_of(turn.node)) for turn in reply.turns)
        )
    return reply


def name_of(key: str) -> str:
    """Return the name of the node in a key."""
    return key.rpartition(MARK)[0] or key
