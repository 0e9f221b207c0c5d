"""An actor's mailbox: a list and a future, no stream, no task."""

from __future__ import annotations

import asyncio

from ..actors.machine.messages import Message


class Mailbox:
    """Messages of one actor, in order of arrival; bounded by what its own effects and waiting senders can put there."""

    __slots__ = ("_messages", "_waiter", "rung")

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._waiter: asyncio.Future[None] | None = None
        self.rung = False

    def __len__(self) -> int:
        return len(self._messages)

    def tell(self, message: Message) -> None:
        """Put a message in; the owner wakes."""
        self._messages.append(message)
        self._wake()

    def ring(self) -> None:
        """Let the owner look into the store."""
        self.rung = True
        self._wake()

    def take(self) -> list[Message]:
        """Take all messages out."""
        messages, self._messages = self._messages, []
        return messages

    def armed(self) -> asyncio.Future[None]:
        """Return a future that is done when there is something to do."""
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        if self._messages or self.rung:
            waiter.set_result(None)
        return waiter

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
