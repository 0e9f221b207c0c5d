"""Many suspended turns in a store, without starting each: the operations of a real one, again and again under other ids.

Every copy was made by the store's own operations (create and own, save the wait), so it can be answered like any other.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import msgspec

from turnhold import ResumeCommand, Runtime
from turnhold.runtime.runtime import node_of
from turnhold.store import base

from .node import many
from .size import TEXT
from .work import ANSWER, Work, recorded, suspended

LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
WIDTH = 200


class Copies:
    """Makes suspended turns of one real one."""

    def __init__(self) -> None:
        create, save = (op for op, _ in recorded(1, lambda runtime: suspended(runtime, TEXT)))
        assert isinstance(create, base.Create)
        assert isinstance(save, base.Save)
        self._turn, self._wait = create.new.turn, save.opened[0].id
        self._create, self._save = msgspec.msgpack.encode(create), msgspec.msgpack.encode(save)
        self._creates, self._saves = msgspec.msgpack.Decoder(base.Create), msgspec.msgpack.Decoder(base.Save)
        self._ids = self._names(random.Random(1))

    def _names(self, source: random.Random) -> Iterator[str]:
        while True:
            yield f"{source.randrange(256):02x}-{''.join(source.choices(LETTERS, k=len(self._turn) - 3))}"

    def _renamed(self, data: bytes, turn: str) -> bytes:
        """The same operation of another turn; both names are of one length."""
        return data.replace(self._turn.encode(), turn.encode())

    async def fill(self, url: str, count: int) -> list[tuple[str, str]]:
        """Store as many more; return each with its wait."""
        async with Runtime(url, execute=False) as runtime:
            node = node_of(runtime)

            async def one(_: int) -> tuple[str, str]:
                turn = next(self._ids)
                claimed = await node.call(self._creates.decode(self._renamed(self._create, turn)))
                assert isinstance(claimed, base.Claimed)
                save = self._saves.decode(self._renamed(self._save, turn))
                token = base.Token(save.token.activation, claimed.epoch)
                saved = await node.call(msgspec.structs.replace(save, token=token))
                assert isinstance(saved, base.Saved)
                return turn, self._wait.replace(self._turn, turn)

            return await many(count, WIDTH, one)


async def answer(url: str, turns: Sequence[tuple[str, str]]) -> None:
    """Copies can be answered like any other turn, and their tools run then, once each."""
    work = Work()
    async with Runtime(url, agents=[work.agent]) as runtime:
        for turn, wait in turns:
            view = await runtime.turn(turn).resume(ResumeCommand.approve_tool(wait, by="ann"), 60)
            assert view.final_output == ANSWER, view.status
    assert work.runs == len(turns), "every tool ran once"
