"""Plain functions run in threads, which may be scarce, and which nobody can end."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import anyio.to_thread
import pytest

from turnhold import (
    Agent,
    AiMessage,
    ExecutionPolicy,
    ModelRequest,
    ResumeCommand,
    RetryPolicy,
    Runtime,
    Status,
    StoreUnavailable,
    ToolMessage,
    tool,
)
from turnhold.runtime.runtime import node_of
from turnhold.testing import ScriptedModel, call

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from turnhold.actors.tools import ToolEffect


class Bench:
    """An agent with a function that runs until it is let go, and one that only notes its start."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.entered = threading.Event()
        self.let_go = threading.Event()

    def agent(self, name: str, effect: ToolEffect = "once", timeout: float | None = None) -> Agent:
        def hang() -> str:
            """Run until it is let go."""
            self.begun.append("hang")
            self.entered.set()
            self.let_go.wait(20)
            return "back"

        def note() -> str:
            """Note the start."""
            self.begun.append("note")
            return "noted"

        tools = [tool(function, effect=effect, timeout=timeout) for function in (hang, note)]
        policy = ExecutionPolicy(tool_errors="return_to_model", retry_policy=RetryPolicy(max_retries=2, initial_delay=1))
        return Agent(name, model=ScriptedModel(call(name), "done"), tools=tools, policy=policy)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.let_go.set()


async def until(event: threading.Event) -> None:
    assert await asyncio.get_running_loop().run_in_executor(None, event.wait, 10)


async def test_a_cancelled_turn_begins_nothing_when_a_thread_becomes_free(bench: Bench) -> None:
    """All threads are busy: the call waits for one, its turn is cancelled, then a thread is free. The function never begins."""
    anyio.to_thread.current_default_thread_limiter().total_tokens = 1
    async with Runtime(agents=[bench.agent("hang"), bench.agent("note")], cancel_grace=0.1) as runtime:
        first = await runtime.start("hang", "go")
        await until(bench.entered)
        second = await runtime.start("note", "go")
        await asyncio.sleep(0.05)

        view = await second.cancel(timeout=5)
        bench.let_go.set()
        await first.settle(5)
        await asyncio.sleep(0.05)

        assert view.status is Status.CANCELLED
        assert bench.begun == ["hang"]
        assert runtime.statistics().threads == 0


@pytest.mark.parametrize("effect", ["once", "repeatable"])
async def test_a_call_that_gets_no_thread_in_time_has_not_begun(bench: Bench, effect: ToolEffect) -> None:
    """It is known that it did not run, so it is not in doubt; and it does not begin behind the turn's back."""
    anyio.to_thread.current_default_thread_limiter().total_tokens = 1
    async with Runtime(agents=[bench.agent("hang"), bench.agent("note", effect, timeout=0.05)]) as runtime:
        first = await runtime.start("hang", "go")
        await until(bench.entered)
        second = await runtime.start("note", "go")

        view = await second.settle(5)
        bench.let_go.set()
        await first.settle(5)
        await asyncio.sleep(0.05)

        assert view.status is (Status.COMPLETED if effect == "once" else Status.RETRY_SCHEDULED)
        assert bench.begun == ["hang"]
        if effect == "once":
            (result,) = [message for message in await second.history() if isinstance(message, ToolMessage)]
            assert "did not begin" in result.content


@pytest.mark.parametrize("answer", ["fail_call", "cancel"])
async def test_a_call_in_doubt_is_answered_while_its_thread_runs(bench: Bench, answer: str) -> None:
    """The only node takes an answer, and a cancel, for a turn whose timed-out function still runs."""
    async with Runtime(agents=[bench.agent("hang", timeout=0.05)], drain=0.1) as runtime:
        turn = await runtime.start("hang", "go")
        view = await turn.settle(5)
        assert view.status is Status.IN_DOUBT

        if answer == "cancel":
            view = await turn.cancel(timeout=5)
        else:
            view = await turn.resume(ResumeCommand.fail_call(view.open_waits[0]), timeout=5)

        assert view.status is (Status.CANCELLED if answer == "cancel" else Status.COMPLETED)
        assert runtime.statistics().threads == 1
        assert bench.begun == ["hang"]


async def test_a_retry_waits_for_the_thread_of_the_attempt_before(bench: Bench) -> None:
    """A timed-out `repeatable` function does not overlap itself by its own retry on this node."""
    async with Runtime(agents=[bench.agent("hang", "repeatable", timeout=0.05)], drain=0.1) as runtime:
        turn = await runtime.start("hang", "go")
        await until(bench.entered)
        await asyncio.sleep(1.5)
        before = list(bench.begun)
        bench.let_go.set()

        view = await turn.settle(10, through_retries=True)

        assert before == ["hang"]
        assert bench.begun == ["hang", "hang"]
        assert view.status is Status.COMPLETED


async def test_leaving_does_not_wait_for_a_thread_that_nobody_waits_for(bench: Bench) -> None:
    """The turn was released when its function timed out; that this still runs keeps nobody here."""
    async with Runtime(agents=[bench.agent("hang", timeout=0.05)], drain=0.1) as runtime:
        turn = await runtime.start("hang", "go")
        await turn.settle(5)
        leaving = asyncio.ensure_future(runtime.__aexit__(None, None, None))
        done, _ = await asyncio.wait([leaving], timeout=5)

    assert done
    assert not bench.let_go.is_set()


@pytest.mark.parametrize("times", [1, 2, 3, 50])
async def test_leaving_that_is_cancelled_leaves_nothing_behind(times: int, tmp_path: Path) -> None:
    """However often (a cancelled scope of anyio cancels every await): the store is closed, and no turn goes on here."""

    class Silent:
        left = 0

        async def complete(self, request: ModelRequest) -> AiMessage:
            try:
                await asyncio.sleep(60)
            finally:
                self.left += 1
            return AiMessage("late")

    model = Silent()
    runtime = Runtime(f"sqlite:///{tmp_path}/turns.db", agents=[Agent("silent", model=model)])
    before = len(asyncio.all_tasks())
    await runtime.__aenter__()
    await runtime.start("silent", "go")
    await asyncio.sleep(0.05)
    leaving = asyncio.ensure_future(runtime.__aexit__(None, None, None))

    for _ in range(times):
        await asyncio.sleep(0)
        leaving.cancel()
    await asyncio.wait([leaving], timeout=5)
    await asyncio.sleep(0.05)

    assert leaving.cancelled()
    assert model.left == 1
    assert node_of(runtime).open is False
    assert (runtime.statistics().live_turns, len(asyncio.all_tasks())) == (0, before)


async def test_who_waits_when_the_runtime_is_left_is_told() -> None:
    """A task that settles a turn, or follows its events, does not wait for ever on a node that is gone."""

    class Silent:
        async def complete(self, request: ModelRequest) -> AiMessage:
            await asyncio.sleep(60)
            return AiMessage("late")

    async with Runtime(agents=[Agent("silent", model=Silent())], drain=0) as runtime:
        turn = await runtime.start("silent", "go")

        async def follow() -> None:
            async for _ in turn.events():
                pass

        waiting = [asyncio.ensure_future(turn.settle()), asyncio.ensure_future(follow())]
        await asyncio.sleep(0.05)

    done, _ = await asyncio.wait(waiting, timeout=5)
    assert [type(task.exception()) for task in done] == [StoreUnavailable] * 2
