"""One concept a file, one thought a function (DESIGN 3)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from .tree import ROOT, package_files, parsed, relative

FILE_LINES = 500
FUNCTION_LINES = 60
OUTSIDE = ("tests", "bench", "examples")

# "path:function" -> why it is longer
LONGER: dict[str, str] = {}


def code_files() -> list[Path]:
    inside = [path for path in package_files() if path.suffix in {".py", ".lua", ".sql"}]
    return inside + sorted(path for name in OUTSIDE for path in (ROOT / name).rglob("*.py"))


def functions(path: Path) -> dict[str, int]:
    return {
        f"{relative(path)}:{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize("path", code_files(), ids=relative)
def test_sizes(path: Path) -> None:
    """No file is over 500 lines, no function over 60 without a listed reason."""
    lines = len(path.read_text().splitlines())

    assert lines <= FILE_LINES, f"{relative(path)} has {lines} lines: look for a seam"
    if path.suffix == ".py":
        assert {name: size for name, size in functions(path).items() if size > FUNCTION_LINES}.keys() <= LONGER.keys()


def test_no_reason_outlives_its_function() -> None:
    """A listed function still is longer than the limit."""
    sizes = {name: size for path in code_files() if path.suffix == ".py" for name, size in functions(path).items()}

    assert [name for name in LONGER if sizes.get(name, 0) <= FUNCTION_LINES] == []
