"""Named faults of the rules. Each is a change of their source; a change whose text is not found fails loudly."""

from __future__ import annotations

import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnhold.store import entries, rules
from turnhold.store.memory_core import MemoryCore

SOURCES = {"Rules": Path(rules.__file__).read_text(), "EntryRules": Path(entries.__file__).read_text()}


@dataclass(frozen=True)
class Mutant:
    """One fault: what stands in the source of a class, and what shall stand there."""

    name: str
    old: str
    new: str
    of: str = "Rules"

    def core(self) -> type[Any]:
        """Return the faulty class. :raises LookupError: if the source has changed under the mutant."""
        source = SOURCES[self.of]
        if source.count(self.old) != 1:
            raise LookupError(f"mutant {self.name!r}: its text stands {source.count(self.old)} times in the rules")
        module = types.ModuleType(f"turnhold.store.mutant_{self.name.replace(' ', '_')}")
        module.__package__ = "turnhold.store"
        exec(compile(source.replace(self.old, self.new), f"<{self.name}>", "exec"), module.__dict__)
        rules = vars(getattr(module, self.of))
        faulty = {name: what for name, what in rules.items() if callable(what) and not name.startswith("__")}
        return type("Mutant", (MemoryCore,), faulty)


MUTANTS = [
    Mutant(
        "no token check",
        "        if not record.shows(op.token):\n            return base.Fenced(record.node)\n        if record.version",
        "        if record.version",
    ),
    Mutant(
        "token without epoch",
        "if not record.shows(op.token):\n            return base.Fenced(record.node)\n        if record.version",
        "if record.activation != op.token.activation:\n            return base.Fenced(record.node)\n        if record.version",
    ),
    Mutant("no save id", "if record.save_id == op.save_id:", "if False:"),
    Mutant(
        "forked snapshots",
        "if record.version != op.version or record.message_count != op.messages.at or record.event_count != op.events.at:",
        "if record.version < op.version or record.message_count < op.messages.at or record.event_count < op.events.at:",
    ),
    Mutant(
        "behind taken as current",
        "if record.version != op.version or record.message_count != op.messages.at or record.event_count != op.events.at:",
        "if record.version > op.version or record.message_count > op.messages.at or record.event_count > op.events.at:",
    ),
    Mutant("release without inbox check", "and not record.unread and record.cancel is None:", "and record.cancel is None:"),
    Mutant("suspend ignores cancel", "and not record.unread and record.cancel is None:", "and not record.unread:"),
    Mutant("suspend drops wake", "self.set_wake(record, op.wake)", "self.set_wake(record, None)"),
    Mutant("cancel does not wake", "rouse=fresh or stuck, fresh=fresh", "rouse=False, fresh=fresh"),
    Mutant(
        "second cancel leaves a parked turn",
        "stuck = record.cancel is not None and record.wake is None",
        "stuck = False",
    ),
    Mutant("later cause wins", "fresh = record.cancel is None and record.cancel_acked is None", "fresh = True"),
    Mutant("acknowledged cancel stays open", "record.cancel_acked, record.cancel = record.cancel, None", "pass"),
    Mutant("no dedup", "fresh = not self.was_seen(record, mail.message_id)", "fresh = True"),
    Mutant(
        "runtime mail not deduplicated",
        'and record.state != "T" and not self.was_seen(record, mail.message_id):',
        'and record.state != "T":',
    ),
    Mutant(
        "consumed mail forgotten",
        "if self.take_mail(record, message_id, now):",
        "if self.take_mail(record, message_id, now) and not record.seen.pop(message_id, None):",
    ),
    Mutant("consumed mail stays", "if self.take_mail(record, message_id, now):", "if False:"),
    Mutant(
        "consumed by position",
        "for message_id in op.consumed:",
        "for message_id in [mail.message_id for mail in self.read_mailbox(record, len(op.consumed))]:",
    ),
    Mutant("deliver does not wake", "rouse=fresh, fresh=fresh", "rouse=False, fresh=fresh"),
    Mutant("no mailbox bound", "record.unread >= op.cap", "False"),
    Mutant(
        "deliver to a parked turn owns it",
        "fits = due and not record.parked and record.runs_by(claim)",
        "fits = due and record.runs_by(claim)",
    ),
    Mutant("deliver gives unknown agents away", "fits = due and not record.parked and record.runs_by(claim)", "fits = due"),
    Mutant("claim steals", "if record.activation == by.activation else base.Held(record.node)", "if True else None"),
    Mutant(
        "claim too early",
        "if record.wake is None or record.wake > now:\n            return",
        "if record.wake is None:\n            return",
    ),
    Mutant("epoch not raised", "record.epoch = max(record.epoch + 1, now)", "record.epoch = now // 500"),
    Mutant("claim leaves wake", "            self.set_wake(record, None)\n        record.lease", "        record.lease"),
    Mutant(
        "reap does not requeue",
        "self.set_wake(record, now + back_off(record.crashes, op.back_off_ms))",
        "pass",
    ),
    Mutant("reap ignores the lease", "if record.lease + op.grace_ms > now and", "if False and"),
    Mutant("first crash backs off", "return 0 if crashes < 2 else", "return step_ms if crashes < 2 else"),
    Mutant("renew does not extend", "record.lease = now + op.lease_ms\n            flags", "flags"),
    Mutant(
        "receipts without command",
        "self.put_receipt(record, receipt)",
        "self.put_receipt(record, base.ReceiptRow(receipt.wait_id, receipt.body, None, receipt.call_key))",
    ),
    Mutant(
        "receipts under the call",
        "self.put_receipt(record, receipt)",
        "self.put_receipt(record, base.ReceiptRow(str(receipt.call_key), receipt.body, receipt.command_id, receipt.call_key))",
    ),
    Mutant("receipts not stored", "self.put_receipt(record, receipt)", "pass"),
    Mutant("replies lost", "self.put_reply(record, reply.message_id, reply.body, now)", "pass"),
    Mutant("end leaves mail unanswered", "self.put_reply(record, mail.message_id, closing, now)", "pass"),
    Mutant("end leaves waits open", "self.drop_waits(record)", "pass"),
    Mutant("conversation not freed", "self.set_open_turn(conversation, head)", "pass"),
    Mutant(
        "conversation not checked",
        "if busy is not None:",
        "if False:",
    ),
    Mutant("child not born cancelled", "child.cancel = cause", "pass"),
    Mutant("child not runnable", "self._schedule(child, new.wake if cause is None else now, now)", "pass"),
    Mutant("mail of a save lost", "self._send(turn, mail, now)", "pass"),
    Mutant("flag of a save lost", "self.cancel(base.Cancel(turn=turn, cause=why), now)", "pass"),
    Mutant("events numbered twice", "record.event_count += events.count", "record.event_count += 1"),
    Mutant("progress never resets", "record.crashes = 0\n        if op.ack", "pass\n        if op.ack"),
    Mutant("every save resets crashes", "if record.crashes and op.progress:", "if True:"),
    Mutant(
        "abandon by anybody",
        "if record is None or not record.shows(op.token):\n            return base.Fenced(None if record is None else record.node)"
        '\n        self._release(record, "R")',
        'if record is None:\n            return base.Fenced(None)\n        self._release(record, "R")',
    ),
    Mutant("usage not stored", "now, op.usage", "now, record.usage"),
    Mutant("promotion forgotten", "self.set_open_turn(conversation, head)", "self.set_open_turn(conversation, None)"),
    Mutant("promoted but asleep", "            self._schedule(record, now, now)\n", ""),
    Mutant(
        "promoted and still queued", "            self.dequeue(record)\n            self._schedule", "            self._schedule"
    ),
    Mutant("any end opens the next", "and self.open_turn_of(record.conversation) == record.turn:", "and True:"),
    Mutant("queued turn roused by mail", "and not record.parked and not self._queued(record):", "and not record.parked:"),
    Mutant("deliver to a queued turn owns it", "due = (rouse and not self._queued(record)) or", "due = rouse or"),
    Mutant(
        "cancelled turn stays queued",
        "if self._queued(record):\n                self.dequeue(record)",
        "if False:\n                pass",
    ),
    Mutant("queue without bound", "queued >= op.room", "False"),
    Mutant("refused start queues", 'op.when_busy == "refuse" or queued', "queued"),
    Mutant(
        "start runs beside the open turn",
        "        self.enqueue(self.add_turn(op.new, now))\n",
        "        self._schedule(self.add_turn(op.new, now), now, now)\n",
    ),
    Mutant(
        "supersede spares the open turn",
        "for turn in (busy, *self.queue_of(conversation)):",
        "for turn in self.queue_of(conversation):",
    ),
    Mutant("supersede spares the queue", "for turn in (busy, *self.queue_of(conversation)):", "for turn in (busy,):"),
    Mutant("save forgets memory", "if op.memory and op.conversation is not None:", "if False:"),
    Mutant("save never passes on", "now, relay=op.relay)", "now, relay=False)"),
    *(
        Mutant(name, old, new, "EntryRules")
        for name, old, new in (
            ("entry doubled by a save", "kept = known.get(row.id)\n", "kept = None\n"),
            (
                "known entry written over",
                "            if kept is not None:\n                return base.Done()",
                "            pass",
            ),
            ("entry that is there written again", "if kept is None or not _holds(kept[0], row):", "if True:"),
            ("entry replaced whatever its version", ") != expected:", ") < 0:"),
            ("repeated replacement refused", "repeated = version == expected + 1 and _holds(kept[0], row)", "repeated = False"),
            (
                "other replacement taken for a repeated one",
                "version == expected + 1 and _holds(kept[0], row)",
                "version == expected + 1",
            ),
            ("entry hidden unseen", "and entry.shown == row.shown", ""),
            ("version not raised", "kept[0].version + 1", "kept[0].version"),
            ("entry dated anew", "kept[0].version + 1, kept[0].at, relay", "kept[0].version + 1, now, relay"),
            ("entry moved to the end", "place, version, at, waits = kept[0].place,", "place, version, at, waits = shelf.places,"),
            ("changes numbered from one", "max(shelf.change + 1, now)", "shelf.change + 1"),
            ("two changes of one number", "max(shelf.change + 1, now)", "max(shelf.change, now)"),
            ("replaced entry waits no longer", "kept[0].at, relay or kept[1]", "kept[0].at, relay"),
            ("waiting starts anew with each write", "if waits and shelf.since is None:", "if waits:"),
            ("nobody told that entries wait", "if waits and shelf.since is None:", "if False:"),
            ("all passed on with the first", "now if waiting else None", "None"),
            ("passed on for nothing", "            if ended:\n", "            if True:\n"),
            ("waits as long as before", "shelf.since = now if waiting else None", "shelf.since = shelf.since if waiting else None"),
            ("clearing leaves notes", "        self.drop_notes(op.conversation)\n", ""),
            ("clearing leaves entries", "            self.drop_shelf(shelf)\n", "            pass\n"),
            ("note of any version written over", "if version != op.expected:", "if False:"),
            ("repeated note refused", "repeated = version == op.expected + 1 and body == op.body", "repeated = False"),
            ("found in stored order", "for name in op.ids if name in known", "for name in sorted(known)"),
        )
    ),
]
