"""An actor's mailbox, in process: tells, and asks that wait for their answer, beside an asyncio.Queue."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from turnhold.actors.machine.messages import DeadlinePassed, Message
from turnhold.runtime.mailbox import Mailbox
from turnhold.runtime.world import World

from .harness import Bar, Clock, Options, Row, Sample, interleave, median_rate, rate_row, run

TITLE = "mailbox, in process"
BURST = 100


def measure(options: Options) -> list[Row]:
    """Measure tells and asks."""
    tells_count, asks_count = options.pick(500_000, 10_000), options.pick(50_000, 1_000)
    samples = interleave(
        {
            "tell": lambda: run(lambda: tells(tells_count)),
            "queue tell": lambda: run(lambda: queue_tells(tells_count)),
            "ask": lambda: run(lambda: asks(asks_count)),
            "queue ask": lambda: run(lambda: queue_asks(asks_count)),
        },
        options.repeats,
    )
    return [
        rate_row(TITLE, "tell", samples["tell"], "/s", floor=median_rate(samples["queue tell"]), bar=Bar(least=500_000)),
        rate_row(TITLE, "ask", samples["ask"], "/s", floor=median_rate(samples["queue ask"]), bar=Bar(least=80_000)),
        rate_row(TITLE, "floor: asyncio.Queue, tell", samples["queue tell"], "/s"),
        rate_row(TITLE, "floor: asyncio.Queue, ask", samples["queue ask"], "/s"),
    ]


async def tells(count: int) -> Sample:
    """One sender, who lets others run now and then; one owner, who sleeps when there is nothing."""
    mailbox, world, message = Mailbox(), World(), DeadlinePassed()
    seen = 0

    async def owner() -> None:
        nonlocal seen
        while seen < count:
            batch = mailbox.take()
            if not batch:
                await world.rest(mailbox.armed(), None)
            seen += len(batch)

    clock = Clock()
    task = asyncio.create_task(owner())
    for number in range(count):
        mailbox.tell(message)
        if number % BURST == 0:
            await asyncio.sleep(0)
    await task
    assert seen == count
    return clock.sample(count)


async def queue_tells(count: int) -> Sample:
    queue: asyncio.Queue[object] = asyncio.Queue()
    seen = 0
    message = DeadlinePassed()

    async def owner() -> None:
        nonlocal seen
        while seen < count:
            await queue.get()
            seen += 1

    clock = Clock()
    task = asyncio.create_task(owner())
    for number in range(count):
        queue.put_nowait(message)
        if number % BURST == 0:
            await asyncio.sleep(0)
    await task
    assert seen == count
    return clock.sample(count)


async def asks(count: int) -> Sample:
    """One sender, who waits for each answer, with a limit as a command has it."""
    mailbox, world = Mailbox(), World()
    seen = 0

    async def owner() -> None:
        nonlocal seen
        while seen < count:
            batch = mailbox.take()
            if not batch:
                await world.rest(mailbox.armed(), None)
            for message in batch:
                seen += 1
                number, future = cast("tuple[int, asyncio.Future[int]]", message)
                future.set_result(number)

    loop = asyncio.get_running_loop()
    clock = Clock()
    task = asyncio.create_task(owner())
    for number in range(count):
        future: asyncio.Future[int] = loop.create_future()
        mailbox.tell(cast("Message", (number, future)))
        assert await world.answer(future, 30) == number
    await task
    return clock.sample(count)


async def queue_asks(count: int) -> Sample:
    queue: asyncio.Queue[Any] = asyncio.Queue()

    async def owner() -> None:
        for _ in range(count):
            number, future = await queue.get()
            future.set_result(number)

    loop = asyncio.get_running_loop()
    clock = Clock()
    task = asyncio.create_task(owner())
    for number in range(count):
        future: asyncio.Future[int] = loop.create_future()
        queue.put_nowait((number, future))
        assert await future == number
    await task
    return clock.sample(count)
