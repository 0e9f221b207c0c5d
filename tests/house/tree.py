"""Reads the repository as text: its packages, its files, its imports. Nothing here imports turnhold."""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
FLOORS = ("actors", "console", "models", "protocols", "runtime", "store", "testing")
ROOT_MODULES = ("__init__.py", "__main__.py")


@cache
def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def package_files() -> list[Path]:
    """Every file below the package's folders and the root's own modules, caches left out."""
    found = [ROOT / name for name in (*ROOT_MODULES, "py.typed") if (ROOT / name).exists()]
    for floor in FLOORS:
        found += [path for path in (ROOT / floor).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return sorted(found)


def package_modules() -> list[Path]:
    return [path for path in package_files() if path.suffix == ".py"]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def floor_of(path: Path) -> str:
    """The package a module belongs to; `""` for the face."""
    parts = path.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else ""


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@dataclass(frozen=True)
class Import:
    """One imported module as its importer wrote it."""

    path: Path
    line: int
    target: str  # dotted; a relative one is resolved to `turnhold.…`
    written_relative: bool
    lazy: bool  # inside a function, or only for type checkers

    @property
    def top(self) -> str:
        return self.target.split(".", 1)[0]

    @property
    def floor(self) -> str:
        return (*self.target.split("."), "")[1]

    def __str__(self) -> str:
        return f"{relative(self.path)}:{self.line} imports {self.target}"


def imports(path: Path) -> Iterator[Import]:
    yield from _imports(path, parsed(path), lazy=False)


def _imports(path: Path, node: ast.AST, *, lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(path, child.lineno, alias.name, written_relative=False, lazy=lazy)
        elif isinstance(child, ast.ImportFrom):
            for target in _targets(path, child):
                yield Import(path, child.lineno, target, written_relative=child.level > 0, lazy=lazy)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            yield from _imports(path, child, lazy=True)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _imports(path, child, lazy=lazy or inside)


def _targets(path: Path, node: ast.ImportFrom) -> list[str]:
    if node.level == 0:
        return [node.module or ""]
    package = ("turnhold", *path.relative_to(ROOT).parent.parts)
    base = package[: len(package) - node.level + 1]
    if node.module:
        return [".".join((*base, node.module))]
    return [".".join((*base, alias.name)) if _is_module(base, alias.name) else ".".join(base) for alias in node.names]


def _is_module(base: tuple[str, ...], name: str) -> bool:
    place = ROOT.joinpath(*base[1:], name)
    return place.is_dir() or place.with_suffix(".py").exists()
