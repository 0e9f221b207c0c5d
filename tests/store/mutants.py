"""Named faults of the memory core. Each is a change of its source; a change whose text is not found fails loudly."""

from __future__ import annotations

import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnhold.store import memory_core

SOURCE = Path(memory_core.__file__).read_text()


@dataclass(frozen=True)
class Mutant:
    """One fault: what stands in the source, and what shall stand there."""

    name: str
    old: str
    new: str

    def core(self) -> type[Any]:
        """Return the faulty class. :raises LookupError: if the source has changed under the mutant."""
        if SOURCE.count(self.old) != 1:
            raise LookupError(f"mutant {self.name!r}: its text stands {SOURCE.count(self.old)} times in the core")
        module = types.ModuleType(f"turnhold.store.mutant_{self.name.replace(' ', '_')}")
        module.__package__ = "turnhold.store"
        exec(compile(SOURCE.replace(self.old, self.new), f"<{self.name}>", "exec"), module.__dict__)
        return module.MemoryCore


MUTANTS = [
    Mutant(
        "no token check",
        "        if not _shows(record, op.token):\n            return base.Fenced(record.node)\n        history",
        "        history",
    ),
    Mutant(
        "token without epoch",
        "return record.activation == token.activation and record.epoch == token.epoch",
        "return record.activation == token.activation",
    ),
    Mutant("no save id", "if record.save_id == op.save_id:", "if False:"),
    Mutant(
        "forked snapshots",
        "if record.version > op.version or len(record.history) > history.at or record.event_count > events.at:",
        "if False:",
    ),
    Mutant(
        "behind taken as current",
        "if record.version < op.version or len(record.history) < history.at or record.event_count < events.at:",
        "if False:",
    ),
    Mutant("release without inbox check", "and not record.mail and record.cancel is None:", "and record.cancel is None:"),
    Mutant("suspend ignores cancel", "and not record.mail and record.cancel is None:", "and not record.mail:"),
    Mutant("suspend drops wake", "self._wake_at(record, op.wake)", "self._wake_at(record, None)"),
    Mutant("cancel does not wake", "rouse=fresh or stuck, fresh=fresh", "rouse=False, fresh=fresh"),
    Mutant(
        "second cancel leaves a parked turn",
        "stuck = record.cancel is not None and record.wake is None",
        "stuck = False",
    ),
    Mutant("later cause wins", "fresh = record.cancel is None and record.cancel_acked is None", "fresh = True"),
    Mutant("acknowledged cancel stays open", "record.cancel_acked, record.cancel = record.cancel, None", "pass"),
    Mutant("no dedup", "fresh = mail.message_id not in record.seen", "fresh = True"),
    Mutant(
        "runtime mail not deduplicated",
        'and record.state != "T" and mail.message_id not in record.seen:',
        'and record.state != "T":',
    ),
    Mutant(
        "consumed mail forgotten",
        "            if mid not in record.seen:\n                record.seen.add(mid)",
        "            if record.seen.discard(mid):\n                record.seen.add(mid)",
    ),
    Mutant("consumed mail stays", "record.mail.pop(mid, None)", "pass"),
    Mutant(
        "one consumed takes all before it",
        "record.mail.pop(mid, None)",
        "[record.mail.pop(m) for m in list(record.mail)[: list(record.mail).index(mid) + 1 if mid in record.mail else 0]]",
    ),
    Mutant("deliver does not wake", "rouse=fresh, fresh=fresh", "rouse=False, fresh=fresh"),
    Mutant("no mailbox bound", "len(record.mail) >= op.cap", "False"),
    Mutant(
        "deliver to a parked turn owns it",
        "fits = due and not record.parked and _runs(claim, record)",
        "fits = due and _runs(claim, record)",
    ),
    Mutant("deliver gives unknown agents away", "fits = due and not record.parked and _runs(claim, record)", "fits = due"),
    Mutant("claim steals", "if record.activation == by.activation else base.Held(record.node)", "if True else None"),
    Mutant(
        "claim too early",
        "if record.wake is None or record.wake > now:\n            return",
        "if record.wake is None:\n            return",
    ),
    Mutant("epoch not raised", "record.epoch = max(record.epoch + 1, now)", "record.epoch = now // 500"),
    Mutant("claim leaves wake", "            self._wake_at(record, None)\n        record.lease", "        record.lease"),
    Mutant(
        "reap does not requeue",
        "self._wake_at(record, now + back_off(record.crashes, op.back_off_ms))",
        "pass",
    ),
    Mutant("reap ignores the lease", "if record.lease + op.grace_ms > now and", "if False and"),
    Mutant("first crash backs off", "return 0 if crashes < 2 else", "return step_ms if crashes < 2 else"),
    Mutant("renew does not extend", "record.lease = now + op.lease_ms\n            flags", "flags"),
    Mutant("receipts without command", "tree.commands[receipt.command_id] = receipt.body", "pass"),
    Mutant("receipts under the call", "tree.waits[receipt.wait_id] = receipt.body", "tree.waits[str(receipt.call_key)] = b''"),
    Mutant("replies lost", "self._answer(record.root, tree, reply.message_id, reply.body, now)", "pass"),
    Mutant("end leaves mail unanswered", "self._answer(record.root, tree, message_id, closing, now)", "pass"),
    Mutant("end leaves waits open", "for wait_id in list(record.waits):", "for wait_id in ():"),
    Mutant("conversation not freed", "del self._open[record.conversation]", "pass"),
    Mutant(
        "conversation not checked",
        "if (busy := self._open.get(new.conversation)) is not None:",
        "if (busy := self._open.get(new.conversation)) is None and busy:",
    ),
    Mutant("child not born cancelled", "child.cancel = cause", "pass"),
    Mutant("child not runnable", "self._schedule(child, new.wake if cause is None else now, now)", "pass"),
    Mutant("mail of a save lost", "self._send(turn, mail, now)", "pass"),
    Mutant("flag of a save lost", "self.cancel(base.Cancel(turn=turn, cause=why), now)", "pass"),
    Mutant("events numbered twice", "record.event_count += op.events.count", "record.event_count += 1"),
    Mutant("progress never resets", "record.crashes = 0\n        if op.ack", "pass\n        if op.ack"),
    Mutant("every save resets crashes", "if op.progress:", "if True:"),
    Mutant(
        "abandon by anybody",
        "if record is None or not _shows(record, op.token):\n            return base.Fenced(None if record is None else record.node)"
        '\n        self._release(record, "R")',
        'if record is None:\n            return base.Fenced(None)\n        self._release(record, "R")',
    ),
    Mutant("usage added, not replaced", "record.usage = used", "pass"),
]
