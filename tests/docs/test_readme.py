"""The pages are true: their programs run and print what they say, their commands exist, their links lead on."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest

import turnhold
from turnhold import models, testing
from turnhold.console.cli import parse
from turnhold.protocols import mcp

from .pages import PAGES, ROOT, Block, blocks, name_of, run_page

if TYPE_CHECKING:
    from pathlib import Path

LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]*))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
NAME = re.compile(r"`([A-Za-z_]\w*)`")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_programs_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """They run in an empty folder, one behind the other, and print what their comments say."""
    printed, promised = run_page(page, tmp_path)

    assert printed == promised


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    """A relative link names a file of the repository, and a heading that this has."""
    links = [(found[1], found[2]) for found in LINK.finditer(page.read_text()) if "://" not in found[1]]

    assert [link for link, _ in links if not (page.parent / link).exists()] == []
    assert [(link, part) for link, part in links if part and part not in anchors(page.parent / link if link else page)] == []


def anchors(page: Path) -> set[str]:
    """Return what GitHub calls the headings of a page."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(page.read_text())}


def test_every_public_name_is_told_of() -> None:
    """The index of names has all of them, and none that is not there."""
    public = {name for module in (turnhold, turnhold.compressors, models, testing, mcp) for name in module.__all__}
    rows = [line.split("|")[1:4] for line in (ROOT / "docs/names.md").read_text().splitlines() if line.startswith("| ")]
    told = [name for row in rows for cell in row for name in NAME.findall(cell)]

    assert sorted(public - set(told)) == []
    assert sorted({name for row in rows for name in NAME.findall(row[0])} - public) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_commands_of_a_page_are_commands(page: Path) -> None:
    """What a page shows of the command line is understood by it."""
    lines = [line for block in blocks(page) if block.language == "sh" for line in block.text.splitlines()]

    for line in lines:
        if line.startswith("turnhold "):
            parse(shlex.split(line, comments=True)[1:])


def test_the_two_set_up_commands() -> None:
    """README has exactly two, each alone in its block, a single line that needs only Python and pip."""
    found = [block for block in blocks(ROOT / "README.md") if "-m venv" in block.text]

    assert [block.text for block in found] == [
        "python3 -m venv .venv && .venv/bin/pip install -q . && .venv/bin/turnhold demo\n",
        "python3 -m venv .venv && .venv/bin/pip install -q '.[test]' && .venv/bin/pytest -n 2\n",
    ]


def test_the_extractor_itself(tmp_path: Path) -> None:
    """Languages, lines and promises are found; a block sees the names of those before it, and may await."""
    page = tmp_path / "page.md"
    program = "import asyncio\nawait asyncio.sleep(0)\nprint(x)  # -> 1\n"
    page.write_text(f"# A\n\n```sh\nls\n```\n\n```python\nx = 1\n```\ntext\n```python\n{program}```\n")

    assert blocks(page)[0] == Block("sh", "ls\n", 3)
    assert [block.line for block in blocks(page)] == [3, 7, 11]
    assert run_page(page, tmp_path) == (["1"], ["1"])
