"""How a message finds a turn, wherever it lives, and how its sender gets exactly one answer.

Three paths: the turn lives here (its mailbox); nobody owns it (deliver and claim in one step); another node owns it (deliver, and
wait for the answer that the owner's save stores under the message's id). A message keeps its id over all of them, so a repeated
delivery is recognised, and a path that breaks in the middle is simply taken again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from copy import copy
from functools import partial

import msgspec

from ..actors.carried import Marks, holds_struct
from ..actors.errors import AnswerPending, MailboxFull, SuspensionMismatch, TurnClosed, TurnNotFound
from ..actors.ids import call_key, is_turn_id, root_of, turn_of_wait
from ..actors.machine.commands import from_receipt
from ..actors.machine.draft import Accepted, Outcome, Refusal
from ..actors.machine.messages import MailMessage, Resume
from ..actors.machine.waiting import accepts
from ..actors.waits import Receipt, ResumeCommand, Suspension
from ..store import base, codec
from .answers import Answers
from .errors import Rerouted, receipt_of
from .placement import Placement
from .views import waits_of


class Commands:
    """Sends messages to turns and brings their answers back."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._host = placement.host
        self._world = placement.host.world
        self._answers = Answers(placement.host)

    async def submit(self, turn_id: str, command: ResumeCommand, timeout: float) -> Receipt:
        """Deliver a command and return its receipt (see `TurnRef.submit`)."""
        if not is_turn_id(turn_id):
            raise TurnNotFound(turn_id)
        end = self._world.monotonic() + timeout
        if command.command_id is None:
            command = copy(command)  # its fields are checked; only the new id is not, which is ours
            msgspec.structs.force_setattr(command, "command_id", self._host.new_id())
        marks: Marks = ()
        if command.value is not None and holds_struct(command.value):
            value, marks = self._host.types.plain("data", command.value)
            command = msgspec.structs.replace(command, value=value)
        named = command
        if command.wait is not None and "/" in command.wait:
            turn_id = _owner(turn_id, command.wait, command.command_id)
        else:
            turn_id, command = await self._addressed(turn_id, command)
        assert command.command_id is not None
        outcome = await self.send(turn_id, Resume(command, marks), end, command)
        if outcome is None:
            text = f"the answer {command.command_id} of turn {turn_id} is not decided yet; ask again with the same command_id"
            raise AnswerPending(text, turn_id=turn_id, command_id=command.command_id)
        if isinstance(outcome, Refusal) and outcome.error == "CommandIdReused" and outcome.receipt is not None:
            # sent twice by the id of a call: accepted for the one that had it then, and then another turn had a call of that id
            outcome = from_receipt(outcome.receipt, named, "command", turn_id)
        if isinstance(outcome, Accepted):
            return outcome.receipt
        if isinstance(outcome, Refusal) and outcome.error == "TurnClosed":
            outcome = await self._accepted_at_the_end(turn_id, command) or outcome
        return receipt_of(outcome, turn_id, command.command_id, await self._named_waits(turn_id, outcome))

    async def _accepted_at_the_end(self, turn_id: str, command: ResumeCommand) -> Outcome | None:
        """A command that was sent twice may have been accepted by the very save that closed the turn over its second delivery."""
        known = await self._receipt(turn_id, command)
        return None if known is None else from_receipt(known, command, "command", turn_id)

    async def post(self, turn_id: str, message: MailMessage, timeout: float = 30) -> Outcome:
        """Deliver a message that is no command. :raises TimeoutError: if it was not taken in within the timeout."""
        if not is_turn_id(turn_id):
            raise TurnNotFound(turn_id)
        outcome = await self.send(turn_id, message, self._world.monotonic() + timeout, None)
        if outcome is None:
            raise TimeoutError(f"turn {turn_id} has not taken in the message within {timeout} s")
        return outcome

    async def cancel(self, turn_id: str, cause: str) -> bool:
        """Raise a turn's cancel flag and see that somebody looks at it; false where the turn has ended.

        :raises TurnNotFound: if there is no such turn.
        """
        if not is_turn_id(turn_id):
            raise TurnNotFound(turn_id)
        by = self._claim(turn_id)

        async def raise_flag() -> bool:
            sent = self._world.monotonic()
            reply = await self._host.call(base.Cancel(turn=turn_id, cause=cause, claim=by))
            if isinstance(reply, base.Gone):
                raise TurnNotFound(turn_id)
            if isinstance(reply, base.Claimed) and by is not None:
                await self._placement.activate(turn_id, by, reply, sent)
            return not isinstance(reply, base.Closed)

        return await self._placement.owning(turn_id, by, raise_flag)

    # -------------------------------------------------------------------------------------------------------- address

    async def _addressed(self, turn_id: str, command: ResumeCommand) -> tuple[str, ResumeCommand]:
        """Find the turn and the wait that a call id, or nothing, means among the open waits of the turn and of all below it."""
        known = await self._receipt(turn_id, command)
        if known is not None:
            return turn_id, command
        look = await self._host.call(base.Look(turn=turn_id))
        if not isinstance(look, base.Looked):
            raise TurnNotFound(turn_id)
        fits = [item for item in waits_of(look) if self._fits(item, command)]
        if len(fits) > 1:
            text = f"{len(fits)} open waits of turn {turn_id} fit; name one"
            raise SuspensionMismatch(text, turn_id=turn_id, command_id=command.command_id, open_waits=fits)
        # A call of the turn itself that was answered goes before one below that happens to have the same id.
        if not fits or fits[0].turn_id != turn_id:
            await self._ended(turn_id, command)
        if not fits:
            return turn_id, command
        return fits[0].turn_id, msgspec.structs.replace(command, wait=fits[0].id)

    async def _ended(self, turn_id: str, command: ResumeCommand) -> None:
        """Answer a command that names a call whose newest wait has ended, unless this very command has ended it meanwhile."""
        if command.wait is None:
            return
        names = (command.command_id or "",)
        reply = await self._host.call(base.Find(root=root_of(turn_id), commands=names, calls=(call_key(turn_id, command.wait),)))
        assert isinstance(reply, base.Found)
        own, body = reply.bodies
        if own is None and body is not None:
            outcome = from_receipt(codec.decode_receipt(turn_id, body), command, "wait", turn_id)
            receipt_of(outcome, turn_id, command.command_id)

    @staticmethod
    def _fits(item: Suspension, command: ResumeCommand) -> bool:
        if command.wait is not None:
            return item.correlation_id == command.wait
        return accepts(item, command.type)

    async def _receipt(self, turn_id: str, command: ResumeCommand) -> Receipt | None:
        reply = await self._host.call(base.Find(root=root_of(turn_id), commands=(command.command_id or "",)))
        assert isinstance(reply, base.Found)
        return None if reply.bodies[0] is None else codec.decode_receipt(turn_id, reply.bodies[0])

    async def _named_waits(self, turn_id: str, outcome: Outcome) -> tuple[Suspension, ...]:
        """Fetch the open waits that a refusal names."""
        if not getattr(outcome, "open_waits", ()):
            return ()
        look = await self._host.call(base.Look(turn=turn_id))
        return waits_of(look) if isinstance(look, base.Looked) else ()

    # ----------------------------------------------------------------------------------------------------------- send

    async def send(self, turn_id: str, message: MailMessage, end: float, command: ResumeCommand | None) -> Outcome | None:
        """Bring a message to a turn and return its answer; `None` where it is delivered but not answered by `end`.

        Only commands may take the short way through a mailbox of this process: when a save's outcome stays unknown, a repeated
        command finds its receipt, while other messages are recognised by the id under which the store has seen them.
        """
        message_id = self._host.new_id()
        mail = base.Mail(
            message_id,
            codec.encode_mail(message, self._host.settings.max_message),
            None if command is None else command.command_id,
            None if command is None or command.wait is None or "/" not in command.wait else command.wait,
        )
        while True:
            actor = self._placement.live(turn_id) if command is not None else None
            if actor is not None:
                future = actor.ask(message_id, message)
            else:
                found = await self._deliver(turn_id, mail, message)
                if isinstance(found, asyncio.Future):
                    future = found
                elif found is None:
                    body = await self._answers.wait(turn_id, message_id, end)
                    return None if body is None else codec.decode_outcome(turn_id, body)
                else:
                    return found
            try:
                return await self._world.answer(future, end - self._world.monotonic())
            except TimeoutError:
                return await self._stored(turn_id, mail, message)
            except Rerouted:
                continue

    async def _stored(self, turn_id: str, mail: base.Mail, message: MailMessage) -> Outcome | None:
        """Put a message that waits here for too long into the store, too: there it outlives the owner.

        One that came here through the store was perhaps not flushed to its disk by what gave us the turn with it; now it is, as
        nobody claims anything.
        """
        found = await self._delivered(turn_id, mail, message, None)
        assert not isinstance(found, asyncio.Future)
        return found

    def _deliver(
        self, turn_id: str, mail: base.Mail, message: MailMessage
    ) -> Coroutine[object, object, asyncio.Future[Outcome] | Outcome | None]:
        """Deliver, and claim where nobody owns the turn.

        :return: an answer, a future of one (the turn lives here now), or `None` (somebody else will answer under the message's id).
        """
        by = self._claim(turn_id)
        return self._placement.owning(turn_id, by, partial(self._delivered, turn_id, mail, message, by))

    async def _delivered(
        self, turn_id: str, mail: base.Mail, message: MailMessage, by: base.ClaimBy | None
    ) -> asyncio.Future[Outcome] | Outcome | None:
        sent = self._world.monotonic()
        reply = await self._host.call(base.Deliver(turn=turn_id, mail=mail, cap=self._host.settings.mailbox_cap, claim=by))
        match reply:
            case base.Claimed():
                assert by is not None
                actor = await self._placement.activate(turn_id, by, reply, sent, {mail.message_id: message})
                return None if actor is None else actor.intake.expect(mail.message_id)
            case base.Known():
                receipt = codec.decode_receipt(turn_id, reply.body)
                assert isinstance(message, Resume)
                return from_receipt(receipt, message.command, reply.by, turn_id)
            case base.Replied():
                return codec.decode_outcome(turn_id, reply.body)
            case base.Delivered():
                return None
            case base.Closed():
                text = f"turn {turn_id} is {reply.status}"
                raise TurnClosed(text, turn_id=turn_id, status=reply.status, command_id=mail.command_id)
            case base.Full():
                raise MailboxFull(turn_id, reply.count)
            case _:
                raise TurnNotFound(turn_id)

    def _claim(self, turn_id: str) -> base.ClaimBy | None:
        """Return a claim, where this node may own the turn."""
        placement = self._placement
        return None if placement.here(turn_id) or placement.free <= 0 else placement.claim_by()


def _owner(turn_id: str, wait: str, command_id: str | None) -> str:
    """Return the turn whose wait is named by its id. :raises SuspensionMismatch: if it is of another tree."""
    owner = turn_of_wait(wait)
    if owner == turn_id:
        return owner
    if not is_turn_id(owner) or root_of(owner) != root_of(turn_id):
        raise SuspensionMismatch(f"wait {wait!r} is not of turn {turn_id}", turn_id=turn_id, command_id=command_id)
    return owner
