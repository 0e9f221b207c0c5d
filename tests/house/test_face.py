"""What users see: the public names, and what importing them costs."""

from __future__ import annotations

import importlib
import pkgutil
import pydoc
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import turnhold

from .tree import FLOORS, ROOT, ROOT_MODULES

EXTRAS = ("anthropic", "fastapi", "httpx", "hypothesis", "mcp", "openai", "pydantic", "pytest", "uvicorn")
READY = {"msgspec", "turnhold", "typing_extensions"}  # the last one is msgspec's


@pytest.mark.parametrize("name", ["turnhold", "turnhold.models", "turnhold.testing"])
def test_all_is_sorted_and_complete(name: str) -> None:
    """`__all__` is sorted, every name in it exists, and every public name is in it."""
    module = importlib.import_module(name)
    public = sorted(getattr(module, "__all__", []))
    visible = {key for key, value in vars(module).items() if not key.startswith("_") and not is_incidental(value)}

    assert list(getattr(module, "__all__", [])) == public
    assert [key for key in public if not hasattr(module, key)] == []
    assert visible <= set(public)


@pytest.mark.parametrize("name", ["turnhold", "turnhold.models", "turnhold.testing"])
def test_help_can_be_had_for_every_name(name: str) -> None:
    """`help` reads signatures and hints, so those must resolve."""
    module = importlib.import_module(name)

    for key in module.__all__:
        assert pydoc.render_doc(getattr(module, key))


def is_incidental(value: object) -> bool:
    """Modules and `annotations` of `from __future__` are no names of ours."""
    return isinstance(value, ModuleType) or type(value).__name__ == "_Feature"


@pytest.mark.process
@pytest.mark.parametrize("name", ["turnhold", "turnhold.models", "turnhold.testing"])
def test_importing_the_face_imports_no_extra(name: str, tmp_path: Path) -> None:
    """What belongs to an extra is imported when it is used, not before."""
    program = f"import sys, {name}; print(sorted(set({EXTRAS!r}) & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)

    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.process
@pytest.mark.parametrize("door", ["import turnhold", "from turnhold.console.cli import main; main(['--help'])"])
def test_a_start_pays_for_no_library_that_it_does_not_use(door: str, tmp_path: Path) -> None:
    """Beside Python's own modules the face, and the help, load msgspec alone; databases, schemas and logs come with their use."""
    foreign = "{name.split('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names"
    program = f"import sys; before = set(sys.modules); {door}\nprint(*sorted({foreign}), 'sqlite3' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)

    *found, databases = done.stdout.splitlines()[-1].split()
    assert set(found) <= READY
    assert (databases, done.stderr) == ("False", "")


def test_no_module_was_loaded_under_another_name() -> None:
    """The root is the package, so a careless path would load its modules twice; each file has one module."""
    for found in pkgutil.walk_packages(turnhold.__path__, "turnhold."):
        if found.name.split(".")[1] in FLOORS:
            importlib.import_module(found.name)
    homes = {ROOT, Path(turnhold.__path__[0]).resolve()}
    folders = {home / floor for home in homes for floor in FLOORS}
    ours: dict[Path, str] = {}

    for name, module in list(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or "/").resolve()
        if not folders.isdisjoint(path.parents) or (path.parent in homes and path.name in ROOT_MODULES):
            assert name.split(".")[0] == "turnhold", f"{path} was loaded as {name}"
            assert ours.setdefault(path, name) == name, f"{path} was loaded twice"
    assert "turnhold" in ours.values()
