"""One seam: time, ids, randomness, task starts and threads go through runtime/world.py (DESIGN 3)."""

from __future__ import annotations

import ast
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .tree import package_modules, parsed, relative

if TYPE_CHECKING:
    from collections.abc import Iterator

# dotted names, after import aliases have been resolved; a name stands for all below it too
FORBIDDEN = {
    *("time", "uuid", "random", "secrets", "os.urandom", "sched"),
    *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"),
    *("asyncio.sleep", "asyncio.timeout", "asyncio.timeout_at", "asyncio.wait_for"),
    *("asyncio.create_task", "asyncio.ensure_future", "asyncio.gather", "asyncio.as_completed", "asyncio.TaskGroup"),
    *("asyncio.to_thread", "asyncio.run_coroutine_threadsafe", "threading.Thread", "threading.Timer"),
    *("concurrent.futures", "_thread"),
    *("anyio.sleep", "anyio.sleep_until", "anyio.sleep_forever", "anyio.current_time", "anyio.to_thread"),
    *("anyio.create_task_group", "anyio.fail_after", "anyio.move_on_after"),
}
# methods, on whatever object, unless that object is called `world`
FORBIDDEN_METHODS = {"call_at", "call_later", "create_task", "run_in_executor", "to_thread"}

# path pattern -> names it may use, with the reason
ALLOWED: dict[str, tuple[set[str], str]] = {
    "runtime/world.py": ({"*"}, "this is the seam"),
    "runtime/timeouts.py": ({"….call_at", "loop.time"}, "it is how the seam sets what nearly never comes to pass"),
    "models/clients.py": ({"anyio.to_thread"}, "opening the package's client reads files, which may not block the loop"),
    "store/sqlite*.py": ({"threading", "concurrent.futures"}, "the store owns its writer thread"),
    "store/redis_link.py": (
        {"….create_task", "….call_at", "loop.time", "asyncio.timeout"},
        "a lane owns the task that opens its connection, and no connection may hang",
    ),
    "store/redis_servers.py": (
        {"loop.time", "asyncio.sleep", "random.Random"},
        "a server's time is real: a question is repeated, after a pause, until its time is over",
    ),
    "store/redis_ear.py": ({"….create_task", "asyncio.sleep", "asyncio.timeout"}, "an ear owns the task that listens"),
    "store/redis_bells.py": (
        {"….create_task", "….call_later", "loop.time", "asyncio.timeout"},
        "bells own the tasks that show live events",
    ),
    "store/redis_connection.py": ({"loop.time", "secrets"}, "it estimates the server's time between two answers, and names itself"),
    "protocols/mcp/*.py": (
        {"….create_task", "asyncio.sleep", "asyncio.timeout", "anyio.to_thread"},
        "a connection owns the task that serves it; a server's time is real, and so are pauses before the next try",
    ),
    "testing/clock.py": ({"….call_later", "random.Random"}, "it is what a World asks for timers"),
    "testing/loop.py": ({"….call_later", "….run_in_executor"}, "a loop of virtual time counts threads under way"),
    "testing/*.py": ({"random.Random"}, "seeded randomness is what a seed drives"),
}


def uses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and name of each forbidden use."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.split(".")[0]] = alias.name if alias.asname else alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                if is_forbidden(names[alias.asname or alias.name]):
                    yield node.lineno, names[alias.asname or alias.name]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if (name := dotted(node, names)) and is_forbidden(name):
                yield node.lineno, name
            elif node.attr in FORBIDDEN_METHODS and last_name(node.value) != "world":
                yield node.lineno, f"….{node.attr}"
            elif node.attr == "time" and last_name(node.value) in {"loop", "get_running_loop", "get_event_loop"}:
                yield node.lineno, "loop.time"


def is_forbidden(name: str) -> bool:
    return any(name == entry or name.startswith(f"{entry}.") for entry in FORBIDDEN)


def dotted(node: ast.expr, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and (base := dotted(node.value, names)):
        return f"{base}.{node.attr}"
    return None


def last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr.lstrip("_")
    return node.id.lstrip("_") if isinstance(node, ast.Name) else ""


def may_use(place: str, name: str) -> bool:
    for pattern, (allowed, _reason) in ALLOWED.items():
        if fnmatch(place, pattern):
            return any(entry in {"*", name} or name.startswith(f"{entry}.") for entry in allowed)
    return False


def faults(place: str, tree: ast.Module) -> list[str]:
    found = sorted(set(uses(tree)))
    return [f"{place}:{line} uses {name}: ask the World" for line, name in found if not may_use(place, name)]


@pytest.mark.parametrize("path", package_modules(), ids=relative)
def test_the_world_is_the_only_seam(path: Path) -> None:
    """No module but the World reads a clock, makes an id, sleeps, starts a task or a thread."""
    assert faults(relative(path), parsed(path)) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.monotonic()",
        "import time as clock\nclock.time()",
        "from time import monotonic_ns",
        "from uuid import uuid4 as new",
        "import random\nrandom.random()",
        "import os\nos.urandom(8)",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import datetime\ndatetime.now()",
        "import asyncio\nasync def f(): await asyncio.sleep(1)",
        "from asyncio import timeout",
        "import asyncio\nasyncio.get_running_loop().run_in_executor(None, print)",
        "import asyncio\nasyncio.get_running_loop().time()",
        "def f(group): group.create_task(g())",
        "import concurrent.futures\nconcurrent.futures.ThreadPoolExecutor()",
        "from concurrent.futures import ThreadPoolExecutor",
    ],
)
def test_each_way_around_the_world_is_found(source: str) -> None:
    """The checker itself: aliases and from-imports do not hide a use."""
    assert faults("runtime/actor.py", ast.parse(source)) != []


def test_what_is_no_way_around() -> None:
    """Calls of the World, types, and the listed places are fine."""
    source = "import asyncio\nfrom datetime import datetime, UTC\nasync def f(self): await self._world.sleep(1)\n"
    source += "def g(world, q: asyncio.Queue): world.create_task(h()); datetime.fromtimestamp(0, UTC)\n"
    thread = ast.parse("import threading\nthreading.Thread(target=print)")

    assert faults("runtime/actor.py", ast.parse(source)) == []
    assert faults("store/sqlite_writer.py", thread) == []
    assert faults("store/redis.py", thread) != []
    assert faults("runtime/world.py", ast.parse("import time, asyncio\ntime.time(); asyncio.sleep(1)")) == []
