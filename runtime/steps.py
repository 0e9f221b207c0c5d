"""The attempts of steps in one activation, and the hooks around them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from ..actors.errors import MiddlewareError
from ..actors.middleware import StepEnd, StepHook, StepOutcome, TurnContext, current_turn
from ..actors.turn import Status, TurnState
from .around import Proceed, name_of, turn_context
from .log import log
from .part import Part
from .world import gather


class _Attempt:
    """One step as this activation works on it: a gate that its effects wait at, and the end that its hooks wait for."""

    __slots__ = ("before", "end", "error", "gate", "step")

    def __init__(self, step: int, before: list[asyncio.Task[None]]) -> None:
        loop = asyncio.get_running_loop()
        self.step = step
        self.before = before
        self.gate: asyncio.Future[None] = loop.create_future()
        self.end: asyncio.Future[StepEnd] = loop.create_future()
        self.error: BaseException | None = None

    def fail(self, error: BaseException) -> bool:
        """Note what keeps the step from beginning, the first error of all; false if it has begun."""
        if not self.gate.done() and self.error is None:
            self.error = error
        return not self.gate.done()

    async def begin(self) -> StepEnd:
        """All hooks have called `proceed`: let the effects start, and wait for the end."""
        if not self.gate.done():
            self.gate.set_result(None)
        return await asyncio.shield(self.end)

    async def around(self, hook: StepHook, inner: Callable[[], Awaitable[StepEnd]], context: TurnContext[object]) -> StepEnd:
        """Let a hook stand around those within; what these see of the end does not depend on it."""
        proceed = Proceed(hook, inner)
        try:
            await proceed.held(hook(context, proceed))
            if not self.gate.done():
                raise MiddlewareError(f"{name_of(hook)} returned and had not called proceed()")
        except BaseException as error:
            self.fail(error)
            raise
        return await asyncio.shield(self.end)


class Steps(Part, eq=False, gc=False):
    """The hooks around the steps of one activation, one step after the other; an actor without such hooks has none of this.

    The actor owns the hooks' tasks, and awaits their end, within a bound, before it is gone.
    """

    _open: _Attempt | None = None
    _tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """An effect of the turn's step is about to start here: let the hooks of the step come first, once."""
        step = self._actor.state.step_count
        if self._open is not None:
            if self._open.step == step:
                return
            self.end("completed")
        self._open = attempt = _Attempt(step, self._tasks.copy())
        task = self._actor.host.world.spawn(self._run(attempt), f"step {step} of {self._actor.turn_id}")
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)

    async def entered(self) -> None:
        """Wait until all hooks have called `proceed`.

        :raises MiddlewareError: if one returned without; and whatever one has raised.
        """
        attempt = self._open
        if attempt is None:
            raise MiddlewareError("the step is over")
        await self._actor.host.world.wait(attempt.gate, None)
        if attempt.error is not None:
            raise attempt.error

    def saved(self, state: TurnState) -> None:
        """The state was saved: end the step if it is over."""
        attempt = self._open
        if attempt is None or (state.step_open and state.step_count == attempt.step):
            return
        if state.status.blocked:
            self.end("suspended")
        else:
            self.end("ended" if state.status.terminal and state.status is not Status.COMPLETED else "completed")

    def end(self, outcome: StepOutcome) -> None:
        """Let `proceed` return."""
        attempt, self._open = self._open, None
        if attempt is not None and not attempt.end.done():
            attempt.end.set_result(StepEnd(attempt.step, outcome, self._actor.state.status))

    async def close(self, outcome: StepOutcome) -> None:
        """End the step, if one is open, and wait for all hooks: as long as a cancel waits for tools, then they are cancelled."""
        self.end(outcome)
        running = asyncio.current_task()
        try:
            if running is None or not running.cancelling():
                await self._finish(self._tasks.copy())
        except asyncio.CancelledError:
            await self._kill()
            raise
        if running is not None and running.cancelling():
            await self._kill()

    async def _kill(self) -> None:
        for task in self._tasks:
            task.cancel()
        await gather(self._tasks.copy())

    async def _finish(self, tasks: list[asyncio.Task[None]]) -> None:
        world, grace = self._actor.host.world, self._actor.host.settings.cancel_grace / 1000
        for task in tasks:
            if await world.wait(task, grace):
                continue
            log.warning("step_hook_cancelled", turn=self._actor.turn_id)
            task.cancel()
            if not await world.wait(task, grace):
                log.error("step_hook_stuck", turn=self._actor.turn_id)

    async def _run(self, attempt: _Attempt) -> None:
        """Run the hooks of one step, after those of the step before."""
        actor = self._actor
        context = turn_context(actor)
        work: Callable[[], Awaitable[StepEnd]] = attempt.begin
        for hook in reversed(actor.executor.hooks.step):
            work = partial(attempt.around, hook, work, context)
        try:
            await self._finish(attempt.before)
            with current_turn(context):
                await work()
        except BaseException as error:
            if not attempt.fail(error) and not isinstance(error, asyncio.CancelledError):
                actor.host.counters.hooks_failed += 1
                log.exception("step_hook_failed", turn=actor.turn_id, step=attempt.step)
        finally:
            if not attempt.gate.done():
                attempt.gate.set_result(None)
