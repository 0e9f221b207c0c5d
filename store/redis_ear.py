"""What a node hears from one server: the bells of its partitions, and what is shown of the trees it watches.

Sharded channels (Redis 7.0): a message stays among those who listen in its slot. A message may be lost; a subscription that had to
be made anew says so, and whoever waits for news looks for himself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from .redis_link import packed

Heard: TypeAlias = Callable[[str, bytes], None]
QUIET = 10.0  # seconds after which a silent server is asked whether it is there
PAUSE = 0.1
LONGEST_PAUSE = 2.0
_log = logging.getLogger("turnhold")


class Ear:
    """A subscription to channels of one server, kept up for as long as it is open.

    `heard` is called with (channel, message); `stands` with a channel when its subscription has been confirmed, also anew; `moved`
    with a channel where the server has ended its subscription because its slot is elsewhere, and with "" where a connection broke.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractConnection],
        heard: Heard,
        stands: Callable[[str], None],
        moved: Callable[[str], None],
        name: str,
    ) -> None:
        self._connect = connect
        self._heard, self._stands, self._moved = heard, stands, moved
        self._wanted: dict[str, None] = {}
        self._dropped: Counter[str] = Counter()  # subscriptions that were ended here, and not yet by the server
        self._said: list[bytes] = []
        self._saying = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._stay(), name=f"redis ear {name}")

    def want(self, channel: str) -> None:
        """Subscribe to a channel."""
        self._wanted[channel] = None
        self._say("SSUBSCRIBE", channel)

    def drop(self, channel: str) -> None:
        """End a subscription."""
        if channel in self._wanted:
            del self._wanted[channel]
            self._dropped[channel] += 1
            self._say("SUNSUBSCRIBE", channel)

    @property
    def idle(self) -> bool:
        """Tell whether there is nothing to listen to."""
        return not self._wanted

    async def close(self) -> None:
        """Listen no more."""
        self._task.cancel()
        await asyncio.wait([self._task])

    def _say(self, *command: str) -> None:
        """Send a command when the connection stands."""
        self._said.append(packed(*command))
        self._saying.set()

    async def _stay(self) -> None:
        """Keep a connection, and subscribe anew on each."""
        pause = PAUSE
        while True:
            connection = self._connect()
            try:
                await connection.connect()
                self._said.clear()
                self._dropped.clear()
                for channel in self._wanted:
                    self._say("SSUBSCRIBE", channel)
                pause = PAUSE
                await self._listen(connection)
            except (RedisError, OSError, EOFError) as fault:
                _log.info("redis_bells_lost: %s", fault)
                self._moved("")  # also where it only is out of reach: a replica may have taken its place, elsewhere
            finally:
                with contextlib.suppress(RedisError, OSError):
                    await connection.disconnect(nowait=True)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _listen(self, connection: AbstractConnection) -> None:
        speaker = asyncio.get_running_loop().create_task(self._speak(connection))
        try:
            while True:
                await self._next(connection)
        finally:
            speaker.cancel()
            await asyncio.wait([speaker])

    async def _speak(self, connection: AbstractConnection) -> None:
        """Send what is to be said; where that fails, the connection breaks for the listener, too."""
        while True:
            await self._saying.wait()
            self._saying.clear()
            said, self._said = self._said, []
            with contextlib.suppress(RedisError, OSError):
                await connection.send_packed_command(said, check_health=False)

    @staticmethod
    async def _read(connection: AbstractConnection) -> Any:
        async with asyncio.timeout(QUIET):
            return cast("Any", await connection.read_response(disable_decoding=True, disconnect_on_error=False))

    async def _next(self, connection: AbstractConnection) -> None:
        """Take one message in; of a server that stays silent for too long, ask whether it is there."""
        try:
            message = await self._read(connection)
        except TimeoutError:
            self._say("PING")
            message = await self._read(connection)
        if not isinstance(message, list) or len(cast("list[Any]", message)) != 3:
            return
        kind, channel, body = cast("list[Any]", message)
        if kind == b"smessage":
            self._hear(channel.decode(), body)
        elif kind == b"ssubscribe":
            self._stands(channel.decode())
        elif kind == b"sunsubscribe" and channel is not None:
            self._ended(channel.decode())

    def _hear(self, channel: str, body: bytes) -> None:
        try:
            self._heard(channel, body)
        except Exception as fault:  # anybody may send on a channel, and one message must not end all listening
            _log.warning("redis_bell_unreadable: %r: %r", body[:100], fault)

    def _ended(self, channel: str) -> None:
        """A subscription has ended: as was asked here, perhaps before it was wanted again, or because its slot has left."""
        if self._dropped[channel] > 0:
            self._dropped[channel] -= 1
        elif channel in self._wanted:
            del self._wanted[channel]
            self._moved(channel)
        if not self._dropped[channel]:
            del self._dropped[channel]
