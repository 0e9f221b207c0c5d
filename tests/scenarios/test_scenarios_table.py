"""SCENARIOS.md says what is told where, and what is owed; it stays true."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
ROW = re.compile(r"^\| ([A-RT])(\d+)(?: to [A-RT](\d+))? \| (.+) \|$", re.MULTILINE)
NUMBER = re.compile(r"\b([A-RT])(\d{2,3})\b")


def rows() -> list[tuple[str, str]]:
    """Every number of the tables with what its row says."""
    text = (TESTS / "SCENARIOS.md").read_text()
    return [
        (f"{letter}{number:02}", where)
        for letter, first, last, where in ROW.findall(text)
        for number in range(int(first), int(last or first) + 1)
    ]


def claimed() -> set[tuple[str, str]]:
    """What the docstrings of the tests here claim to tell."""
    found: set[tuple[str, str]] = set()
    for path in sorted((TESTS / "scenarios").glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                text = ast.get_docstring(node) or ""
                found |= {(letter + number, f"scenarios/{path.name}") for letter, number in NUMBER.findall(text)}
    return found


def test_every_number_once() -> None:
    """Each scenario and each probe has one row, and no case of other systems has two."""
    numbers = [name for name, _ in rows()]

    assert len(numbers) == len(set(numbers))
    assert sorted(int(name[1:]) for name in numbers if name[0] not in "RT") == list(range(1, 340))
    assert sorted(name for name in numbers if name[0] == "R") == [f"R{number:02}" for number in range(1, 35)]


def test_rows_name_what_exists() -> None:
    """A row names test files that exist, an issue that owes it, or why it does not apply."""
    for name, where in rows():
        files = re.findall(r"`([^`]+\.py)`", where)
        assert files or where.startswith(("issue", "does not apply")), name
        assert all((TESTS / path).is_file() for path in files), name


def test_claims_are_listed() -> None:
    """A number in a docstring is in the row of that number, and no row names a test file here that does not claim it."""
    table = dict(rows())

    assert {(name, path) for name, path in claimed() if path not in table.get(name, "")} == set()
    named = {(name, path) for name, where in table.items() for path in re.findall(r"`(scenarios/test_\w+\.py)`", where)}
    assert {(name, path) for name, path in named - claimed() if "does not apply" not in table[name]} == set()


def test_every_scenario_says_what_it_tells() -> None:
    """Every test here has a docstring of one line."""
    for path in sorted((TESTS / "scenarios").glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                text = ast.get_docstring(node)
                assert text, f"{path.name}: {node.name}"
                assert "\n" not in text, f"{path.name}: {node.name}"
