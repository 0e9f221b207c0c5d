"""Does a turn cost more when many others are stored? Approve cycles on Redis beside more and more suspended turns.

The suspended turns are not started one by one: the two commands of a real one (create and own, save the wait) are sent again and
again under other ids, so every one of them was made by the scripts and can be answered; a few of them are.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

from turnhold import ResumeCommand, Runtime
from turnhold.store import base
from turnhold.store.redis_scripts import Scripts

from . import servers
from .harness import Options, Row, median_rate, quantile, rate_row, run
from .latency import latencies
from .plain_redis import Pipe, command, packed
from .servers import Server
from .size import TEXT
from .work import ANSWER, Work, cycles, recorded, suspended

TITLE = "beside many suspended turns on Redis"
LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
BATCH = 500
ANSWERED = 20


def measure(options: Options) -> list[Row]:
    """Measure at each number; nothing where there is no server."""
    if servers.absent():
        return []
    levels = (60, 90, 120) if options.quick else (1000, 10_000, 100_000)
    rows: list[Row] = []
    first = first_delay = None
    with servers.served() as server:
        copier = Copier()
        run(lambda: cycles(server.url, 8, 8))  # all scripts are loaded
        extra = stored = 0
        for level in levels:
            before = server.memory()
            turns = run(lambda level=level, stored=stored: copier.fill(server, level - stored))
            extra += server.memory() - before
            stored = level
            samples = [run(lambda: cycles(server.url, options.pick(1024, 64), 64)) for _ in range(options.pick(3, 1))]
            delays = run(lambda: latencies(server.url, options.pick(400, 20)))
            run(lambda turns=turns: copier.answer_some(server.url, turns))
            rate, delay = median_rate(samples), quantile(delays, 0.5)
            rows += [
                rate_row(TITLE, f"{level:,}: approve cycles, 64 at once", samples, "cycles/s", floor=first),
                Row(TITLE, f"{level:,}: resume to completed, p50", delay, "ms", floor=first_delay),
                Row(TITLE, f"{level:,}: stored per suspended turn", extra / level, "bytes", bar="3,000"),
            ]
            first, first_delay = first or rate, first_delay or delay
    return rows


class Copier:
    """Makes suspended turns of one real one."""

    def __init__(self) -> None:
        writes = [op for op, _ in recorded(1, lambda runtime: suspended(runtime, TEXT))]
        create, save = writes
        assert isinstance(create, base.Create)
        assert isinstance(save, base.Save)
        self._turn = create.new.turn
        self._wait = save.opened[0].id
        self._sources = Scripts().sources
        digests = Scripts().digests
        self._create, self._save = packed(create, digests["create"]), packed(save, digests["save"])
        self._epoch = b"%d" % save.token.epoch
        self._random = random.Random(1)

    def _renamed(self, data: bytes, turn: str) -> bytes:
        """The same command for another turn; both names are of one length."""
        tag, new_tag = (f"{{th:{name[:2]}}}".encode() for name in (self._turn, turn))
        return data.replace(self._turn.encode(), turn.encode()).replace(tag, new_tag)

    def _ids(self) -> Iterator[str]:
        while True:
            yield f"{self._random.randrange(256):02x}-{''.join(self._random.choices(LETTERS, k=len(self._turn) - 3))}"

    async def fill(self, server: Server, count: int) -> list[str]:
        """Store as many more; return some of them."""
        pipe = await Pipe.open(server)
        for name in ("create", "save"):
            await pipe.put(command("SCRIPT", "LOAD", self._sources[name]))
        some: list[str] = []
        ids = self._ids()
        for begin in range(0, count, BATCH):
            turns = [next(ids) for _ in range(min(BATCH, count - begin))]
            some += turns[: 1 + ANSWERED * BATCH // count]
            created = [pipe.put(self._renamed(self._create, turn)) for turn in turns]
            epochs = [epoch for kind, epoch, *_ in [await waiter for waiter in created] if kind == b"CLAIMED"]
            saves = zip(turns, epochs, strict=True)
            saved = [pipe.put(self._renamed(self._save, turn).replace(self._epoch, b"%d" % epoch)) for turn, epoch in saves]
            for waiter in saved:
                assert (await waiter)[0] == b"SAVED"
        pipe.close()
        await asyncio.sleep(0.2)
        return some

    async def answer_some(self, url: str, turns: list[str]) -> None:
        """They can be answered like any other, and their tools run then, once each."""
        work = Work()
        async with Runtime(url, agents=[work.agent]) as runtime:
            for turn in turns[:ANSWERED]:
                wait = self._wait.replace(self._turn, turn)
                view = await runtime.turn(turn).resume(ResumeCommand.approve_tool(wait, by="ann"), 60)
                assert view.final_output == ANSWER, view.status
        assert work.runs == len(turns[:ANSWERED]), "every tool ran once"
