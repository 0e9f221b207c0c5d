"""What every operation does, for the stores that live in this process. Memory and SQLite give the tables; this decides.

The order of the checks is that of `operations`; Redis says the same in Lua.
"""

from __future__ import annotations

from ..actors.ids import root_of
from . import base
from .base import ClaimBy, Mail, Op, Reply, Save
from .entries import EntryRules
from .records import END, HAND_OFF, SUSPEND
from .tables import R, Tables

BACK_OFF_LIMIT_MS = 60_000


class Rules(EntryRules, Tables[R]):
    """The operations that write.

    `roused` are turns that the last operation made runnable without naming them: those that wait for a bell.
    """

    roused: list[str]

    def create(self, op: base.Create, now: int) -> Reply:
        """Create a root turn."""
        new = op.new
        record = self.find_turn(new.turn)
        if record is not None:
            if record.digest != new.digest:
                return base.KeyReused(new.turn)
            if op.claim is not None and op.claim.activation == record.activation:
                return self._own(record, op.claim, now)
            return base.Existing(new.turn)
        if new.conversation is not None:
            busy = self.open_turn_of(new.conversation)
            if busy is not None:
                return self._wait_behind(busy, new.conversation, op, now)
            self.set_open_turn(new.conversation, new.turn)
        record = self.add_turn(new, now)
        if op.claim is not None and record.runs_by(op.claim):
            return self._own(record, op.claim, now)
        self._schedule(record, new.wake, now)
        return base.Created(now)

    def deliver(self, op: base.Deliver, now: int) -> Reply:
        """Put mail into a mailbox."""
        mail, root = op.mail, root_of(op.turn)
        if mail.command_id is not None and (body := self.read_receipt(root, "command", mail.command_id)) is not None:
            return base.Known("command", body)
        record = self.find_turn(op.turn)
        if record is None:
            return base.Gone()
        if mail.wait_id is not None and (body := self.read_receipt(root, "wait", mail.wait_id)) is not None:
            return base.Known("wait", body)
        if (body := self.read_reply(root, mail.message_id)) is not None:
            return base.Replied(body)
        fresh = not self.was_seen(record, mail.message_id)
        if fresh:
            if record.state == "T":
                return base.Closed(record.status)
            if not (op.runtime and mail.command_id is None) and record.unread >= op.cap:
                return base.Full(record.unread)
            self._post(record, mail, now)
        return self._rouse_or_own(record, op.claim, now, rouse=fresh, fresh=fresh)

    def cancel(self, op: base.Cancel, now: int) -> Reply:
        """Raise a cancel flag."""
        record = self.find_turn(op.turn)
        if record is None:
            return base.Gone()
        if record.state == "T":
            return base.Closed(record.status)
        fresh = record.cancel is None and record.cancel_acked is None
        if fresh:
            if self._queued(record):
                self.dequeue(record)
            record.cancel = op.cause
        stuck = record.cancel is not None and record.wake is None  # its owner parked it without taking the flag
        return self._rouse_or_own(record, op.claim, now, rouse=fresh or stuck, fresh=fresh)

    def claim(self, op: base.Claim, now: int) -> Reply:
        """Own a turn that may run."""
        record, by = self.find_turn(op.turn), op.by
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
        if not record.runs_by(by):
            return base.UnknownAgent(record.agent, record.agent_version)
        return self._own(record, by, now)

    def renew(self, op: base.Renew, now: int) -> Reply:
        """Extend leases."""
        flags: list[int] = []
        for turn, token in op.leases:
            record = self.find_turn(turn)
            if record is None or not record.shows(token):
                flags.append(0)
                continue
            record.lease = now + op.lease_ms
            flags.append(1 + (record.unread > 0) + 2 * (record.cancel is not None))
        return base.Renewed(now, tuple(flags))

    def save(self, op: Save, now: int) -> Reply:
        """Commit one transition."""
        record = self.find_turn(op.turn)
        if record is None:
            return base.Fenced()
        if record.save_id == op.save_id:
            return self._saved(record, op, now, owned=record.shows(op.token), replayed=True)
        if not record.shows(op.token):
            return base.Fenced(record.node)
        if record.version != op.version or record.message_count != op.messages.at or record.event_count != op.events.at:
            if record.version < op.version or record.message_count < op.messages.at or record.event_count < op.events.at:
                return base.Behind(record.version, record.message_count, record.event_count)
            return base.Conflict(record.version)
        self._write(record, op, now)
        if op.create or op.deliver or op.cancel or op.memory:
            self._reach(record, op, now)
        return self._saved(record, op, now, owned=self._settle(record, op, now), replayed=False)

    def abandon(self, op: base.Abandon, now: int) -> Reply:
        """Give a turn back without saving."""
        record = self.find_turn(op.turn)
        if record is None or not record.shows(op.token):
            return base.Fenced(None if record is None else record.node)
        self._release(record, "R")
        self.set_wake(record, now + op.delay_ms)
        return base.Done()

    def reap(self, op: base.Reap, now: int) -> Reply:
        """Take a turn from an owner that is gone."""
        record = self.find_turn(op.turn)
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
            self.set_wake(record, now + back_off(record.crashes, op.back_off_ms))
        return base.Reaped(record.crashes, record.quarantine is not None)

    def quarantine(self, op: base.Quarantine, now: int) -> Reply:
        """Park a turn."""
        record = self.find_turn(op.turn)
        if record is None or not record.shows(op.token):
            return base.Fenced(None if record is None else record.node)
        self._release(record, "S")
        record.quarantine, record.quarantined_at = op.reason, now
        return base.Done()

    def revive(self, op: base.Revive, now: int) -> Reply:
        """End a quarantine."""
        record = self.find_turn(op.turn)
        if record is None or record.quarantine is None:
            return base.Gone()
        record.quarantine, record.quarantined_at, record.crashes = None, 0, 0
        if record.activation is None:
            self._rouse(record, now)
        return base.Done()

    def discard(self, op: base.Discard, now: int) -> Reply:
        """End a record that nobody can read."""
        record = self.find_turn(op.turn)
        if record is None or record.quarantine is None or record.state == "T":
            return base.Gone()
        record.status, record.updated = op.status, now
        self._end(record, op.closing, op.retention_ms, now)
        if op.notify is not None and record.parent is not None:
            self._send(record.parent, op.notify, now)
        return base.Done()

    def read_mail(self, op: base.ReadMail, now: int) -> Reply:
        """Read unconsumed mail and the cancel flag."""
        record = self.find_turn(op.turn)
        return base.MailBatch(now) if record is None else base.MailBatch(now, self.read_mailbox(record, op.batch), record.cancel)

    def find(self, op: base.Find, now: int) -> Reply:
        """Look up receipts by any key."""
        root, read = op.root, self.read_receipt
        bodies = [read(root, "command", key) for key in op.commands]
        bodies += [read(root, "wait", key) for key in op.waits]
        bodies += [read(root, "call", key) for key in op.calls]
        return base.Found(tuple(bodies))

    def read_replies(self, op: base.ReadReplies, now: int) -> Reply:
        """Read answers by message id."""
        root = root_of(op.turn)
        return base.Found(tuple(self.read_reply(root, message_id) for message_id in op.message_ids))

    def list_queue(self, op: base.ListQueue, now: int) -> Reply:
        """Read a conversation's queue."""
        return base.DueTurns(self.queue_of(op.conversation), None, now)

    def open_turn(self, op: base.OpenTurn, now: int) -> Reply:
        """Read a conversation's entry."""
        turn = self.open_turn_of(op.conversation)
        record = None if turn is None else self.find_turn(turn)
        return base.Opened(turn, None if record is None else record.status)

    def _wait_behind(self, busy: str, conversation: str, op: base.Create, now: int) -> Reply:
        """Do what a start says for the case that its conversation has an open turn."""
        if op.when_busy == "supersede":
            for turn in (busy, *self.queue_of(conversation)):
                self.cancel(base.Cancel(turn=turn, cause=op.cause), now)
                self.roused.append(turn)
        else:
            queued = self.queue_length(conversation) if op.when_busy == "queue" else 0
            if op.when_busy == "refuse" or queued >= op.room:
                other = self.find_turn(busy)
                return base.Busy(busy, "" if other is None else other.status, queued)
        self.enqueue(self.add_turn(op.new, now))
        return base.Queued(now)

    def _queued(self, record: R) -> bool:
        """Tell whether a turn stands in its conversation's queue; the store is asked only where it may."""
        waits = record.state == "S" and record.wake is None and record.epoch == 0  # it has never had an owner
        return waits and record.conversation is not None and record.turn == record.root and self.is_queued(record)

    def _own(self, record: R, by: ClaimBy, now: int) -> base.Claimed:
        if record.activation != by.activation:
            self.set_owner(record, by.activation, by.node)
            record.state = "A"
            record.epoch = max(record.epoch + 1, now)
            self.set_wake(record, None)
        record.lease = now + by.lease_ms
        return base.Claimed(
            epoch=record.epoch,
            version=record.version,
            schema=record.schema,
            snapshot=self.read_snapshot(record),
            now=now,
            mail=self.read_mailbox(record, by.batch) if record.unread else (),
            cancel=record.cancel,
            crashes=record.crashes,
            tail=self.read_tail(record, by.tail) if by.tail else (),
            message_count=record.message_count,
            event_count=record.event_count,
            quarantined=record.quarantine is not None,
        )

    def _release(self, record: R, state: str) -> None:
        self.set_owner(record, None, None)
        record.state, record.lease = state, 0

    def _schedule(self, record: R, wake: int | None, now: int) -> None:
        """Say when a new turn may run."""
        if wake is not None and wake <= now:
            record.state, wake = "R", now
        self.set_wake(record, wake)

    def _rouse(self, record: R, now: int) -> None:
        if record.activation is None and not record.parked and not self._queued(record):
            record.state = "R"
            if record.wake is None or record.wake > now:
                self.set_wake(record, now)

    def _rouse_or_own(self, record: R, claim: ClaimBy | None, now: int, *, rouse: bool, fresh: bool) -> Reply:
        if claim is not None and record.state != "T":
            if record.activation is None:
                due = (rouse and not self._queued(record)) or (record.wake is not None and record.wake <= now)
                fits = due and not record.parked and record.runs_by(claim)
            else:
                fits = record.activation == claim.activation
            if fits:
                return self._own(record, claim, now)
        if rouse:
            self._rouse(record, now)
        return base.Delivered(now, record.node, fresh, record.quarantine is not None)

    def _post(self, record: R, mail: Mail, now: int) -> None:
        self.put_mail(record, Mail(mail.message_id, mail.body, mail.command_id, mail.wait_id, now))
        record.unread += 1

    def _send(self, turn: str, mail: Mail, now: int) -> None:
        record = self.find_turn(turn)
        if record is not None and record.state != "T" and not self.was_seen(record, mail.message_id):
            self._post(record, mail, now)
            self._rouse(record, now)

    def _write(self, record: R, op: Save, now: int) -> None:
        messages, events = op.messages, op.events
        if messages.bodies or events.count:
            self.append(record, messages, events)
            record.message_count += len(messages.bodies)
            record.event_count += events.count
        self.put_snapshot(record, op.snapshot)
        record.status, record.updated, record.usage = op.status, now, op.usage
        record.version, record.save_id = op.version + 1, op.save_id
        if record.schema != op.schema:
            record.schema = op.schema
        if record.crashes and op.progress:
            record.crashes = 0
        if op.ack_cancel and record.cancel is not None:
            record.cancel_acked, record.cancel = record.cancel, None
        if op.consumed or op.receipts or op.replies or op.closed:
            self._answer(record, op, now)
        for wait in op.opened:
            self.put_wait(record, wait)

    def _answer(self, record: R, op: Save, now: int) -> None:
        """Take what was consumed from the mailbox, and keep what is said to it."""
        for message_id in op.consumed:
            if self.take_mail(record, message_id, now):
                record.unread -= 1
        for receipt in op.receipts:
            self.put_receipt(record, receipt)
        for reply in op.replies:
            self.put_reply(record, reply.message_id, reply.body, now)
        for wait_id in op.closed:
            self.drop_wait(record, wait_id)

    def _reach(self, record: R, op: Save, now: int) -> None:
        cause = record.cancel or record.cancel_acked
        for new in op.create:
            if self.find_turn(new.turn) is None:
                child = self.add_turn(new, now)
                child.cancel = cause
                self._schedule(child, new.wake if cause is None else now, now)
        for turn, mail in op.deliver:
            self._send(turn, mail, now)
        for turn, why in op.cancel:
            self.cancel(base.Cancel(turn=turn, cause=why), now)
        if op.memory and op.conversation is not None:
            self.remember(op.conversation, op.memory, now, relay=op.relay)

    def _settle(self, record: R, op: Save, now: int) -> bool:
        """Do what the mode says with ownership; tell whether the turn is still owned."""
        mode = op.mode
        if mode is END:
            self._end(record, op.closing, op.retention_ms, now)
            return False
        if mode is HAND_OFF:
            self._release(record, "R")
            self.set_wake(record, now)
            return False
        # whoever posts after this line finds no owner and wakes the turn
        if mode is SUSPEND and not record.unread and record.cancel is None:
            self._release(record, "S")
            self.set_wake(record, op.wake)
            return False
        record.lease = now + op.lease_ms
        return True

    def _saved(self, record: R, op: Save, now: int, *, owned: bool, replayed: bool) -> base.Saved:
        return base.Saved(
            version=record.version,
            now=now,
            owned=owned,
            mail=self.read_mailbox(record, op.batch) if owned and record.unread else (),
            cancel=record.cancel if owned else None,
            usage=self.total_usage(record),
            replayed=replayed,
        )

    def _end(self, record: R, closing: bytes, retention_ms: int, now: int) -> None:
        self._release(record, "T")
        self.set_wake(record, None)
        record.quarantine, record.quarantined_at = None, 0
        if record.unread:
            for mail in self.read_mailbox(record, None):
                self.put_reply(record, mail.message_id, closing, now)
            self.empty_mailbox(record)
            record.unread = 0
        self.drop_waits(record)
        if record.turn == record.root:
            self.set_expiry(record, now + retention_ms)
            if record.conversation is not None and self.open_turn_of(record.conversation) == record.turn:
                self._free(record.conversation, now)

    def _free(self, conversation: str, now: int) -> None:
        """Open a conversation for the head of its queue; in the same step as the end, so that nobody comes between."""
        head = next(iter(self.queue_of(conversation, 1)), None)
        self.set_open_turn(conversation, head)
        if head is not None and (record := self.find_turn(head)) is not None:
            self.dequeue(record)
            self._schedule(record, now, now)
            self.roused.append(head)


