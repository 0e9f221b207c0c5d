"""What is shipped: the package list equals the tree, and the wheel runs on its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from .tree import FLOORS, ROOT, ROOT_MODULES, package_files, pyproject, relative

BUILD_FILES = ("pyproject.toml", "README.md", "LICENSE")


class Installed(NamedTuple):
    """A wheel, and an environment that has it and nothing else of ours."""

    wheel: Path
    folder: Path

    def run(self, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        program, *arguments = command
        path = self.folder / ("Scripts" if sys.platform == "win32" else "bin") / program
        return subprocess.run([path, *arguments], cwd=cwd, capture_output=True, text=True, timeout=60)


def run(*command: str | Path, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build the wheel from a copy of the tree and install it without any download."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for path in package_files() + [ROOT / name for name in BUILD_FILES if (ROOT / name).exists()]:
        target = source / relative(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    build = ("-m", "build", "--wheel", "--no-isolation", "--skip-dependency-check", "--outdir", folder)
    run(sys.executable, *build, cwd=source)
    (wheel,) = folder.glob("turnhold-*.whl")

    environment = tmp_path_factory.mktemp("environment") / "env"
    run(sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", environment)
    python = environment / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index", "--no-deps", wheel)
    # "System" means the base interpreter; the dependencies are here, behind the wheel's own folder.
    site = next(environment.rglob("site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Installed(wheel, environment)


def test_packages_equal_the_tree() -> None:
    """Each folder of modules is a listed package with an `__init__.py`."""
    folders = {path.parent for path in package_files() if path.suffix == ".py"}
    listed = pyproject()["tool"]["setuptools"]["packages"]

    assert listed == sorted(listed)
    assert set(listed) == {".".join(("turnhold", *folder.relative_to(ROOT).parts)) for folder in folders}
    assert [relative(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_package_data_equals_the_tree() -> None:
    """Each file that is no module is named by a pattern, and each pattern that has a folder names a file."""
    patterns = pyproject()["tool"]["setuptools"]["package-data"]["turnhold"]
    named = {path for pattern in patterns for path in ROOT.glob(pattern)}
    data = {path for path in package_files() if path.suffix != ".py"}

    assert sorted(map(relative, data - named)) == []
    for pattern in patterns:
        folder = (ROOT / pattern).parent
        assert not any(folder.glob("*")) or any(ROOT.glob(pattern)), pattern


def test_no_folder_outside_the_house_is_a_package() -> None:
    """tests, bench, examples and docs have no `__init__.py`: the root would swallow them."""
    outside = [path for path in ROOT.glob("*/**/__init__.py") if not path.relative_to(ROOT).parts[0].startswith(".")]

    assert [relative(path) for path in outside if path.relative_to(ROOT).parts[0] not in (*FLOORS, "build")] == []
    assert not (ROOT / "conftest.py").exists()


@pytest.mark.process
def test_the_wheel_holds_the_package_and_nothing_else(installed: Installed) -> None:
    """Every file of the package is in the wheel; tests, bench and the rest are not."""
    names = {name for name in zipfile.ZipFile(installed.wheel).namelist() if ".dist-info/" not in name}

    assert names == {f"turnhold/{relative(path)}" for path in package_files()}


@pytest.mark.process
def test_the_wheel_runs_from_an_empty_folder(installed: Installed, tmp_path: Path) -> None:
    """`import turnhold` finds the wheel, all of its packages, and its typing mark."""
    floors = ", ".join(f"turnhold.{floor}" for floor in FLOORS)
    program = f"import turnhold, {floors}; from importlib.resources import files; print(files(turnhold) / 'py.typed')"

    done = installed.run("python", "-W", "error", "-c", program, cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert Path(done.stdout.strip()).is_relative_to(installed.folder)
    assert Path(done.stdout.strip()).exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
@pytest.mark.skipif(not (ROOT / "console/cli.py").exists(), reason="console/cli.py is not built yet")
@pytest.mark.parametrize("command", [("turnhold", "--help"), ("turnhold", "demo", "--help")], ids=" ".join)
def test_the_command_line_of_the_wheel_runs(installed: Installed, tmp_path: Path, command: tuple[str, ...]) -> None:
    """The console script starts without the extras' help."""
    done = installed.run(*command, cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert "turnhold" in done.stdout


def test_the_root_modules_are_known() -> None:
    """The face, and a door for `python -m` if there is one."""
    assert {path.name for path in ROOT.glob("*.py")} <= set(ROOT_MODULES)
