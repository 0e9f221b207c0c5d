"""An actor's mailbox: a list and a future, no stream, no task."""

from __future__ import annotations

import asyncio

import msgspec

from ..actors.machine.messages import Message


class Mailbox(msgspec.Struct, eq=False, gc=False):
    """Messages of one actor, in order of arrival; bounded by what its own effects and waiting senders can put there."""

    messages: list[Message] = []
    rung: bool = False
    _waiter: asyncio.Future[None] | None = None

    def tell(self, message: Message) -> None:
        """Put a message in; the owner wakes."""
        self.messages.append(message)
        self._wake()

    def ring(self) -> None:
        """Let the owner look into the store."""
        self.rung = True
        self._wake()

    def take(self) -> list[Message]:
        """Take all messages out."""
        messages, self.messages = self.messages, []
        return messages

    def armed(self) -> asyncio.Future[None]:
        """Return a future that is done when something comes, of an owner who has found nothing here."""
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        return waiter

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
