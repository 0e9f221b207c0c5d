"""What every operation does, on plain dictionaries: the reference for the other stores."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from ..actors.ids import root_of
from . import base
from .base import ClaimBy, Mail, Mode, NewTurn, Op, Reply, Save, Token
from .memory_tables import MemoryTables, Record, Tree

REPLIES_MS = 600_000
SEEN_MS = 86_400_000
NODES_MS = 3_600_000
LATER_MS = 3_600_000
BACK_OFF_LIMIT_MS = 60_000


class MemoryCore(MemoryTables):
    """The synchronous core: every operation of `base`, applied at once."""

    def apply(self, op: Op, now: int) -> Reply:
        """Apply one operation at `now`, or at the greatest time seen so far."""
        self._now = now = max(now, self._now)
        return HANDLERS[type(op)](self, op, now)

    @property
    def latest(self) -> int:
        """The greatest time seen so far."""
        return self._now

    def create(self, op: base.Create, now: int) -> Reply:
        """Create a root turn."""
        new = op.new
        record = self._turns.get(new.turn)
        if record is not None:
            if record.digest != new.digest:
                return base.KeyReused(new.turn)
            if op.claim is not None and op.claim.activation == record.activation:
                return self._own(record, op.claim, now)
            return base.Existing(new.turn)
        if new.conversation is not None:
            if (busy := self._open.get(new.conversation)) is not None:
                return base.Busy(busy, self._turns[busy].status)
            self._open[new.conversation] = new.turn
        record = self._add(new, now)
        if op.claim is not None and _runs(op.claim, record):
            return self._own(record, op.claim, now)
        self._schedule(record, new.wake, now)
        return base.Created(now)

    def deliver(self, op: base.Deliver, now: int) -> Reply:
        """Put mail into a mailbox."""
        mail = op.mail
        tree = self._trees.get(root_of(op.turn))
        if tree is None:
            return base.Gone()
        if mail.command_id is not None and (body := tree.commands.get(mail.command_id)) is not None:
            return base.Known("command", body)
        record = self._turns.get(op.turn)
        if record is None:
            return base.Gone()
        if mail.wait_id is not None and (body := tree.waits.get(mail.wait_id)) is not None:
            return base.Known("wait", body)
        if (body := tree.replies.get(mail.message_id)) is not None:
            return base.Replied(body)
        fresh = mail.message_id not in record.seen
        if fresh:
            if record.state == "T":
                return base.Closed(record.status)
            if not (op.runtime and mail.command_id is None) and len(record.mail) >= op.cap:
                return base.Full(len(record.mail))
            self._post(record, mail, now)
        return self._rouse_or_own(record, op.claim, now, rouse=fresh, fresh=fresh)

    def cancel(self, op: base.Cancel, now: int) -> Reply:
        """Raise a cancel flag."""
        record = self._turns.get(op.turn)
        if record is None:
            return base.Gone()
        if record.state == "T":
            return base.Closed(record.status)
        fresh = record.cancel is None and record.cancel_acked is None
        if fresh:
            record.cancel = op.cause
        stuck = record.cancel is not None and record.wake is None  # its owner parked it without taking the flag
        return self._rouse_or_own(record, op.claim, now, rouse=fresh or stuck, fresh=fresh)

    def claim(self, op: base.Claim, now: int) -> Reply:
        """Own a turn that may run."""
        record = self._turns.get(op.turn)
        by = op.by
        if record is None or record.state == "T":
            return base.Gone()
        if record.activation is not None:
            return self._own(record, by, now) if record.activation == by.activation else base.Held(record.node)
        if record.parked:
            return base.Gone()
        if record.wake is None or record.wake > now:
            return base.NotDue(record.wake)
        if record.schema > by.schema:
            return base.TooNew(record.schema)
        if not _runs(by, record):
            return base.UnknownAgent(record.agent, record.agent_version)
        return self._own(record, by, now)

    def renew(self, op: base.Renew, now: int) -> Reply:
        """Extend leases."""
        flags: list[int] = []
        for turn, token in op.leases:
            record = self._turns.get(turn)
            if record is None or not _shows(record, token):
                flags.append(0)
                continue
            record.lease = now + op.lease_ms
            flags.append(1 + bool(record.mail) + 2 * (record.cancel is not None))
        return base.Renewed(now, tuple(flags))

    def save(self, op: base.Save, now: int) -> Reply:
        """Commit one transition."""
        record = self._turns.get(op.turn)
        if record is None:
            return base.Fenced()
        if record.save_id == op.save_id:
            return self._saved(record, op, now, owned=_shows(record, op.token), replayed=True)
        if not _shows(record, op.token):
            return base.Fenced(record.node)
        history, events = op.messages, op.events
        if record.version < op.version or len(record.history) < history.at or record.event_count < events.at:
            return base.Behind(record.version, len(record.history), record.event_count)
        if record.version > op.version or len(record.history) > history.at or record.event_count > events.at:
            return base.Conflict(record.version)
        tree = self._trees[record.root]
        self._write(record, op, now)
        self._index(record, tree, op, now)
        self._reach(record, op, now)
        return self._saved(record, op, now, owned=self._settle(record, tree, op, now), replayed=False)

    def abandon(self, op: base.Abandon, now: int) -> Reply:
        """Give a turn back without saving."""
        record = self._turns.get(op.turn)
        if record is None or not _shows(record, op.token):
            return base.Fenced(None if record is None else record.node)
        self._release(record, "R")
        self._wake_at(record, now + op.delay_ms)
        return base.Done()

    def reap(self, op: base.Reap, now: int) -> Reply:
        """Take a turn from an owner that is gone."""
        record = self._turns.get(op.turn)
        if record is None or record.activation is None:
            return base.Gone()
        if record.lease + op.grace_ms > now and (op.dead_node is None or record.node != op.dead_node):
            return base.Held(record.node)
        record.crashes += 1
        self._release(record, "R")
        if record.crashes > op.max_crashes and record.quarantine is None:
            record.quarantine, record.quarantined_at = f"{record.crashes} owners were lost", now
        if record.parked:
            record.state = "S"
        else:
            self._wake_at(record, now + back_off(record.crashes, op.back_off_ms))
        return base.Reaped(record.crashes, record.quarantine is not None)

    def quarantine(self, op: base.Quarantine, now: int) -> Reply:
        """Park a turn."""
        record = self._turns.get(op.turn)
        if record is None or not _shows(record, op.token):
            return base.Fenced(None if record is None else record.node)
        self._release(record, "S")
        record.quarantine, record.quarantined_at = op.reason, now
        return base.Done()

    def revive(self, op: base.Revive, now: int) -> Reply:
        """End a quarantine."""
        record = self._turns.get(op.turn)
        if record is None or record.quarantine is None:
            return base.Gone()
        record.quarantine, record.quarantined_at, record.crashes = None, 0, 0
        if record.activation is None:
            self._rouse(record, now)
        return base.Done()

    def discard(self, op: base.Discard, now: int) -> Reply:
        """End a record that nobody can read."""
        record = self._turns.get(op.turn)
        if record is None or record.quarantine is None or record.state == "T":
            return base.Gone()
        record.status, record.updated = op.status, now
        self._end(record, self._trees[record.root], op.closing, op.retention_ms, now)
        if op.notify is not None and record.parent is not None:
            self._send(record.parent, op.notify, now)
        return base.Done()

    def beat(self, op: base.Beat, now: int) -> Reply:
        """Announce a node, or take it off the list."""
        if op.leave:
            self._nodes.pop(op.node, None)
        else:
            self._nodes[op.node] = base.NodeRow(op.node, now, op.agents)
        return base.Done()

    def prune(self, op: base.Prune, now: int) -> Reply:
        """Drop what is over."""
        for _ in range(op.limit):
            if not self._replied or self._replied[0][0] + REPLIES_MS > now:
                break
            _at, root, message_id = self._replied.popleft()
            tree = self._trees.get(root)
            if tree is not None:
                tree.replies.pop(message_id, None)
        for _ in range(op.limit):
            if not self._seen or self._seen[0][0] + SEEN_MS > now:
                break
            _at, turn, message_id = self._seen.popleft()
            record = self._turns.get(turn)
            if record is not None and message_id in record.mail:
                self._seen.append((now, turn, message_id))
            elif record is not None:
                record.seen.discard(message_id)
        for key, root in list(islice(self._expiring.above(None), op.limit)):
            if key[0] > now:
                break
            self._expiring.drop(key)
            if any(self._turns[turn].state != "T" for turn in self._trees[root].turns):
                self._expiring.put((now + LATER_MS, root), root)
            else:
                self._drop_tree(root)
        for node in [row.node for row in self._nodes.values() if row.beat + NODES_MS <= now]:
            del self._nodes[node]
        return base.Done()

    def _add(self, new: NewTurn, now: int) -> Record:
        root = root_of(new.turn)
        record = Record(
            turn=new.turn,
            root=root,
            parent=new.parent,
            agent=new.agent,
            agent_version=new.agent_version,
            conversation=new.conversation,
            tenant=new.tenant,
            digest=new.digest,
            schema=new.schema,
            status=new.status,
            snapshot=new.snapshot,
            created=now,
            updated=now,
            event_count=new.events.count,
            history=list(new.messages.bodies),
        )
        if new.events.count:
            record.events.append((1, new.events.count, 0, new.events.body))
        self._turns[new.turn] = record
        self._trees.setdefault(root, Tree()).turns.append(new.turn)
        self._created.put((now, new.turn), new.turn)
        return record

    def _own(self, record: Record, by: ClaimBy, now: int) -> base.Claimed:
        if record.activation != by.activation:
            record.activation, record.node, record.state = by.activation, by.node, "A"
            record.epoch = max(record.epoch + 1, now)
            self._owned[record.turn] = None
            self._wake_at(record, None)
        record.lease = now + by.lease_ms
        return base.Claimed(
            epoch=record.epoch,
            version=record.version,
            schema=record.schema,
            snapshot=record.snapshot,
            now=now,
            mail=tuple(islice(record.mail.values(), by.batch)),
            cancel=record.cancel,
            crashes=record.crashes,
            tail=tuple(record.history[-by.tail :]) if by.tail else (),
            message_count=len(record.history),
            event_count=record.event_count,
            quarantined=record.quarantine is not None,
        )

    def _release(self, record: Record, state: str) -> None:
        record.activation = record.node = None
        record.state = state
        self._owned.pop(record.turn, None)

    def _wake_at(self, record: Record, wake: int | None) -> None:
        if record.wake != wake:
            if record.wake is not None:
                self._wakes.drop((record.wake, record.turn))
            if wake is not None:
                self._wakes.put((wake, record.turn), record.turn)
            record.wake = wake

    def _schedule(self, record: Record, wake: int | None, now: int) -> None:
        if wake is not None and wake <= now:
            self._rouse(record, now)
        else:
            self._wake_at(record, wake)

    def _rouse(self, record: Record, now: int) -> None:
        if record.activation is None and not record.parked:
            record.state = "R"
            if record.wake is None or record.wake > now:
                self._wake_at(record, now)

    def _rouse_or_own(self, record: Record, claim: ClaimBy | None, now: int, *, rouse: bool, fresh: bool) -> Reply:
        if claim is not None and record.state != "T":
            if record.activation is None:
                due = rouse or (record.wake is not None and record.wake <= now)
                fits = due and not record.parked and _runs(claim, record)
            else:
                fits = record.activation == claim.activation
            if fits:
                return self._own(record, claim, now)
        if rouse:
            self._rouse(record, now)
        return base.Delivered(now, record.node, fresh, record.quarantine is not None)

    def _post(self, record: Record, mail: Mail, now: int) -> None:
        mid = mail.message_id
        record.mail[mid] = Mail(mid, mail.body, mail.command_id, mail.wait_id, now)
        record.seen.add(mid)
        self._seen.append((now, record.turn, mid))

    def _send(self, turn: str, mail: Mail, now: int) -> None:
        record = self._turns.get(turn)
        if record is not None and record.state != "T" and mail.message_id not in record.seen:
            self._post(record, mail, now)
            self._rouse(record, now)

    def _write(self, record: Record, op: Save, now: int) -> None:
        for mid in op.consumed:
            record.mail.pop(mid, None)
            if mid not in record.seen:
                record.seen.add(mid)
                self._seen.append((now, record.turn, mid))
        record.history.extend(op.messages.bodies)
        if op.events.count:
            record.events.append((op.events.at + 1, op.events.count, record.epoch, op.events.body))
            record.event_count += op.events.count
        record.snapshot, record.schema, record.status, record.updated = op.snapshot, op.schema, op.status, now
        record.version, record.save_id = op.version + 1, op.save_id
        if op.progress:
            record.crashes = 0
        if op.ack_cancel and record.cancel is not None:
            record.cancel_acked, record.cancel = record.cancel, None

    def _index(self, record: Record, tree: Tree, op: Save, now: int) -> None:
        for receipt in op.receipts:
            tree.waits[receipt.wait_id] = receipt.body
            if receipt.command_id is not None:
                tree.commands[receipt.command_id] = receipt.body
            if receipt.call_key is not None:
                tree.calls[receipt.call_key] = receipt.body
        for reply in op.replies:
            self._answer(record.root, tree, reply.message_id, reply.body, now)
        for wait_id in op.closed:
            self._close(record, wait_id)
        for wait in op.opened:
            self._close(record, wait.id)
            record.waits[wait.id] = wait
            self._waits.put((wait.created, wait.id), wait)
        if op.usage != record.usage:
            a, b, c, d = tree.usage
            was, used = record.usage, op.usage
            tree.usage = (a + used[0] - was[0], b + used[1] - was[1], c + used[2] - was[2], d + used[3] - was[3])
            record.usage = used

    def _reach(self, record: Record, op: Save, now: int) -> None:
        cause = record.cancel or record.cancel_acked
        for new in op.create:
            if new.turn not in self._turns:
                child = self._add(new, now)
                child.cancel = cause
                self._schedule(child, new.wake if cause is None else now, now)
        for turn, mail in op.deliver:
            self._send(turn, mail, now)
        for turn, why in op.cancel:
            self.cancel(base.Cancel(turn=turn, cause=why), now)

    def _settle(self, record: Record, tree: Tree, op: Save, now: int) -> bool:
        """Do what the mode says with ownership; tell whether the turn is still owned."""
        mode = op.mode
        if mode is Mode.END:
            self._end(record, tree, op.closing, op.retention_ms, now)
            return False
        if mode is Mode.HAND_OFF:
            self._release(record, "R")
            self._wake_at(record, now)
            return False
        # whoever posts after this line finds no owner and wakes the turn
        if mode is Mode.SUSPEND and not record.mail and record.cancel is None:
            self._release(record, "S")
            self._wake_at(record, op.wake)
            return False
        record.lease = now + op.lease_ms
        return True

    def _saved(self, record: Record, op: Save, now: int, *, owned: bool, replayed: bool) -> base.Saved:
        return base.Saved(
            version=record.version,
            now=now,
            owned=owned,
            mail=tuple(islice(record.mail.values(), op.batch)) if owned else (),
            cancel=record.cancel if owned else None,
            usage=self._trees[record.root].usage,
            replayed=replayed,
        )

    def _answer(self, root: str, tree: Tree, message_id: str, body: bytes, now: int) -> None:
        tree.replies[message_id] = body
        self._replied.append((now, root, message_id))

    def _close(self, record: Record, wait_id: str) -> None:
        wait = record.waits.pop(wait_id, None)
        if wait is not None:
            self._waits.drop((wait.created, wait_id))

    def _end(self, record: Record, tree: Tree, closing: bytes, retention_ms: int, now: int) -> None:
        self._release(record, "T")
        self._wake_at(record, None)
        record.quarantine, record.quarantined_at = None, 0
        for message_id in record.mail:
            self._answer(record.root, tree, message_id, closing, now)
        record.mail = {}
        for wait_id in list(record.waits):
            self._close(record, wait_id)
        if record.turn == record.root:
            self._expiring.put((now + retention_ms, record.root), record.root)
            if record.conversation is not None:
                del self._open[record.conversation]

    def _drop_tree(self, root: str) -> None:
        for turn in self._trees.pop(root).turns:
            record = self._turns.pop(turn)
            self._created.drop((record.created, turn))


def back_off(crashes: int, step_ms: int) -> int:
    """Return how long a turn waits after its n-th lost owner; the first waits not at all."""
    return 0 if crashes < 2 else min(step_ms << min(crashes - 2, 20), BACK_OFF_LIMIT_MS)


def _shows(record: Record, token: Token) -> bool:
    return record.activation == token.activation and record.epoch == token.epoch


def _runs(by: ClaimBy, record: Record) -> bool:
    if record.schema > by.schema:
        return False
    return by.agents is None or f"{record.agent}@{record.agent_version}" in by.agents


HANDLERS: dict[type[Op], Callable[[Any, Any, int], Reply]] = {
    base.Create: MemoryCore.create,
    base.Deliver: MemoryCore.deliver,
    base.Cancel: MemoryCore.cancel,
    base.Claim: MemoryCore.claim,
    base.Renew: MemoryCore.renew,
    base.Save: MemoryCore.save,
    base.Abandon: MemoryCore.abandon,
    base.Reap: MemoryCore.reap,
    base.Quarantine: MemoryCore.quarantine,
    base.Revive: MemoryCore.revive,
    base.Discard: MemoryCore.discard,
    base.ReadMail: MemoryCore.read_mail,
    base.Find: MemoryCore.find,
    base.Look: MemoryCore.look,
    base.ReadHistory: MemoryCore.read_history,
    base.ReadEvents: MemoryCore.read_events,
    base.ReadReplies: MemoryCore.read_replies,
    base.Versions: MemoryCore.versions,
    base.Due: MemoryCore.due,
    base.Expired: MemoryCore.expired,
    base.ListWaits: MemoryCore.list_waits,
    base.ListTurns: MemoryCore.list_turns,
    base.OpenTurn: MemoryCore.open_turn,
    base.Beat: MemoryCore.beat,
    base.ListNodes: MemoryCore.list_nodes,
    base.Prune: MemoryCore.prune,
}
