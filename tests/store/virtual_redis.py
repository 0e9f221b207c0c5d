"""A Redis store that lives in the time of its callers, and refuses scripts that touch a key which is not in KEYS."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnhold.store.redis import RedisStore
from turnhold.store.redis_connection import RedisConnection
from turnhold.store.redis_scripts import Scripts

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnhold.store.base import Bell, Live
    from turnhold.store.redis_pack import Script
    from turnhold.store.redis_servers import Question

# The time is the last of ARGV.
CLOCK = """
local now = tonumber(table.remove(ARGV))
local named, server = {}, redis
for _, key in ipairs(KEYS) do named[key] = true end
local redis = {call = function(command, ...)
  local last = (command == 'DEL' or command == 'UNLINK') and select('#', ...) or 1
  for n = 1, last do
    if not named[select(n, ...)] then error(command .. ' of a key that is not in KEYS: ' .. select(n, ...)) end
  end
  return server.call(command, ...)
end}
"""


class VirtualConnection(RedisConnection):
    """One node's use of it."""

    clock: Callable[[], int]
    latest = 0

    def now(self) -> int:
        self.latest = max(self.latest, self.clock())
        return self.latest

    def question(self, script: Script, lane: str = "main", confirm: int = 0) -> Question:
        name, keys, args = script
        return super().question((name, keys, [*args, self.now()]), lane, confirm)


class VirtualRedisStore(RedisStore):
    """Takes its time from the clock that is given to `connect`, as memory and SQLite do."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.scripts = Scripts(CLOCK)

    def connection(self, node: str, bell: Bell, clock: Callable[[], int], live: Live | None) -> VirtualConnection:
        made = VirtualConnection(self.place, self.scripts, node, bell, live)
        made.clock = clock
        return made
