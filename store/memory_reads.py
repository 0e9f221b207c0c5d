"""What only reads the memory store."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import islice
from typing import TypeVar

from . import base
from .base import Reply, WaitRow
from .below import below
from .memory_tables import MemoryRecord, MemoryTables
from .order import SortedIndex

Value = TypeVar("Value")


class MemoryReads(MemoryTables):
    """The operations that page through tables."""

    def look(self, op: base.Look, now: int) -> Reply:
        """Read a turn, and the open waits of it and of all below it."""
        record = self._turns.get(op.turn)
        return base.Gone() if record is None else self._looked(record, now)

    def read_history(self, op: base.ReadHistory, now: int) -> Reply:
        """Read history entries."""
        record = self._turns.get(op.turn)
        if record is None:
            return base.Entries(())
        places = range(op.start, min(op.start + op.limit, len(record.history)))
        return base.Entries(tuple(map(record.history.__getitem__, places)))

    def read_events(self, op: base.ReadEvents, now: int) -> Reply:
        """Read event batches."""
        record = self._turns.get(op.turn)
        if record is None:
            return base.EventBatches((), 0, terminal=False)
        events = record.events
        first = bisect_right(range(len(events)), op.after, key=lambda place: events[place].first + events[place].count - 1)
        found = map(events.__getitem__, range(first, min(first + op.limit, len(events))))
        batches = tuple([(batch.first, batch.count, batch.epoch, batch.body) for batch in found])
        return base.EventBatches(batches, record.event_count, record.state == "T")

    def versions(self, op: base.Versions, now: int) -> Reply:
        """Read how far turns are."""
        return base.Progress(tuple(map(self._progress, op.turns)))

    def _progress(self, turn: str) -> tuple[int, int, str, int]:
        row = self._turns.get(turn)
        if row is None:
            return -1, 0, "", 0
        if row.turn != row.root:
            return row.version, row.event_count, row.state, 0
        tree = [self._turns[name] for name in self._trees[row.root].turns]
        below = sum(other.version + other.quarantined_at for other in tree) - row.version
        return row.version, row.event_count, row.state, below

    def due(self, op: base.Due, now: int) -> Reply:
        """Read turns that may run."""
        later = next((key[0] for key, _ in self._wakes.above((now, "~"))), None)
        ready = (turn for (wake, _), turn in self._wakes.above(None) if wake <= now)
        return base.DueTurns(tuple(islice(ready, op.offset, op.offset + op.limit)), later, now)

    def expired(self, op: base.Expired, now: int) -> Reply:
        """Read turns whose owner is gone."""
        over: list[tuple[int, str]] = []
        later: list[int] = []
        for turn in self._owned:
            record = self._turns[turn]
            if (ends := record.lease + op.grace_ms) <= now or record.node in op.dead_nodes:
                over.append((ends, turn))
            else:
                later.append(ends)
        return base.DueTurns(tuple(turn for _, turn in sorted(over)[: op.limit]), min(later, default=None), now)

    def list_waits(self, op: base.ListWaits, now: int) -> Reply:
        """Read open waits of all trees."""

        def wanted(row: WaitRow) -> bool:
            return (
                op.agent in (None, row.agent)
                and op.tenant in (None, row.tenant)
                and op.assignee in (None, row.assignee)
                and op.kind in (None, row.kind)
                and row.kind not in op.without
            )

        page, cursor = _page(self._waits, op.after, op.limit, wanted)
        return base.WaitListing(tuple(row.body for row in page), cursor)

    def list_turns(self, op: base.ListTurns, now: int) -> Reply:
        """Read records."""

        def wanted(row: MemoryRecord) -> bool:
            return (
                op.status in (None, row.status)
                and op.agent in (None, row.agent)
                and op.conversation in (None, row.conversation)
                and op.root in (None, row.root)
                and op.parent in (None, row.parent)
                and op.tenant in (None, row.tenant)
                and op.quarantined in (None, row.quarantine is not None)
            )

        page, cursor = _page(self._created, op.after, op.limit, lambda turn: wanted(self._turns[turn]))
        return base.TurnListing(tuple(self._looked(self._turns[turn], now) for turn in page), cursor)

    def list_nodes(self, op: base.ListNodes, now: int) -> Reply:
        """Read the announced nodes."""
        return base.Nodes(tuple(row for _, row in sorted(self._nodes.items())), now)

    def _looked(self, row: MemoryRecord, now: int) -> base.Looked:
        every = self._trees[row.root].turns
        tree = [self._turns[turn] for turn in below(row.turn, [(turn, self._turns[turn].parent) for turn in every])]
        return base.Looked(
            turn=row.turn,
            parent=row.parent,
            agent=row.agent,
            agent_version=row.agent_version,
            conversation=row.conversation,
            tenant=row.tenant,
            schema=row.schema,
            status=row.status,
            state=row.state,
            version=row.version,
            snapshot=row.snapshot,
            activation=row.activation,
            node=row.node,
            epoch=row.epoch,
            lease=row.lease,
            wake=row.wake,
            cancel=row.cancel,
            crashes=row.crashes,
            quarantine=row.quarantine,
            quarantined_at=row.quarantined_at,
            message_count=row.message_count,
            event_count=row.event_count,
            created=row.created,
            updated=row.updated,
            now=now,
            wait_bodies=tuple(wait.body for turn in tree for wait in turn.waits.values()),
            live_turns=sum(turn.state != "T" for turn in tree),
            runnable_turns=sum(_runnable(turn, now) for turn in tree),
        )


def _runnable(row: MemoryRecord, now: int) -> bool:
    return row.state in {"A", "R"} or (row.wake is not None and row.wake <= now)


def _page(
    index: SortedIndex[Value], after: str | None, limit: int, wanted: Callable[[Value], bool]
) -> tuple[list[Value], str | None]:
    page: list[Value] = []
    last: str | None = None
    for key, value in index.above(base.read_cursor(after)):
        if wanted(value):
            if len(page) == limit:
                return page, last
            page.append(value)
            last = base.cursor(*key)
    return page, None
