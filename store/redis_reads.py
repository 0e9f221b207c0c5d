"""Reads that span partitions, or need more than one question: pages of indexes, work that is due, leases that are over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, TypeAlias

import msgspec

from ..actors.ids import root_of, turn_of_wait
from . import base, redis_pack
from .records import StoredRow
from .redis_keys import Keys
from .redis_replies import looked, mail_of, maybe, wait_rows
from .redis_scripts import CODES, status_of

Entry: TypeAlias = "tuple[int, str]"
Command: TypeAlias = "tuple[str | bytes | int, ...]"
REPLIES_MS = 600_000
SCANNED = 2000  # entries that one page of a listing looks at, at most
PARKED = 10_000
FEW = 4  # entries of a partition that a poll reads at first
LAST = "~"  # sorts behind every turn's id


class RedisReads(ABC):
    """What only reads; how a question reaches its server is the business of who inherits this."""

    keys: Keys

    @abstractmethod
    async def ask(self, commands: Sequence[Command], *, partly: bool = False) -> list[Any]:
        """Send plain commands, each with its key in second place, and return their answers.

        `partly`: None for those that are not answered in time, unless that is all.
        """

    @abstractmethod
    async def run(self, scripts: Sequence[redis_pack.Script]) -> list[Any]:
        """Run scripts and return their answers."""

    @abstractmethod
    def now(self) -> int:
        """Return the server's time in milliseconds, as far as it is known."""

    # ------------------------------------------------------------------------------------------------------ one turn

    async def look(self, op: base.Look) -> base.Reply:
        """Read a turn and the open waits of it and of all below it."""
        (found,) = await self.looks([op.turn])
        return found or base.Gone()

    async def looks(self, turns: Sequence[str]) -> list[base.Looked | None]:
        """Read several turns, each in one piece."""
        known: dict[str, list[str]] = {turn: [] for turn in turns}
        found: dict[str, base.Looked | None] = {}
        while left := [turn for turn in known if turn not in found]:
            answers = await self.run([redis_pack.look(self.keys, turn, known[turn]) for turn in left])
            for turn, (kind, *rest) in zip(left, answers, strict=True):
                if kind == b"GROWN":
                    known[turn] = [child.decode() for child in rest[0]]
                else:
                    found[turn] = None if kind == b"GONE" else looked(turn, rest, known[turn])
        return [found[turn] for turn in turns]

    async def read_mail(self, op: base.ReadMail) -> base.Reply:
        """Read unconsumed mail and the cancel flag."""
        record, mailbox = self.keys.turn(op.turn, "ti")
        mail, cause = await self.ask([("LRANGE", mailbox, 0, op.batch - 1), ("HGET", record, "cx")])
        return base.MailBatch(self.now(), tuple(map(mail_of, mail)), maybe(cause))

    async def read_history(self, op: base.ReadHistory) -> base.Reply:
        """Read history entries."""
        (bodies,) = await self.ask([("LRANGE", *self.keys.turn(op.turn, "h"), op.start, op.start + op.limit - 1)])
        return base.Entries(tuple(bodies))

    async def read_replies(self, op: base.ReadReplies) -> base.Reply:
        """Read answers by message id; one that is 10 minutes old is gone."""
        (key,) = self.keys.tree(op.turn, "y")
        if not op.message_ids:
            return base.Found(())
        (stored,) = await self.ask([("HMGET", key, *op.message_ids)])
        oldest = self.now() - REPLIES_MS
        pairs = [(b"0", None) if value is None else value.split(b"\0", 1) for value in stored]
        return base.Found(tuple(body if int(at) > oldest else None for at, body in pairs))

    async def versions(self, op: base.Versions) -> base.Reply:
        """Read how far turns are."""
        rows = await self.ask([("HMGET", *self.keys.turn(turn, "t"), "v", "ev", "st", "tv") for turn in op.turns])
        return base.Progress(
            tuple(
                (-1, 0, "", 0) if row[0] is None else (int(row[0]), int(row[1]), row[2].decode(), int(row[3] or 0)) for row in rows
            )
        )

    async def open_turn(self, op: base.OpenTurn) -> base.Reply:
        """Read a conversation's entry."""
        tag = self.keys.of_conversation(op.conversation)
        (turn,) = await self.ask([("HGET", f"{tag}open", op.conversation)])
        if turn is None:
            return base.Opened(None)
        return base.Opened(turn.decode(), await self.status(turn.decode()))

    async def list_queue(self, op: base.ListQueue) -> base.Reply:
        """Read who waits behind a conversation's open turn."""
        name = op.conversation.encode()
        name = b"%d:%s" % (len(name), name)
        key = f"{self.keys.of_conversation(op.conversation)}queue"
        (members,) = await self.ask([("ZRANGE", key, b"[" + name + b"\0", b"(" + name + b"\1", "BYLEX")])
        return base.DueTurns(tuple(member[len(name) + 18 :].decode() for member in members), None, self.now())

    async def status(self, turn: str) -> str | None:
        """Read a turn's status."""
        (status,) = await self.ask([("HGET", *self.keys.turn(turn, "t"), "ss")])
        return None if status is None else status_of(status)

    # ----------------------------------------------------------------------------------------------------------- work

    async def due(self, op: base.Due) -> base.Reply:
        """Read turns that may run, and the next wake behind now."""
        tags = self.keys.tags if op.partitions is None else [self.keys.tags[number] for number in op.partitions]
        ready, later, now = await self._heads("wake", tags, 0, op.offset + op.limit)
        return base.DueTurns(tuple(ready[op.offset :]), later, now)

    async def expired(self, op: base.Expired) -> base.Reply:
        """Read turns whose lease is over."""
        if op.dead_nodes:
            return await self._left_by(op)
        over, later, now = await self._heads("leases", self.keys.tags, op.grace_ms, op.limit)
        return base.DueTurns(tuple(over), None if later is None else later + op.grace_ms, now)

    async def _left_by(self, op: base.Expired) -> base.Reply:
        """Read turns whose lease is over or whose owner is named as dead: each owner has to be looked at."""
        answers = await self.ask([("ZRANGE", f"{tag}leases", 0, -1, "WITHSCORES") for tag in self.keys.tags])
        now = self.now()
        leases = sorted((lease + op.grace_ms, turn) for answer in answers for lease, turn in scored(answer))
        owners = await self.ask([("HGET", *self.keys.turn(turn, "t"), "nd") for _, turn in leases])
        dead = {turn for (_, turn), node in zip(leases, owners, strict=True) if maybe(node) in op.dead_nodes}
        over = [turn for ends, turn in leases if ends <= now or turn in dead]
        later = next((ends for ends, turn in leases if ends > now and turn not in dead), None)
        return base.DueTurns(tuple(over[: op.limit]), later, now)

    async def _heads(self, index: str, tags: Sequence[str], grace: int, count: int) -> tuple[list[str], int | None, int]:
        """Return the first `count` names of an index over partitions that are over for `grace` ms, the first later score, and now.

        Of each partition only a few entries are read; more, where all of those are among the first. A partition whose master is
        away is left out: who looks for work is to find that of the others.
        """
        rows: dict[str, list[Entry]] = {}
        window, left, now, until = FEW, list(tags), 0, 0
        while left:
            answers = await self.ask([("ZRANGE", tag + index, 0, window - 1, "WITHSCORES") for tag in left], partly=True)
            rows.update({tag: scored(answer) for tag, answer in zip(left, answers, strict=True) if answer is not None})
            now = now or self.now()
            until = now - grace
            first = sorted(entry for found in rows.values() for entry in found if entry[0] <= until)[:count]
            cut = first[-1] if len(first) == count else (until, LAST)
            left = [tag for tag in left if len(rows.get(tag, ())) == window and rows[tag][-1] < cut]
            window *= 8
        first = sorted(entry for found in rows.values() for entry in found if entry[0] <= until)[:count]
        above = [score for found in rows.values() for score, _ in found if score > until]
        hidden = [tag for tag, found in rows.items() if found and found[-1][0] <= until]
        behind: tuple[str | int, ...] = (f"({until}", "+inf", "BYSCORE", "LIMIT", 0, 1, "WITHSCORES")
        answers = await self.ask([("ZRANGE", tag + index, *behind) for tag in hidden], partly=True)
        above += [score for answer in answers if answer is not None for score, _ in scored(answer)]
        return [name for _, name in first], min(above, default=None), now

    async def list_nodes(self, op: base.ListNodes) -> base.Reply:
        """Read the announced nodes."""
        (flat,) = await self.ask([("HGETALL", self.keys.nodes)])
        rows: list[base.NodeRow] = []
        for node, packed in zip(flat[::2], flat[1::2], strict=True):
            beat, agents = packed.split(b"\0", 1)
            rows.append(base.NodeRow(node.decode(), int(beat), msgspec.msgpack.decode(agents, type=tuple[str, ...])))
        return base.Nodes(tuple(sorted(rows, key=lambda row: row.node)), self.now())

    # ---------------------------------------------------------------------------------------------------------- pages

    async def list_waits(self, op: base.ListWaits) -> base.Reply:
        """Read open waits of all trees, oldest first; a page that had to look at too many is short."""
        page: list[bytes] = []
        last: Entry | None = None
        after, scanned = base.read_cursor(op.after), 0
        while scanned < SCANNED:
            entries = await self._page("waits", self.keys.tags, max(op.limit + 1, 64), after, (0,))
            if not entries:
                return base.WaitListing(tuple(page), None)
            turns = list(dict.fromkeys(turn_of_wait(wait) for _, wait in entries))
            answers = await self.ask([("LRANGE", *self.keys.turn(turn, "w"), 0, -1) for turn in turns])
            rows = {name: row for answer in answers for name, row in wait_rows(answer).items()}
            for entry in entries:
                row = rows.get(entry[1])
                if row is not None and _wanted(op, row):
                    if len(page) == op.limit:
                        return base.WaitListing(tuple(page), _cursor(last))
                    page.append(row.body)
                    last = entry
                after = entry
            scanned += len(entries)
        return base.WaitListing(tuple(page), _cursor(after))

    async def list_turns(self, op: base.ListTurns) -> base.Reply:
        """Read records, oldest first (by creation); a page that had to look at too many is short."""
        page: list[base.Looked] = []
        last: Entry | None = None
        after, scanned = base.read_cursor(op.after), 0
        while scanned < SCANNED:
            entries = await self._candidates(op, max(op.limit + 1, 64), after)
            if not entries:
                return base.TurnListing(tuple(page), None)
            for entry, row in zip(entries, await self.looks([turn for _, turn in entries]), strict=True):
                if row is not None and _fits(op, row):
                    if len(page) == op.limit:
                        return base.TurnListing(tuple(page), _cursor(last))
                    page.append(row)
                    last = (row.created, row.turn)
                after = entry
            scanned += len(entries)
        return base.TurnListing(tuple(page), _cursor(after))

    async def _candidates(self, op: base.ListTurns, limit: int, after: Entry | None) -> list[Entry]:
        """Return turns that may fit, from the narrowest index there is."""
        tree = op.root or (None if op.parent is None else root_of(op.parent))
        if tree is not None:
            (children,) = await self.ask([("LRANGE", *self.keys.tree(tree, "k"), 0, -1)])
            return await self._created([root_of(tree), *(child.decode() for child in children)], limit, after)
        if op.quarantined:
            answers = await self.ask([("ZRANGE", f"{tag}parked", 0, PARKED) for tag in self.keys.tags])
            return await self._created([turn.decode() for answer in answers for turn in answer], limit, after)
        tags: Sequence[str] = self.keys.tags
        if op.conversation is not None:
            tags = [self.keys.of_conversation(op.conversation)]
        codes = (0, *CODES.values()) if op.status is None else (CODES.get(op.status, 0),)
        return await self._page("turns", tags, limit, after, codes)

    async def _created(self, turns: Sequence[str], limit: int, after: Entry | None) -> list[Entry]:
        """Return turns by creation, behind a cursor."""
        created = await self.ask([("HGET", *self.keys.turn(turn, "t"), "cre") for turn in turns])
        entries = sorted((int(at), turn) for at, turn in zip(created, turns, strict=True) if at is not None)
        return list(islice((entry for entry in entries if after is None or entry > after), limit))

    async def _page(self, index: str, tags: Iterable[str], limit: int, after: Entry | None, codes: Sequence[int]) -> list[Entry]:
        """Return the first entries of an index of some partitions behind a cursor."""
        partitions = [tag[-4:-2] for tag in tags]
        answers = await self.run([redis_pack.page(self.keys, pp, index, limit, after, codes) for pp in partitions])
        entries = [(int(number), name.decode()) for flat in answers for number, name in zip(flat[::2], flat[1::2], strict=True)]
        return sorted(entries)[:limit]


def scored(flat: list[bytes]) -> list[Entry]:
    """Return what ZRANGE answered WITHSCORES as (score, name)."""
    return [(int(float(score)), name.decode()) for name, score in zip(flat[::2], flat[1::2], strict=True)]


def _progress(row: list[bytes | None]) -> tuple[int, int, str, int]:
    version, events, state, below = row
    return (-1, 0, "", 0) if version is None else (int(version), int(events or 0), maybe(state) or "", int(below or 0))


def _cursor(entry: Entry | None) -> str | None:
    return None if entry is None else base.cursor(*entry)


def _wanted(op: base.ListWaits, row: StoredRow) -> bool:
    return (
        op.agent in (None, row.agent)
        and op.tenant in (None, row.tenant)
        and op.assignee in (None, row.assignee)
        and op.kind in (None, row.kind)
        and row.kind not in op.without
    )


def _fits(op: base.ListTurns, row: base.Looked) -> bool:
    return (
        op.status in (None, row.status)
        and op.agent in (None, row.agent)
        and op.conversation in (None, row.conversation)
        and op.root in (None, root_of(row.turn))
        and op.parent in (None, row.parent)
        and op.tenant in (None, row.tenant)
        and op.quarantined in (None, row.quarantine is not None)
    )
