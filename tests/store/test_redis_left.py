"""What stays in a process that drops its connections to a Redis instead of closing them."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

from turnhold.store.redis import RedisStore
from turnhold.store.redis_servers import Question, Servers


class Silent:
    """A link to a server that does not answer."""

    def __init__(self) -> None:
        self.asked: list[Question] = []

    def put(self, question: Question, lane: str) -> None:
        self.asked.append(question)


def test_a_question_that_is_dropped_with_its_loop_goes() -> None:
    """It, who waits for its answer and the loop know each other; the garbage collector sees the whole circle."""
    left: list[weakref.ref[Any]] = []

    async def asking() -> None:
        store = RedisStore("redis://nowhere:1")
        servers: Any = Servers(store.place, store.scripts)
        servers._links[servers.address(0)] = Silent()
        task = asyncio.ensure_future(servers.ask_one(Question(b"")))
        await asyncio.sleep(0)
        left.extend(weakref.ref(each) for each in (task, servers._links[servers.address(0)].asked[0].waiter))

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # it says that the task was pending
    loop.run_until_complete(asking())
    loop.close()
    before = [each() is not None for each in left]
    del loop
    gc.collect()

    assert before == [True, True]
    assert [each() for each in left] == [None, None]
