"""What a test sees of a namespace on a Redis, or on a Cluster, from outside."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from redis import Redis

if TYPE_CHECKING:
    from collections.abc import Iterator


class RedisPlace:
    """A namespace on the servers of a URL."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.namespace = parse_qs(parts.query).get("namespace", ["th"])[0]
        self._seed = (parts.hostname or "", parts.port or 0)
        self._cluster = "+cluster" in parts.scheme

    def masters(self) -> list[tuple[str, int]]:
        if not self._cluster:
            return [self._seed]
        with Redis(*self._seed, decode_responses=True) as client:
            slots: Any = client.execute_command("CLUSTER SLOTS")
        nodes = slots.values() if isinstance(slots, dict) else [{"primary": row[2][:2]} for row in slots]
        return sorted({(node["primary"][0], node["primary"][1]) for node in nodes})

    def keys(self, pattern: str = "*") -> dict[tuple[str, int], list[str]]:
        """Return the names of the keys behind their partition, by master."""
        found: dict[tuple[str, int], list[str]] = {}
        for master, client in self._clients():
            found[master] = list(client.scan_iter(match=f"{{{self.namespace}:??}}:{pattern}", count=5000))
        return found

    def left(self, *names: str) -> dict[str, list[str]]:
        """Return the members of these sorted sets of all partitions."""
        found: dict[str, list[str]] = {}
        for _, client in self._clients():
            for name in names:
                for key in client.scan_iter(match=f"{{{self.namespace}:??}}:{name}", count=5000):
                    found.setdefault(name, []).extend(map(str, client.zrange(key, 0, -1)))
        return found

    def turn(self, turn: str) -> dict[str, str]:
        """Return what a standalone server has stored of a turn beside its snapshot."""
        with Redis(*self._seed, decode_responses=True) as client:
            found: Any = client.hgetall(f"{self.tag(turn)}:t:{turn}")
        return found

    def tag(self, turn: str) -> str:
        return f"{{{self.namespace}:{turn[:2]}}}"

    def flush(self, turn: str) -> int:
        """Delete all keys of a turn's partition on a standalone server; return how many there were."""
        with Redis(*self._seed, decode_responses=True) as client:
            keys = list(client.scan_iter(match=f"{self.tag(turn)}:*", count=5000))
            return client.delete(*keys)

    def forget_scripts(self) -> None:
        for _, client in self._clients():
            client.script_flush()

    def _clients(self) -> Iterator[tuple[tuple[str, int], Redis]]:
        with ExitStack() as stack:
            for master in self.masters():
                yield master, stack.enter_context(Redis(*master, decode_responses=True))
