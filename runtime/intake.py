"""What an actor takes in: local messages, mail from the store, the cancel flag, deadlines; and whom it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Literal, TypeAlias

from ..actors.errors import SnapshotCorrupt
from ..actors.ids import call_key, root_of
from ..actors.machine import messages as m
from ..actors.machine.draft import Accepted, Outcome, Refusal
from ..actors.waits import Receipt, ResumeCommand
from ..store import base, codec
from .errors import Rerouted
from .log import log
from .part import Part

By: TypeAlias = Literal["command", "wait"]
Known: TypeAlias = tuple[Receipt, By]
BY_TIME = attrgetter("at")
NO_NAMES: frozenset[str] = frozenset()
NOTHING_BROUGHT: Mapping[str, m.MailMessage] = MappingProxyType({})


class Intake(Part, eq=False, gc=False):
    """The side of an actor that faces senders.

    `consumed` are the ids of the mail in the batch at hand: they leave the store with the save that carries what they did.
    `broken` are the answers to mail that cannot be read; the machine hears nothing of that.
    """

    consumed: tuple[str, ...] = ()
    broken: tuple[tuple[str, Outcome], ...] = ()
    _expected: dict[str, asyncio.Future[Outcome]] = {}
    _mail: tuple[base.Mail, ...] = ()
    _silent: frozenset[str] = NO_NAMES
    _brought: Mapping[str, m.MailMessage] = NOTHING_BROUGHT
    _receipts: dict[str, Receipt] = {}
    _cancel: str | None = None

    def expect(self, message_id: str) -> asyncio.Future[Outcome]:
        """Return the future that gets the answer to a message."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._expected[message_id] = future
        return future

    def put(self, mail: Sequence[base.Mail], cancel: str | None, brought: Mapping[str, m.MailMessage] | None = None) -> None:
        """Take over what a store reply brought along.

        :param brought: mail that its sender, in this process, has delivered in the same step: its message is at hand, and receipts
            were looked up for it.
        """
        known = {item.message_id for item in self._mail}.union(self.consumed) if self._mail or self.consumed else ()
        self._mail += tuple([item for item in mail if item.message_id not in known]) if known else tuple(mail)
        if brought is not None:
            self._brought = brought
        if cancel is not None and not self._actor.state.cancel_at:
            self._cancel = cancel
        if self._mail or self._cancel is not None:
            self._actor.mailbox.ring()

    def sent(self) -> bool:
        """Tell whether anybody has sent something: who sends from within this process waits for an answer."""
        return bool(self._mail or self._expected or self._cancel is not None)

    async def collect(self, *, due: bool) -> list[m.Message]:
        """Return the next batch, in the order in which it is to be taken; `due`: a deadline of the turn has come.

        Where none has come, nobody has rung and nothing was `sent`, that is what the mailbox has, as it is.

        Deadlines are due only behind the mail that was delivered before them, so all of the store's mail is read first.
        """
        mailbox = self._actor.mailbox
        if mailbox.rung or due:
            mailbox.rung = False
            if due:
                await self._read(1 << 30)
            elif not self._mail and self._cancel is None:
                await self._read(self._actor.host.settings.batch)
        received: list[m.Received] = []
        batch: list[m.Message] = []
        for message in mailbox.take():
            if isinstance(message, m.Received):
                received.append(message)
            else:
                batch.append(message)
        if self._cancel is not None:
            batch.append(m.CancelRequested(self._cancel))
            self._cancel = None
        if self._mail:
            received += self._opened()
        if received:
            received.sort(key=BY_TIME)
            batch += await self._known(received)
        if due:
            batch.append(m.DeadlinePassed())
        return batch

    async def _read(self, batch: int) -> None:
        actor = self._actor
        reply = await actor.host.call(base.ReadMail(turn=actor.turn_id, batch=batch))
        if isinstance(reply, base.MailBatch):
            self._mail = reply.mail
            if reply.cancel is not None and not actor.state.cancel_at:
                self._cancel = reply.cancel
            if len(reply.mail) == batch:
                actor.mailbox.ring()

    def _opened(self) -> list[m.Received]:
        """Decode the mail at hand; what cannot be read is consumed and refused, so that it never stands in the way.

        Mail that this activation has consumed already is there again when the store has gone back: it must not be taken twice. The
        save that consumes it once more finds that out.
        """
        opened: list[m.Received] = []
        for item in self._mail:
            self.consumed += (item.message_id,)
            if self._actor.saver.log.took(item.message_id):
                continue
            try:
                message = self._brought.get(item.message_id) or codec.decode_mail(self._actor.turn_id, item.body)
            except SnapshotCorrupt as error:
                log.exception("mail_unreadable", turn=self._actor.turn_id, message_id=item.message_id)
                self.broken += ((item.message_id, Refusal("CommandRefused", str(error))),)
                continue
            if isinstance(message, (m.ChildEnded, m.Rewound)):
                self._silent |= {item.message_id}
            if isinstance(message, m.Rewound):  # known here from now on, should this very mail be forgotten, too
                self._actor.note_started(*message.started)
            opened.append(m.Received(item.message_id, message, item.at))
        self._mail = ()
        return opened

    async def _known(self, received: list[m.Received]) -> list[m.Received]:
        """Give each command the receipt that answers it, if there is one: its own, or that of the wait it names.

        Receipts of this activation are at hand. Others are looked up, but for mail that DELIVER has just looked up itself: between
        its look-up and our claim nobody else could have owned the turn. A command whose wait has ended here may itself have been
        accepted before, by another activation, for another wait: its own receipt goes first.
        """
        unknown = [
            message
            for message in received
            if isinstance(message.message, m.Resume)
            and message.message_id not in self._brought
            and self._cached(message)[1] != "command"
        ]
        self._brought = NOTHING_BROUGHT
        if not unknown:
            return [self._with(message, None) for message in received] if self._receipts else received
        found = await self._find([message.message.command for message in unknown if isinstance(message.message, m.Resume)])
        answers = dict(zip((message.message_id for message in unknown), found, strict=True))
        known: list[m.Received] = []
        for message in received:
            answer = answers.get(message.message_id)
            if isinstance(answer, SnapshotCorrupt):
                text = f"its receipt cannot be read: {answer.reason}"
                self.broken += ((message.message_id, Refusal("CommandRefused", text)),)
            else:
                known.append(self._with(message, answer))
        return known

    def _with(self, message: m.Received, found: Known | None) -> m.Received:
        receipt, by = self._cached(message)
        if found is not None and (receipt is None or found[1] == "command"):
            receipt, by = found
        return message if receipt is None else m.Received(message.message_id, message.message, message.at, receipt, by)

    def _cached(self, message: m.Received) -> tuple[Receipt | None, By]:
        if not isinstance(message.message, m.Resume) or not self._receipts:
            return None, "wait"
        command = message.message.command
        receipt = self._receipts.get(f"c:{command.command_id}")
        return (receipt, "command") if receipt is not None else (self._receipts.get(f"w:{command.wait}"), "wait")

    async def _find(self, commands: Sequence[ResumeCommand]) -> list[Known | SnapshotCorrupt | None]:
        if not commands:
            return []
        actor = self._actor
        ids = tuple(command.command_id or "" for command in commands)
        waits = tuple(command.wait or "" for command in commands)
        calls = tuple(call_key(actor.turn_id, wait) for wait in waits)
        reply = await actor.host.call(base.Find(root=root_of(actor.turn_id), commands=ids, waits=waits, calls=calls))
        assert isinstance(reply, base.Found)
        count = len(commands)
        found: list[Known | SnapshotCorrupt | None] = []
        for index in range(count):
            own = reply.bodies[index]
            by: By = "wait" if own is None else "command"
            body = own or reply.bodies[count + index] or reply.bodies[2 * count + index]
            try:
                found.append(None if body is None else (codec.decode_receipt(actor.turn_id, body), by))
            except SnapshotCorrupt as error:
                found.append(error)
        return found

    @property
    def pending(self) -> bool:
        """Tell whether there is mail to consume, or an answer to give, without a message for the machine."""
        return bool(self.consumed or self.broken)

    def stored(self, answers: Sequence[tuple[str, Outcome]]) -> Sequence[tuple[str, Outcome]]:
        """Return those answers that are stored: to mail of senders who may look for them, not to the runtime's own.

        Who waits in this process and is accepted looks for nothing: should it have to ask again, it finds its receipt.
        """
        consumed, silent, here = self.consumed, self._silent, self._expected
        return [
            (name, outcome)
            for name, outcome in answers
            if name in consumed and name not in silent and not (type(outcome) is Accepted and name in here)
        ]

    def saved(self, receipts: Iterable[Receipt], reply: base.Saved) -> None:
        """A batch was saved."""
        if self.consumed:
            self.consumed, self._silent = (), NO_NAMES
        for receipt in receipts:
            self._receipts[f"w:{receipt.suspension_id}"] = receipt
            correlation = receipt.suspension_id.split("/")[1]
            if correlation:
                self._receipts[f"w:{correlation}"] = receipt
            if receipt.command_id is not None:
                self._receipts[f"c:{receipt.command_id}"] = receipt
        if reply.owned and (reply.mail or reply.cancel is not None):
            self.put(reply.mail, reply.cancel)

    def tell(self, answers: Iterable[tuple[str, Outcome]]) -> None:
        """Answer those who wait in this process."""
        self.broken = ()
        for message_id, outcome in answers:
            future = self._expected.pop(message_id, None)
            if future is not None and not future.done():
                future.set_result(outcome)

    def reroute(self) -> None:
        """Send those who wait in this process elsewhere."""
        if not self._expected:
            return
        for future in self._expected.values():
            if not future.done():
                future.set_exception(Rerouted())
                future.exception()
        self._expected.clear()