def back_off(crashes: int, step_ms: int) -> int:
    """Return how long a turn waits after its n-th lost owner; the first waits not at all."""
    return 0 if crashes < 2 else min(step_ms << min(crashes - 2, 20), BACK_OFF_LIMIT_MS)


OPERATIONS: dict[type[Op], str] = {
    base.Create: "create",
    base.Deliver: "deliver",
    base.Cancel: "cancel",
    base.Claim: "claim",
    base.Renew: "renew",
    base.Save: "save",
    base.Abandon: "abandon",
    base.Reap: "reap",
    base.Quarantine: "quarantine",
    base.Revive: "revive",
    base.Discard: "discard",
    base.ReadMail: "read_mail",
    base.Find: "find",
    base.Look: "look",
    base.ReadHistory: "read_history",
    base.ReadEvents: "read_events",
    base.ReadReplies: "read_replies",
    base.Versions: "versions",
    base.Due: "due",
    base.Expired: "expired",
    base.ListWaits: "list_waits",
    base.ListTurns: "list_turns",
    base.OpenTurn: "open_turn",
    base.ListQueue: "list_queue",
    base.WriteMemory: "write_memory",
    base.ReadMemory: "read_memory",
    base.FindMemory: "find_memory",
    base.ClearMemory: "clear_memory",
    base.Relays: "relays",
    base.ReadRelay: "read_relay",
    base.Relayed: "relayed",
    base.ReadNote: "read_note",
    base.WriteNote: "write_note",
    base.Beat: "beat",
    base.ListNodes: "list_nodes",
    base.Prune: "prune",
}
