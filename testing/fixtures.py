"""Fixtures for pytest: ``pytest_plugins = ["turnhold.testing.fixtures"]``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from ..runtime.runtime import Runtime
from .clock import VirtualClock


@pytest.fixture
def virtual_clock() -> VirtualClock:
    """Give a clock that stands still unless the test advances it."""
    return VirtualClock()


class RuntimeFactory:
    """Opens runtimes on the test's clock; the fixture leaves them."""

    def __init__(self, clock: VirtualClock, stack: AsyncExitStack) -> None:
        self.clock = clock
        self._stack = stack

    async def __call__(self, store: Any = "memory://", **options: Any) -> Runtime:
        """Open a Runtime; the options are those of `Runtime`."""
        options.setdefault("clock", self.clock)
        options.setdefault("drain", 0)
        return await self._stack.enter_async_context(Runtime(store, **options))


@pytest.fixture
async def turnhold_runtime(virtual_clock: VirtualClock) -> AsyncGenerator[Callable[..., Any]]:
    """Open runtimes on the virtual clock, each with the arguments of a Runtime; they are left at the end of the test."""
    stack = AsyncExitStack()
    yield RuntimeFactory(virtual_clock, stack)
    await virtual_clock.during(stack.aclose())
