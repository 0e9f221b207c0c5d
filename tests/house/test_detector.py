"""The blocking-call detector finds blocking code of the package, and nothing else."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from blockbuster import BlockingError

import turnhold.runtime


def blocking_code_of_the_package() -> None:
    place = Path(turnhold.runtime.__file__).with_name("imagined.py")
    names: dict = {}
    exec(compile("import time\ndef block(): time.sleep(0.0001)", str(place), "exec"), names)
    names["block"]()


async def test_a_blocking_call_of_the_package_fails() -> None:
    """Where the package blocks the loop, the test fails."""
    with pytest.raises(BlockingError):
        blocking_code_of_the_package()


async def test_tests_may_block_themselves(tmp_path: Path) -> None:
    """A test's own files and sleeps are its own affair."""
    time.sleep(0.0001)
    (tmp_path / "x").write_text("x")


@pytest.mark.blocking("to see that the mark works")
async def test_the_mark_switches_it_off() -> None:
    """A marked test may block."""
    blocking_code_of_the_package()


async def test_a_loop_of_virtual_time_may_be_blocked() -> None:
    """On a loop that turnhold defines, inline SQLite blocks on purpose."""
    loop = type("Loop", (asyncio.SelectorEventLoop,), {"__module__": "turnhold.testing.imagined"})

    async def block() -> None:
        blocking_code_of_the_package()

    def run() -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(block())

    await asyncio.to_thread(run)


def test_code_outside_a_loop_may_block() -> None:
    """Without a running loop there is nothing to block."""
    blocking_code_of_the_package()
