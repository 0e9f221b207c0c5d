"""Who may import whom: DESIGN 3."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .tree import FLOORS, Import, floor_of, imports, package_modules, relative

# floor -> the floors it may import; "" is the face
ARROWS: dict[str, set[str]] = {
    "": {"actors", "store", "runtime"},
    "actors": {"actors"},
    "store": {"store", "actors"},
    "models": {"models", "actors"},
    "runtime": {"runtime", "store", "models", "actors"},
    "protocols": {"protocols", "runtime", "actors"},
    "console": {"", *FLOORS} - {"testing"},
    "testing": {"", *FLOORS} - {"console"},
}
# `python -m turnhold` is a door into the console, not part of the face
ARROWS_OF_MODULES: dict[str, set[str]] = {"__main__.py": {"console"}}

# floor -> foreign packages it may import anywhere
FOREIGN: dict[str, set[str]] = {
    "": set(),
    "actors": {"jsonschema", "msgspec", "referencing", "regex"},
    "store": {"anyio", "msgspec", "hiredis", "redis", "structlog"},
    "models": {"anyio", "msgspec", "structlog"},
    "runtime": {"anyio", "msgspec", "structlog"},
    "protocols": {"anyio", "msgspec", "structlog"},
    "console": {"anyio", "msgspec", "structlog"},
    "testing": {"anyio", "hypothesis", "msgspec", "pytest", "structlog"},
}
# floor -> extras it may import inside a function or for type checkers only
LAZY: dict[str, set[str]] = {
    # the schema hook of the records, when Pydantic asks; defaults of type variables, which `typing` has from 3.13 on
    "actors": {"pydantic_core", "typing_extensions"},
    "models": {"anthropic", "openai"},
    "protocols": {"httpx2", "mcp", "pydantic", "starlette", "uvicorn"},
}

# The ground floor is pure: no I/O, no clock, no randomness, no asyncio, no threads.
IMPURE = {
    *("asyncio", "concurrent", "multiprocessing", "sched", "select", "selectors", "signal", "subprocess", "threading"),
    *("glob", "io", "os", "pathlib", "shutil", "socket", "sqlite3", "ssl", "tempfile", "urllib", "http"),
    *("random", "secrets", "time", "uuid"),
}


def faults(path: Path) -> list[str]:
    return [f"{found}: {why}" for found in imports(path) if (why := fault(found))]


def fault(found: Import) -> str | None:
    floor = floor_of(found.path)
    if found.top == "turnhold":
        if not found.written_relative:
            return "inside the package import relatively"
        allowed = ARROWS_OF_MODULES.get(relative(found.path), ARROWS[floor])
        return None if found.floor in allowed else f"no arrow from {floor or 'the face'} to {found.floor or 'the face'}"
    if found.top in FLOORS:
        return "the package imported under another name"
    if found.top in sys.stdlib_module_names:
        return "not pure" if floor == "actors" and found.top in IMPURE else None
    if found.top in FOREIGN[floor] or (found.lazy and found.top in LAZY.get(floor, ())):
        return None
    return f"{floor or 'the face'} may not import {found.top}" + ("" if found.lazy else " (here)")


@pytest.mark.parametrize("path", package_modules(), ids=relative)
def test_imports_follow_the_arrows(path: Path) -> None:
    """Every import of a module is one that its floor may make."""
    assert faults(path) == []


@pytest.mark.parametrize(
    ("place", "source", "why"),
    [
        ("actors/x.py", "from ..store import base", "no arrow"),
        ("actors/x.py", "import time", "not pure"),
        ("actors/x.py", "def f():\n    from asyncio import sleep", "not pure"),
        ("actors/machine/x.py", "from ...runtime.actor import Actor", "no arrow"),
        ("actors/x.py", "import redis", "may not import"),
        ("actors/x.py", "import pydantic_core", "may not import"),
        ("store/x.py", "from .. import Runtime", "no arrow from store to the face"),
        ("store/x.py", "from turnhold.actors import turn", "relatively"),
        ("store/x.py", "from actors import turn", "another name"),
        ("models/x.py", "from ..runtime import world", "no arrow"),
        ("models/x.py", "import openai", "may not import"),
        ("runtime/x.py", "from .. import testing", "no arrow"),
        ("actors/x.py", "from .turn import Turn\nfrom .machine import calls\nimport datetime, msgspec", None),
        ("models/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import openai", None),
        ("runtime/x.py", "import asyncio\nfrom ..store import base\nfrom ..actors.turn import Turn", None),
        ("testing/x.py", "from .. import Runtime\nimport hypothesis", None),
    ],
)
def test_the_walk_finds_what_it_should(
    place: str, source: str, why: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checker itself: one wrong import is one fault, right ones are none."""
    for floor in (*FLOORS, "actors/machine"):
        (tmp_path / floor).mkdir(exist_ok=True)
    path = tmp_path / place
    path.write_text(source)
    monkeypatch.setattr(sys.modules[floor_of.__module__], "ROOT", tmp_path)

    found = faults(path)

    assert len(found) == (why is not None)
    assert why is None or why in found[0]
