"""Runs the Python blocks of a page, in order and in one namespace, as a reader would paste them.

A block may await at its top level. What the blocks print is compared with the comments that begin with ``# ->``.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
from dataclasses import dataclass
from pathlib import Path

from structlog.testing import capture_logs

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROMISED = re.compile(r"# -> (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, its line in the page."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [Block(found[1], found[2], text.count("\n", 0, found.start()) + 1) for found in FENCE.finditer(text)]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def run_page(page: Path, folder: Path) -> tuple[list[str], list[str]]:
    """Run a page's Python blocks in a folder; return what was printed and what the page says is printed."""
    names: dict[str, object] = {"__name__": "page"}
    out = io.StringIO()
    found = [block for block in blocks(page) if block.language == "python"]
    before = Path.cwd()
    os.chdir(folder)
    try:
        with asyncio.Runner() as runner, contextlib.redirect_stdout(out), capture_logs():
            for block in found:
                code = compile(
                    "\n" * block.line + block.text, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
                )
                result = eval(code, names)
                if inspect.iscoroutine(result):
                    runner.run(result)
    finally:
        os.chdir(before)
    return out.getvalue().splitlines(), [line for block in found for line in PROMISED.findall(block.text)]
