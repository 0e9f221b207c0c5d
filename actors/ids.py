"""Names of turns: the partition, the root and the child are all in the text of the id.

A root is ``hh-`` and 26 base32 characters, where ``hh`` is its partition in hex; a child appends 16 more to its root's id.
So the root and the partition of any turn are known without a look-up, and survive an export.
"""

from __future__ import annotations

import hashlib
import re
import zlib

PARTITIONS = 256
ROOT_LENGTH = 29
CHILD_LENGTH = ROOT_LENGTH + 16
RANDOM_BYTES = 26
"""How many random bytes a root's id is made of, where it is made of any."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
_BY_BYTE = _LETTERS.encode() * 8
_PAIRS = tuple([one + other for one in _LETTERS for other in _LETTERS])
_SHAPE = re.compile(r"[0-9a-f]{2}-[a-z2-7]{26}([a-z2-7]{16})?")


def is_turn_id(text: str) -> bool:
    """Tell whether a text has the shape of a turn id."""
    return _SHAPE.fullmatch(text) is not None


def base32(data: bytes) -> str:
    """Return bytes as lower-case base32 without padding."""
    length = -(-len(data) * 8 // 5)
    bits = 10 * -(-length // 2)
    number = int.from_bytes(data, "big") << (bits - 8 * len(data))
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(bits - 10, -1, -10)])[:length]


def root_id(random: bytes, conversation: str | None, key: str | None, namespace: str) -> str:
    """Name a new root turn.

    With an idempotency key the id is a digest of namespace, conversation and key, so that a repeated start finds the first one.
    Turns of one conversation share its partition.

    :param random: `RANDOM_BYTES` of them; used where no key is given.
    """
    if key is None:
        body = random.translate(_BY_BYTE).decode()
    else:
        body = base32(hashlib.sha256("\0".join((namespace, conversation or "", key)).encode()).digest()[:16])
    anchor = conversation if conversation is not None else key
    partition = random[0] if anchor is None else zlib.crc32(anchor.encode()) % PARTITIONS
    return f"{partition:02x}-{body}"


def child_id(root: str, random: bytes) -> str:
    """Name a child turn of a root, from 10 random bytes."""
    return root + base32(random[:10])


def root_of(turn_id: str) -> str:
    """Return the id of the root of a turn's tree."""
    return turn_id[:ROOT_LENGTH]


def partition_of(turn_id: str) -> int:
    """Return the partition (0 to 255) in which a turn and its whole tree live."""
    return int(turn_id[:2], 16)


def wait_id(turn_id: str, correlation: str, number: int) -> str:
    """Name the n-th wait of a call (or of the turn itself, where the correlation is empty)."""
    return f"{turn_id}/{correlation}/{number}"


def turn_of_wait(wait: str) -> str:
    """Return the turn that a wait's id belongs to."""
    return wait.partition("/")[0]


def call_key(turn_id: str, call_id: str) -> str:
    """Name a call within its tree; also the idempotency key that its function sees."""
    return f"{turn_id}:{call_id}"
