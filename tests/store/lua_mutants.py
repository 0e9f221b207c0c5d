"""Named faults of the scripts: what stands in one of them, and what shall stand there."""

from __future__ import annotations

from typing import NamedTuple

from turnhold.store import redis_scripts


class LuaMutant(NamedTuple):
    """One fault."""

    name: str
    script: str
    old: str
    new: str

    def applied(self) -> str:
        """Return the faulty script. :raises LookupError: if it has changed under the mutant."""
        text = redis_scripts._TEXTS[self.script]
        if text.count(self.old) != 1:
            raise LookupError(f"{self.name!r}: its text stands {text.count(self.old)} times in {self.script}.lua")
        return text.replace(self.old, self.new)


MUTANTS = [
    LuaMutant("no token check", "save", "local owned, replayed = shows(turn, activation, epoch),", "local owned, replayed = true,"),
    LuaMutant("no save id", "save", "turn.save_id == save_id\n", "false\n"),
    LuaMutant("crashes stay", "save", "if head[11] and turn.crashes > 0 then", "if false then"),
    LuaMutant("flag stays", "save", "  call('HDEL', key.t, 'cx')\n", ""),
    LuaMutant("wait stays open", "save", "  for _, wait in ipairs(beside[4]) do close_wait(key, WAITS, wait) end\n", ""),
    LuaMutant("usage of one turn", "save", "sum[n] - was[n] + is[n]", "is[n]"),
    LuaMutant("consumed from the head", "save", "if found then call('LREM', key.i, 1, found) end", "call('LPOP', key.i)"),
    LuaMutant("child born free", "save", "if cause then raise_cancel(child.t, born, cause) end", ""),
    LuaMutant("last in, first out", "queues", "'BYLEX', 'LIMIT', 0, limit)", "'BYLEX', 'REV', 'LIMIT', 0, limit)"),
    LuaMutant("queue counts all", "queues", "return call('ZLEXCOUNT', queue, low, high)", "return call('ZCARD', queue)"),
    LuaMutant("still queued", "queues", "  call('HDEL', key, 'qd')\n", "  "),
    LuaMutant("promoted asleep", "queues", "    rouse(heir.key, heir.turn, heir.id)\n", ""),
]
